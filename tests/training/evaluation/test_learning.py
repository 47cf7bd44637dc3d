"""Learning curves, on the small benchmark with recorded answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from switchcraft_training.config import RunConfig
from switchcraft_training.data.splits import group_table
from switchcraft_training.evaluation.learning import learning_curves, router_splits, sample
from switchcraft_training.training_data import TrainingData, read_training_data
from tests.training.verifiers import LITTLE, one_thread

pytestmark = pytest.mark.slow

QUERIES, FOLDS, FEW = 80, 3, 24


def configure(config: Path, *sizes: int, verifier: bool) -> RunConfig:
    """Change the run to one branch, a learning curve of these sizes, and perhaps a verifier."""
    values = yaml.safe_load(config.read_text()) | {"verifier": verifier}
    values["training"] |= {"shares": {"lexical": 1}, "select_on": "last"}
    values["evaluation"] |= {"learning_curve": list(sizes)}
    config.write_text(yaml.safe_dump(values))
    return RunConfig.model_validate(values)


@pytest.fixture
def data(config: Path, benchmark: Path, tmp_path: Path) -> TrainingData:
    """Return the benchmark packed for a router of words."""
    run = configure(config, FEW, 1000, verifier=True)
    return read_training_data(run, benchmark, tmp_path / "work")


def test_all_sizes_are_measured_on_all_queries(data: TrainingData, benchmark: Path) -> None:
    """Each point has a router, a verifier and both policies; a size beyond the folds is capped."""
    with one_thread():
        (curve,) = learning_curves(data, benchmark, LITTLE).values()
    few, most = curve
    assert FEW / 2 < few.queries <= FEW
    assert most.queries == QUERIES * (FOLDS - 1) / FOLDS
    for point in curve:
        assert point.verifier_auc is not None
        assert point.verified is not None
        measured = (point.router_auc, point.verifier_auc, point.once.accuracy)
        assert [each.n for each in (*measured, point.verified.accuracy)] == [QUERIES] * 4
        assert point.verified.name.startswith("verified=")


def test_samples_are_whole_groups_and_grow(data: TrainingData) -> None:
    """A sample never has a part of a group, nor a query of the test fold; larger ones contain it.

    Routers that predict queries of the sample have not learned from their groups.
    """
    table = group_table(data.table)
    pairs = np.arange(len(table)) // 2  # two queries in each group
    data = replace(data, table=replace(table, groups=pairs, own_groups=pairs))
    for split in data.folds():
        few, more = (sample(data, split, size) for size in (FEW + 1, 2 * FEW))
        assert (len(few.train), len(more.train)) == (FEW, 2 * FEW)
        assert set(few.train) < set(more.train) <= set(split.train)
        assert few.test == split.test
        whole, *inner = router_splits(data, few, is_nested=True)
        assert (whole.train, whole.test) == (few.train, split.test)
        assert sorted(row for part in inner for row in part.test) == list(few.train)
        for part in (whole, *inner):
            assert not np.isin(pairs[list(part.train)], pairs[list(part.test)]).any()
