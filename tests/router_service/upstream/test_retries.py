"""The retry budget, and the set that remembers refusals."""

from __future__ import annotations

import random

import pytest

from router_service.upstream.retries import BUDGET_SAVINGS_S, MAX_EXPIRING, ExpiringSet, RetryBudget
from tests.router_service.upstream.test_breaker import Clock


def test_requests_and_time_earn_retries() -> None:
    """Four requests at a share of 0.25 earn one retry, and so do two seconds at 0.5 a second."""
    clock = Clock()
    budget = RetryBudget(0.25, 0, clock)
    assert not budget.spend()
    for _ in range(4):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]
    slow = RetryBudget(0, 0.5, clock)
    assert [slow.spend() for _ in range(6)] == [True] * 5 + [False]
    clock.now_s += 2
    assert [slow.spend() for _ in range(2)] == [True, False]


@pytest.mark.parametrize("floor_per_s", [0.0, 2.0, 5.0])
@pytest.mark.parametrize("requests_per_s", [1, 100, 1000])
def test_savings_are_limited_to_ten_seconds_of_the_floor(
    requests_per_s: int, floor_per_s: float
) -> None:
    """After an hour without failures, a burst has at most `BUDGET_SAVINGS_S` of the floor."""
    clock = Clock()
    budget = RetryBudget(0.2, floor_per_s, clock)
    for _ in range(20_000):
        clock.now_s += 1 / requests_per_s
        budget.earn()
    clock.now_s += 3600
    burst = sum(budget.spend() for _ in range(1000))
    assert burst == max(1, BUDGET_SAVINGS_S * floor_per_s)


@pytest.mark.parametrize("seed", range(5))
def test_no_window_of_an_outage_exceeds_the_bound(seed: int) -> None:
    """In every window of a simulated outage, retries <= share x requests + floor x (T + saved)."""
    draw, clock, share, floor_per_s = random.Random(seed), Clock(), 0.2, 2.0
    budget = RetryBudget(share, floor_per_s, clock)
    events: list[tuple[float, int, int]] = []
    requests = retries = 0
    for _ in range(2000):
        # Quiet times, steady traffic and bursts, in turn; every try fails and is tried again.
        clock.now_s += draw.choice((0.0, 0.0, 0.001, 0.01, 0.5, 20.0))
        is_outage = draw.random() < 0.7
        for _ in range(draw.choice((1, 1, 5, 50))):
            budget.earn()
            requests += 1
            while is_outage and budget.spend():
                retries += 1
        events.append((clock.now_s, requests, retries))
    # The sum must not rise by more than the saved retries between any two moments.
    lowest = 0.0
    for now_s, made, tried in events:
        excess = tried - share * made - floor_per_s * now_s
        lowest = min(lowest, excess) if lowest else excess
        assert excess - lowest <= BUDGET_SAVINGS_S * floor_per_s + 1e-6


def test_an_outage_multiplies_steady_traffic_by_1_2() -> None:
    """At 100 requests a second, an outage causes 20% retries, 2 a second and 20 saved ones."""
    clock = Clock()
    budget = RetryBudget(0.2, 2.0, clock)
    requests = retries = 0
    for tick in range(12_000):
        clock.now_s += 0.01
        budget.earn()
        if tick >= 6000:  # a minute of health before
            requests += 1
            retries += sum(budget.spend() for _ in range(3))
    assert retries <= 0.2 * requests + 2 * 60 + 20
    assert retries >= 0.2 * requests


def test_members_expire() -> None:
    """Each member has its own time, which starts again when it is added again."""
    now_s = 100.0
    learned = ExpiringSet(10, lambda: now_s)
    assert "a" not in learned
    learned.add("a")
    now_s += 6
    learned.add("b")
    assert "a" in learned
    now_s += 4
    assert ("a" in learned, "b" in learned) == (False, True)
    learned.add("a")
    now_s += 9
    assert ("a" in learned, "b" in learned) == (True, False)


def test_the_oldest_member_is_dropped() -> None:
    """The set's memory is bounded."""
    learned = ExpiringSet(10, lambda: 0.0)
    for number in range(MAX_EXPIRING):
        learned.add(number)
    learned.add(0)
    learned.add("new")
    assert [fact in learned for fact in (0, 1, 2, "new")] == [True, False, True, True]
