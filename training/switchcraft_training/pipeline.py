"""The whole run: recorded answers -> labels -> measured router -> artifact and report.

What is measured is held out: every query is asked of a router that was trained on other folds. What
ships is then trained on all queries, with the calibration that the held-out probabilities gave.
"""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from router_service.core.artifact import TOKENIZER, Encoder, Measure
from router_service.core.model import Classifier
from switchcraft_training.config import RunConfig
from switchcraft_training.contest import Contest, compete
from switchcraft_training.dataset import Dataset, load_dataset, require_own
from switchcraft_training.evaluation.evaluate import Evaluation
from switchcraft_training.evaluation.report import Report, write_report
from switchcraft_training.evaluation.sections import all_sections, main_figures
from switchcraft_training.models.artifact import (
    CUDA_GRAPH,
    GRAPH,
    ManifestMetrics,
    write_canaries,
    write_manifest,
)
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder, packing_for
from switchcraft_training.models.onnx_export import export_fp16, export_int8, full_precision
from switchcraft_training.models.optimization import is_main_process
from switchcraft_training.models.training import TrainedRouter, predict, train_router
from switchcraft_training.profiling.cost_profile import profile_arms
from switchcraft_training.provenance import trace
from switchcraft_training.trial import Material, gather

log = logging.getLogger(__name__)

PARITY_ROWS = 100


def run(config: RunConfig, data: Path, out: Path, *, workspace: Path | None = None) -> Path:
    """Run every stage below `data`; return the artifact's directory, `out/artifact`.

    Checkpoints and what may be used again lie below `workspace`, `out/work` where none is given.
    Of several processes the main one alone goes on after training.
    Raises DataError where a row of a source does not parse or too few queries can be measured,
    ConfigError where an arm of the pool has no recorded answers.
    """
    provenance = trace(config, data)
    workspace = workspace or out / "work"
    workspace.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset(config, data, workspace / "labels")
    require_own(dataset, config, data)
    encoder = load_encoder(config.encoder.source)
    config = config.model_copy(update={"packing": packing_for(encoder, config.packing)})
    material = gather(config, dataset, encoder, workspace)
    contest = compete(material)
    encoder = material.encoder()
    trained = train_on_all(material, encoder)
    if contest is None or not is_main_process():
        return out / "artifact"
    directory = fresh_directory(out / "artifact")
    parity = contest.parity | export(material, encoder, trained, contest, directory)
    figures = main_figures(contest.experiment)
    profile = profile_arms(dataset.usage(config), config.prices)
    measured = ManifestMetrics(figures.frontier, headline(figures), contest.study.calibration)
    write_manifest(directory, config, describe(encoder), profile, provenance, measured)
    report = Report(
        name=config.name,
        folds=config.evaluation.folds,
        teaching=len(dataset.extra),
        label_rates=rates_by_category(config, dataset),
        epochs=trained.epochs,
        test=figures,
        sections=all_sections(contest.experiment, figures),
        parity=parity,
        provenance=provenance,
    )
    write_report(report, out)
    return directory


def train_on_all(material: Material, encoder: PretrainedEncoder) -> TrainedRouter:
    """Train what ships: on every row, but for a tenth where held-out rows decide when to stop."""
    config, dataset, rows = material.config, material.dataset, material.rows
    held = dataset.split(config.seed).validation if material.needs_validation else ()
    left = set(held)
    seen = [row for row in range(len(dataset.examples)) if row not in left]
    train, validation = rows.take(seen), rows.take(held)
    return train_router(encoder, config, train, validation, workspace=material.workspace)


def export(
    material: Material,
    encoder: PretrainedEncoder,
    trained: TrainedRouter,
    contest: Contest,
    directory: Path,
) -> dict[str, float]:
    """Write tokenizer, graphs and canaries; compare the answers in FP32 and fp16 with torch's."""
    config = material.config
    encoder.tokenizer.save(str(directory / TOKENIZER))
    features = len(config.packing.features)
    rows = material.rows.take(material.dataset.own[:PARITY_ROWS])
    with TemporaryDirectory() as folder:  # the FP32 graph is no part of the artifact
        graph = export_int8(trained.model, features, Path(folder) / GRAPH)
        graphs = {"FP32": full_precision(graph)}
        shutil.copyfile(graph, directory / GRAPH)
        if config.cuda_graph:
            graphs["fp16"] = directory / CUDA_GRAPH
            export_fp16(trained.model, features, graphs["fp16"])
        said = {
            name: Classifier(path, arms=len(config.arms)).predict(rows.packed)
            for name, path in graphs.items()
        }
    write_canaries(directory, config, contest.study.calibration)
    wanted = predict(trained.model, rows)
    return {
        f"{name} graph: largest difference, {len(rows.packed)} queries": float(
            np.abs(wanted - probabilities).max()
        )
        for name, probabilities in said.items()
    }


def rates_by_category(config: RunConfig, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Return each arm's share of correct answers in each category, over the pool's queries."""
    table = dataset.table(config)
    members: dict[str, list[int]] = defaultdict(list)
    for index, example in enumerate(table.examples):
        members[example.category].append(index)
    return {
        category: dict(zip(table.arms, table.correct[rows].mean(0).tolist(), strict=True))
        for category, rows in sorted(members.items())
    }


def headline(figures: Evaluation) -> dict[str, Measure]:
    """Return the figures that an artifact carries, all of held-out queries."""
    default, best = figures.entry(figures.default_policy), figures.entry(figures.best_single)
    oracle = figures.entry("oracle")
    return {
        "mean_auc": figures.auc,
        "default_accuracy": default.accuracy,
        "default_cost_usd": default.cost_usd,
        "best_single_accuracy": best.accuracy,
        "best_single_cost_usd": best.cost_usd,
        "oracle_accuracy": oracle.accuracy,
        "oracle_cost_usd": oracle.cost_usd,
    }


def describe(encoder: PretrainedEncoder) -> Encoder:
    """Return the encoder's name and size for the manifest."""
    config = encoder.model.config
    return Encoder(
        name=encoder.name,
        parameters=sum(p.numel() for p in encoder.model.parameters()),
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
    )


def fresh_directory(path: Path) -> Path:
    """Return an empty directory at `path`."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
