"""The fit of the familiarity: distances to training queries, and their quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.predictor.familiarity import LIMIT, Familiarity, FamiliaritySpec
from switchcraft_training.familiarity import describe, distances, quantiles

RNG = np.random.default_rng(1)


def test_distance_grows_in_every_direction() -> None:
    """Rows that are farther out in the same direction are farther away, and the mean is nearest."""
    sizes = RNG.normal(size=(500, 3)) @ np.array([[1.0, 0.9, 0], [0, 0.3, 0], [0, 0, 2.0]])
    described = describe(sizes)
    for direction in (*np.eye(3), np.array([1.0, -1.0, 0.5])):
        rows = described[0] + np.outer([0, 1, 2, 5], direction)
        found = distances(rows, *described)
        assert found[0] == pytest.approx(0)
        assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("count", [3, 40, 2_000])
def test_limit_is_reached_by_its_share_of_the_held_out_queries(count: int) -> None:
    """The kept quantiles give every held-out query its share, also where many are equally far."""
    far = np.sort(np.round(RNG.exponential(size=count), 1 if count == 40 else 6))
    kept, shares = quantiles(far)
    spec = FamiliaritySpec(
        sizes=(("tools",),),
        mean=(0.0,),
        scale=(1.0,),
        precision=((1.0,),),
        distances=tuple(kept),
        shares=tuple(shares),
        queries=count,
        base_rates={},
    )
    familiarity = Familiarity(spec, ("tools",))
    found = np.array([familiarity.of((np.expm1(distance),)) for distance in far])
    exact = np.array([(far >= distance - 1e-9).mean() for distance in far])
    assert np.abs(found - exact).max() < 0.02
    assert (found < LIMIT).mean() == pytest.approx((exact < LIMIT).mean(), abs=0.002)
