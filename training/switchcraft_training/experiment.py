"""Cross-validated routers, and their comparison with their parts and with every baseline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.core.messages import parse_conversation
from router_service.core.model import Classifier, sigmoid
from router_service.core.packing import Ids, Packer
from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.inputs import EncoderEmbedder, Views
from switchcraft_training.baselines.registry import baselines_to_fit
from switchcraft_training.baselines.simple import DatasetOracle, Heuristic
from switchcraft_training.config import RunConfig
from switchcraft_training.data.splits import Split, fold_table, near_duplicates
from switchcraft_training.data.table import Floats, Table, profile_arms
from switchcraft_training.evaluation.calibration import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Experiment, Kind, Run, route
from switchcraft_training.evaluation.metrics import mean_auc
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder
from switchcraft_training.models.export import export_int8
from switchcraft_training.models.optimization import is_main_process
from switchcraft_training.models.training import branch_logits, train_router

log = logging.getLogger(__name__)


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
        """Return each arm's expected cost of a request, estimated from these rows, (arms,)."""
        table = self.table.take(rows).select_arms(self.config.arms)
        profile = profile_arms(table, self.config.prices)
        return [profile[arm].cost_usd() for arm in self.config.arms]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Held-out predictions for the measured rows, in row order.

    `branches` are the full-precision logits of each branch, (rows, arms), by name. `probabilities`,
    (rows, arms), are the uncalibrated predictions of the int8 graph, or None if no graph was
    exported. `folds`, (rows,), is the fold that tested each row. `expected_costs_usd`,
    (rows, arms), are estimated from the training rows of that fold.
    """

    branches: Mapping[str, Floats]
    probabilities: Floats | None
    expected_costs_usd: Floats
    folds: NDArray[np.int64]

    def mix(self, shares: Mapping[str, float]) -> Floats:
        """Return full-precision probabilities that mix the branches in `shares` by these shares."""
        total = sum(shares.values())
        logits = sum(share / total * self.branches[name] for name, share in shares.items())
        return sigmoid(np.asarray(logits, dtype=np.float64))


def pack_table(
    config: RunConfig, table: Table, encoder: PretrainedEncoder, workspace: Path
) -> TrainingData:
    """Return training data: every example packed as in the gateway, with the same tokenizer."""
    # A copy, because the packer changes how its tokenizer treats special tokens.
    packer = Packer(config.packing, Tokenizer.from_str(encoder.tokenizer.to_str()))
    packed = tuple(packer.pack(parse_conversation(e.request)) for e in table.examples)
    groups = np.array(near_duplicates(table.examples), dtype=np.int64)
    return TrainingData(config, replace(table, packed=packed, groups=groups), workspace)


def cross_validate(data: TrainingData, *, exported: bool) -> CrossValidation | None:
    """Train a router on each fold and predict its test rows.

    If `exported`, the int8 graph predicts these rows too. Return None in every process except the
    main one, because the other processes only help to train.
    """
    config, rows = data.config, len(data.table.measured_rows)
    names, shape = config.training.branch_shares, (rows, len(config.arms))
    branches = {name: np.full(shape, np.nan) for name in names}
    probabilities = np.full(shape, np.nan) if exported else None
    costs_usd, folds = np.full(shape, np.nan), np.zeros(rows, dtype=np.int64)
    for number, split in enumerate(data.folds()):
        log.info("training a router: seed=%d fold=%d", config.seed, number + 1)
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


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment, its cross-validation, the study of its calibration, and effects of int8."""

    experiment: Experiment
    validation: CrossValidation
    study: CalibrationStudy
    parity: dict[str, float]


def run_experiment(data: TrainingData) -> ExperimentResult | None:
    """Cross-validate the router, with the seeds, variants and baselines of the configuration.

    Return None in every process except the main one.
    """
    config = data.config
    validation = cross_validate(data, exported=True)
    seeds = {
        seed: cross_validate(data.with_seed(seed), exported=False)
        for seed in config.evaluation.seeds
    }
    truncated = None
    if config.evaluation.truncated:
        truncated = cross_validate(_truncate_input(data), exported=False)
    if validation is None or validation.probabilities is None:
        return None

    table = replace(data.table.measured(config.arms), folds=validation.folds)
    labels, groups = table.correct, table.groups.tolist()
    study = choose_calibration(labels, validation.probabilities, groups, config.seed)
    method, shares = study.calibration.method, config.training.branch_shares

    def calibrate(probabilities: Floats) -> Floats:
        return calibrated_unseen(labels, probabilities, groups, config.seed, method)

    def variant(name: str, source: CrossValidation, shares: Mapping[str, float]) -> Entrant:
        probabilities = calibrate(source.mix(shares))
        choices = route(probabilities, source.expected_costs_usd, config.policies["default"])
        return Entrant("router", name, choices, probabilities)

    variants = []
    if truncated is not None:
        variants.append(variant("naive truncation", truncated, shares))
    if len(shares) > 1:
        for name in shares:
            others = {other: share for other, share in shares.items() if other != name}
            variants.append(variant(f"without {name}", validation, others))
    if len(shares) > 2:
        variants += [variant(f"{name} alone", validation, {name: 1.0}) for name in shares]
    runs = [
        Run(f"seed {seed}", table, calibrate(source.mix(shares)), source.expected_costs_usd)
        for seed, source in {config.seed: validation, **seeds}.items()
        if source is not None
    ]
    experiment = Experiment(
        table=table,
        probabilities=calibrate(validation.probabilities),
        expected_costs_usd=validation.expected_costs_usd,
        policies=config.policies,
        entrants=tuple(_baseline_entrants(data)) if config.evaluation.baselines else (),
        prices=config.prices,
        variants=tuple(variants),
        runs=tuple(runs),
        calibrating=study,
    )
    exact = validation.mix(shares)
    parity = {
        "int8 graph: mean difference": float(np.abs(exact - validation.probabilities).mean()),
        "int8 graph: change of mean AUC": (
            mean_auc(labels, validation.probabilities) - mean_auc(labels, exact)
        ),
    }
    return ExperimentResult(experiment, validation, study, parity)


def _truncate_input(data: TrainingData) -> TrainingData:
    """Return data whose measured rows are truncated at the window instead of packed.

    Rows that are only used for training stay packed; nothing is measured on them.
    """
    table = data.table
    views = Views(data.config.packing, load_encoder(data.config.encoder.source).tokenizer)
    ids = [row.token_ids for row in table.packed]
    for row in table.measured_rows:
        ids[row] = views.truncated(table.examples[row])
    return data.with_token_ids(ids)


def _baseline_entrants(data: TrainingData) -> Iterator[Entrant]:
    """Fit every baseline on the router's folds, and yield it with its held-out choices.

    The baselines get each fold's validation queries even if the router is trained without them.
    """
    config = data.config
    encoder = load_encoder(config.encoder.source)
    views = Views(config.packing, encoder.tokenizer)
    embed = EncoderEmbedder(encoder, data.workspace / "frozen")
    table = data.table.measured(config.arms)
    splits = fold_table(table, config.evaluation.folds, config.seed)
    rule = config.policies["default"]
    for baseline in baselines_to_fit(views, embed, truncated=config.evaluation.truncated):
        log.info("fitting baseline: %s", baseline.name)
        predicted = held_out(baseline, table, splits, (rule,))
        order = np.argsort(predicted.rows)
        kind: Kind = "baseline"
        if isinstance(baseline, DatasetOracle):
            kind = "oracle"
        elif isinstance(baseline, Heuristic):
            kind = "heuristic"
        probabilities = predicted.probabilities
        if probabilities is not None:
            probabilities = probabilities[order]
        yield Entrant(kind, baseline.name, predicted.choices[rule][order], probabilities)
