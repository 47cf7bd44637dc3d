"""Demand: held-out predictions of the number of calls that a query asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from router_service.predictor.packing import Packed
from switchcraft_training.data.table import Table
from switchcraft_training.models.branches import held_out_demand
from tests.training.models.cases import rows_of


def asking(n: int, groups: int, seed: int = 0) -> Table:
    """Return rows whose number of calls is their first feature, in alternating groups."""
    rng = np.random.default_rng(seed)
    calls = rng.integers(0, 5, n)
    packed = [Packed((1, 2), (float(wanted), float(rng.random())), ()) for wanted in calls]
    data = rows_of(packed, np.zeros((n, 2), dtype=np.float32))
    return replace(data, expected_calls=calls.astype(np.float64), groups=np.arange(n) % groups)


def test_prediction_does_not_depend_on_the_calls_of_its_group() -> None:
    """A row's prediction depends neither on its own calls nor on its group's."""
    data = asking(120, 30)
    own, calls = data.groups == 3, data.expected_calls
    first = held_out_demand(data, 0)
    second = held_out_demand(replace(data, expected_calls=np.where(own, 4 - calls, calls)), 0)
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first[own], second[own])
    assert not np.allclose(first[~own], second[~own])
