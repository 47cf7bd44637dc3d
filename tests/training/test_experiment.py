"""Cross-validation: each measured query is predicted once, by a router that has not seen it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from switchcraft_training.config import RunConfig
from switchcraft_training.predictions import cross_validate
from switchcraft_training.progress import running, stage
from switchcraft_training.training_data import TrainingData, read_training_data
from switchcraft_training.workers import Workers

pytestmark = pytest.mark.slow


@pytest.fixture
def data(config: Path, benchmark: Path, tmp_path: Path) -> TrainingData:
    """Load the invented benchmark for a router of trees and words."""
    values = yaml.safe_load(config.read_text())
    values["training"] |= {"shares": {"forest": 1, "lexical": 3}, "select_on": "last"}
    return read_training_data(RunConfig.model_validate(values), benchmark, tmp_path / "work")


def test_every_own_row_is_asked_once_of_a_router_that_has_not_seen_it(data: TrainingData) -> None:
    """Together the folds test all rows; no fold trains on near-duplicates of its held-out rows."""
    groups, own = data.table.groups, list(data.table.measured_rows)
    tested: list[int] = []
    for split in data.folds():
        held = set(groups[list(split.test + split.validation)])
        assert not held & set(groups[list(split.train + split.teaching)])
        assert not set(groups[list(split.test)]) & set(groups[list(split.validation)])
        assert split.train
        tested += split.test
    assert sorted(tested) == own
    found = cross_validate(data)
    for number, split in enumerate(data.folds()):
        assert set(found.folds[list(split.test)]) == {number}
        assert found.expected_costs_usd[split.test[0]].tolist() == pytest.approx(
            data.expected_costs_usd(split.train)
        )
    np.testing.assert_array_equal(
        found.probabilities, found.mix(data.config.training.branch_shares)
    )
    assert np.isnan(found.p_no_call).all()
    assert found.branches.keys() == {"forest", "lexical"}
    assert all(np.isfinite(logits).all() for logits in found.branches.values())
    assert not np.isnan(found.expected_costs_usd).any()


def test_a_row_s_own_labels_do_not_move_what_is_said_of_it(data: TrainingData) -> None:
    """Flipping one group's labels changes predictions of other folds, and not of its own fold."""
    chosen = data.table.groups == data.table.groups[0]
    fold = next(set(s.test) for s in data.folds() if 0 in s.test)
    first = cross_validate(data)
    table = data.table
    flipped = np.where(chosen[:, None], 1 - table.correct, table.correct)
    changed = replace(data, table=replace(table, correct=flipped))
    second = cross_validate(changed)
    same = sorted(fold)  # all predictions of the router that has not seen the group
    others = [row for row in data.table.measured_rows if row not in fold]
    for name in first.branches:
        np.testing.assert_array_equal(first.branches[name][same], second.branches[name][same])
        assert not np.allclose(first.branches[name][others], second.branches[name][others])


def test_folds_in_several_processes_give_the_same_predictions(data: TrainingData) -> None:
    """Two processes predict what one predicts, and the stage has the steps and memory of both.

    Without an encoder, the graphs equal the network in full precision.
    """
    alone = cross_validate(data)
    with running(()) as stages, stage("folds"):
        together = cross_validate(data, Workers(2), exported=True)
    np.testing.assert_array_equal(alone.folds, together.folds)
    # The number of threads may change the order of sums.
    np.testing.assert_allclose(alone.probabilities, together.probabilities, atol=1e-5)
    for name, logits in alone.branches.items():
        np.testing.assert_allclose(logits, together.branches[name], atol=1e-5)
    whole, forest = stages.usages["folds", ""], stages.usages["folds", "forest"]
    assert forest.repetitions == len(data.folds())
    assert whole.cpu_seconds > forest.cpu_seconds > 0
    assert whole.peak_memory_mb > 2 * forest.peak_memory_mb  # Both processes, and this one.
