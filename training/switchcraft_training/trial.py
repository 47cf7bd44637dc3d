"""A router trained on some folds and asked about the others, so that every query is held out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.core.calibration import sigmoid
from router_service.core.messages import parse_conversation
from router_service.core.model import Classifier
from router_service.core.packing import Ids, Packer
from switchcraft_training.config import RunConfig
from switchcraft_training.dataset import Dataset
from switchcraft_training.evaluation.metrics import Floats
from switchcraft_training.models.batches import Rows
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder
from switchcraft_training.models.onnx_export import export_int8
from switchcraft_training.models.optimization import is_main_process
from switchcraft_training.models.training import branch_logits, train_router
from switchcraft_training.preferences.folds import near_duplicates
from switchcraft_training.preferences.splits import Split
from switchcraft_training.profiling.cost_profile import profile_arms

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Material:
    """What trials learn from: a data set, packed as the service will pack; `workspace` is kept."""

    config: RunConfig
    dataset: Dataset
    rows: Rows
    workspace: Path

    @property
    def needs_validation(self) -> bool:
        """Whether held-out rows decide when the encoder's training stops."""
        return self.config.training.select_on != "last"

    @property
    def apart(self) -> tuple[Ids, ...]:
        """The token ids of rows that only teach and are no near-duplicates of the own ones."""
        own, extra = (
            self.rows.groups[list(which)] for which in (self.dataset.own, self.dataset.extra)
        )
        is_apart = np.isin(extra, own, invert=True)
        return tuple(self.rows.packed[i].token_ids for i in np.array(self.dataset.extra)[is_apart])

    def encoder(self) -> PretrainedEncoder:
        """Load the encoder anew, for fine-tuning changes it; a student is taught but once."""
        config = self.config.encoder
        return distil(load_encoder(config.source), config, self.apart, self.workspace)

    def with_ids(self, ids: Sequence[Ids]) -> Material:
        """Return the same with other token ids, one tuple a row."""
        packed = tuple(
            replace(row, token_ids=own) for row, own in zip(self.rows.packed, ids, strict=True)
        )
        return replace(self, rows=replace(self.rows, packed=packed))

    def with_seed(self, seed: int) -> Material:
        """Return the same with another seed of folds and branches."""
        return replace(self, config=self.config.model_copy(update={"seed": seed}))

    def folds(self) -> tuple[Split, ...]:
        """Return the folds; where nothing needs validation rows, they train too."""
        folds, seed = self.config.evaluation.folds, self.config.seed
        return self.dataset.folds(folds, seed, validated=self.needs_validation)


@dataclass(frozen=True, slots=True)
class Trial:
    """What routers said of the own rows that they were not trained on, in the rows' order.

    `branches` are the logits of each branch in full precision, (rows, arms), by name.
    `probabilities`, (rows, arms), are as the graph that would ship says, not calibrated; None where
    no graph was exported. `expected_costs_usd`, (rows, arms), is the profile of the fold's training
    rows. `folds`, (rows,), says which fold tested a row.
    """

    branches: Mapping[str, Floats]
    probabilities: Floats | None
    expected_costs_usd: Floats
    folds: NDArray[np.int64]

    def mixed(self, shares: Mapping[str, float]) -> Floats:
        """Return the probabilities of some branches by these shares, in full precision."""
        total = sum(shares.values())
        logits = sum(share / total * self.branches[name] for name, share in shares.items())
        return sigmoid(np.asarray(logits, dtype=np.float64))


def gather(
    config: RunConfig, dataset: Dataset, encoder: PretrainedEncoder, workspace: Path
) -> Material:
    """Pack every example as the service will, with the tokenizer that will be shipped."""
    # A copy: the packer changes how its tokenizer treats special tokens.
    packer = Packer(config.packing, Tokenizer.from_str(encoder.tokenizer.to_str()))
    rows = Rows(
        packed=tuple(packer.pack(parse_conversation(e.request)) for e in dataset.examples),
        labels=dataset.labels.correct,
        calls=dataset.calls,
        groups=np.array(near_duplicates(dataset.examples), dtype=np.int64),
    )
    return Material(config, dataset, rows, workspace)


def cross_validate(material: Material, *, exported: bool) -> Trial | None:
    """Train on each fold's rows and ask about its test; `exported`: through the int8 graph too.

    None in a process that is not the main one, which helps to train alone.
    """
    arms, own = len(material.config.arms), len(material.dataset.own)
    names = material.config.training.branch_shares
    branches = {name: np.full((own, arms), np.nan) for name in names}
    probabilities = np.full((own, arms), np.nan) if exported else None
    costs_usd, folds = np.full((own, arms), np.nan), np.zeros(own, dtype=np.int64)
    for number, split in enumerate(material.folds()):
        log.info("seed %d, fold %d", material.config.seed, number + 1)
        said = _ask(material, split, exported=exported)
        if said is None:
            continue
        test = list(split.test)
        for name, logits in said.branches.items():
            branches[name][test] = logits
        if probabilities is not None and said.probabilities is not None:
            probabilities[test] = said.probabilities
        costs_usd[test] = expected_costs_usd(material, split.train)
        folds[test] = number
    if not is_main_process():
        return None
    return Trial(branches, probabilities, costs_usd, folds)


@dataclass(frozen=True, slots=True)
class _Said:
    """What one fold's router said of its test rows."""

    branches: Mapping[str, Floats]
    probabilities: Floats | None


def _ask(material: Material, split: Split, *, exported: bool) -> _Said | None:
    config, rows, workspace = material.config, material.rows, material.workspace
    train, validation, test = (
        rows.take(part) for part in (split.train + split.teaching, split.validation, split.test)
    )
    model = train_router(material.encoder(), config, train, validation, workspace=workspace).model
    if not is_main_process():
        return None
    branches = branch_logits(model, config, test, workspace)
    if not exported:
        return _Said(branches, None)
    with TemporaryDirectory() as folder:
        graph = export_int8(model, len(config.packing.features), Path(folder) / "fold.int8.onnx")
        said = Classifier(graph, arms=len(config.arms)).predict(test.packed)
    return _Said(branches, said)


def expected_costs_usd(material: Material, rows: Sequence[int]) -> list[float]:
    """Return the profiled cost of a request for each arm, (arms,), over some of the own rows."""
    profile = profile_arms(material.dataset.usage(material.config, rows), material.config.prices)
    return [profile[arm].cost_usd() for arm in material.config.arms]
