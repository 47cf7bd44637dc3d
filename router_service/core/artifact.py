"""What training hands to the service: a directory that is verified before it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from tokenizers import Tokenizer

from router_service.core.calibration import IDENTITY, Calibration, Probability
from router_service.core.cost import ArmProfile, Price
from router_service.core.errors import ArtifactError, SwitchcraftError
from router_service.core.messages import Conversation, parse_conversation
from router_service.core.packing import PackingSpec
from router_service.core.selection import parse_policy

SHIPPED = Path(__file__).parents[1] / "artifacts" / "reference-pool"
"""The artifact that the package ships, so that the service runs with nothing else."""

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
CANARIES = "canary.jsonl"

Interval = tuple[float, float]
"""Lower and upper end of a 95% interval."""
Predict = Callable[[Sequence[Conversation]], Sequence[Sequence[float]]]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measure(_Frozen):
    """A measured number with its standard error, and how many queries it was measured on."""

    value: float
    stderr: float
    n: int = Field(ge=1)


class VersusBest(_Frozen):
    """A policy minus, and its cost over, the best single model's, paired by query.

    The share has no value where the best single model costs nothing.
    """

    difference: float
    difference_interval: Interval
    cost_share: float | None = None
    cost_share_interval: Interval | None = None


class FrontierPoint(_Frozen):
    """What a policy measured on held-out queries: accuracy, and USD a query.

    Intervals are of resampled queries; an artifact may have been measured without them.
    """

    policy: str
    accuracy: Measure
    cost_usd: Measure
    accuracy_interval: Interval | None = None
    cost_usd_interval: Interval | None = None
    versus_best: VersusBest | None = None


class Encoder(_Frozen):
    """Which encoder the router was fine-tuned from, and how large it is."""

    name: str
    parameters: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    layers: int = Field(ge=1)


class Provenance(_Frozen):
    """Where an artifact comes from; enough to make it again."""

    created: str
    commit: str
    config: str = Field(description="The training configuration, as YAML.")
    seed: int
    data_sha256: str = Field(description="Over all files that were read, in order of path.")
    versions: Mapping[str, str]


class Manifest(_Frozen):
    """All that changes the model's input or the meaning of its output."""

    schema_version: int
    name: str
    arms: tuple[str, ...] = Field(min_length=1)
    encoder: Encoder
    packing: PackingSpec
    policies: Mapping[str, str] = Field(description="Rules by name; `default` is one of them.")
    profile: Mapping[str, ArmProfile]
    calibration: Calibration = Field(
        default=IDENTITY, description="What makes the graph's output a probability."
    )
    frontier: tuple[FrontierPoint, ...] = ()
    metrics: Mapping[str, Measure] = Field(default_factory=dict)
    provenance: Provenance
    models: Mapping[str, str] = Field(description="Graph file by device: `cpu`, `cuda`.")
    canary_tolerance: Probability = 0.02
    files: Mapping[str, str] = Field(description="SHA-256 of every other file, by name.")

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema version {self.schema_version}; this is {SCHEMA_VERSION}")
        if len(set(self.arms)) != len(self.arms):
            raise ValueError("an arm is named twice")
        if set(self.profile) != set(self.arms):
            raise ValueError("the profile's arms are not the manifest's arms")
        if self.calibration.arms not in {None, len(self.arms)}:
            raise ValueError(f"a calibration of {self.calibration.arms} for {len(self.arms)} arms")
        if "default" not in self.policies:
            raise ValueError("there is no policy named 'default'")
        for rule in self.policies.values():
            try:
                parse_policy(rule)
            except SwitchcraftError as exc:
                raise ValueError(str(exc)) from exc
        missing = {*self.models.values(), TOKENIZER, CANARIES} - set(self.files)
        if missing:
            raise ValueError(f"no hash for {sorted(missing)}")
        return self

    @property
    def best_single_accuracy(self) -> Measure | None:
        """What the best single model measured, where the artifact knows it."""
        return self.metrics.get("best_single_accuracy")

    def costs_usd(self, prices: Mapping[str, Price] | None = None) -> tuple[float, ...]:
        """Return the profiled cost of a request for each arm, (arms,), at `prices` where given."""
        prices = prices or {}
        return tuple(self.profile[arm].cost_usd(prices.get(arm)) for arm in self.arms)


@dataclass(frozen=True, slots=True)
class Canary:
    """A request whose probabilities, by arm, were recorded when the artifact was exported."""

    conversation: Conversation
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A loaded and verified artifact directory."""

    directory: Path
    manifest: Manifest
    tokenizer: Tokenizer
    sha256: str = ""
    """Of the manifest, which holds those of all other files."""

    @classmethod
    def load(cls, directory: Path, relatives: Iterable[Artifact] = ()) -> Artifact:
        """Read the manifest and verify every file's hash; raises ArtifactError naming the file.

        The tokenizer of a relative that reads alike is used again: loading the shipped one keeps
        the interpreter to itself for 25 ms, and takes 6 MB.
        """
        manifest = read_manifest(directory / MANIFEST)
        for name, digest in manifest.files.items():
            _verify(directory / name, digest)
        alike = next((other for other in relatives if other.reads_like(manifest)), None)
        tokenizer = alike.tokenizer if alike else _load_tokenizer(directory / TOKENIZER)
        return cls(directory, manifest, tokenizer, sha256(directory / MANIFEST))

    def reads_like(self, manifest: Manifest) -> bool:
        """Whether another artifact has the same tokenizer, and packs requests in the same way."""
        mine = self.manifest
        is_same_file = mine.files[TOKENIZER] == manifest.files[TOKENIZER]
        return is_same_file and mine.packing == manifest.packing

    def model_path(self, device: str) -> Path:
        """Return the graph for a device, the CPU's where there is none of its own."""
        models = self.manifest.models
        name = models.get(device) or models.get("cpu")
        if name is None:
            raise ArtifactError(self.directory / MANIFEST, f"names no graph for {device!r}")
        return self.directory / name

    def canaries(self) -> Iterator[Canary]:
        """Read the canaries; raises ArtifactError where a line does not parse."""
        path = self.directory / CANARIES
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                row = orjson.loads(line)
                yield Canary(parse_conversation(row["request"]), row["probabilities"])
            except (ValueError, KeyError, TypeError, SwitchcraftError) as exc:
                raise ArtifactError(path, f"line {number} is not a canary: {exc}") from exc

    def check_canaries(self, predict: Predict) -> None:
        """Replay the canaries; raises ArtifactError where a probability is off."""
        path = self.directory / CANARIES
        canaries = list(self.canaries())
        rows = predict([canary.conversation for canary in canaries])
        for number, (canary, row) in enumerate(zip(canaries, rows, strict=True), start=1):
            for arm, got in zip(self.manifest.arms, row, strict=True):
                wanted = canary.probabilities[arm]
                if not abs(got - wanted) <= self.manifest.canary_tolerance:  # true for NaN
                    raise ArtifactError(
                        path, f"line {number}, arm {arm!r}: probability {got:.4f}, not {wanted:.4f}"
                    )


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest last and in one step: a directory with a manifest is complete."""
    path = directory / MANIFEST
    partial = path.with_suffix(".partial")
    partial.write_bytes(orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    partial.replace(path)


def file_hashes(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a directory but its manifest, by name."""
    paths = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return {path.name: sha256(path) for path in paths}


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read a manifest alone, without what it is of; raises ArtifactError."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise ArtifactError(path, f"cannot be read: {exc.strerror}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the manifest"
        raise ArtifactError(path, f"is not a manifest: {where}: {first['msg']}") from exc


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as exc:  # the library raises plain Exception
        raise ArtifactError(path, f"is not a tokenizer that loads: {exc}") from exc


def _verify(path: Path, digest: str) -> None:
    try:
        found = sha256(path)
    except OSError as exc:
        raise ArtifactError(path, f"cannot be read: {exc.strerror}") from exc
    if found != digest:
        raise ArtifactError(
            path, f"is damaged: its SHA-256 is {found[:12]}..., the manifest says {digest[:12]}..."
        )
