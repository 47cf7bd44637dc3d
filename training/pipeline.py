"""The whole run: recorded answers -> labels -> fine-tuned router -> artifact and report."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.core.artifact import TOKENIZER, Encoder, Measure
from router_service.core.classifier import Classifier
from router_service.core.cost import ArmProfile
from router_service.core.messages import parse_conversation
from router_service.core.packing import Packer
from training.config import RunConfig
from training.dataset import Dataset, load_dataset
from training.evaluation.evaluate import Evaluation
from training.evaluation.experiment import Experiment
from training.evaluation.metrics import mean_auc
from training.evaluation.report import Report, write_report
from training.evaluation.sections import all_sections, main_figures
from training.export.artifact_writer import GRAPH, Measured, write_canaries, write_manifest
from training.export.onnx_graph import export_onnx, quantize_int8
from training.finetune.batches import Rows
from training.finetune.encoders import PretrainedEncoder, load_encoder
from training.finetune.loop import Trained, predict, train_router
from training.preferences.splits import Split
from training.profiling.cost_profile import profile_arms
from training.provenance import trace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exported:
    """What the exported graph answers, and how far it is from the model that was trained."""

    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    parity: dict[str, float]


def run(config: RunConfig, data: Path, out: Path, cache: Path | None = None) -> Path:
    """Run every stage below `data`; return the artifact's directory, `out/artifact`.

    Label matrices are kept in the folder `cache`, and reused. Raises DataError where a row of a
    source does not parse, ConfigError where an arm of the pool has no recorded answers.
    """
    dataset = load_dataset(config, data, cache)
    split = dataset.split(config.seed)
    log.info("split %s, and %d rows that teach", split.sizes(), len(split.teaching))
    encoder = load_encoder(config.encoder.source)
    rows = pack(config, encoder.tokenizer, dataset)
    train = rows.take(split.train + split.teaching)
    validation, test = rows.take(split.validation), rows.take(split.test)
    trained = train_router(encoder, config, train, validation)
    directory = fresh_directory(out / "artifact")
    exported = export(config, encoder, trained, (validation, test), directory)
    profile = profile_arms(dataset.usage(config, split.train), config.prices)
    validated, tested = experiments(config, dataset, split, profile, exported)
    on_validation, on_test = main_figures(validated), main_figures(tested)
    provenance = trace(config, data)
    measured = Measured(frontier=on_test.frontier, metrics=headline(on_test))
    write_manifest(directory, config, describe(encoder), profile, provenance, measured)
    report = Report(
        name=config.name,
        split_sizes=split.sizes(),
        label_rates=rates_by_category(config, dataset),
        epochs=trained.epochs,
        validation=on_validation,
        test=on_test,
        sections=all_sections(tested, on_test),
        parity=exported.parity,
        provenance=provenance,
    )
    write_report(report, out)
    return directory


def pack(config: RunConfig, tokenizer: Tokenizer, dataset: Dataset) -> Rows:
    """Pack every example as the service will, with the tokenizer that will be shipped."""
    # A copy: the packer changes how its tokenizer treats special tokens.
    packer = Packer(config.packing, Tokenizer.from_str(tokenizer.to_str()))
    packed = tuple(packer.pack(parse_conversation(e.request)) for e in dataset.examples)
    return Rows(packed, dataset.labels.correct)


def export(
    config: RunConfig,
    encoder: PretrainedEncoder,
    trained: Trained,
    parts: tuple[Rows, Rows],
    directory: Path,
) -> Exported:
    """Write tokenizer, int8 graph and canaries; compare the graph's answers with the model's."""
    arms = len(config.arms)
    encoder.tokenizer.save(str(directory / TOKENIZER))
    full = directory.with_name("model.onnx")
    export_onnx(trained.model, arms, len(config.packing.features), full)
    quantize_int8(full, directory / GRAPH)
    write_canaries(directory, config)
    classifiers = [Classifier(path, arms=arms) for path in (full, directory / GRAPH)]
    validation, test = parts
    wanted = predict(trained.model, test)[:, :arms]
    fp32, int8 = (c.predict(test.packed).astype(np.float64) for c in classifiers)
    labels = test.labels[:, :arms].astype(np.float64)
    return Exported(
        validation=classifiers[1].predict(validation.packed).astype(np.float64),
        test=int8,
        parity={
            "FP32 graph: largest difference": float(np.abs(wanted - fp32).max()),
            "int8 graph: mean difference": float(np.abs(wanted - int8).mean()),
            "int8 graph: change of mean AUC": mean_auc(labels, int8) - mean_auc(labels, wanted),
        },
    )


def experiments(
    config: RunConfig,
    dataset: Dataset,
    split: Split,
    profile: Mapping[str, ArmProfile],
    exported: Exported,
) -> tuple[Experiment, Experiment]:
    """Return what was exported on the validation and on the test queries, to be evaluated."""
    costs = [profile[arm].cost_usd() for arm in config.arms]
    parts = ((split.validation, exported.validation), (split.test, exported.test))
    validation, test = (
        Experiment(
            table=dataset.table(config, rows),
            probabilities=probabilities,
            expected_costs_usd=costs,
            policies=config.policies,
            usage=dataset.usage(config, rows),
            prices=config.prices,
        )
        for rows, probabilities in parts
    )
    return validation, test


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


def headline(test: Evaluation) -> dict[str, Measure]:
    """Return the figures that an artifact carries, all of the held-out test queries."""
    default, best = test.entry(test.default_policy), test.entry(test.best_single)
    oracle = test.entry("oracle")
    return {
        "mean_auc": test.auc,
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
