"""Training data of routers: a packed table, its configuration, and its folds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from tokenizers import Tokenizer

from router_service.apis.conversation import parse_conversation
from router_service.measurement.goals import parse_goal
from router_service.measurement.held_out import Figures
from router_service.measurement.rules import Outcomes
from router_service.policies.costs import ArmProfile
from router_service.predictor.packing import Packed, Packer
from router_service.predictor.words import Ids
from switchcraft_training.config import Grouping, RunConfig
from switchcraft_training.data.splits import Split, fold_table, group_table
from switchcraft_training.data.table import Floats, Table, profile_arms
from switchcraft_training.dataset import load_dataset, require_measured_rows
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder, packing_for
from switchcraft_training.progress import stage, track

READING = "reading and judging"
PACKING = "packing"
"""Names of the stages of `read_training_data`."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A table whose queries are packed as in the gateway, and the configuration for training on it.

    `workspace` holds checkpoints and other files that later runs reuse.
    """

    config: RunConfig
    table: Table
    workspace: Path

    @property
    def needs_validation(self) -> bool:
        """Whether held-out rows decide when the encoder's training stops."""
        return self.config.training.select_on != "last"

    @property
    def unrelated_token_ids(self) -> tuple[Ids, ...]:
        """The token ids of training-only rows that are not near-duplicates of a measured row."""
        table = self.table
        is_unrelated = np.isin(table.groups, table.groups[table.is_measured], invert=True)
        rows = np.flatnonzero(~table.is_measured & is_unrelated)
        return tuple(table.packed[row].token_ids for row in rows)

    def load_encoder(self) -> PretrainedEncoder:
        """Return a new copy of the encoder, because fine-tuning changes it.

        If the configuration asks for distillation, only the first call distils; later calls load
        the result from `workspace`.
        """
        config = self.config.encoder
        return distil(load_encoder(config.source), config, self.unrelated_token_ids, self.workspace)

    def grouped_by(self, grouping: Grouping) -> TrainingData:
        """Return the same data with folds that are grouped in another way."""
        settings = self.config.evaluation.model_copy(update={"grouped_by": grouping})
        config = self.config.model_copy(update={"evaluation": settings})
        return replace(self, config=config, table=group_table(self.table, grouping))

    def folds(self) -> tuple[Split, ...]:
        """Return the folds; without early stopping, validation rows are also used for training."""
        folds, seed = self.config.evaluation.folds, self.config.seed
        return fold_table(self.table, folds, seed, validated=self.needs_validation)

    def profiles(self, rows: Sequence[int]) -> tuple[ArmProfile, ...]:
        """Return each arm's mean usage on these rows, (arms,)."""
        table = self.table.take(rows).select_arms(self.config.arms)
        return tuple(profile_arms(table, self.config.prices).values())

    def expected_costs_usd(self, rows: Sequence[int]) -> list[float]:
        """Return each arm's expected cost of a request, estimated from these rows, (arms,)."""
        return [profile.cost_usd() for profile in self.profiles(rows)]

    def with_rules(self, measured: Outcomes, probabilities: Floats, costs: Floats) -> TrainingData:
        """Return the same data with the goals of policies replaced by the rules that reach them."""
        policies = self.config.policies
        if all(parse_goal(text, param=name) is None for name, text in policies.items()):
            return self
        figures = Figures.measure(measured, probabilities, costs, policies)
        rules = {"policies": figures.policies}
        return replace(self, config=self.config.model_copy(update=rules))


def read_training_data(config: RunConfig, recordings: Path, workspace: Path) -> TrainingData:
    """Read and judge the recorded answers of a run in the folder `recordings`, and pack its rows.

    Raises the errors of `load_dataset`, `require_measured_rows` and `load_encoder`.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    with stage(READING):
        table = load_dataset(config, recordings, workspace / "labels")
    require_measured_rows(table, config, recordings)
    encoder = load_encoder(config.encoder.source)
    config = config.model_copy(update={"packing": packing_for(encoder, config.packing)})
    with stage(PACKING):
        return pack_table(config, table, encoder, workspace)


def pack_table(
    config: RunConfig, table: Table, encoder: PretrainedEncoder, workspace: Path
) -> TrainingData:
    """Return training data: every example packed as in the gateway, with the same tokenizer."""
    # A copy, because the packer changes how its tokenizer treats special tokens.
    packer = Packer(config.packing, Tokenizer.from_str(encoder.tokenizer.to_str()))
    queries = track(table.examples, "packed", len(table), "queries")
    ids: dict[int, int] = {}
    values: dict[float, float] = {}
    packed = tuple(
        Packed(_shared(row.token_ids, ids), _shared(row.features, values), ())
        for row in (packer.pack(parse_conversation(e.request)) for e in queries)
    )
    return TrainingData(config, replace(table, packed=packed), workspace)


Value = TypeVar("Value", int, float)


def _shared(values: Iterable[Value], known: dict[Value, Value]) -> tuple[Value, ...]:
    """Return the values with one object for equal ones, which takes 8 bytes instead of 36."""
    return tuple(known.setdefault(value, value) for value in values)
