"""The whole run: recorded answers -> labels -> fine-tuned router -> artifact and report."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.core.artifact import TOKENIZER, Encoder, Measure
from router_service.core.classifier import Classifier
from router_service.core.cost import ArmProfile
from router_service.core.errors import ConfigError
from router_service.core.messages import parse_conversation
from router_service.core.packing import Packer
from training.checking.embeddings import encoder_embeddings
from training.checking.paraphrase import Paraphrases
from training.checking.values import Alike
from training.config import RunConfig, SourceConfig
from training.datasets import bfcl
from training.evaluation.evaluate import Evaluation
from training.evaluation.experiment import Experiment, Tokens
from training.evaluation.metrics import mean_auc
from training.evaluation.report import Report, write_report
from training.evaluation.sections import all_sections, main_figures
from training.evaluation.table import Table
from training.export.artifact_writer import GRAPH, Measured, write_canaries, write_manifest
from training.export.onnx_graph import export_onnx, quantize_int8
from training.finetune.acceleration import is_main_process
from training.finetune.batches import Rows
from training.finetune.encoders import PretrainedEncoder, load_encoder, packing_for
from training.finetune.loop import Trained, predict, train_router
from training.labelling.recording import Labelled
from training.preferences.labels import Labels, label_matrix
from training.preferences.splits import Split, split_examples
from training.profiling.cost_profile import costs_usd, profile_arms
from training.provenance import trace
from training.records import Answer, Example, Judged

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Judged examples: labels (n, arms + auxiliary), costs of the arms, and who trains on what."""

    examples: tuple[Example, ...]
    labels: Labels
    split: Split


@dataclass(frozen=True, slots=True)
class Exported:
    """What the exported graph answers, and how far it is from the model that was trained."""

    validation: NDArray[np.float64]
    test: NDArray[np.float64]
    parity: dict[str, float]


def run(config: RunConfig, data: Path, out: Path, *, workspace: Path | None = None) -> Path:
    """Run every stage below `data`; return the artifact's directory, `out/artifact`.

    Checkpoints and what may be used again lie below `workspace`, `out/work` where none is given.
    Of several processes the main one alone goes on after training.
    Raises DataError where a row of the source does not parse, ConfigError where an arm of the
    pool has no recorded answers.
    """
    provenance = trace(config, data)
    dataset = load_dataset(config, data)
    encoder = load_encoder(config.encoder.source)
    config = config.model_copy(update={"packing": packing_for(encoder, config.packing)})
    rows = pack(config, encoder.tokenizer, dataset)
    train, validation, test = (rows.take(part) for part in dataset.split.parts())
    trained = train_router(encoder, config, train, validation, workspace=workspace or out / "work")
    if not is_main_process():
        return out / "artifact"
    directory = fresh_directory(out / "artifact")
    exported = export(config, encoder, trained, (validation, test), directory)
    profile = profile_arms(*arm_counts(config, dataset, dataset.split.train), config.prices)
    validated, tested = experiments(config, dataset, profile, exported)
    on_validation, on_test = main_figures(validated), main_figures(tested)
    measured = Measured(frontier=on_test.frontier, metrics=headline(on_test))
    write_manifest(directory, config, describe(encoder), profile, provenance, measured)
    report = Report(
        name=config.name,
        split_sizes=dataset.split.sizes(),
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


class AnswerSource(Protocol):
    """Judged queries with what arms answered to them."""

    def arms(self) -> list[str]:
        """Return the models whose answers there are."""
        ...

    def judged(self) -> Iterable[Judged]:
        """Read the queries with what is expected."""
        ...

    def answers(self, arm: str) -> Iterable[Answer]:
        """Read what a model answered."""
        ...


def open_source(source: SourceConfig, data: Path) -> AnswerSource:
    """Return the source that a configuration names, below a folder of data."""
    if source.answers is None:
        return bfcl.recorded(data / source.path)
    return Labelled(data / source.path, data / source.answers)


def load_dataset(config: RunConfig, data: Path) -> Dataset:
    """Read and judge the recorded answers of the pool and of the auxiliary arms."""
    source = open_source(config.source, data)
    judged, recorded = list(source.judged()), source.arms()
    missing = sorted(set(config.arms) - set(recorded))
    if missing:
        problem = f"no recorded answers of {', '.join(missing)}"
        raise ConfigError(str(data / config.source.path), "pool", problem)
    auxiliary = [arm for arm in recorded if arm not in config.arms]
    arms = [*config.arms, *(auxiliary if config.auxiliary_arms == "all" else [])]
    labels = label_matrix(judged, arms, source.answers, alike(config))
    answered = np.flatnonzero(~np.isnan(labels.correct[:, : len(config.arms)]).any(axis=1))
    if len(answered) < len(judged):
        log.warning("%d queries left out: some arm has no answer", len(judged) - len(answered))
    examples = tuple(judged[row].example for row in answered)
    split = split_examples(examples, config.seed)
    log.info("%d queries, %d arms, split %s", len(examples), len(arms), split.sizes())
    return Dataset(examples, labels.take(answered.tolist()), split)


def alike(config: RunConfig) -> Alike | None:
    """Return the comparison of paraphrases that the configuration asks for."""
    source = config.checking.paraphrases
    return None if source is None else Paraphrases(encoder_embeddings(source))


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
    config: RunConfig, dataset: Dataset, profile: Mapping[str, ArmProfile], exported: Exported
) -> tuple[Experiment, Experiment]:
    """Return what was exported on the validation and on the test queries, to be evaluated."""
    costs = [profile[arm].cost_usd() for arm in config.arms]
    split = dataset.split
    parts = ((split.validation, exported.validation), (split.test, exported.test))
    validation, test = (
        Experiment(
            table=table_of(config, dataset, rows),
            probabilities=probabilities,
            expected_costs_usd=costs,
            policies=config.policies,
            tokens=Tokens(*arm_counts(config, dataset, rows)[1:], config.prices),
        )
        for rows, probabilities in parts
    )
    return validation, test


def arm_counts(
    config: RunConfig, dataset: Dataset, indices: Sequence[int]
) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Return the pool's arms with their input and output tokens on some queries."""
    rows, arms = list(indices), len(config.arms)
    labels = dataset.labels
    return config.arms, labels.input_tokens[rows, :arms], labels.output_tokens[rows, :arms]


def table_of(config: RunConfig, dataset: Dataset, indices: Sequence[int]) -> Table:
    """Return what each arm of the pool answered and cost on some queries."""
    counts = arm_counts(config, dataset, indices)
    correct = dataset.labels.correct[list(indices), : len(config.arms)].astype(np.float64)
    examples = tuple(dataset.examples[row] for row in indices)
    return Table(examples, config.arms, correct, costs_usd(*counts, config.prices))


def rates_by_category(config: RunConfig, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Return each arm's share of correct answers in each category, over all queries."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, example in enumerate(dataset.examples):
        members[example.category].append(index)
    return {
        category: dict(
            zip(
                config.arms,
                dataset.labels.correct[rows, : len(config.arms)].mean(0).tolist(),
                strict=True,
            )
        )
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
