"""From a trained router to its artifact: graphs, manifest, and what is known about the router."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from router_service.artifact import TOKENIZER, Encoder, Manifest, Provenance
from router_service.measurement.held_out import HeldOut
from router_service.measurement.statistics import mean_auc
from router_service.predictor.model import Calibration, Classifier
from switchcraft_training.config import RunConfig
from switchcraft_training.data.labels import RecordedLabels
from switchcraft_training.data.learned import LearnedQueries
from switchcraft_training.data.splits import last_tenth
from switchcraft_training.data.table import profile_arms
from switchcraft_training.experiment import ExperimentResult
from switchcraft_training.familiarity import fit_familiarity
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.export import (
    CUDA_GRAPH,
    GRAPH,
    export_fp16,
    export_int8,
    full_precision,
    write_canaries,
    write_manifest,
)
from switchcraft_training.models.training import TrainedRouter, predict, train_router
from switchcraft_training.training_data import TrainingData

log = logging.getLogger(__name__)

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


def train_on_all(data: TrainingData, encoder: PretrainedEncoder) -> TrainedRouter:
    """Train the artifact's router on all rows, minus a tenth if early stopping needs them."""
    held_out = last_tenth(data.table, data.config.seed) if data.needs_validation else ()
    train = [row for row in range(len(data.table)) if row not in set(held_out)]
    return train_router(
        encoder,
        data.config,
        data.table.take(train),
        data.table.take(held_out),
        workspace=data.workspace,
    )


def ship_router(
    data: TrainingData,
    result: ExperimentResult,
    trained: TrainedRouter,
    encoder: PretrainedEncoder,
    provenance: Provenance,
    directory: Path,
) -> dict[str, float]:
    """Write the artifact of a trained router and its measurements to `directory`.

    Return the differences between the network, its graphs, and the graphs for CPUs and GPUs.
    """
    config, table = data.config, data.table
    parity = int8_effects(data, result) | export(
        data, encoder, trained, result.calibration, directory
    )
    LearnedQueries.of(table.examples).write(directory)
    RecordedLabels.of(table).write(directory)
    held_out_predictions(data, result).write(directory)
    manifest = write_manifest(
        directory,
        config,
        describe_encoder(encoder),
        profile_arms(table.measured(config.arms), config.prices),
        provenance,
        figures=result.experiment.figures(),
        calibration=result.calibration,
        familiarity=fit_familiarity(data),
    )
    return parity | compare_graphs(data, manifest, directory)


def int8_effects(data: TrainingData, result: ExperimentResult) -> dict[str, float]:
    """Return how the held-out predictions of int8 graphs differ from those in full precision."""
    labels, int8 = result.experiment.table.correct, result.predictions.probabilities
    exact = result.predictions.mix(data.config.training.branch_shares)
    return {
        "int8 graph: mean difference": float(np.abs(exact - int8).mean()),
        "int8 graph: change of mean AUC": mean_auc(labels, int8) - mean_auc(labels, exact),
    }


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
        parameters=sum(p.numel() for p in encoder.model.parameters()),  # pyrefly: ignore[bad-argument-type]  # never none
        hidden_size=size.hidden_size,
        layers=size.num_hidden_layers,
    )


def held_out_predictions(data: TrainingData, result: ExperimentResult) -> HeldOut:
    """Return the predictions and answers from which a gateway computes the figures of its pool."""
    experiment = result.experiment
    table = experiment.table
    usage = [
        [
            (profile.input_tokens, profile.output_tokens, profile.seconds)
            for profile in data.profiles(split.train)
        ]
        for split in data.folds()
    ]
    return HeldOut(
        probabilities=experiment.probabilities,
        correct=table.correct,
        input_tokens=np.where(table.has_tokens, table.input_tokens, 0.0),
        output_tokens=np.where(table.has_tokens, table.output_tokens, 0.0),
        seconds=np.nan_to_num(table.seconds),
        folds=table.folds,
        usage=np.array(usage),
    )
