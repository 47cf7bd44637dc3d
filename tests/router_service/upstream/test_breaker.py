"""When a deployment is left alone, and when it is asked again."""

from __future__ import annotations

import pytest

from router_service.settings import BreakerSettings
from router_service.upstream.breaker import CircuitBreakers

SETTINGS = BreakerSettings(allowed_fails=2, window_s=60, cooldown_s=5, max_cooldown_s=15)


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """Return the clock of a test."""
    return Clock()


@pytest.fixture
def opened() -> list[tuple[str, float]]:
    """Return what the breakers tell others."""
    return []


@pytest.fixture
def breakers(clock: Clock, opened: list[tuple[str, float]]) -> CircuitBreakers:
    """Return breakers that open with the third failure of a minute."""
    return CircuitBreakers(SETTINGS, clock, lambda name, seconds: opened.append((name, seconds)))


def fail(breakers: CircuitBreakers, times: int, name: str = "d") -> None:
    """Let a deployment fail so many times."""
    for _ in range(times):
        assert breakers.admit(name)
        breakers.failed(name)


def test_it_opens_with_one_failure_too_many(
    breakers: CircuitBreakers, opened: list[tuple[str, float]]
) -> None:
    """Allowed failures change nothing; the next one leaves the deployment alone, and tells it."""
    fail(breakers, 2)
    assert breakers.wait_s("d") == 0
    fail(breakers, 1)
    assert (breakers.admit("d"), breakers.wait_s("d")) == (False, 5)
    assert breakers.open_ids() == {"d"}
    assert opened == [("d", 5)]
    assert breakers.admit("other")


def test_a_busy_deployment_may_fail_now_and_then(breakers: CircuitBreakers) -> None:
    """As long as most of its answers are good, a deployment is not left alone."""
    for _ in range(20):
        breakers.succeeded("d")
    fail(breakers, 10)
    assert breakers.admit("d")


def test_a_stream_that_breaks_is_one_answer(breakers: CircuitBreakers) -> None:
    """Three of five streams that break are most of them: a break is no answer of its own."""
    for _ in range(5):
        assert breakers.admit("d")
        breakers.succeeded("d")
    for _ in range(3):
        breakers.failed("d", had_begun=True)
    assert not breakers.admit("d")


def test_old_failures_are_forgotten(breakers: CircuitBreakers, clock: Clock) -> None:
    """What failed before the window began does not count."""
    fail(breakers, 2)
    clock.now_s += 61
    fail(breakers, 2)
    assert breakers.admit("d")


def test_one_request_probes(breakers: CircuitBreakers, clock: Clock) -> None:
    """After its time one request goes through and the others wait; a good answer lets all in."""
    fail(breakers, 3)
    clock.now_s += 5
    assert [breakers.admit("d") for _ in range(3)] == [True, False, False]
    breakers.succeeded("d")
    assert [breakers.admit("d") for _ in range(3)] == [True, True, True]
    fail(breakers, 2)
    assert breakers.admit("d"), "the failures before the probe are forgotten"


def test_a_probe_that_fails_doubles_the_time(
    breakers: CircuitBreakers, clock: Clock, opened: list[tuple[str, float]]
) -> None:
    """Each failed probe doubles the time, up to the greatest."""
    fail(breakers, 3)
    for seconds in (5, 10, 15):
        clock.now_s += seconds
        fail(breakers, 1)
    assert opened == [("d", 5), ("d", 10), ("d", 15), ("d", 15)]


def test_a_probe_that_says_nothing_is_followed_by_another(
    breakers: CircuitBreakers, clock: Clock
) -> None:
    """A client that leaves during the probe tells nothing of the deployment."""
    fail(breakers, 3)
    clock.now_s += 5
    assert breakers.admit("d")
    breakers.left("d")
    assert breakers.admit("d")


def test_who_says_when_is_not_asked_before(breakers: CircuitBreakers, clock: Clock) -> None:
    """`Retry-After` opens at once, for no longer than the greatest time."""
    breakers.failed("d", retry_after_s=2)
    assert breakers.wait_s("d") == 2
    breakers.failed("e", retry_after_s=3600)
    assert breakers.wait_s("e") == 15
    clock.now_s += 2
    assert breakers.admit("d")


def test_one_clients_failures_count_less_than_others_answers(
    breakers: CircuitBreakers, clock: Clock, opened: list[tuple[str, float]]
) -> None:
    """As long as others get good answers, one client's failures open nothing."""
    breakers.succeeded("d", "good")
    for _ in range(20):
        assert breakers.admit("d", "bad")
        breakers.failed("d", client="bad")
    assert opened == []
    clock.now_s += 61
    for _ in range(3):
        breakers.failed("d", client="bad")
    assert opened == [("d", 5)]


def test_others_may_ask_where_one_client_alone_failed(
    breakers: CircuitBreakers, clock: Clock, opened: list[tuple[str, float]]
) -> None:
    """Their requests are the probe: a good answer closes the breaker, a failure holds for all."""
    for _ in range(3):
        breakers.failed("d", client="bad")
    assert [breakers.wait_s("d", client) for client in (None, "bad", "good")] == [5, 5, 0]
    assert breakers.open_ids() == {"d"}
    assert [breakers.admit("d", client) for client in ("bad", "good", "good")] == [
        False,
        True,
        True,
    ]
    breakers.succeeded("d", "good")
    assert breakers.admit("d", "bad")
    clock.now_s += 61
    for _ in range(3):
        breakers.failed("d", client="bad")
    assert breakers.admit("d", "good")
    breakers.failed("d", client="good")
    assert [breakers.admit("d", client) for client in ("bad", "good", "other")] == [False] * 3
    assert opened == [("d", 5), ("d", 5), ("d", 10)]


def test_failures_of_all_clients_open_it(breakers: CircuitBreakers) -> None:
    """A second client that fails for the most part confirms what the first one found."""
    for client in ("a", "b", "c"):
        assert breakers.admit("d", client)
        breakers.failed("d", client=client)
    assert not any(breakers.admit("d", client) for client in ("a", "b", "c", "e", None))


def test_what_others_found_is_adopted(
    breakers: CircuitBreakers, clock: Clock, opened: list[tuple[str, float]]
) -> None:
    """Another gateway's cool-down holds here too, is not told again, and never shortens ours."""
    breakers.adopt({"d": 3.0})
    assert (breakers.wait_s("d"), opened) == (3, [])
    breakers.adopt({"d": 1.0})
    assert breakers.wait_s("d") == 3
    clock.now_s += 3
    assert breakers.admit("d")


def test_what_is_adopted_is_bounded(breakers: CircuitBreakers, clock: Clock) -> None:
    """A cool-down of 115 days stops a deployment for the longest time that one of ours has."""
    breakers.adopt({"d": 115 * 24 * 3600.0, "e": float("inf")})
    assert (breakers.wait_s("d"), breakers.wait_s("e")) == (15, 15)
    clock.now_s += 15
    assert [breakers.admit("d") for _ in range(2)] == [True, False], "one request probes"
    breakers.succeeded("d")
    assert breakers.admit("d")


def test_what_was_adopted_ends_with_its_entry(breakers: CircuitBreakers, clock: Clock) -> None:
    """A deleted entry lets one request probe at once; what was found here goes on."""
    breakers.adopt({"d": 10.0})
    breakers.adopt({}, ["d", "unknown"])
    assert [breakers.admit("d") for _ in range(2)] == [True, False]
    fail(breakers, 3, "e")
    breakers.adopt({"e": 14.0})
    assert breakers.wait_s("e") == 14
    breakers.adopt({}, ["e"])
    assert breakers.wait_s("e") == 5
    clock.now_s += 5
    assert breakers.admit("e")
    assert breakers.open_ids() == {"e", "d"}, "both wait for their probe"
