"""Artifacts: directories that training writes and the service verifies before it uses them."""

from __future__ import annotations

import hashlib
import math
from calendar import month_name
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field, ValidationError, model_validator
from tokenizers import Tokenizer

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.core.errors import ArtifactError, PolicyError, SwitchcraftError
from router_service.core.values import Strict
from router_service.policies.base import Policy
from router_service.policies.costs import ArmProfile, Price
from router_service.policies.registry import (
    DEFAULT,
    NamedPolicy,
    choose_once,
    choosing_name,
    parse_policy,
)
from router_service.policies.verified import VERIFIED, Verified, is_verified
from router_service.predictor.familiarity import FamiliaritySpec
from router_service.predictor.model import IDENTITY, Calibration, Probability
from router_service.predictor.packing import PackingSpec
from router_service.verifier.graphs import VerifierSpec

ARTIFACTS = Path(__file__).parent / "artifacts"
"""Folder of the artifacts that the package ships."""
SHIPPED = ARTIFACTS / "frontier-2025-12"
"""The shipped artifact that the service runs with by default."""

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
CANARIES = "canary.jsonl"
LEARNED = "learned.bin"
LEARNED_TOOLS = "learned-tools.bin"
"""Digests of the queries that the artifact has learned from; older artifacts lack this file."""
LABELS = "labels.npz"
"""Which recorded models answered the measured queries correctly; older artifacts lack it."""

Month = Annotated[str, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]
Interval = tuple[float, float]
"""Lower and upper end of a 95% interval."""
Predict = Callable[[Sequence[Conversation]], Sequence[Sequence[float]]]

NO_VERIFIER = (
    "the artifact has no verifier; add one from recorded answers with `switchcraft-train "
    "add-verifier`, or use another policy"
)
"""Problem with the policy `verified` if the artifact cannot verify answers."""


class Measure(Strict):
    """A measured number with its standard error and its number of queries."""

    value: float
    stderr: float
    n: int = Field(ge=1)


class VersusBest(Strict):
    """Comparison with the best single model on the same queries.

    `difference` is the accuracy minus that of the best single model. `cost_share` is the cost
    divided by that of the best single model, or None if that model costs nothing.
    """

    difference: float
    difference_interval: Interval
    cost_share: float | None = None
    cost_share_interval: Interval | None = None


class FrontierPoint(Strict):
    """Accuracy and cost (USD per query) of a policy on held-out queries.

    Intervals come from resampled queries, and may be missing.
    """

    policy: str
    accuracy: Measure
    cost_usd: Measure
    accuracy_interval: Interval | None = None
    cost_usd_interval: Interval | None = None
    versus_best: VersusBest | None = None


class Encoder(Strict):
    """Name and size of the encoder that the router was fine-tuned from."""

    name: str
    parameters: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    layers: int = Field(ge=1)


class Provenance(Strict):
    """Origin of an artifact: everything needed to reproduce it."""

    created: str
    commit: str
    config: str = Field(description="The training configuration, as YAML.")
    seed: int
    data_sha256: str = Field(description="Hash over all data files, in order of path.")
    versions: Mapping[str, str]


class Onboarding(Strict):
    """How an arm joined the artifact without retraining, and how uncertain its values are."""

    answers: int = Field(
        ge=0,
        description="Answers of the arm that its values were learned from; 0 if they are assumed.",
    )
    models: int = Field(ge=1, description="Recorded models that it was compared with.")
    accuracy: Measure = Field(description="Estimated share of correct answers to all `n` queries.")
    probability_stderr: float = Field(
        ge=0, description="Mean standard error of the probabilities that its predictor learned."
    )


class Knowledge(Strict):
    """What an artifact's figures were measured on, and when."""

    benchmark: str = Field(description="The queries, such as `BFCL v4, single-turn`.")
    answers: Month = Field(description="Month of the models' answers, `YYYY-MM`.")
    prices: Month = Field(description="Month of the list prices, `YYYY-MM`.")

    def __str__(self) -> str:
        """Return a sentence for people."""
        months = (each.split("-") for each in (self.answers, self.prices))
        answers, prices = (f"{month_name[int(month)]} {year}" for year, month in months)
        of = f"answers and list prices of {answers}"
        if answers != prices:
            of = f"answers of {answers}, list prices of {prices}"
        return f"Measured on {self.benchmark}; {of}."


class Manifest(Strict):
    """Description of an artifact: everything that affects the model's input or output."""

    schema_version: int
    name: str
    arms: tuple[str, ...] = Field(min_length=1)
    stands_for: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Model ids of each arm, as providers and LiteLLM write them.",
    )
    knowledge: Knowledge | None = None
    encoder: Encoder
    packing: PackingSpec
    policies: Mapping[str, str] = Field(
        description="Rules by name; `default` is one of them. If it verifies answers, `fast` is"
        " another one, which chooses once."
    )
    policy_goals: Mapping[str, str] = Field(
        default_factory=dict,
        description="Goals by which policies are chosen among the measured rules, by name.",
    )
    profile: Mapping[str, ArmProfile]
    calibration: Calibration = Field(
        default=IDENTITY, description="Map from the graph's output to probabilities."
    )
    frontier: tuple[FrontierPoint, ...] = ()
    metrics: Mapping[str, Measure] = Field(default_factory=dict)
    estimated_arms: tuple[str, ...] = Field(
        default=(),
        description="Arms that joined without retraining: the frontier and the metrics are computed"
        " from estimates of most of their answers.",
    )
    provenance: Provenance
    models: Mapping[str, str] = Field(description="Graph file by device: `cpu`, `cuda`.")
    verifier: VerifierSpec | None = Field(
        default=None, description="Needed for the policy `verified`, which judges answers."
    )
    verified_frontier: tuple[FrontierPoint, ...] = Field(
        default=(), description="Accuracy and cost of the policy `verified` at several prices."
    )
    named_frontier: tuple[FrontierPoint, ...] = Field(
        default=(),
        description="The same prices with the verifier's floor, as goals and policies with a name"
        " apply them.",
    )
    familiarity: FamiliaritySpec | None = Field(
        default=None, description="Tells which requests are unlike the training queries."
    )
    onboarded: Mapping[str, Onboarding] = Field(
        default_factory=dict, description="Arms that joined without retraining, by name."
    )
    canary_tolerance: Probability = Field(
        default=0.02,
        description="Largest difference of a canary request's probability from the one that the"
        " same graph had when it was exported, on other hardware.",
    )
    files: Mapping[str, str] = Field(description="SHA-256 of every other file, by name.")

    @model_validator(mode="after")
    def _check_consistent(self) -> Manifest:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"schema version {self.schema_version} is not supported, only {SCHEMA_VERSION}"
            )
        if len(set(self.arms)) != len(self.arms):
            raise ValueError("`arms` lists an arm twice")
        if set(self.profile) != set(self.arms):
            raise ValueError("`profile` must have the same arms as `arms`")
        if self.calibration.arms not in {None, len(self.arms)}:
            raise ValueError(
                f"the calibration has {self.calibration.arms} arms, but the artifact has "
                f"{len(self.arms)}"
            )
        for field, names in (
            ("onboarded", self.onboarded),
            ("stands_for", self.stands_for),
            ("estimated_arms", self.estimated_arms),
        ):
            if unknown := set(names) - set(self.arms):
                raise ValueError(f"`{field}` names {sorted(unknown)}, which `arms` lacks")
        ids = [name for names in self.stands_for.values() for name in names]
        if len(set(ids)) != len(ids):
            raise ValueError("`stands_for` lists a model id for two arms")
        graphs = {*self.models.values()}
        if self.verifier is not None:
            graphs |= self.verifier.files
            if len(self.verifier.reliabilities) != len(self.arms):
                raise ValueError("`verifier.reliabilities` must have a value for each arm")
        missing = {*graphs, TOKENIZER, CANARIES} - set(self.files)
        if missing:
            raise ValueError(f"`files` has no hash for {sorted(missing)}")
        return self

    @model_validator(mode="after")
    def _check_familiarity(self) -> Manifest:
        if self.familiarity is not None:
            compared = {name for size in self.familiarity.sizes for name in size}
            if unread := compared - set(self.packing.features):
                raise ValueError(f"`familiarity` reads {sorted(unread)}, which `packing` lacks")
            if unrated := set(self.arms) - set(self.base_rates):
                raise ValueError(f"`familiarity.base_rates` lacks {sorted(unrated)}")
        return self

    @model_validator(mode="after")
    def _check_policies(self) -> Manifest:
        try:
            choosing_name(self.policies)
            for rule in self.policies.values():
                # Training adds the verifier, which has the price, after the policies.
                if rule != VERIFIED:
                    parse_policy(rule)
        except SwitchcraftError as exc:
            raise ValueError(str(exc)) from exc
        unknown = set(self.policy_goals) - set(self.policies)
        if unknown:
            raise ValueError(f"`policy_goals` names {sorted(unknown)}, which `policies` lacks")
        return self

    def policy(self, rule: str, *, param: str = "model") -> Policy | Verified:
        """Return the policy of a rule; `verified` alone has the price of the verifier.

        Raises PolicyError, which names `param` as the request's field.
        """
        if is_verified(rule) and self.verifier is None:
            raise PolicyError(rule, NO_VERIFIER, param=param)
        if rule == VERIFIED and self.verifier is not None:
            return Verified(self.verifier.price_usd)
        return parse_policy(rule, param=param)

    def measured_policy(self, rule: str, *, param: str = "policy") -> Policy | Verified:
        """Return the policy of a rule as it was measured: the rule of a name has the floor.

        Raises PolicyError, which names `param` as the request's field.
        """
        policy = self.policy(rule, param=param)
        return self.with_floor(policy) if str(policy) in self.named_rules.values() else policy

    def with_floor(self, policy: Policy | Verified) -> Policy | Verified:
        """Return a policy with the verifier's floor, if it verifies answers."""
        if isinstance(policy, Verified) and self.verifier is not None:
            return replace(policy, floor=self.verifier.floor)
        return policy

    @property
    def fixed_prices_usd(self) -> tuple[float, ...]:
        """The prices of `verified` and of policies whose rule is no result of a goal, rising."""
        fixed = (
            VERIFIED,
            *(r for name, r in self.policies.items() if name not in self.policy_goals),
        )
        policies = (self.policy(rule) for rule in fixed if self.verifier is not None)
        return tuple(sorted({each.price_usd for each in policies if isinstance(each, Verified)}))

    @property
    def named_rules(self) -> dict[str, str]:
        """The rule of each policy by name, with prices; `verified` is one of them if it can be."""
        rules = {name: str(self.policy(rule)) for name, rule in self.policies.items()}
        return rules if self.verifier is None else {**rules, VERIFIED: str(self.policy(VERIFIED))}

    @property
    def choose_once(self) -> NamedPolicy[Policy]:
        """The policy of requests whose answers are not verified: the default one, or `fast`."""
        name = choosing_name(self.policies)
        policy = choose_once(parse_policy(self.policies[name]))
        return NamedPolicy(policy, None if name == DEFAULT else name)

    @property
    def base_rates(self) -> dict[str, float]:
        """Share of correct answers of each arm, in their order; empty without a familiarity.

        It is an estimate for arms that joined without retraining.
        """
        if self.familiarity is None:
            return {}
        joined = {arm: facts.accuracy.value for arm, facts in self.onboarded.items()}
        rates = {**self.familiarity.base_rates, **joined}
        return {arm: rates[arm] for arm in self.arms if arm in rates}

    @property
    def measured_arms(self) -> tuple[str, ...]:
        """The arms of which answers are known; the others have been added by a gateway."""
        assumed = {arm for arm, facts in self.onboarded.items() if not facts.answers}
        return tuple(arm for arm in self.arms if arm not in assumed)

    @property
    def best_single_accuracy(self) -> Measure | None:
        """Accuracy of the best single model, if it was measured."""
        return self.metrics.get("best_single_accuracy")

    @property
    def best_single_arm(self) -> str | None:
        """The arm whose profiled cost is that of the best single model, if that was measured."""
        measured = self.metrics.get("best_single_cost_usd")
        if measured is None:
            return None
        costs_usd = zip(self.arms, self.costs_usd(), strict=True)
        # The usage of an arm that joined later is kept in single precision.
        same = (arm for arm, usd in costs_usd if math.isclose(usd, measured.value, rel_tol=1e-6))
        return next(same, None)

    def costs_usd(self, prices: Mapping[str, Price] | None = None) -> tuple[float, ...]:
        """Return each arm's profiled cost per request, (arms,); `prices` replace profiled ones."""
        prices = prices or {}
        return tuple(self.profile[arm].cost_usd(prices.get(arm)) for arm in self.arms)


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """A request and the probability of each arm for it, recorded when the artifact was exported.

    In the file, `probabilities` are those of the graph for CPUs, and `by_device` has those of the
    other graphs. A graph is compared with itself only: for sharp probabilities, the int8 and the
    fp16 graph of a DistilBERT differ by 0.02 to 0.08, and its fp16 graph differs from pure fp16
    arithmetic by 0.0003 to 0.004.
    """

    conversation: Conversation
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A loaded and verified artifact directory."""

    directory: Path
    manifest: Manifest
    tokenizer: Tokenizer
    sha256: str = ""
    """Hash of the manifest, which holds the hashes of all other files."""
    pool: tuple[str, ...] | None = None
    """The arms that the manifest's figures are about, at its profile's prices; None if they are
    those that training measured."""

    @classmethod
    def load(cls, directory: Path, relatives: Iterable[Artifact] = ()) -> Artifact:
        """Read the manifest and verify the hash of every file. Raises ArtifactError.

        `directory` may be the name of a shipped artifact.

        `relatives` are other loaded artifacts. If one has the same tokenizer file and packing, its
        tokenizer is reused, because loading the shipped tokenizer holds the interpreter's lock for
        25 ms and takes 6 MB.
        """
        directory = find_artifact(directory)
        manifest = read_manifest(directory / MANIFEST)
        for name, digest in manifest.files.items():
            path = directory / name
            try:
                found = sha256(path)
            except OSError as exc:
                raise ArtifactError(path, f"cannot be read: {exc.strerror}") from exc
            if found != digest:
                problem = f"its SHA-256 is {found[:12]}..., the manifest says {digest[:12]}..."
                raise ArtifactError(path, f"is damaged and must be restored: {problem}")
        for other in relatives:
            is_same_file = other.manifest.files[TOKENIZER] == manifest.files[TOKENIZER]
            if is_same_file and other.manifest.packing == manifest.packing:
                tokenizer = other.tokenizer
                break
        else:
            try:
                tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
            except Exception as exc:  # the library raises plain Exception
                problem = f"cannot be loaded as a tokenizer: {exc}"
                raise ArtifactError(directory / TOKENIZER, problem) from exc
        return cls(directory, manifest, tokenizer, sha256(directory / MANIFEST))

    def model_path(self, device: str) -> Path:
        """Return the path of the graph for a device; raises ArtifactError without such a graph."""
        name = self.manifest.models.get(device)
        if name is None:
            raise ArtifactError(self.directory / MANIFEST, f"`models` has no graph for {device!r}")
        return self.directory / name

    def canaries(self, device: str = "cpu") -> Iterator[CanaryRequest]:
        """Read the canary requests, with the probabilities of the graph for a device.

        Older artifacts have only those of the graph for CPUs. Raises ArtifactError if a line does
        not parse.
        """
        path = self.directory / CANARIES
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                row = orjson.loads(line)
                recorded = row.get("by_device", {}).get(device, row["probabilities"])
                yield CanaryRequest(parse_conversation(row["request"]), recorded)
            except (ValueError, KeyError, TypeError, AttributeError, SwitchcraftError) as exc:
                raise ArtifactError(path, f"line {number} is not a canary request: {exc}") from exc

    def check_canaries(self, predict: Predict, device: str = "cpu") -> None:
        """Replay the canary requests on a device. Raises ArtifactError if a probability differs."""
        path = self.directory / CANARIES
        canaries = list(self.canaries(device))
        rows = predict([canary.conversation for canary in canaries])
        for number, (canary, row) in enumerate(zip(canaries, rows, strict=True), start=1):
            for arm, got in zip(self.manifest.measured_arms, row, strict=True):
                wanted = canary.probabilities[arm]
                # In this form, the condition is true if the probability is NaN.
                if not abs(got - wanted) <= self.manifest.canary_tolerance:
                    problem = f"the probability is {got:.4f}, but the file has {wanted:.4f}"
                    raise ArtifactError(path, f"line {number}, arm {arm!r}: {problem}")


def find_artifact(path: Path) -> Path:
    """Return the path, or the shipped artifact of that name if nothing is at the path."""
    shipped = ARTIFACTS / path
    return shipped if not path.exists() and (shipped / MANIFEST).exists() else path


def save_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Write the manifest of an artifact with the hashes of its other files, and return it.

    It is written atomically and last, so that a directory with a manifest counts as complete.
    """
    # Validated, because `model_copy` does not check the parts against each other.
    manifest = Manifest.model_validate(
        {**manifest.model_dump(mode="json"), "files": file_hashes(directory)}
    )
    path = directory / MANIFEST
    partial = path.with_suffix(".partial")
    partial.write_bytes(orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    partial.replace(path)
    return manifest


def file_hashes(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a directory except its manifest, by name."""
    paths = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return {path.name: sha256(path) for path in paths}


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read a manifest without loading its artifact. Raises ArtifactError."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as exc:
        problem = (
            f"cannot be read: {exc.strerror}; name a directory that `switchcraft-train run` has"
            " written"
        )
        raise ArtifactError(path, problem) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the manifest"
        raise ArtifactError(path, f"is not a manifest: {where}: {first['msg']}") from exc
