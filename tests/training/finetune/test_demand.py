"""Demand: how many calls a query asks for, as forests say that have not seen it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from router_service.core.packing import Packed
from switchcraft_training.models.batches import Rows, feature_tensor
from switchcraft_training.models.branches import fit_demand, held_out_demand
from tests.training.finetune.cases import rows_of


def asking(n: int, groups: int, seed: int = 0) -> Rows:
    """Return rows that ask for as many calls as their first count says; groups are in turn."""
    rng = np.random.default_rng(seed)
    calls = rng.integers(0, 5, n)
    packed = [Packed((1, 2), (float(wanted), float(rng.random())), ()) for wanted in calls]
    data = rows_of(packed, np.zeros((n, 2), dtype=np.float32))
    return replace(data, calls=calls.astype(np.float32), groups=np.arange(n) % groups)


def test_counts_tell_none_one_and_several() -> None:
    """The three probabilities sum to 1; two calls and more are one class."""
    data, others = asking(300, 100), asking(100, 100, seed=1)
    forest = fit_demand(data, 0)
    said = forest(feature_tensor(others)).numpy()
    np.testing.assert_allclose(said.sum(1), 1.0, atol=1e-5)
    assert (said.argmax(1) == np.minimum(others.calls, 2)).mean() > 0.95


def test_rows_are_told_by_forests_that_have_not_seen_them() -> None:
    """A group that alone asks for a call is never foreseen to, though the full forest knows it."""
    data = asking(200, 50)
    alone = data.groups == 7
    # Nothing else looks like this group, and nothing else asks for a call.
    packed = tuple(
        replace(row, features=(1000.0 * own, 1.0))
        for row, own in zip(data.packed, alone, strict=True)
    )
    data = replace(data, packed=packed, calls=alone.astype(np.float32))
    more = replace(data, packed=data.packed * 3, calls=np.tile(data.calls, 3))
    more = replace(more, groups=np.tile(data.groups, 3), labels=np.tile(data.labels, (3, 1)))
    unseen, seen = held_out_demand(more, 0), fit_demand(more, 0)
    assert unseen is not None
    own = more.groups == 7
    assert unseen[own, 1].max() == 0
    assert seen(feature_tensor(more))[torch.from_numpy(own), 1].min() > 0.5


def test_other_calls_of_a_group_change_nothing_that_is_said_of_it() -> None:
    """What is said of a row does not follow from its own calls, nor from its group's."""
    data = asking(120, 30)
    own = data.groups == 3
    first = held_out_demand(data, 0)
    second = held_out_demand(replace(data, calls=np.where(own, 4 - data.calls, data.calls)), 0)
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first[own], second[own])
    assert not np.allclose(first[~own], second[~own])


def test_rows_of_unknown_demand_are_told_and_do_not_teach() -> None:
    """Where only some calls are known the others are foretold all the same."""
    data = asking(200, 200)
    some = replace(data, calls=np.where(np.arange(200) < 120, data.calls, np.nan))
    said = held_out_demand(some, 0)
    assert said is not None
    assert np.isfinite(said).all()
    assert (said[120:].argmax(1) == np.minimum(data.calls[120:], 2)).mean() > 0.9


def test_where_no_calls_are_known_there_is_no_demand() -> None:
    """Nothing is fitted, and nothing said."""
    data = asking(40, 40)
    unknown = replace(data, calls=np.full(40, np.nan, dtype=np.float32))
    assert held_out_demand(unknown, 0) is None
