"""Calibrations that are monotone and finite, and batches of rows with masked padding."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.predictor.model import (
    BUCKET_TOKENS,
    IDENTITY,
    Calibration,
    Platt,
    Temperature,
    batches_by_length,
)

CALIBRATIONS: tuple[Calibration, ...] = (
    IDENTITY,
    Temperature(temperature=1.7),
    Platt(slopes=(0.5, 2.0), intercepts=(1.0, -3.0)),
)


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@given(raw=st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_calibration_is_monotone_and_bounded(calibration: Calibration, raw: list[float]) -> None:
    """A higher raw probability never becomes a lower one, and 0 and 1 stay within 0 to 1."""
    rising = np.sort(np.array([0.0, *raw, 1.0]))
    calibrated = calibration.apply(np.column_stack([rising, rising]))
    assert ((calibrated >= 0) & (calibrated <= 1)).all()
    assert (np.diff(calibrated, axis=0) >= 0).all()


def test_calibrations_computed_by_hand() -> None:
    """The logit of 0.8 is ln 4; a temperature of 2 halves it, and a line moves it."""
    raw = np.array([[0.8, 0.8]])
    assert Temperature(temperature=2).apply(raw) == pytest.approx(2 / 3)
    platt = Platt(slopes=(1, 0), intercepts=(float(np.log(2)), 0)).apply(raw)
    assert platt.tolist() == [pytest.approx([8 / 9, 0.5])]
    assert IDENTITY.apply(raw).tolist() == raw.tolist()


@given(st.lists(st.integers(0, 700)), st.integers(1, 5_000))
def test_every_row_is_in_one_batch_of_similar_length(lengths: list[int], bound: int) -> None:
    """No row is lost or duplicated, padding stays below a bucket, and batches within the bound."""
    batches = list(batches_by_length(lengths, bound))
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    for batch in batches:
        longest, shortest = (f(lengths[row] for row in batch) for f in (max, min))
        assert longest - shortest < BUCKET_TOKENS
        assert len(batch) == 1 or longest * len(batch) <= bound
