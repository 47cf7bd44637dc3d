"""The complete run: from recorded answers to an evaluated router, its artifact and its report.

All metrics are held-out. With the protocol `folds`, a router trained on other folds predicts each
query. The router in the artifact is then trained on all queries, and its calibration was fitted on
the held-out probabilities. With the protocol `split`, the router in the artifact is the one that is
measured.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from router_service.artifact import TOKENIZER, Encoder, Manifest, Provenance
from router_service.measurement.held_out import HeldOut
from router_service.predictor.model import Calibration, Classifier
from switchcraft_training.baselines.chat import read_preferences
from switchcraft_training.config import Grouping, RunConfig, dump_config
from switchcraft_training.data.learned import LearnedQueries, TrainingOverlap
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.splits import split_table
from switchcraft_training.data.table import Table, profile_arms
from switchcraft_training.dataset import (
    load_dataset,
    open_source,
    require_measured_rows,
    sources_sha256,
)
from switchcraft_training.evaluation.evaluate import Experiment
from switchcraft_training.evaluation.learning import LearningCurve, learning_curves
from switchcraft_training.evaluation.report import (
    KnownTools,
    Report,
    all_sections,
    main_figures,
    write_report,
)
from switchcraft_training.evaluation.verified import (
    NO_ANSWERS,
    NO_VERIFIER,
    VerifiedFigures,
    verified_figures,
)
from switchcraft_training.experiment import (
    BASELINES,
    CROSS_VALIDATION,
    ROUTER,
    TRUNCATED,
    TrainingData,
    experiment_stages,
    pack_table,
    run_experiment,
    run_split,
    seed_stage,
)
from switchcraft_training.familiarity import fit_familiarity
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder, packing_for
from switchcraft_training.models.export import (
    CUDA_GRAPH,
    GRAPH,
    export_fp16,
    export_int8,
    full_precision,
    write_canaries,
    write_manifest,
)
from switchcraft_training.models.optimization import explaining_lost_processes, is_main_process
from switchcraft_training.models.training import TrainedRouter, predict, train_router
from switchcraft_training.progress import running, stage
from switchcraft_training.verification import (
    NESTED_ROUTERS,
    VERIFIER,
    require_answers,
    study_verifier,
)
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

DISTRIBUTION = "switchcraft-router"
VERSIONED = ("torch", "transformers", "tokenizers", "onnx", "onnxruntime", "numpy")
PARITY_ROWS = 100
COMPARED_ROWS = 500
"""Number of queries by which the graphs for CPUs and GPUs are compared."""
LARGE_DIFFERENCE = 0.1
MANY_CHANGED = 0.05
"""Above this difference in probability or this share of changed decisions between the graphs for
CPUs and GPUs, a run warns. The int8 graph of a DistilBERT with sharp probabilities differs from
full precision by up to 0.08."""
GPU_PARAMETERS = 10_000_000
"""Larger encoders get a graph for GPUs by default. On one core, the int8 graph of a DistilBERT (66
million parameters) takes 36 ms for 64 tokens, and the shipped one (4 million) 0.7 ms
(`benchmarks/gpu.sh`)."""

STAGES = "stages.json"
"""File with the time and memory of every stage of a run."""

READING = "reading and judging"
FINAL_ROUTER = "final router"
EXPORT = "export"
MAIN_TABLE = "main table"
KNOWN_TOOLS = "known tools"
LEARNING_CURVE = "learning curve"
REPORT = "report"
"""Names of the stages besides those of `experiment_stages` and of `study_verifier`."""

SHARES: Mapping[str, float] = {
    CROSS_VALIDATION: 25,
    ROUTER: 10,
    TRUNCATED: 8,
    BASELINES: 14,
    FINAL_ROUTER: 2,
    EXPORT: 1,
    NESTED_ROUTERS: 9,
    VERIFIER: 29,
    REPORT: 2,
}
SEED_SHARE = 7
"""Typical durations of stages in percent of a run, and that of the stage of each further seed. They
are rounded from `stages.json` of the shipped recipe on two cores. Stages before the first training
have none, because later runs reuse their results."""


def run(
    config: RunConfig,
    data: Path,
    out: Path,
    *,
    workspace: Path | None = None,
    workers: Workers = SINGLE_PROCESS,
) -> Path:
    """Run every stage on the sources in `data`; return the artifact's directory, `out/artifact`.

    Checkpoints and other files that later runs reuse go to `workspace` (default: `out/work`).
    `workers` train the folds. If `accelerate launch` has started several processes, only the main
    one continues after training. Raises DataError if a row of a source or of the chat preferences
    cannot be parsed or if too few queries can be measured, and ConfigError if an arm of the pool
    has no recorded answers, if a verifier is wanted and no answers are recorded, or if the chat
    preferences lack the strong or the weak model.
    """
    if config.verifier:
        require_answers(config, data)
    if config.evaluation.baselines and config.unprofiled_arms:
        arms = ", ".join(config.unprofiled_arms)
        log.warning(
            "the baseline MIRT is left out: add a `profile` to the pool's entry of %s", arms
        )
    shares = {**SHARES, **{seed_stage(seed): SEED_SHARE for seed in config.evaluation.seeds}}
    with explaining_lost_processes(), running(run_stages(config), shares) as stages:
        directory = _run_stages(config, data, out, workspace or out / "work", workers)
    if is_main_process():
        usages = [asdict(usage) for usage in stages.usages.values()]
        (out / STAGES).write_text(json.dumps(usages, indent=2) + "\n")
    return directory


def run_stages(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the stages of a run, in their order."""
    if config.evaluation.protocol == "split":
        return (READING, *experiment_stages(config), MAIN_TABLE, EXPORT, REPORT)
    verifier = (NESTED_ROUTERS, VERIFIER) if config.verifier else ()
    known = (KNOWN_TOOLS,) if config.evaluation.known_tools else ()
    learning = (LEARNING_CURVE,) if config.evaluation.learning_curve else ()
    last = (FINAL_ROUTER, EXPORT, MAIN_TABLE, *verifier, *known, *learning, REPORT)
    return (READING, *experiment_stages(config), *last)


def _run_stages(
    config: RunConfig, data: Path, out: Path, workspace: Path, workers: Workers
) -> Path:
    provenance = trace(config, data)
    workspace.mkdir(parents=True, exist_ok=True)
    chat = config.evaluation.chat_preferences
    with stage(READING):
        preferences = None if chat is None else read_preferences(chat, data)
        table = load_dataset(config, data, workspace / "labels")
    require_measured_rows(table, config, data)
    encoder = load_encoder(config.encoder.source)
    config = config.model_copy(update={"packing": packing_for(encoder, config.packing)})
    training = replace(pack_table(config, table, encoder, workspace), preferences=preferences)
    if config.evaluation.protocol == "split":
        return _run_split(training, out, provenance)
    result = run_experiment(training, workers)
    with stage(FINAL_ROUTER):
        encoder = training.load_encoder()
        trained = train_on_all(training, encoder)
    if result is None or not is_main_process():
        return out / "artifact"

    directory = out / "artifact"
    with stage(EXPORT):
        parity = result.parity | export(training, encoder, trained, result.calibration, directory)
    with stage(MAIN_TABLE):
        figures = main_figures(result.experiment)
    measured = table.measured(config.arms)
    profile = profile_arms(measured, config.prices)
    LearnedQueries.of(table.examples).write(directory)
    folds = [split.train for split in training.folds()]
    held_out_predictions(training, result.experiment, folds).write(directory)
    manifest = write_manifest(
        directory,
        config,
        describe_encoder(encoder),
        profile,
        provenance,
        figures=result.experiment.figures(),
        calibration=result.calibration,
        familiarity=fit_familiarity(training),
    )
    parity |= compare_graphs(training, manifest, directory)
    verified: VerifiedFigures | str = NO_VERIFIER
    if config.verifier:
        calibrated = result.experiment.probabilities
        study = study_verifier(training, result.validation, calibrated, data, workers=workers)
        study.add_to(directory)
        verified = verified_figures(study)
    elif not isinstance(open_source(config.source, data), CheckedAnswers):
        verified = NO_ANSWERS
    known: KnownTools | None = None
    if config.evaluation.known_tools:
        with stage(KNOWN_TOOLS):
            known = measure_known_tools(training, result.experiment.policies, data, workers)
    learning: dict[Grouping, LearningCurve] = {}
    if config.evaluation.learning_curve:
        with stage(LEARNING_CURVE):
            learning = learning_curves(training, data, workers=workers)
    with stage(REPORT):
        report = Report(
            name=config.name,
            folds=config.evaluation.folds,
            teaching=len(table.teaching_rows),
            unprofiled_arms=config.unprofiled_arms if config.evaluation.baselines else (),
            label_rates=rates_by_category(measured),
            epochs=trained.epochs,
            test=figures,
            sections=all_sections(result.experiment, figures),
            parity=parity,
            provenance=provenance,
            overlap=TrainingOverlap.of_splits(table.examples, training.folds()),
            verified=verified,
            grouped_by=config.evaluation.grouped_by,
            known_tools=known,
            learning=learning,
        )
        write_report(report, out)
    return directory


def measure_known_tools(
    data: TrainingData, policies: Mapping[str, str], recordings: Path, workers: Workers
) -> KnownTools:
    """Measure the same policies with folds in which a query's tools may have been learned from."""
    alone = data.config.evaluation.model_copy(
        update={"seeds": (), "baselines": False, "truncated": False, "learning_curve": ()}
    )
    config = data.config.model_copy(update={"evaluation": alone, "policies": policies})
    data = replace(data, config=config).grouped_by("queries")
    result = run_experiment(data, workers)
    assert result is not None  # noqa: S101 - only the main process measures
    verified: VerifiedFigures | None = None
    if config.verifier:
        calibrated = result.experiment.probabilities
        study = study_verifier(data, result.validation, calibrated, recordings, workers=workers)
        verified = verified_figures(study)
    return KnownTools(main_figures(result.experiment), verified)


def _run_split(data: TrainingData, out: Path, provenance: Provenance) -> Path:
    """Train one router, and write its artifact and the reports on its test and validation part."""
    config, directory = data.config, out / "artifact"
    encoder = data.load_encoder()
    result = run_split(data, encoder)
    if result is None:
        return directory
    with stage(MAIN_TABLE):
        test, validation = main_figures(result.test), main_figures(result.validation)
    chosen = validation.entry(validation.default_policy)
    described = result.test.figures()
    measures = {
        "validation_accuracy": chosen.accuracy,
        "validation_cost_usd": chosen.cost_usd,
    }
    described = replace(described, metrics={**described.metrics, **measures})
    with stage(EXPORT):
        parity = export(data, encoder, result.trained, result.calibration, directory)
    split, examples = result.split, data.table.examples
    known = (*split.train, *split.validation, *split.teaching)
    LearnedQueries.of(examples[row] for row in known).write(directory)
    profile = profile_arms(
        data.table.take(result.split.train).select_arms(config.arms), config.prices
    )
    held_out_predictions(data, result.test, [split.train]).write(directory)
    manifest = write_manifest(
        directory,
        config,
        describe_encoder(encoder),
        profile,
        provenance,
        figures=described,
        calibration=result.calibration,
    )
    parity |= compare_graphs(data, manifest, directory)
    with stage(REPORT):
        report = Report(
            name=config.name,
            split=result.split.sizes(),
            teaching=len(result.split.teaching),
            unprofiled_arms=config.unprofiled_arms if config.evaluation.baselines else (),
            label_rates=rates_by_category(result.test.table),
            epochs=result.trained.epochs,
            test=test,
            sections=all_sections(result.test, test),
            parity=parity,
            provenance=provenance,
            overlap=TrainingOverlap.of_splits(examples, (split,)),
        )
        write_report(report, out)
        against_training = replace(split, validation=(), test=split.validation)
        on_validation = replace(
            report,
            part="validation",
            overlap=TrainingOverlap.of_splits(examples, (against_training,)),
            label_rates=rates_by_category(result.validation.table),
            test=validation,
            sections=all_sections(result.validation, validation),
        )
        write_report(on_validation, out, "validation")
    return directory


def train_on_all(data: TrainingData, encoder: PretrainedEncoder) -> TrainedRouter:
    """Train the artifact's router on all rows, minus a tenth if early stopping needs them."""
    held_out: tuple[int, ...] = ()
    if data.needs_validation:
        within = data.config.evaluation.distinct_within
        held_out = split_table(data.table, data.config.seed, within=within).validation
    train = [row for row in range(len(data.table)) if row not in set(held_out)]
    return train_router(
        encoder,
        data.config,
        data.table.take(train),
        data.table.take(held_out),
        workspace=data.workspace,
    )


def export(
    data: TrainingData,
    encoder: PretrainedEncoder,
    trained: TrainedRouter,
    calibration: Calibration,
    directory: Path,
) -> dict[str, float]:
    """Write the tokenizer, the graphs and the canary requests to `directory`, which is emptied.

    Return the largest differences in probability of the exported graphs to PyTorch.
    """
    config = data.config
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    encoder.tokenizer.save(str(directory / TOKENIZER))
    features = len(config.packing.features)
    rows = data.table.take(data.table.measured_rows[:PARITY_ROWS])
    with TemporaryDirectory() as folder:  # the artifact does not include the FP32 graph
        graph = export_int8(trained.model, features, Path(folder) / GRAPH)
        graphs = {"FP32": full_precision(graph)}
        if config.evaluation.protocol == "split":  # With folds, the int8 graph is measured itself.
            graphs["int8"] = directory / GRAPH
        shutil.copyfile(graph, directory / GRAPH)
        if has_cuda_graph(config, describe_encoder(encoder)):
            graphs["fp16"] = directory / CUDA_GRAPH
            export_fp16(trained.model, features, graphs["fp16"])
        predicted = {
            name: Classifier(path, arms=len(config.arms)).predict(rows.packed)
            for name, path in graphs.items()
        }
    write_canaries(directory, config, calibration)
    exact = predict(trained.model, rows)
    return {
        f"{name} graph: largest difference, {len(rows)} queries": float(
            np.abs(exact - probabilities).max()
        )
        for name, probabilities in predicted.items()
    }


def has_cuda_graph(config: RunConfig, encoder: Encoder) -> bool:
    """Return whether the artifact gets a graph for GPUs; by default, if its encoder is large."""
    if config.cuda_graph is not None:
        return config.cuda_graph
    return "encoder" in config.training.branch_shares and encoder.parameters > GPU_PARAMETERS


def compare_graphs(data: TrainingData, manifest: Manifest, directory: Path) -> dict[str, float]:
    """Return how far the graph for GPUs differs from the one for CPUs, on measured queries.

    These are the largest difference in calibrated probability, and the share of decisions of the
    policy that chooses once that change. Empty without a graph for GPUs. Logs a warning if the
    difference is large, because the artifact's figures then say little about a gateway with a GPU.
    """
    if "cuda" not in manifest.models:
        return {}
    rows = data.table.take(data.table.measured_rows[:COMPARED_ROWS])
    arms, policy = len(manifest.arms), manifest.choose_once.rule
    costs_usd = np.tile(manifest.costs_usd(), (len(rows), 1))
    on_cpu, on_gpu = (
        Classifier(directory / manifest.models[device], arms=arms, calibration=manifest.calibration)
        .predict(rows.packed)
        .astype(np.float64)
        for device in ("cpu", "cuda")
    )
    difference = float(np.abs(on_cpu - on_gpu).max())
    chosen = [policy.choose_rows(each, costs_usd) for each in (on_cpu, on_gpu)]
    changed = float((chosen[0] != chosen[1]).mean())
    if difference > LARGE_DIFFERENCE or changed > MANY_CHANGED:
        log.warning(
            "the graphs for CPUs and GPUs differ: probabilities by up to %.3f, %.1f%% of the"
            " decisions of %s; the artifact's figures may not hold on a GPU",
            difference,
            100 * changed,
            policy,
        )
    of = f"fp16 graph and int8 graph, {len(rows)} queries"
    return {f"{of}: largest difference": difference, f"{of}: changed decisions": changed}


def describe_encoder(encoder: PretrainedEncoder) -> Encoder:
    """Return the description of an encoder that is stored in an artifact."""
    size = encoder.model.config
    return Encoder(
        name=encoder.name,
        parameters=sum(p.numel() for p in encoder.model.parameters()),
        hidden_size=size.hidden_size,
        layers=size.num_hidden_layers,
    )


def rates_by_category(table: Table) -> dict[str, dict[str, float]]:
    """Return the share of correct answers of each arm, by category."""
    members: dict[str, list[int]] = defaultdict(list)
    for row, example in enumerate(table.examples):
        members[example.category].append(row)
    return {
        category: dict(zip(table.arms, table.correct[rows].mean(0).tolist(), strict=True))
        for category, rows in sorted(members.items())
    }


def held_out_predictions(
    data: TrainingData, experiment: Experiment, trained_on: Sequence[Sequence[int]]
) -> HeldOut:
    """Return the predictions and answers from which a gateway computes the figures of its pool.

    `trained_on` are the rows that each fold's router has learned from: they give the expected
    costs.
    """
    table = experiment.table
    usage = [
        [(each.input_tokens, each.output_tokens, each.seconds) for each in data.profiles(rows)]
        for rows in trained_on
    ]
    return HeldOut(
        probabilities=experiment.probabilities,
        correct=table.correct,
        input_tokens=np.where(table.has_tokens, table.input_tokens, 0.0),
        output_tokens=np.where(table.has_tokens, table.output_tokens, 0.0),
        seconds=np.nan_to_num(table.seconds),
        folds=table.folds if len(trained_on) > 1 else np.zeros(len(table), dtype=np.int64),
        usage=np.array(usage),
    )


def trace(config: RunConfig, data: Path) -> Provenance:
    """Return the provenance of a run whose sources are in the folder `data`."""
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        config=dump_config(config),
        seed=config.seed,
        data_sha256=sources_sha256((config.source, *config.also), data),
        versions={
            "python": platform.python_version(),
            "switchcraft": version(DISTRIBUTION),
            **{name: version(name) for name in VERSIONED},
        },
    )


def _commit() -> str:
    """Return the commit of the checkout, or `unknown` outside a checkout."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],  # noqa: S607
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()
