"""The sources of a run -> one matrix of labels, and which of its rows are the pool's own."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from router_service.core.errors import ConfigError, DataError
from switchcraft_training.checking import IsParaphrase, paraphrase_check
from switchcraft_training.config import PACKAGE, RunConfig, SourceConfig
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.mcpmark import McpMark
from switchcraft_training.decisions.source import Traffic
from switchcraft_training.evaluation.table import Table
from switchcraft_training.labelling.answers import LabelledRun
from switchcraft_training.preferences.cache import load_labels, save_labels
from switchcraft_training.preferences.folds import grouped_folds, teaching
from switchcraft_training.preferences.labels import Labels, joined, label_matrix
from switchcraft_training.preferences.outcomes import Checked, OutcomeSource
from switchcraft_training.preferences.splits import Split, split_examples, unique
from switchcraft_training.profiling.cost_profile import costs_usd
from switchcraft_training.profiling.usage import Usage
from switchcraft_training.provenance import source_sha256, tree_sha256
from switchcraft_training.records import Example

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Queries with what came of asking arms: labels (n, heads), the pool's arms first.

    `own` are the pool's own rows, and come first: queries of the run's source that every arm of
    the pool was asked, one of each (query, tools). All that is measured is measured on them. The
    other rows only teach; in them arms were not asked (NaN). `calls`, (n,), is how many calls a
    query asks for, NaN where that is not known.
    """

    examples: tuple[Example, ...]
    labels: Labels
    own: tuple[int, ...]
    calls: NDArray[np.float32]

    @property
    def extra(self) -> tuple[int, ...]:
        """The rows that only teach."""
        return tuple(range(len(self.own), len(self.examples)))

    def split(self, seed: int) -> Split:
        """Split the own rows 80/10/10, with the rows besides that may teach."""
        own = split_examples(self.examples[: len(self.own)], seed)
        return replace(own, teaching=teaching(self.examples, own, self.extra))

    def folds(self, folds: int, seed: int, *, validated: bool = True) -> tuple[Split, ...]:
        """Return folds of the own rows, each with the rows besides that may teach it."""
        return grouped_folds(self.examples, folds, seed, self.extra, validated=validated)

    def usage(self, config: RunConfig, rows: Sequence[int] | None = None) -> Usage:
        """Return what the pool's arms used, on the own rows or on some of them."""
        chosen = self.own if rows is None else rows
        return self.labels.usage.take(chosen).columns(range(len(config.pool)))

    def table(self, config: RunConfig, rows: Sequence[int] | None = None) -> Table:
        """Return what the pool's arms did and cost, on the own rows or on some of them."""
        chosen = list(self.own if rows is None else rows)
        return Table(
            examples=tuple(self.examples[row] for row in chosen),
            arms=config.arms,
            correct=self.labels.correct[chosen, : len(config.pool)].astype(np.float64),
            cost_usd=costs_usd(self.usage(config, chosen), config.prices),
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """The queries of one source, with the labels of all heads and the calls asked for."""

    examples: Sequence[Example]
    labels: Labels
    calls: NDArray[np.float32]

    def take(self, rows: Sequence[int]) -> _Part:
        """Return some of the queries, in the order given."""
        chosen = list(rows)
        return _Part(
            [self.examples[row] for row in chosen], self.labels.take(chosen), self.calls[chosen]
        )

    def asked(self, heads: int) -> NDArray[np.int64]:
        """Return how many of the first heads were asked each query, (queries,)."""
        asked: NDArray[np.int64] = (~np.isnan(self.labels.correct[:, :heads])).sum(axis=1)
        return asked

    def distinct(self) -> _Part:
        """Return the first of each (query, tools) that has any label."""
        known = self.take(np.flatnonzero(self.asked(len(self.labels.arms))).tolist())
        return known.take(unique(known.examples))


def load_dataset(config: RunConfig, data: Path, cache: Path | None = None) -> Dataset:
    """Read and judge what the pool's arms and the auxiliary arms answered, in all sources.

    Label matrices are kept in the folder `cache`, and reused. Raises DataError where a row of a
    source does not parse, ConfigError where an arm of the pool is not in the run's own source.
    """
    alike = paraphrase_check(config.checking.paraphrases)
    sources = {each: open_source(each, data, alike) for each in (config.source, *config.also)}
    heads = _heads(config, sources, data)
    parts = []
    for each, source in sources.items():
        arms = [arm for arm in source.arms() if arm in heads]
        path = cache and cache / f"{_key(config, each, arms, data)}.npz"
        part = _read(source, arms, path, name=str(each.path))
        parts.append(replace(part, labels=part.labels.columns(heads)))
    return _together(parts, arms=len(config.pool))


def require_own(dataset: Dataset, config: RunConfig, data: Path) -> None:
    """Raise DataError, saying what to do, where too few queries can be measured for the folds."""
    own, folds = len(dataset.own), config.evaluation.folds
    if own >= folds:
        return
    problem = (
        f"has {own} queries that every arm of the pool was asked, and {folds} folds need as many:"
        " nothing can be measured. Record more (`switchcraft-train label` asks every arm; a gateway"
        " does in time with router.exploration_share), or name a recording that has them as"
        " `source`, and this one under `also`, where its queries teach"
    )
    raise DataError(data / config.source.path, None, problem)


def open_source(
    source: SourceConfig, data: Path, alike: IsParaphrase | None = None
) -> OutcomeSource:
    """Return the source that a configuration names, below a folder of data."""
    path = data / source.path
    match source.format:
        case "mcpmark":
            return McpMark(path)
        case "decisions":
            return Traffic.of_log(path, weak_evidence=source.weak_evidence, alike=alike)
        case "outcomes":
            return Traffic.of_rows(path)
        case "labelled" if source.answers is not None:
            return Checked.of(LabelledRun(path, data / source.answers), alike)
    return Checked.of(bfcl.open_recording(path), alike)


def _heads(
    config: RunConfig, sources: Mapping[SourceConfig, OutcomeSource], data: Path
) -> tuple[str, ...]:
    """Return the pool's arms, and behind them the auxiliary ones, each once."""
    recorded = {each: source.arms() for each, source in sources.items()}
    missing = sorted(set(config.arms) - set(recorded[config.source]))
    if missing:
        problem = f"no recorded answers of {', '.join(missing)}"
        raise ConfigError(str(data / config.source.path), "pool", problem)
    if config.auxiliary_arms == "none":
        return config.arms
    return tuple(dict.fromkeys(chain(config.arms, *recorded.values())))


def _read(source: OutcomeSource, arms: Sequence[str], path: Path | None, name: str) -> _Part:
    """Read a source's queries, and their labels from the file where there is one already."""
    examples, known = list(source.examples()), source.calls()
    calls = np.array([known.get(example.id, np.nan) for example in examples], dtype=np.float32)
    if path is not None and path.exists():
        log.info("labels of %s: reused from %s", name, path)
        return _Part(examples, load_labels(path, arms), calls)
    labels = label_matrix(examples, arms, source.outcomes)
    log.info("labels of %s: judged, %d queries x %d arms", name, *labels.correct.shape)
    if path is not None:
        save_labels(labels, path)
    return _Part(examples, labels, calls)


def _key(config: RunConfig, source: SourceConfig, arms: Sequence[str], data: Path) -> str:
    """Return the SHA-256 of all that a source's labels depend on.

    These are its files, the code that reads and judges them, the benchmark's package, which has
    the questions of some recordings, the encoder that tells paraphrases, and whom was asked.
    """
    files = source_sha256(source, data)
    rooms = ("checking", "datasets", "decisions")
    code = [tree_sha256(PACKAGE / room, "*.py") for room in rooms]
    how = (source.format, source.weak_evidence, config.checking.paraphrases)
    facts = (*how, files, code, _benchmark(), *arms)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _benchmark() -> str:
    try:
        return version(bfcl.PACKAGE)
    except PackageNotFoundError:
        return "none"


def _together(parts: Sequence[_Part], arms: int) -> Dataset:
    """Put the pool's own rows first, the other rows that have any label behind them."""
    pool, *others = parts
    by_answers = np.argsort(pool.asked(arms) < arms, kind="stable").tolist()
    distinct = [pool.take(by_answers).distinct(), *(part.distinct() for part in others)]
    own = int((distinct[0].asked(arms) == arms).sum())
    examples = tuple(chain.from_iterable(part.examples for part in distinct))
    log.info("%d queries of the pool, %d that only teach", own, len(examples) - own)
    return Dataset(
        examples=examples,
        labels=joined([part.labels for part in distinct]),
        own=tuple(range(own)),
        calls=np.concatenate([part.calls for part in distinct]),
    )
