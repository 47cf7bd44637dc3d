"""An artifact and recorded answers -> a report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from router_service.core.artifact import Manifest
from router_service.core.errors import ConfigError, DataError
from router_service.core.messages import parse_conversation
from router_service.router import Router
from training.config import RunConfig
from training.evaluation.evaluate import Floats
from training.evaluation.experiment import Experiment, Tokens
from training.evaluation.report import Report
from training.evaluation.sections import all_sections, main_figures
from training.evaluation.table import Table
from training.pipeline import Dataset, load_dataset
from training.profiling.cost_profile import costs_usd
from training.provenance import source_sha256

log = logging.getLogger(__name__)

Part = Literal["test", "validation", "all"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Queries with what every arm of an artifact answered."""

    table: Table
    tokens: Tokens


def report_on(router: Router, config: RunConfig, data: Sequence[Path], part: Part) -> Report:
    """Measure an artifact on a part of the queries below folders of data.

    `config` names source and pool; the split is by the artifact's own seed. Raises ConfigError
    where the pool is not the artifact's arms, DataError where a row does not parse or a part is
    empty.
    """
    manifest = router.artifact.manifest
    if set(config.arms) != set(manifest.arms):
        odd = ", ".join(sorted(set(config.arms) ^ set(manifest.arms)))
        raise ConfigError(config.name, "pool", f"is not the artifact's arms: {odd}")
    seeded = config.model_copy(update={"seed": manifest.provenance.seed})
    recorded = joined([read_part(seeded, manifest, folder, part) for folder in data])
    conversations = [parse_conversation(e.request) for e in recorded.table.examples]
    experiment = Experiment(
        table=recorded.table,
        probabilities=np.array(router.predict(conversations), dtype=np.float64),
        expected_costs_usd=manifest.costs_usd(),
        policies=manifest.policies,
        tokens=recorded.tokens,
    )
    figures = main_figures(experiment)
    return Report(
        name=f"{manifest.name}, {part} queries",
        test=figures,
        provenance=manifest.provenance,
        sections=all_sections(experiment, figures),
    )


def read_part(config: RunConfig, manifest: Manifest, data: Path, part: Part) -> Recorded:
    """Read one folder's queries; warns where its split is not the one that the artifact knew."""
    if part != "all" and source_sha256(config.source, data) != manifest.provenance.data_sha256:
        log.warning(
            "%s is not what the artifact was trained on: a split by its seed may hold out queries"
            " that it has seen; --part all where it has seen none",
            data / config.source.path,
        )
    dataset = load_dataset(config.model_copy(update={"auxiliary_arms": "none"}), data)
    rows = rows_of(dataset, part)
    if not rows:
        raise DataError(data / config.source.path, None, f"has no {part} queries")
    return _recorded(config, manifest.arms, dataset, rows)


def rows_of(dataset: Dataset, part: Part) -> list[int]:
    """Return the places of a part's queries; all of them leaves duplicates out too."""
    split = dataset.split
    chosen = {"test": split.test, "validation": split.validation, "all": sum(split.parts(), ())}
    return sorted(chosen[part])


def joined(parts: Sequence[Recorded]) -> Recorded:
    """Return several folders' queries as one table."""
    tables, tokens = [part.table for part in parts], [part.tokens for part in parts]
    return Recorded(
        Table(
            tuple(example for table in tables for example in table.examples),
            tables[0].arms,
            np.concatenate([table.correct for table in tables]),
            np.concatenate([table.cost_usd for table in tables]),
        ),
        Tokens(
            np.concatenate([each.input_tokens for each in tokens]),
            np.concatenate([each.output_tokens for each in tokens]),
            tokens[0].prices,
        ),
    )


def _recorded(
    config: RunConfig, arms: tuple[str, ...], dataset: Dataset, rows: Sequence[int]
) -> Recorded:
    """Return rows of a dataset, its columns in the order of the artifact's arms."""
    labels = dataset.labels.take(rows)
    columns = [config.arms.index(arm) for arm in arms]

    def ordered(values: NDArray[np.floating[Any]]) -> Floats:
        return values[:, columns].astype(np.float64)

    tokens = Tokens(ordered(labels.input_tokens), ordered(labels.output_tokens), config.prices)
    return Recorded(
        Table(
            examples=tuple(dataset.examples[row] for row in rows),
            arms=arms,
            correct=ordered(labels.correct),
            cost_usd=costs_usd(arms, tokens.input_tokens, tokens.output_tokens, config.prices),
        ),
        tokens,
    )
