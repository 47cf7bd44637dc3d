"""Configuration of a run, read from a YAML file: source, pool, encoder, policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from router_service.artifact import Knowledge, Manifest
from router_service.core.errors import ConfigError, PolicyError
from router_service.measurement.goals import parse_goal
from router_service.policies.costs import Price
from router_service.policies.registry import DEFAULT, choosing_name, parse_policy
from router_service.policies.verified import VERIFIED
from router_service.predictor.model import Probability
from router_service.predictor.packing import PackingSpec

PACKAGE = Path(__file__).parent

MAX_FOREST_MB = 64.0
"""Default size limit of a forest, which 20,000 training rows of ten arms do not reach."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceConfig(_Frozen):
    """Location of recorded answers; paths are relative to the folder of the option `--data`."""

    format: Literal["bfcl", "mcpmark", "labelled", "decisions", "outcomes"] = Field(
        description="`bfcl`: a folder in the leaderboard's format; `mcpmark`: a folder with tasks"
        " and runs; `labelled`: a labelling run; `decisions`: a gateway's decision log; `outcomes`:"
        " rows imported from a decision log."
    )
    path: Path = Field(description="The folder or file; for a labelling run, its file of queries.")
    answers: Path | None = Field(
        None, description="The folder with the answers of a labelling run."
    )
    arms: Mapping[str, str] = Field(
        default_factory=dict,
        description="For `bfcl`: the arm that each of these runs is an answer of, by the run's name"
        " in the recording. Other runs are arms with their own name.",
    )
    weak_evidence: bool = Field(
        default=False,
        description="For a decision log: whether negative evidence in the next turn gives a label"
        " of 0.25 to a call without feedback. Such evidence never labels a call as correct.",
    )

    @model_validator(mode="after")
    def _complete(self) -> SourceConfig:
        if (self.format == "labelled") != (self.answers is not None):
            raise ValueError(
                "`answers` is required for the format `labelled`, and not allowed for other formats"
            )
        if self.arms and self.format != "bfcl":
            raise ValueError("`arms` is only allowed for the format `bfcl`")
        if len(set(self.arms.values())) != len(self.arms):
            raise ValueError("`arms` gives two runs the same name")
        if self.weak_evidence and self.format != "decisions":
            raise ValueError("`weak_evidence` is only allowed for the format `decisions`")
        return self


class CheckingConfig(_Frozen):
    """How the checker judges answers."""

    paraphrases: str | None = Field(
        None,
        description="An encoder, as in `encoder.source`. Its embeddings decide whether two texts of"
        " several words have the same meaning. Without it, paraphrases are not accepted.",
    )


class ArmConfig(_Frozen):
    """A model of the pool, with its price."""

    arm: str
    price: Price
    stands_for: tuple[str, ...] = Field(
        (),
        description="Ids of the model, as providers and LiteLLM write them. A gateway maps models"
        " with one of these ids to the arm.",
    )


class DistilledConfig(_Frozen):
    """A smaller encoder that is distilled from the pretrained encoder, and then used instead."""

    layers: int = Field(1, ge=1)
    hidden_size: int = Field(128, ge=1)
    attention_heads: int = Field(2, ge=1)
    intermediate_size: int = Field(512, ge=1)
    epochs: int = Field(10, ge=1, description="Passes over the training rows.")
    learning_rate: float = Field(3e-3, gt=0)

    @model_validator(mode="after")
    def _whole_heads(self) -> DistilledConfig:
        if self.hidden_size % self.attention_heads:
            raise ValueError("`attention_heads` must divide `hidden_size`")
        return self


class EncoderConfig(_Frozen):
    """The pretrained encoder to start from."""

    source: str = Field(
        "distilbert-base-uncased",
        description="A Hugging Face name, a folder, or `package:NAME/FOLDER` of a Python package.",
    )
    pooling: Literal["cls", "mean"] = "cls"
    frozen_layers: Annotated[int, Field(ge=0)] | Literal["all"] | None = Field(
        None,
        description="The part that keeps its pretrained weights. Unset: none. 0: the embeddings,"
        " which saves a third of the time. N: the embeddings and the first N layers. `all`: the"
        " whole encoder, so only the head is trained. From 1 on, the output of the frozen layers"
        " is computed once for each row and kept.",
    )
    distilled: DistilledConfig | None = Field(
        None,
        description="A smaller encoder that replaces this one. It is distilled on the texts of rows"
        " that are used only for training and are not near-duplicates of measured rows. Requires a"
        " DistilBERT or a BERT.",
    )


Grouping = Literal["queries", "tools"]
"""What stays in one fold: near-duplicate queries, or also queries with nearly the same tools."""

Branch = Literal["encoder", "lexical", "networks", "forest"]
"""Branches of the network. Each can predict without the others: the fine-tuned encoder,
hashed words and word pairs, small networks over the structural features, and trees over the
structural features."""


Precision = Literal["no", "bf16", "fp16"]
"""Precision of the encoder's matrix products in training."""


class TrainingConfig(_Frozen):
    """Hyperparameters; the defaults are the paper's for DistilBERT (appendix on training)."""

    learning_rate: float = Field(5e-5, gt=0)
    batch_size: int = Field(16, ge=1, description="Rows per step on each device.")
    evaluation_batch_size: int = Field(
        16, ge=1, description="Rows per step on each device, for validation."
    )
    max_epochs: int = Field(30, ge=1)
    patience_epochs: int = Field(3, ge=1)
    select_on: Literal["macro_f1", "loss", "last"] = Field(
        "macro_f1",
        description="Which epoch to keep. Use `last` if there are too few validation rows to"
        " compare epochs.",
    )
    warmup_ratio: float = Field(0.1, ge=0, le=1)
    weight_decay: float = Field(0.01, ge=0)
    precision: Precision | None = Field(
        None, description="Mixed precision of the encoder. Default: fp16 on a GPU, otherwise none."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout before the classification heads.")
    shares: Mapping[Branch, Annotated[float, Field(gt=0)]] = Field(
        default={"encoder": 1.0},
        description="The weight of each branch of the network. Branches that are not named are not"
        " built.",
    )
    max_forest_mb: float = Field(
        MAX_FOREST_MB,
        gt=0,
        description="Largest size of a forest in the graph, in megabytes. Beyond about 20,000"
        " training rows of ten arms, leaves get more rows to stay below it. Most forests take a"
        " quarter of the limit, because leaves have more rows than they need to have. An artifact"
        " has up to two forests, and the one for the demand for calls is smaller.",
    )
    auxiliary_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of all auxiliary heads together, relative to all arms of the pool"
        " together.",
    )

    @property
    def branch_shares(self) -> dict[str, float]:
        """The weights of the branches, scaled to sum to 1."""
        total = sum(self.shares.values())
        return {name: share / total for name, share in self.shares.items()}


REMOVED_SETTINGS = {
    "evaluation": (
        *("seeds", "chat_preferences", "protocol", "distinct_within", "grouped", "held_out"),
        *("baselines", "baseline_encoder", "truncated"),
    ),
    "training": ("head_learning_rate", "structure_width", "labels"),
}
"""Settings that artifacts may name, and that no longer exist, by section."""


class EvaluationConfig(_Frozen):
    """Measurements of a run, in addition to those of the router itself; all use held-out rows."""

    grouped_by: Grouping = Field(
        "queries",
        description="What stays in one fold. `queries`: near-duplicates."
        " `tools`: also queries with the same tools, or nearly the same, so that the tools of every"
        " measured query are unseen, as those of a gateway's users are.",
    )
    known_tools: bool = Field(
        default=False,
        description="Whether to measure the router and its verifier a second time, with folds that"
        " are grouped by `queries`, so that reports show both. It doubles the time of a run.",
    )
    folds: int = Field(
        5,
        ge=3,
        description="Number of folds. Near-duplicates are always in the same fold. Each fold is"
        " predicted by a model that is trained on the remaining folds, except one fold that decides"
        " when training stops.",
    )

    @model_validator(mode="after")
    def _check_grouping(self) -> EvaluationConfig:
        if self.known_tools and self.grouped_by != "tools":
            raise ValueError("`known_tools` requires `grouped_by: tools`")
        return self


class RunConfig(_Frozen):
    """Complete configuration of `switchcraft-train run`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    source: SourceConfig
    also: tuple[SourceConfig, ...] = Field(
        (),
        description="Additional recordings. Their queries are used only for training, and their"
        " arms that are not in the pool are auxiliary.",
    )
    pool: tuple[ArmConfig, ...] = Field(min_length=1)
    knowledge: Knowledge | None = Field(
        None, description="What the pool was measured on, and when, for users of the artifact."
    )
    auxiliary_arms: Literal["none", "all"] = "none"
    checking: CheckingConfig = CheckingConfig()
    encoder: EncoderConfig = EncoderConfig()
    packing: PackingSpec = PackingSpec()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    calibration: Literal["best", "none"] = Field(
        "best",
        description="`best`: the method of calibration that is chosen by cross-validation on"
        " held-out probabilities. `none`: probabilities stay as the network predicts them.",
    )
    cuda_graph: bool | None = Field(
        None,
        description="Whether the artifact also has a graph for GPUs, with the encoder in fp16."
        " Without it, a gateway with a GPU uses the CPU. It cannot be added later. Default: true if"
        " the encoder has more than 10 million parameters, like DistilBERT. The graph of a"
        " DistilBERT has 133 MB.",
    )
    verifier: bool = Field(
        default=False,
        description="Whether the artifact also has a verifier, for the policy `verified`. It needs"
        " recorded answers, and trains the router ten more times with five folds.",
    )
    verified_cost_share: float = Field(
        0.16,
        gt=0,
        description="Largest cost of the policy `verified`, as a share of the best single model's"
        " cost. The highest price within it is the policy's operating point. The default is the"
        " share at which the paper's router is as accurate as its best single model.",
    )
    verified_floor: Probability = Field(
        default=0.5,
        description="Probability of a correct answer below which verified policies with a name ask"
        " another arm, even if that is not worth its cost. A price in a request has no floor.",
    )
    streams_text_from: Probability | None = Field(
        default=None,
        description="With the policy `verified`, probability that a request asks for no tool call"
        " from which the first answer is delivered unverified if it is text, as it arrives. Without"
        " it, text is verified like calls.",
    )
    policies: Mapping[str, str] = Field(
        default_factory=lambda: {DEFAULT: "theta=0.5"},
        description="Rules by name, such as `drift=0.05`. A goal such as `accuracy=best-1` stands"
        " for the rule that reaches it on held-out queries; for a pool with fewer arms or other"
        " prices, a gateway looks for that rule again. If `default` is `verified`, `fast` is the"
        " policy for requests that cannot be verified.",
    )
    seed: int = 42

    @field_validator("policies")
    @classmethod
    def _parsed(cls, policies: Mapping[str, str]) -> Mapping[str, str]:
        try:
            choosing_name(policies)
            for rule in policies.values():
                if rule != VERIFIED and parse_goal(rule, param="policies") is None:
                    parse_policy(rule)
        except PolicyError as exc:
            raise ValueError(str(exc)) from exc
        return policies

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        if choosing_name(self.policies) != DEFAULT and not self.verifier:
            default = self.policies[DEFAULT]
            raise ValueError(f"the default policy `{default}` requires `verifier: true`")
        return self

    @property
    def choosing_rule(self) -> str:
        """The rule or goal of requests whose answers are not verified."""
        return self.policies[choosing_name(self.policies)]

    @property
    def arms(self) -> tuple[str, ...]:
        """The pool's arms, in the order of the classifier's outputs."""
        return tuple(entry.arm for entry in self.pool)

    @property
    def prices(self) -> dict[str, Price]:
        """The price of each arm, in the order of `arms`."""
        return {entry.arm: entry.price for entry in self.pool}


def find_config(path: Path) -> Path:
    """Return the path if it exists, or else the packaged configuration with that name."""
    return path if path.exists() else PACKAGE / path


def load_config(path: Path) -> RunConfig:
    """Read a run's configuration; raises ConfigError that names the file, field and problem.

    A file may name another one as `extends`, in its own folder or a shipped one, and then contains
    only the settings that differ; `arms: null` removes the other file's `arms`.
    """
    with raising_config_error(path):
        return RunConfig.model_validate(_read_settings(find_config(path)))


@contextmanager
def raising_config_error(path: Path) -> Iterator[None]:
    """Raise ConfigError if a block cannot read or validate the YAML file at a path."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(str(exc.filename), "", f"cannot be read: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(str(path), "", f"is not YAML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ConfigError(str(path), ".".join(map(str, first["loc"])), first["msg"]) from exc


def _read_settings(path: Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    values = yaml.safe_load(path.read_text())
    if not isinstance(values, Mapping):
        raise ConfigError(str(path), "", "contains no settings; a configuration is a YAML mapping")
    own = dict(values)
    if "extends" not in own:
        return own
    named = Path(str(own.pop("extends")))
    beside = path.parent / named
    base = beside if beside.exists() else find_config(named)
    if base in (path, *extending):
        raise ConfigError(str(path), "extends", f"{base} extends itself; remove the cycle")
    return merge_settings(_read_settings(base, (path, *extending)), own)


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes; mappings are merged, other values are replaced.

    A value that is None takes the setting away, which then has its default.
    """
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[name] = merge_settings(old, value)
        else:
            merged[name] = value
    return merged


def dump_config(config: RunConfig) -> str:
    """Write a configuration as YAML, including all defaults."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def trained_config(manifest: Manifest) -> RunConfig:
    """Return the configuration that an artifact was trained with, with the packing that it uses."""
    values = yaml.safe_load(manifest.provenance.config)
    values.pop("sweep", None)
    for entry in values["pool"]:
        entry.pop("profile", None)
    for section, names in REMOVED_SETTINGS.items():
        for name in names:
            values[section].pop(name, None)
    config = RunConfig.model_validate(values)
    return config.model_copy(update={"packing": manifest.packing})
