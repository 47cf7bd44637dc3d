"""The complete run: from recorded answers to an evaluated router, its artifact and its report.

All metrics are held-out: a router trained on other folds predicts each query. The router in the
artifact is then trained on all queries, and its calibration was fitted on the held-out
probabilities.
"""

from __future__ import annotations

import json
import logging
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from router_service.artifact import Provenance
from switchcraft_training.config import RunConfig, dump_config
from switchcraft_training.data.learned import TrainingOverlap
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.dataset import open_source, sources_sha256
from switchcraft_training.evaluation.report import KnownTools, Report, all_sections, write_report
from switchcraft_training.evaluation.verified import (
    NO_ANSWERS,
    NO_VERIFIER,
    VerifiedFigures,
    verified_figures,
)
from switchcraft_training.experiment import experiment_stages, run_experiment
from switchcraft_training.progress import running, stage
from switchcraft_training.shipping import ship_router, train_on_all
from switchcraft_training.training_data import PACKING, READING, TrainingData, read_training_data
from switchcraft_training.unfamiliar import UNFAMILIAR, study_unfamiliar
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
STAGES = "stages.json"
"""File with the time and memory of every stage of a run."""

FINAL_ROUTER = "final router"
EXPORT = "export"
KNOWN_TOOLS = "known tools"
REPORT = "report"
"""Names of the stages of this module."""


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
    `workers` train the folds. Raises DataError if a row of a source cannot be parsed or if too few
    queries can be measured, and ConfigError if an arm of the pool has no recorded answers, or if a
    verifier is wanted and no answers are recorded.
    """
    if config.verifier:
        require_answers(config, data)
    with running(run_stages(config)) as stages:
        directory = _run_stages(config, data, out, workspace or out / "work", workers)
    usages = [asdict(usage) for usage in stages.usages.values()]
    (out / STAGES).write_text(json.dumps(usages, indent=2) + "\n")
    return directory


def run_stages(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the stages of a run, in their order."""
    settings = config.evaluation
    return (
        *(READING, PACKING, *experiment_stages(config)),
        *(FINAL_ROUTER, EXPORT),
        *((NESTED_ROUTERS, VERIFIER, UNFAMILIAR) if config.verifier else ()),
        *((KNOWN_TOOLS,) if settings.known_tools else ()),
        REPORT,
    )


def _run_stages(
    config: RunConfig, data: Path, out: Path, workspace: Path, workers: Workers
) -> Path:
    settings, directory = config.evaluation, out / "artifact"

    # Read the answers, and pack the queries.
    provenance = trace(config, data)
    training = read_training_data(config, data, workspace)

    # Train routers, and measure their predictions of rows that they have not seen.
    result = run_experiment(training, workers)

    # Ship a router that is trained on all rows.
    encoder = training.load_encoder()
    with stage(FINAL_ROUTER):
        trained = train_on_all(training, encoder)
    with stage(EXPORT):
        parity = ship_router(training, result, trained, encoder, provenance, directory)

    # Study verifiers on the same folds, and add one to the artifact.
    measured = result.experiment
    verified: VerifiedFigures | str | None = None
    if config.verifier:
        calibrated = measured.probabilities
        study = study_verifier(training, result.predictions, calibrated, data, workers=workers)
        spec = study.add_to(directory).verifier
        assert spec is not None  # noqa: S101 - for types; it was just added
        costs_usd = np.array(training.expected_costs_usd(training.table.measured_rows))
        unfamiliar = study_unfamiliar(config, study.table, costs_usd, spec, data, workers=workers)
        unfamiliar.add_to(directory)
        verified = verified_figures(study)
    else:
        has_answers = isinstance(open_source(config.source, data), CheckedAnswers)
        verified = NO_VERIFIER if has_answers else NO_ANSWERS

    # Measure with tools that may be known.
    known: KnownTools | None = None
    if settings.known_tools:
        with stage(KNOWN_TOOLS):
            known = measure_known_tools(training, measured.policies, data, workers)

    with stage(REPORT):
        report = Report(
            name=config.name,
            folds=settings.folds,
            teaching=len(training.table.teaching_rows),
            epochs=trained.epochs,
            test=result.figures,
            sections=all_sections(measured),
            parity=parity,
            provenance=provenance,
            overlap=TrainingOverlap.of_splits(training.table.examples, training.folds()),
            verified=verified,
            grouped_by=settings.grouped_by,
            known_tools=known,
        )
        write_report(report, out)
    return directory


def measure_known_tools(
    data: TrainingData, policies: Mapping[str, str], recordings: Path, workers: Workers
) -> KnownTools:
    """Measure the same policies with folds in which a query's tools may have been learned from."""
    config = data.config.model_copy(update={"policies": policies})
    data = replace(data, config=config).grouped_by("queries")
    result = run_experiment(data, workers)
    verified: VerifiedFigures | None = None
    if config.verifier:
        calibrated = result.experiment.probabilities
        study = study_verifier(data, result.predictions, calibrated, recordings, workers=workers)
        verified = verified_figures(study)
    return KnownTools(result.figures, verified)


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
