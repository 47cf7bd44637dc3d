"""Reading of a run's sources into one table, and hashes of the sources' files."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import numpy as np

from router_service import checker
from router_service.checker.comparison import IsParaphrase
from router_service.core.errors import ConfigError
from switchcraft_training.checking import paraphrase_check
from switchcraft_training.config import PACKAGE, RunConfig, SourceConfig
from switchcraft_training.data.outcomes import (
    AnswerSource,
    CheckedAnswers,
    OutcomeSource,
    RenamedArms,
    tabulate_outcomes,
)
from switchcraft_training.data.splits import fold_table, group_table, unique
from switchcraft_training.data.table import (
    RECORDED,
    Flags,
    Table,
    concatenate,
    costs_usd,
    load_layers,
    save_layers,
)
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.mcpmark import McpMark
from switchcraft_training.decisions.queries import Traffic
from switchcraft_training.errors import DataError
from switchcraft_training.labelling.answers import ANSWERS, LabelledRun
from switchcraft_training.progress import step

log = logging.getLogger(__name__)


def load_dataset(config: RunConfig, data: Path, cache: Path | None = None) -> Table:
    """Read and judge the recorded answers of the pool and the auxiliary arms, in all sources.

    The columns are the pool's arms, followed by the auxiliary ones. Measured rows come first: these
    are the queries of the run's own source that every arm of the pool was asked, without duplicates
    of (query, tools). The other rows are only used for training. Rows that stay in one fold have
    equal `groups`. Only the pool's arms have prices, and therefore costs.

    Judged outcomes are saved in the folder `cache` and reused. Raises DataError if a row of a
    source cannot be parsed, and ConfigError if the run's own source lacks an arm of the pool.
    """
    alike = paraphrase_check(config.checking.paraphrases)
    configured = (config.source, *config.also)
    sources = [open_source(each, data, alike) for each in configured]
    recorded = [source.arms() for source in sources]
    missing = sorted(set(config.arms) - set(recorded[0]))
    if missing:
        problem = f"no recorded answers of {', '.join(missing)}; record some or remove the arms"
        raise ConfigError(str(data / config.source.path), "pool", problem)
    heads = config.arms
    if config.auxiliary_arms == "all":
        heads = tuple(dict.fromkeys(chain(config.arms, *recorded)))
    tables = []
    for each, source, known in zip(configured, sources, recorded, strict=True):
        arms = [arm for arm in known if arm in heads]
        path = cache and cache / f"{_outcomes_sha256(config, each, arms, data)}.npz"
        tables.append(_read_table(source, arms, path, name=str(each.path)).select_arms(heads))
    # Complete rows come first, so that the first of several equal queries, which is kept, is
    # complete and can be measured.
    tables[0] = tables[0].take(np.argsort(~_is_complete(tables[0], config.arms), kind="stable"))
    distinct = []
    for table in tables:
        asked = table.take(np.flatnonzero(~np.isnan(table.correct).all(axis=1)))
        distinct.append(asked.take(unique(asked.examples)))
    is_measured = [_is_complete(distinct[0], config.arms)]
    is_measured += [np.zeros(len(table), dtype=np.bool_) for table in distinct[1:]]
    table = replace(concatenate(distinct), is_measured=np.concatenate(is_measured))
    with step("near-duplicates"):
        table = group_table(table, config.evaluation.grouped_by)
    measured = len(table.measured_rows)
    log.info("%d measured queries, %d used only for training", measured, len(table) - measured)
    pool = len(config.arms)
    cost_usd = np.full(table.correct.shape, np.nan)
    cost_usd[:, :pool] = costs_usd(table.select_arms(config.arms), config.prices)
    return replace(table, cost_usd=np.where(np.isnan(table.correct), np.nan, cost_usd))


def require_measured_rows(table: Table, config: RunConfig, data: Path) -> None:
    """Check that the measured rows can be divided into folds, before anything is trained.

    Raises DataError if there are fewer rows than folds, and the error of `fold_table`.
    """
    measured, folds = len(table.measured_rows), config.evaluation.folds
    if measured < folds:
        problem = (
            f"has {measured} queries that every arm of the pool was asked, and {folds} folds need"
            f" at least {folds}. Record more answers (`switchcraft-train label` asks every arm; a"
            " gateway collects them over time with router.exploration_share). Or name a recording"
            " that has such queries as `source`, and list this one under `also`, which is used"
            " only for training"
        )
        raise DataError(data / config.source.path, None, problem)
    fold_table(table, folds, config.seed)


def open_source(
    source: SourceConfig, data: Path, alike: IsParaphrase | None = None
) -> OutcomeSource:
    """Return the source that a configuration names, in the folder `data`."""
    path = data / source.path
    match source.format:
        case "mcpmark":
            return McpMark(path)
        case "decisions":
            return Traffic.of_log(path, weak_evidence=source.weak_evidence, alike=alike)
        case "outcomes":
            return Traffic.of_rows(path)
        case "labelled" if source.answers is not None:
            return CheckedAnswers.of(LabelledRun(path, data / source.answers), alike)
    recording: AnswerSource = bfcl.open_recording(path)
    if source.arms:
        recording = RenamedArms(recording, source.arms)
    return CheckedAnswers.of(recording, alike)


def _read_table(source: OutcomeSource, arms: Sequence[str], path: Path | None, name: str) -> Table:
    """Read the queries of a source, and their outcomes from the saved file if there is one."""
    examples, calls = list(source.examples()), source.calls()
    if path is not None and path.exists():
        log.info("labels of %s: reused from %s", name, path.parent)
        table = load_layers(path, examples, arms)
    else:
        table = tabulate_outcomes(examples, arms, source.outcomes)
        log.info("labels of %s: judged, %d queries x %d arms", name, *table.correct.shape)
        if path is not None:
            save_layers(table, path)
    expected_calls = [calls.get(example.id, np.nan) for example in examples]
    return replace(table, expected_calls=np.array(expected_calls, dtype=np.float64))


def _outcomes_sha256(
    config: RunConfig, source: SourceConfig, arms: Sequence[str], data: Path
) -> str:
    """Return the SHA-256 of everything that the outcomes of a source depend on.

    These are the source's files, the code that reads and judges the files, the version of the
    benchmark's package (some recordings take their questions from the package), the encoder that
    compares paraphrases, and the arms.
    """
    try:
        benchmark = version(bfcl.PACKAGE)
    except PackageNotFoundError:
        benchmark = "none"
    files = source_sha256(source, data)
    folders = [PACKAGE / name for name in ("checking", "datasets", "decisions", "labelling")]
    folders.append(Path(checker.__file__).parent)
    code = [tree_sha256(folder, "*.py") for folder in folders]
    how = (source.format, source.weak_evidence, config.checking.paraphrases, dict(source.arms))
    facts = (*how, files, code, benchmark, RECORDED, *arms)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _is_complete(table: Table, arms: Sequence[str]) -> Flags:
    """Return for each row whether all of these arms were asked its query, (rows,)."""
    complete: Flags = ~np.isnan(table.select_arms(arms).correct.sum(axis=1))
    return complete


def sources_sha256(sources: Sequence[SourceConfig], data: Path) -> str:
    """Return one SHA-256 for the files of all sources; for one source, its `source_sha256`."""
    digests = [source_sha256(source, data) for source in sources]
    return digests[0] if len(digests) == 1 else _joined_sha256(digests)


def source_sha256(source: SourceConfig, data: Path) -> str:
    """Return the SHA-256 of the files that a source reads."""
    if source.answers is None:
        return tree_sha256(data / source.path)
    return _joined_sha256(
        tree_sha256(data / path) for path in (source.path, source.answers / ANSWERS)
    )


def tree_sha256(root: Path, pattern: str = "*") -> str:
    """Return the SHA-256 of the path and contents of a file, or of all files in a folder."""
    digest = hashlib.sha256()
    files = [root] if root.is_file() else [path for path in root.rglob(pattern) if path.is_file()]
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _joined_sha256(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()
