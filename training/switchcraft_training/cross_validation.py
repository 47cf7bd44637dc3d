"""Cross-validation: routers trained on some folds predict the others, so all rows are held out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.core.messages import parse_conversation
from router_service.core.model import Classifier, sigmoid
from router_service.core.packing import Ids, Packer
from switchcraft_training.config import RunConfig
from switchcraft_training.data.costs import profile_arms
from switchcraft_training.data.splits import Split, fold_table, near_duplicates
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder
from switchcraft_training.models.onnx_export import export_int8
from switchcraft_training.models.optimization import is_main_process
from switchcraft_training.models.training import branch_logits, train_router

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A table packed as the service packs requests, and the configuration for training on it.

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
        """Load a fresh copy of the encoder, which fine-tuning changes; distil it only once."""
        config = self.config.encoder
        return distil(load_encoder(config.source), config, self.unrelated_token_ids, self.workspace)

    def with_token_ids(self, ids: Sequence[Ids]) -> TrainingData:
        """Return the same data with other token ids, one tuple per row."""
        pairs = zip(self.table.packed, ids, strict=True)
        packed = tuple(replace(row, token_ids=own) for row, own in pairs)
        return replace(self, table=replace(self.table, packed=packed))

    def with_seed(self, seed: int) -> TrainingData:
        """Return the same data with another seed for folds and branches."""
        return replace(self, config=self.config.model_copy(update={"seed": seed}))

    def folds(self) -> tuple[Split, ...]:
        """Return the folds; without early stopping, validation rows are also used for training."""
        folds, seed = self.config.evaluation.folds, self.config.seed
        return fold_table(self.table, folds, seed, validated=self.needs_validation)

    def expected_costs_usd(self, rows: Sequence[int]) -> list[float]:
        """Return each arm's profiled cost of a request over these rows, (arms,)."""
        table = self.table.take(rows).select_arms(self.config.arms)
        profile = profile_arms(table, self.config.prices)
        return [profile[arm].cost_usd() for arm in self.config.arms]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Held-out predictions for the measured rows, in row order.

    `branches` are the full-precision logits of each branch, (rows, arms), by name. `probabilities`,
    (rows, arms), are uncalibrated and come from the int8 graph; they are None without an export.
    `expected_costs_usd`, (rows, arms), is the profile of the fold's training rows. `folds`,
    (rows,), is the fold that tested a row.
    """

    branches: Mapping[str, Floats]
    probabilities: Floats | None
    expected_costs_usd: Floats
    folds: NDArray[np.int64]

    def mix(self, shares: Mapping[str, float]) -> Floats:
        """Return the full-precision probabilities of some branches, weighted by these shares."""
        total = sum(shares.values())
        logits = sum(share / total * self.branches[name] for name, share in shares.items())
        return sigmoid(np.asarray(logits, dtype=np.float64))


def pack_table(
    config: RunConfig, table: Table, encoder: PretrainedEncoder, workspace: Path
) -> TrainingData:
    """Pack every example as the service will, with the tokenizer that will be shipped."""
    # A copy, because the packer changes how its tokenizer treats special tokens.
    packer = Packer(config.packing, Tokenizer.from_str(encoder.tokenizer.to_str()))
    packed = tuple(packer.pack(parse_conversation(e.request)) for e in table.examples)
    groups = np.array(near_duplicates(table.examples), dtype=np.int64)
    return TrainingData(config, replace(table, packed=packed, groups=groups), workspace)


def cross_validate(data: TrainingData, *, exported: bool) -> CrossValidation | None:
    """Train a router on each fold and predict its test rows.

    If `exported`, the int8 graph predicts them too. Return None in every process except the main
    one, because the others only help to train.
    """
    config, rows = data.config, len(data.table.measured_rows)
    names, shape = config.training.branch_shares, (rows, len(config.arms))
    branches = {name: np.full(shape, np.nan) for name in names}
    probabilities = np.full(shape, np.nan) if exported else None
    costs_usd, folds = np.full(shape, np.nan), np.zeros(rows, dtype=np.int64)
    for number, split in enumerate(data.folds()):
        log.info("seed %d, fold %d", config.seed, number + 1)
        train, validation, test = (
            data.table.take(part)
            for part in (split.train + split.teaching, split.validation, split.test)
        )
        encoder, workspace = data.load_encoder(), data.workspace
        model = train_router(encoder, config, train, validation, workspace=workspace).model
        if not is_main_process():
            continue
        held_out = list(split.test)
        for name, logits in branch_logits(model, config, test, workspace).items():
            branches[name][held_out] = logits
        if probabilities is not None:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "fold.int8.onnx"
                graph = export_int8(model, len(config.packing.features), path)
                classifier = Classifier(graph, arms=len(config.arms))
                probabilities[held_out] = classifier.predict(test.packed)
        costs_usd[held_out] = data.expected_costs_usd(split.train)
        folds[held_out] = number
    if not is_main_process():
        return None
    return CrossValidation(branches, probabilities, costs_usd, folds)
