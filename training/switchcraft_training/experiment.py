"""Held-out predictions of routers, and their comparison with their parts and with every baseline.

A run follows one of two protocols. With `folds`, every row is predicted by a router that has not
seen it, and another router is trained on all rows for the artifact. With `split`, as in the paper,
one router is trained, measured on a tenth of the rows, and shipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.apis.conversation import parse_conversation
from router_service.core.errors import ConfigError
from router_service.measurement.goals import parse_goal
from router_service.measurement.held_out import Figures
from router_service.measurement.rules import Costs, Kind, Outcomes, route
from router_service.measurement.statistics import mean_auc
from router_service.policies.costs import ArmProfile
from router_service.predictor.model import IDENTITY, Calibration, Classifier, sigmoid
from router_service.predictor.packing import Packed, Packer
from router_service.predictor.words import Ids
from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.chat import ChatPreferences
from switchcraft_training.baselines.inputs import EncoderEmbedder, Views
from switchcraft_training.baselines.registry import baselines_to_fit
from switchcraft_training.baselines.simple import DatasetOracle, Heuristic
from switchcraft_training.config import Grouping, RunConfig
from switchcraft_training.data.splits import Split, fold_table, group_table, split_table
from switchcraft_training.data.table import Flags, Floats, Table, profile_arms
from switchcraft_training.evaluation.calibration import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Experiment, Run
from switchcraft_training.models.distillation import distil
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder
from switchcraft_training.models.export import export_int8
from switchcraft_training.models.finetuning import compute_states
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.optimization import is_main_process
from switchcraft_training.models.training import TrainedRouter, branch_logits, train_router
from switchcraft_training.progress import stage, step, track
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

PACKING = "packing"
CROSS_VALIDATION = "cross-validation"
ROUTER = "router"
TRUNCATED = "truncated input"
CALIBRATION = "calibration"
BASELINES = "baselines"
"""Names of stages."""

NAIVE_TRUNCATION = "naive truncation"
"""Name of the variant whose conversations are truncated at the window instead of packed."""


def seed_stage(seed: int) -> str:
    """Return the name of the stage that cross-validates with another seed."""
    return f"cross-validation with seed {seed}"


def experiment_stages(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the stages of `pack_table` and of the protocol, in their order."""
    settings = config.evaluation
    trained: tuple[str, ...] = (ROUTER,)
    if settings.protocol != "split":
        trained = (CROSS_VALIDATION, *map(seed_stage, settings.seeds))
    return (
        *(PACKING, *trained),
        *((TRUNCATED,) if settings.truncated else ()),
        *((CALIBRATION,) if config.calibration == "best" else ()),
        *((BASELINES,) if settings.baselines else ()),
    )


@dataclass(frozen=True, slots=True)
class TrainingData:
    """A table whose queries are packed as in the gateway, and the configuration for training on it.

    `workspace` holds checkpoints and other files that later runs reuse. `preferences` train a
    baseline, if the configuration names a file of them.
    """

    config: RunConfig
    table: Table
    workspace: Path
    preferences: ChatPreferences | None = None

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

    def grouped_by(self, grouping: Grouping) -> TrainingData:
        """Return the same data with folds that are grouped in another way."""
        settings = self.config.evaluation.model_copy(update={"grouped_by": grouping})
        config = self.config.model_copy(update={"evaluation": settings})
        return replace(self, config=config, table=group_table(self.table, grouping))

    def folds(self) -> tuple[Split, ...]:
        """Return the folds; without early stopping, validation rows are also used for training."""
        folds, seed = self.config.evaluation.folds, self.config.seed
        within = self.config.evaluation.distinct_within
        return fold_table(self.table, folds, seed, validated=self.needs_validation, within=within)

    def split(self) -> Split:
        """Return the parts of the protocol `split`.

        If datasets are held out, all their rows are tested. The other parts lose these rows and
        their near-duplicates. Raises ConfigError if a held-out dataset has no measured rows, or if
        a part is empty.
        """
        settings, table = self.config.evaluation, self.table
        split = split_table(
            table, self.config.seed, grouped=settings.grouped, within=settings.distinct_within
        )
        if settings.held_out:
            names = np.array([example.dataset for example in table.examples])
            measured = set(names[list(table.measured_rows)].tolist())
            if missing := sorted(set(settings.held_out) - measured):
                problem = (
                    f"no measured rows of {', '.join(missing)}; there are rows of"
                    f" {', '.join(sorted(measured))}"
                )
                raise ConfigError(self.config.name, "evaluation.held_out", problem)
            is_held_out = np.isin(names, settings.held_out)
            related = np.isin(table.groups, table.groups[is_held_out]) | is_held_out
            train, validation, teaching = (
                tuple(row for row in part if not related[row])
                for part in (split.train, split.validation, split.teaching)
            )
            test = tuple(sorted(row for part in split.parts() for row in part if is_held_out[row]))
            split = Split(train, validation, test, teaching)
        if empty := [name for name, size in split.sizes().items() if size == 0]:
            problem = (
                f"the {' and '.join(empty)} part is empty: {len(table.measured_rows)} measured"
                " rows are too few for a split in 80/10/10; record more, or use `folds`"
            )
            raise ConfigError(self.config.name, "evaluation.protocol", problem)
        return split

    def profiles(self, rows: Sequence[int]) -> tuple[ArmProfile, ...]:
        """Return each arm's mean usage on these rows, (arms,)."""
        table = self.table.take(rows).select_arms(self.config.arms)
        return tuple(profile_arms(table, self.config.prices).values())

    def expected_costs_usd(self, rows: Sequence[int]) -> list[float]:
        """Return each arm's expected cost of a request, estimated from these rows, (arms,)."""
        return [profile.cost_usd() for profile in self.profiles(rows)]

    def with_rules(self, measured: Outcomes, probabilities: Floats, costs: Costs) -> TrainingData:
        """Return the same data with the goals of policies replaced by the rules that reach them."""
        policies = self.config.policies
        if all(parse_goal(text, param=name) is None for name, text in policies.items()):
            return self
        figures = Figures.measure(measured, probabilities, costs, policies)
        rules = {"policies": figures.policies}
        return replace(self, config=self.config.model_copy(update=rules))


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Held-out predictions for the measured rows, in row order.

    `branches` are the full-precision logits of each branch, (rows, arms), by name. `probabilities`,
    (rows, arms), are the uncalibrated predictions of the int8 graph, and `p_no_call`, (rows,), its
    probability that a query asks for no call. They are None if no graph was exported, or if it
    predicts no demand. `folds`, (rows,), is the fold that tested each row. `expected_costs_usd`,
    (rows, arms), are estimated from the training rows of that fold.
    """

    branches: Mapping[str, Floats]
    probabilities: Floats | None
    expected_costs_usd: Floats
    folds: NDArray[np.int64]
    p_no_call: Floats | None = None

    def mix(self, shares: Mapping[str, float]) -> Floats:
        """Return full-precision probabilities that mix the branches in `shares` by these shares."""
        return mix_branches(self.branches, shares)


def mix_branches(branches: Mapping[str, Floats], shares: Mapping[str, float]) -> Floats:
    """Return probabilities (rows, arms) that mix the branches in `shares` by these shares."""
    total = sum(shares.values())
    logits = sum(share / total * branches[name] for name, share in shares.items())
    return sigmoid(np.asarray(logits, dtype=np.float64))


def export_fold(model: RouterModel, config: RunConfig) -> Classifier:
    """Return the int8 graph of a fold's router, loaded as the gateway loads it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fold.int8.onnx"
        graph = export_int8(model, len(config.packing.features), path)
        return Classifier(graph, arms=len(config.arms))


Value = TypeVar("Value", int, float)


def _shared(values: Iterable[Value], known: dict[Value, Value]) -> tuple[Value, ...]:
    """Return the values with one object for equal ones, which takes 8 bytes instead of 36."""
    return tuple(known.setdefault(value, value) for value in values)


def pack_table(
    config: RunConfig, table: Table, encoder: PretrainedEncoder, workspace: Path
) -> TrainingData:
    """Return training data: every example packed as in the gateway, with the same tokenizer."""
    # A copy, because the packer changes how its tokenizer treats special tokens.
    packer = Packer(config.packing, Tokenizer.from_str(encoder.tokenizer.to_str()))
    with stage(PACKING):
        queries = track(table.examples, "packed", len(table), "queries")
        ids: dict[int, int] = {}
        values: dict[float, float] = {}
        packed = tuple(
            Packed(_shared(row.token_ids, ids), _shared(row.features, values), ())
            for row in (packer.pack(parse_conversation(e.request)) for e in queries)
        )
    return TrainingData(config, replace(table, packed=packed), workspace)


@dataclass(frozen=True, slots=True)
class HeldOutPart:
    """Rows that a router is trained on, rows that may stop it early, and rows that it predicts.

    If `exported`, the router's int8 graph predicts these rows too.
    """

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    exported: bool


@dataclass(frozen=True, slots=True)
class HeldOutPredictions:
    """Predictions of `HeldOutPart.test`, in that order.

    `branches` has the full-precision logits of each branch, (rows, arms), and `probabilities` the
    predictions of the int8 graph, (rows, arms), if it was exported. `p_no_call`, (rows,), is its
    probability that a query asks for no call, if it predicts that.
    """

    branches: Mapping[str, Floats]
    probabilities: Floats | None
    p_no_call: Floats | None


def predict_held_out(data: TrainingData, part: HeldOutPart) -> HeldOutPredictions | None:
    """Train a router and predict its test rows; return None in all processes except the main one.

    The other processes of `accelerate launch` only help to train.
    """
    config, workspace = data.config, data.workspace
    train, validation, test = map(data.table.take, (part.train, part.validation, part.test))
    encoder = data.load_encoder()
    model = train_router(encoder, config, train, validation, workspace=workspace).model
    if not is_main_process():
        return None
    with step("held-out predictions"):
        branches = branch_logits(model, config, test, workspace)
    probabilities, demand = None, None
    if part.exported:
        with step("int8 graph"):
            classifier = export_fold(model, config)
        with step("int8 graph's predictions"):
            probabilities, demand = classifier.predict_with_demand(test.packed)
    return HeldOutPredictions(branches, probabilities, None if demand is None else demand[:, 0])


def train_parts(
    data: TrainingData, parts: Sequence[HeldOutPart], workers: Workers, unit: str = "fold"
) -> Iterator[HeldOutPredictions | None]:
    """Train a router for each part, several at the same time, and yield its predictions.

    `unit` is what progress calls a part. What the parts share is computed first: the encoder, and
    its states if it is frozen.
    """
    if workers.processes > 1 and "encoder" in data.config.training.branch_shares:
        encoder = data.load_encoder()
        with step("frozen layers"):
            compute_states(encoder, data.config, data.table, data.workspace)
    return workers.map(predict_held_out, data, parts, unit)


def cross_validate(
    data: TrainingData, *, exported: bool, workers: Workers = SINGLE_PROCESS
) -> CrossValidation | None:
    """Train a router on each fold and predict its test rows.

    If `exported`, the int8 graph predicts these rows too. Return None in every process except the
    main one.
    """
    config, rows = data.config, len(data.table.measured_rows)
    names, shape = config.training.branch_shares, (rows, len(config.arms))
    branches = {name: np.full(shape, np.nan) for name in names}
    probabilities = np.full(shape, np.nan) if exported else None
    costs_usd, folds = np.full(shape, np.nan), np.zeros(rows, dtype=np.int64)
    p_no_call = np.full(rows, np.nan)
    splits = data.folds()
    parts = [
        HeldOutPart(split.train + split.teaching, split.validation, split.test, exported)
        for split in splits
    ]
    for number, predicted in enumerate(train_parts(data, parts, workers)):
        if predicted is None:
            continue
        held_out = list(splits[number].test)
        for name, logits in predicted.branches.items():
            branches[name][held_out] = logits
        if probabilities is not None:
            probabilities[held_out] = predicted.probabilities
        if predicted.p_no_call is not None:
            p_no_call[held_out] = predicted.p_no_call
        costs_usd[held_out] = data.expected_costs_usd(splits[number].train)
        folds[held_out] = number
    if not is_main_process():
        return None
    known = None if np.isnan(p_no_call).all() else p_no_call
    return CrossValidation(branches, probabilities, costs_usd, folds, known)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment, its cross-validation, the calibration to ship, and effects of int8."""

    experiment: Experiment
    validation: CrossValidation
    calibration: Calibration
    parity: dict[str, float]


def run_experiment(
    data: TrainingData, workers: Workers = SINGLE_PROCESS
) -> ExperimentResult | None:
    """Cross-validate the router, with the seeds, variants and baselines of the configuration.

    Return None in every process except the main one.
    """
    config = data.config
    with stage(CROSS_VALIDATION):
        validation = cross_validate(data, exported=True, workers=workers)
    seeds = {}
    for seed in config.evaluation.seeds:
        with stage(seed_stage(seed)):
            seeds[seed] = cross_validate(data.with_seed(seed), exported=False, workers=workers)
    truncated = None
    if config.evaluation.truncated:
        with stage(TRUNCATED):
            truncated = cross_validate(_truncate_input(data), exported=False, workers=workers)
    if validation is None or validation.probabilities is None:
        return None

    table = replace(data.table.measured(config.arms), folds=validation.folds)
    labels, groups = table.correct, table.groups.tolist()
    shares = config.training.branch_shares
    study: CalibrationStudy | None = None
    calibration: Calibration = IDENTITY
    if config.calibration == "best":
        with stage(CALIBRATION):
            study = choose_calibration(labels, validation.probabilities, groups, config.seed)
        calibration = study.calibration

    def calibrate(probabilities: Floats) -> Floats:
        if study is None:
            return probabilities
        return calibrated_unseen(labels, probabilities, groups, config.seed, calibration.method)

    def variant(name: str, source: CrossValidation, shares: Mapping[str, float]) -> Entrant:
        probabilities = calibrate(source.mix(shares))
        choices = route(probabilities, source.expected_costs_usd, config.choosing_rule)
        return Entrant("router", name, choices, probabilities)

    data = data.with_rules(
        table, calibrate(validation.probabilities), validation.expected_costs_usd
    )
    config = data.config
    variants = []
    if truncated is not None:
        variants.append(variant(NAIVE_TRUNCATION, truncated, shares))
    if len(shares) > 1:
        for name in shares:
            others = {other: share for other, share in shares.items() if other != name}
            variants.append(variant(f"without {name}", validation, others))
    if len(shares) > 2:
        variants += [variant(f"{name} alone", validation, {name: 1.0}) for name in shares]
    entrants = []
    if config.evaluation.baselines:
        # Baselines get validation rows even if the router needs none.
        within = config.evaluation.distinct_within
        splits = fold_table(table, config.evaluation.folds, config.seed, within=within)
        order = np.argsort([row for split in splits for row in split.test])
        with stage(BASELINES):
            entrants = [entrant.take(order) for entrant in _baseline_entrants(data, splits)]
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
        entrants=tuple(entrants),
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
    return ExperimentResult(experiment, validation, calibration, parity)


@dataclass(frozen=True, slots=True)
class SplitResult:
    """Results of the protocol `split`: the trained router on its test and its validation part."""

    split: Split
    test: Experiment
    validation: Experiment
    calibration: Calibration
    trained: TrainedRouter


def run_split(data: TrainingData, encoder: PretrainedEncoder) -> SplitResult | None:
    """Train one router, starting from `encoder`, and measure it on rows that it has not seen.

    The results are those of the network in full precision, as in the paper; the run compares the
    int8 graph that ships with it. The calibration is fitted on the validation part. Return None in
    every process except the main one. Raises the errors of `TrainingData.split`.
    """
    config, split = data.config, data.split()
    log.info("training a router: seed=%d, rows=%s", config.seed, split.sizes())
    with stage(ROUTER):
        trained = _train_on_split(data, split, encoder)
    truncated = None
    if config.evaluation.truncated:
        log.info("training a router on truncated input: seed=%d", config.seed)
        with stage(TRUNCATED):
            naive = _truncate_input(data)
            truncated = naive, _train_on_split(naive, split, data.load_encoder())
    if not is_main_process():
        return None

    rows = [*split.validation, *split.test]
    is_validation = np.arange(len(rows)) < len(split.validation)
    table = data.table.take(rows).select_arms(config.arms)
    costs_usd = data.expected_costs_usd(split.train)
    probabilities = _predict(data, trained, rows)
    study: CalibrationStudy | None = None
    calibration: Calibration = IDENTITY
    if config.calibration == "best":
        held_out, labels = probabilities[is_validation], table.correct[is_validation]
        groups = table.groups[is_validation].tolist()
        with stage(CALIBRATION):
            study = choose_calibration(labels, held_out, groups, config.seed)
        calibration = study.calibration
        probabilities = calibration.apply(probabilities)
        probabilities[is_validation] = calibrated_unseen(
            labels, held_out, groups, config.seed, calibration.method
        )
    unseen = table.take(is_validation)
    data = data.with_rules(unseen, probabilities[is_validation], costs_usd)
    config = data.config
    variants = []
    if truncated is not None:
        found = calibration.apply(_predict(*truncated, rows))
        choices = route(found, costs_usd, config.choosing_rule)
        variants.append(Entrant("router", NAIVE_TRUNCATION, choices, found))
    # The baselines are fitted once and predict the rows of both parts.
    entrants = []
    if config.evaluation.baselines:
        with stage(BASELINES):
            entrants = list(_baseline_entrants(data, (replace(split, test=tuple(rows)),)))

    def experiment(part: Flags) -> Experiment:
        return Experiment(
            table=table.take(part),
            probabilities=probabilities[part],
            expected_costs_usd=costs_usd,
            policies=config.policies,
            entrants=tuple(entrant.take(part) for entrant in entrants),
            prices=config.prices,
            variants=tuple(variant.take(part) for variant in variants),
            calibrating=study,
        )

    return SplitResult(
        split=split,
        test=experiment(~is_validation),
        validation=experiment(is_validation),
        calibration=calibration,
        trained=trained,
    )


def _train_on_split(data: TrainingData, split: Split, encoder: PretrainedEncoder) -> TrainedRouter:
    train = data.table.take(split.train + split.teaching)
    validation = data.table.take(split.validation if data.needs_validation else ())
    return train_router(encoder, data.config, train, validation, workspace=data.workspace)


def _predict(data: TrainingData, trained: TrainedRouter, rows: Sequence[int]) -> Floats:
    """Return a router's uncalibrated probabilities in full precision, (rows, arms)."""
    logits = branch_logits(trained.model, data.config, data.table.take(rows), data.workspace)
    return mix_branches(logits, data.config.training.branch_shares)


def _truncate_input(data: TrainingData) -> TrainingData:
    """Return data whose measured rows are truncated at the window instead of packed.

    Rows that are only used for training stay packed; nothing is measured on them.
    """
    table = data.table
    views = Views(data.config.packing, load_encoder(data.config.encoder.source).tokenizer)
    ids = [row.token_ids for row in table.packed]
    known: dict[int, int] = {}
    for row in table.measured_rows:
        ids[row] = _shared(views.truncated(table.examples[row]), known)
    return data.with_token_ids(ids)


def _baseline_entrants(data: TrainingData, splits: Sequence[Split]) -> Iterator[Entrant]:
    """Fit every baseline on each split, and yield it with its choices for the splits' test rows."""
    config = data.config
    is_distilled = config.evaluation.baseline_encoder == "distilled"
    encoder = data.load_encoder() if is_distilled else load_encoder(config.encoder.source)
    views = Views(config.packing, encoder.tokenizer)
    embed = EncoderEmbedder(encoder, data.workspace / "frozen")
    table = data.table.measured(config.arms)
    rule = config.choosing_rule
    profiles = None if config.unprofiled_arms else config.profiles
    truncated = config.evaluation.truncated
    fitted = baselines_to_fit(
        views, embed, profiles, truncated=truncated, preferences=data.preferences
    )
    for baseline in fitted:
        log.info("fitting baseline: %s", baseline.name)
        with step(baseline.name):
            predicted = held_out(baseline, table, splits, (rule,))
        kind: Kind = "baseline"
        if isinstance(baseline, DatasetOracle):
            kind = "oracle"
        elif isinstance(baseline, Heuristic):
            kind = "heuristic"
        yield Entrant(kind, baseline.name, predicted.choices[rule], predicted.probabilities)
