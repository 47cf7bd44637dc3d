"""Whole tasks of agents: the cheapest model that is good enough, and its cost at other prices."""

from __future__ import annotations

import pytest

from router_service.measurement.agent_tasks import (
    agent_task_table,
    cheapest_within,
    rescaled_usd,
)
from router_service.policies.costs import Price


@pytest.mark.parametrize(
    ("success", "usd_per_task", "points", "position"),
    [
        ((0.80, 0.79, 0.70), (1.0, 0.5, 0.1), 2, 1),
        ((0.80, 0.79, 0.70), (1.0, 0.5, 0.1), 0, 0),
        ((0.80, 0.79, 0.70), (1.0, 0.5, 0.1), 10, 2),
        ((0.80, 0.78), (1.0, 0.5), 2, 1),
        ((0.80, 0.79), (1.0, None), 2, 0),
        ((0.80, 0.79), (None, 0.5), 2, 1),
        ((0.79, 0.80), (None, None), 2, 1),
        ((0.79, 0.80), (0.5, 0.5), 2, 1),
    ],
)
def test_cheapest_within_points(
    success: tuple[float, ...], usd_per_task: tuple[float | None, ...], points: float, position: int
) -> None:
    """The limit is inclusive; an unknown cost is the dearest; of equal costs, the better wins."""
    assert cheapest_within(success, usd_per_task, points) == position


@pytest.mark.parametrize(
    ("own", "factor"),
    [
        (None, 1),
        (Price(input_usd_per_mtok=5, output_usd_per_mtok=25, cached_input_usd_per_mtok=0.5), 1),
        (Price(input_usd_per_mtok=10, output_usd_per_mtok=50, cached_input_usd_per_mtok=1), 2),
        (Price(input_usd_per_mtok=5, output_usd_per_mtok=25), 1),
        (Price(input_usd_per_mtok=0, output_usd_per_mtok=0), 0),
    ],
)
def test_costs_follow_the_prices_of_a_configuration(own: Price | None, factor: float) -> None:
    """Without a price for cached tokens, only the other prices count."""
    listed = Price(input_usd_per_mtok=5, output_usd_per_mtok=25, cached_input_usd_per_mtok=0.5)
    assert rescaled_usd(0.8, listed, own) == pytest.approx(0.8 * factor)
    assert rescaled_usd(0.8, None, own) == 0.8
    assert rescaled_usd(0.8, listed, Price(usd_per_hour=2)) is None


def test_shipped_figures_are_complete_and_credible() -> None:
    """A model has one figure for each benchmark, within its interval; suspect runs are left out."""
    table = agent_task_table()
    keys = [(each.benchmark, each.model) for each in table.figures]
    assert len(set(keys)) == len(keys)
    assert {each.kind for each in table.figures} == {"coding", "mcp", "service", "research"}
    assert "claude-fable-5" not in table.names
    for each in table.figures:
        low, high = each.interval
        assert 0 <= low < each.success < high <= 1
        assert each.usd_per_task is None or each.usd_per_task > 0
