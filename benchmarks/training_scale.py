"""Time and peak memory of every stage of a training run, at several numbers of queries.

    python benchmarks/training_scale.py --rows 1000 10000 50000 150000 --out runs/training-scale

Each number of queries has its own process, which does every part of `switchcraft-train run` once,
with the shipped recipe (`configs/reference-pool.yaml`) and ten arms of a made-up corpus. A run
repeats some parts for every fold and seed; the last column says how often, and the last line is the
sum of all repetitions. Three parts are made cheaper:

- The distilled encoder has random weights, because a distillation does not depend on the queries.
- Baselines get random embeddings. What an encoder needs for the three views of `EMBEDDED_ROWS` rows
  is measured, and repeated for all rows.
- The verifier is left out, unless `--verifier` is given.

`--whole` runs `switchcraft-train run` itself instead, and prints its stages. `--tables` measures
only calibration and the main table, on queries drawn with replacement from a small corpus.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from transformers import DistilBertConfig, DistilBertModel

from benchmarks.corpus import ARMS, write_corpus
from benchmarks.stamp import write_figures
from router_service.policies.costs import Price
from router_service.predictor.model import sigmoid
from router_service.predictor.words import Ids
from switchcraft_training import experiment, pipeline, training_data
from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.inputs import EncoderEmbedder, Views
from switchcraft_training.baselines.registry import baselines
from switchcraft_training.config import (
    ArmConfig,
    CheckingConfig,
    RunConfig,
    SourceConfig,
    load_config,
)
from switchcraft_training.data.splits import fold_table
from switchcraft_training.data.table import Floats, Table, profile_arms
from switchcraft_training.dataset import load_dataset
from switchcraft_training.evaluation.calibration import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Experiment
from switchcraft_training.evaluation.report import all_sections, main_figures
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder
from switchcraft_training.models.finetuning import compute_states
from switchcraft_training.models.training import branch_logits, train_router
from switchcraft_training.predictions import HeldOutPredictions, export_fold
from switchcraft_training.progress import Usage, running, stage, step
from switchcraft_training.training_data import TrainingData, pack_table
from switchcraft_training.verification import study_verifier

SHIPPED_CONFIG = Path("configs/reference-pool.yaml")
TEACHING_QUERIES = 3_000
"""Queries of a second recording, which is only used for training, as in the shipped recipe."""

EMBEDDED_ROWS = 64
DRAWN_FROM = 1_000
WIDTH = 384
ONE_FOLD = "one fold"
STATES = "states of the narrow encoder"
EMBEDDING = f"three views of {EMBEDDED_ROWS} rows, embedded"


def main() -> None:
    """Print the usage of each stage, and write it as JSON."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured: dict[str, list[dict[str, Any]]] = {}
    for rows in arguments.rows:
        folder = arguments.out / f"{rows}"
        work = measure
        if arguments.whole:
            work = _run_whole
        elif arguments.tables:
            work = measure_tables
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            usages = pool.submit(work, folder, rows, verifier=arguments.verifier).result()
        measured[str(rows)] = [asdict(usage) for usage in usages]
        _print_usages(rows, usages, has_parts=work is measure)
        if not arguments.keep:
            shutil.rmtree(folder)
        path, packages = arguments.out / "usages.json", ("torch", "scikit-learn", "onnxruntime")
        write_figures(path, {"usages": measured}, *packages)


def repetitions(config: RunConfig, rows: int) -> dict[str, float]:
    """Return how often a run does a measured part; parts that are not named are done once.

    A part is a step of `ONE_FOLD`, or a stage.
    """
    settings = config.evaluation
    routers = settings.folds * (1 + settings.truncated) + 1
    return {
        "int8 graph": settings.folds + 1,
        "int8 graph's predictions": settings.folds,
        ONE_FOLD: routers,
        "folds": 1 + settings.truncated,
        STATES: 1 + settings.truncated,
        experiment.BASELINES: settings.folds,
        EMBEDDING: rows / EMBEDDED_ROWS,
    }


def _print_usages(rows: int, usages: Sequence[Usage], *, has_parts: bool) -> None:
    times = repetitions(load_config(SHIPPED_CONFIG), rows)
    total_s = 0.0
    for usage in usages:
        name = f"{usage.stage}: {usage.step}" if usage.step else usage.stage
        seconds = f"{usage.seconds:>9.1f} s {usage.cpu_seconds:>9.1f} s CPU"
        line = f"{rows:>8,} {name:<60} {seconds} {usage.peak_memory_mb:>8,.0f} MB"
        # The steps of one fold are repeated differently; the other stages are repeated as a whole.
        is_part = bool(usage.step) if usage.stage == ONE_FOLD else not usage.step
        if is_part and has_parts:
            repeated = times.get(usage.step, times.get(usage.stage, 1))
            total_s += repeated * usage.cpu_seconds
            line += f" x {repeated:,.0f}"
        print(line, flush=True)
    if has_parts:
        print(f"{rows:>8,} {'sum of a run, computed':<60} {total_s / 3600:.2f} h CPU", flush=True)


def configured(folder: Path, rows: int, *, verifier: bool = False) -> RunConfig:
    """Write a corpus to a folder, and return the shipped recipe for it."""
    sources = []
    for name, queries, seed in (("measured", rows, 0), ("teaching", TEACHING_QUERIES, 1)):
        if not (folder / name / "rows.jsonl").exists():
            write_corpus(folder / name, queries, seed)
        path = Path(name)
        sources.append(SourceConfig(format="labelled", path=path / "rows.jsonl", answers=path))
    prices = np.geomspace(0.1, 5, len(ARMS)).tolist()
    pool = tuple(
        ArmConfig(arm=arm, price=Price(input_usd_per_mtok=usd, output_usd_per_mtok=4 * usd))
        for arm, usd in zip(ARMS, prices, strict=True)
    )
    source, also = sources
    recipe = load_config(SHIPPED_CONFIG)
    changes = {
        "source": source,
        "also": (also,),
        "pool": pool,
        "verifier": verifier,
        "policies": {"default": recipe.choosing_rule},  # a rule; a run resolves goals
    }
    return recipe.model_copy(update=changes)


def measure(folder: Path, rows: int, *, verifier: bool) -> list[Usage]:
    """Do every part of a run once, and return what each of them needed."""
    _log_stages()
    config = configured(folder, rows, verifier=verifier)
    with running(()) as stages:
        with stage(training_data.READING):
            table = load_dataset(config, folder)
        encoder = load_encoder(config.encoder.source)
        with stage(training_data.PACKING):
            data = pack_table(config, table, encoder, folder / "work")
        config = config.model_copy(
            update={"encoder": config.encoder.model_copy(update={"distilled": None})}
        )
        data = replace(data, config=config)
        with stage("folds"):
            splits = data.folds()
        small = replace(encoder, model=_small_encoder(encoder))
        with stage(STATES):
            compute_states(small, config, data.table, data.workspace)
        split = splits[0]
        validation = one_fold(data, split.train + split.teaching, split.test, small)
        study_all(data, validation)
        views = Views(config.packing, encoder.tokenizer)
        sample = np.linspace(0, len(data.table.measured_rows) - 1, EMBEDDED_ROWS).astype(int)
        examples = [data.table.examples[row] for row in sample]
        with stage(EMBEDDING):
            for view in (views.packed, views.truncated, views.vanilla):
                EncoderEmbedder(encoder)([view(example) for example in examples])
        if verifier:
            mixed = validation.mix(config.training.branch_shares)
            study_verifier(data, validation, mixed, folder)
    return list(stages.usages.values())


def one_fold(
    data: TrainingData, train: Sequence[int], test: Sequence[int], encoder: PretrainedEncoder
) -> HeldOutPredictions:
    """Train on one fold and predict its test rows; other rows get noisy labels as predictions."""
    config, table = data.config, data.table
    labels = table.measured(config.arms).correct
    rng = np.random.default_rng(0)
    noise = 2 * labels - 1 + rng.normal(0, 2, labels.shape)
    branches = {name: noise.copy() for name in config.training.branch_shares}
    with stage(ONE_FOLD):
        model = train_router(
            encoder, config, table.take(train), table.take(()), workspace=data.workspace
        ).model
        with step("held-out predictions"):
            for name, logits in branch_logits(
                model, config, table.take(test), data.workspace
            ).items():
                branches[name][list(test)] = logits
        with step("int8 graph"):
            classifier = export_fold(model, config)
        with step("int8 graph's predictions"):
            raw = sigmoid(noise)
            raw[list(test)] = classifier.predict(table.take(test).packed)
    costs_usd = np.tile(data.expected_costs_usd(train), (len(labels), 1))
    folds = np.zeros(len(labels), dtype=np.int64)
    unknown = np.full(len(labels), np.nan)
    return HeldOutPredictions(branches, raw, unknown, folds=folds, expected_costs_usd=costs_usd)


def study_all(data: TrainingData, validation: HeldOutPredictions) -> None:
    """Calibrate, fit each baseline on one fold, and make the report's figures."""
    config = data.config
    table = replace(data.table.measured(config.arms), folds=validation.folds)
    study, probabilities = calibrated(table, validation.probabilities, config.seed)
    entrants = tuple(_entrants(data, probabilities)) if config.evaluation.baselines else ()
    result = Experiment(
        table=table,
        probabilities=probabilities,
        expected_costs_usd=validation.expected_costs_usd,
        policies=config.policies,
        entrants=entrants,
        prices=config.prices,
        calibrating=study,
    )
    with stage(experiment.MAIN_TABLE):
        main_figures(result)
    with stage(pipeline.REPORT):
        all_sections(result)


def calibrated(table: Table, raw: Floats, seed: int) -> tuple[CalibrationStudy, Floats]:
    """Return the study of calibration methods, and the calibrated probabilities."""
    labels, groups = table.correct, table.groups.tolist()
    with stage(experiment.CALIBRATION):
        study = choose_calibration(labels, raw, groups, seed)
        method = study.calibration.method
        return study, calibrated_unseen(labels, raw, groups, seed, method)


def measure_cheap(folder: Path, rows: int) -> list[Usage]:
    """Do the stages of a run that need no encoder, with noisy labels as predictions."""
    config = configured(folder, rows)
    with running(()) as stages:
        with stage(training_data.READING):
            table = load_dataset(
                config.model_copy(update={"also": (), "checking": CheckingConfig()}), folder
            ).measured(config.arms)
        labels = table.correct
        raw = sigmoid(2 * labels - 1 + np.random.default_rng(0).normal(0, 2, labels.shape))
        _, probabilities = calibrated(table, raw, config.seed)
        with stage(experiment.MAIN_TABLE):
            profile = profile_arms(table, config.prices)
            costs_usd = [profile[arm].cost_usd() for arm in config.arms]
            main_figures(Experiment(table, probabilities, costs_usd, config.policies))
    return list(stages.usages.values())


def measure_tables(folder: Path, rows: int, *, verifier: bool) -> list[Usage]:  # noqa: ARG001 - as `measure`
    """Calibrate, and make the main table, for drawn queries with noisy labels as predictions."""
    config = configured(folder, DRAWN_FROM)
    alone = config.model_copy(update={"also": (), "checking": CheckingConfig()})
    rng = np.random.default_rng(0)
    corpus = load_dataset(alone, folder).measured(config.arms)
    drawn = corpus.take(rng.integers(0, len(corpus), rows))
    labels = (rng.random(drawn.correct.shape) < corpus.correct.mean(0)).astype(np.float64)
    table = replace(drawn, correct=labels, groups=np.arange(rows))
    raw = sigmoid(2 * labels - 1 + rng.normal(0, 2, labels.shape))
    profile = profile_arms(table, config.prices)
    costs_usd = [profile[arm].cost_usd() for arm in config.arms]
    with running(()) as stages:
        _, probabilities = calibrated(table, raw, config.seed)
        with stage(experiment.MAIN_TABLE):
            main_figures(Experiment(table, probabilities, costs_usd, config.policies))
    return list(stages.usages.values())


def _entrants(data: TrainingData, probabilities: Floats) -> Iterator[Entrant]:
    """Fit each baseline on one fold; the report gets the router's predictions in its place."""
    views = Views(data.config.packing, load_encoder(data.config.encoder.source).tokenizer)
    table = data.table.measured(data.config.arms)
    with stage(experiment.BASELINES):
        splits = fold_table(table, data.config.evaluation.folds, data.config.seed)
        rule = data.config.choosing_rule
        for baseline in baselines(views, _random_vectors):
            with step(baseline.name):
                found = held_out(baseline, table, splits[:1], rule)
            choices = np.zeros(len(table), dtype=np.int64)
            predicts = found.probabilities is not None
            yield Entrant("baseline", baseline.name, choices, probabilities if predicts else None)


def _random_vectors(rows: Sequence[Ids]) -> Floats:
    """Return a vector of length 1 for each row; equal rows have equal vectors."""
    found = np.array(
        [np.random.default_rng(hash(row) & 0xFFFFFFFF).normal(size=WIDTH) for row in rows]
    )
    scaled: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
    return scaled


def _small_encoder(teacher: PretrainedEncoder) -> DistilBertModel:
    """Return an encoder of the distilled one's size, with random weights."""
    distilled = load_config(SHIPPED_CONFIG).encoder.distilled
    assert distilled is not None  # noqa: S101 - the shipped recipe distils
    size = teacher.model.config
    return DistilBertModel(
        DistilBertConfig(
            vocab_size=size.vocab_size,
            max_position_embeddings=size.max_position_embeddings,
            dim=distilled.hidden_size,
            hidden_dim=distilled.intermediate_size,
            n_layers=distilled.layers,
            n_heads=distilled.attention_heads,
        )
    )


def _run_whole(folder: Path, rows: int, *, verifier: bool) -> list[Usage]:
    """Run the pipeline, and return the usage of its stages."""
    _log_stages()
    config = configured(folder, rows, verifier=verifier)
    pipeline.run(config, folder, folder / "out")
    return [
        Usage(**usage) for usage in orjson.loads((folder / "out" / pipeline.STAGES).read_bytes())
    ]


def _log_stages() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--out", type=Path, default=Path("runs/training-scale"))
    parser.add_argument("--whole", action="store_true", help="run `switchcraft-train run` itself")
    parser.add_argument("--tables", action="store_true", help="only calibration and main table")
    parser.add_argument("--verifier", action="store_true", help="train a verifier, too")
    parser.add_argument("--keep", action="store_true", help="keep the corpus and the workspace")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
