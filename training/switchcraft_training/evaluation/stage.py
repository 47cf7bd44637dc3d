"""Evaluation of an artifact on recorded answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from router_service.core.artifact import Manifest
from router_service.core.errors import ConfigError, DataError
from router_service.core.messages import parse_conversation
from router_service.router import Router
from switchcraft_training.config import RunConfig
from switchcraft_training.data.table import Table, concatenate
from switchcraft_training.dataset import load_dataset
from switchcraft_training.evaluation.experiment import Experiment
from switchcraft_training.evaluation.report import Report
from switchcraft_training.evaluation.sections import all_sections, main_figures
from switchcraft_training.provenance import also_of, sources_sha256

log = logging.getLogger(__name__)


def report_on(router: Router, config: RunConfig, data: Sequence[Path]) -> Report:
    """Measure an artifact on all queries in several data folders.

    `config` names the source and the pool. Raises ConfigError if the pool differs from the
    artifact's arms, and DataError if a row cannot be parsed or there are no rows.
    """
    manifest = router.artifact.manifest
    if set(config.arms) != set(manifest.arms):
        odd = ", ".join(sorted(set(config.arms) ^ set(manifest.arms)))
        raise ConfigError(config.name, "pool", f"is not the artifact's arms: {odd}")
    asked = as_measured(config, manifest)
    table = concatenate([read(asked, manifest, folder) for folder in data])
    conversations = [parse_conversation(e.request) for e in table.examples]
    experiment = Experiment(
        table=table,
        probabilities=np.array(router.predict_batch(conversations), dtype=np.float64),
        expected_costs_usd=manifest.costs_usd(),
        policies=manifest.policies,
        prices=asked.prices,
    )
    figures = main_figures(experiment)
    return Report(
        name=manifest.name,
        test=figures,
        provenance=manifest.provenance,
        sections=all_sections(experiment, figures),
    )


def as_measured(config: RunConfig, manifest: Manifest) -> RunConfig:
    """Return a run with only this source, and with the arms in the artifact's order."""
    entries = {entry.arm: entry for entry in config.pool}
    pool = tuple(entries[arm] for arm in manifest.arms)
    return config.model_copy(update={"pool": pool, "also": (), "auxiliary_arms": "none"})


def read(config: RunConfig, manifest: Manifest, data: Path) -> Table:
    """Read one folder's queries; log a warning if the artifact was trained on them."""
    source, known = config.source, manifest.provenance
    if sources_sha256((source, *also_of(known)), data) == known.data_sha256:
        log.warning(
            "%s is what the artifact was trained on: it looks better here than on other queries;"
            " its manifest has its figures on queries held out",
            data / source.path,
        )
    table = load_dataset(config, data).measured(config.arms)
    if not len(table):
        raise DataError(data / source.path, None, "has no query that every arm was asked")
    return table
