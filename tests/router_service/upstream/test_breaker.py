"""When circuits open and close."""

from __future__ import annotations

import pytest

from router_service.core.errors import UpstreamError
from router_service.settings import BreakerSettings
from router_service.upstream.breaker import FAILURES_IN_A_ROW, CircuitBreakers
from tests.clock import Clock

ADDRESS = "http://10.0.0.1/v1"
SETTINGS = BreakerSettings(allowed_fails=2, window_s=60, cooldown_s=5, max_cooldown_s=15)


@pytest.fixture
def clock() -> Clock:
    """Return the test's clock."""
    return Clock()


@pytest.fixture
def opened() -> list[tuple[str, float]]:
    """Return the openings that the breakers report."""
    return []


@pytest.fixture
def breakers(clock: Clock, opened: list[tuple[str, float]]) -> CircuitBreakers:
    """Return breakers that open with the third failure within a minute."""
    return CircuitBreakers(SETTINGS, clock, lambda name, seconds: opened.append((name, seconds)))


def failure(retry_after_s: float | None = None) -> UpstreamError:
    """Return a failure of an upstream."""
    return UpstreamError("small", "answered with status 500", retry_after_s=retry_after_s)


def fail(breakers: CircuitBreakers, times: int, name: str = "d") -> None:
    """Let a deployment fail several times."""
    for _ in range(times):
        assert breakers.admit(name)
        breakers.record_failure(name, failure(), address=ADDRESS)


def test_ten_failures_in_a_row_open_the_circuit_after_much_good_traffic(
    breakers: CircuitBreakers,
) -> None:
    """A provider that stops is left at once, although most answers of the minute were good."""
    for _ in range(1000):
        breakers.record_success("d")
    fail(breakers, FAILURES_IN_A_ROW - 1)
    breakers.record_success("d")
    fail(breakers, FAILURES_IN_A_ROW - 1)
    assert breakers.wait_s("d") == 0
    fail(breakers, 1)
    assert breakers.wait_s("d") == 5


def test_circuit_opens_after_the_allowed_failures(
    breakers: CircuitBreakers, opened: list[tuple[str, float]]
) -> None:
    """Allowed failures change nothing. The next one opens the circuit and is reported."""
    fail(breakers, 2)
    assert breakers.wait_s("d") == 0
    fail(breakers, 1)
    assert (breakers.admit("d"), breakers.wait_s("d")) == (False, 5)
    assert breakers.open_circuits().keys() == {"d"}
    assert opened == [("d", 5)]
    assert breakers.admit("other")


def test_one_request_probes_after_the_cool_down(breakers: CircuitBreakers, clock: Clock) -> None:
    """Other requests wait for the probe. Its success closes the circuit."""
    fail(breakers, 3)
    clock.now_s += 5
    assert [breakers.admit("d") for _ in range(3)] == [True, False, False]
    breakers.record_success("d")
    assert [breakers.admit("d") for _ in range(3)] == [True, True, True]
    fail(breakers, 2)
    assert breakers.admit("d"), "the failures before the probe are forgotten"


def test_a_failed_probe_doubles_the_cool_down(
    breakers: CircuitBreakers, clock: Clock, opened: list[tuple[str, float]]
) -> None:
    """Each failed probe doubles the time, up to the maximum."""
    fail(breakers, 3)
    for seconds in (5, 10, 15):
        clock.now_s += seconds
        fail(breakers, 1)
    assert opened == [("d", 5), ("d", 10), ("d", 15), ("d", 15)]


def test_retry_after_opens_the_circuit(breakers: CircuitBreakers, clock: Clock) -> None:
    """`Retry-After` opens at once, but for no longer than the maximum."""
    breakers.record_failure("d", failure(retry_after_s=2), address=ADDRESS)
    assert breakers.wait_s("d") == 2
    breakers.record_failure("e", failure(retry_after_s=3600), address=ADDRESS)
    assert breakers.wait_s("e") == 15
    clock.now_s += 2
    assert breakers.admit("d")


def test_other_clients_probe_a_circuit_that_one_client_opened(
    breakers: CircuitBreakers, clock: Clock, opened: list[tuple[str, float]]
) -> None:
    """Their requests are probes: success closes the circuit, and failure keeps it open for all."""
    for _ in range(3):
        breakers.record_failure("d", failure(), address=ADDRESS, client="bad")
    assert [breakers.wait_s("d", client) for client in (None, "bad", "good")] == [5, 5, 0]
    assert breakers.open_circuits().keys() == {"d"}
    assert [breakers.admit("d", client) for client in ("bad", "good", "good")] == [
        False,
        True,
        True,
    ]
    breakers.record_success("d", "good")
    assert breakers.admit("d", "bad")
    clock.now_s += 61
    for _ in range(3):
        breakers.record_failure("d", failure(), address=ADDRESS, client="bad")
    assert breakers.admit("d", "good")
    breakers.record_failure("d", failure(), address=ADDRESS, client="good")
    assert [breakers.admit("d", client) for client in ("bad", "good", "other")] == [False] * 3
    assert opened == [("d", 5), ("d", 5), ("d", 10)]


def test_an_adopted_cool_down_ends_with_its_entry(breakers: CircuitBreakers, clock: Clock) -> None:
    """After an entry is deleted, one request probes. A cool-down that began here continues."""
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
    assert breakers.open_circuits().keys() == {"e", "d"}, "both wait for their probe"
