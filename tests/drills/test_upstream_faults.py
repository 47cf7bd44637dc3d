"""Upstreams that fail under load: every request has one answer, and none has two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from router_service.http.app import create_app
from router_service.sandbox.server import run_in_thread
from router_service.settings import (
    BreakerSettings,
    RetrySettings,
    Settings,
    Timeouts,
    UpstreamSettings,
)
from tests.drills.counting import check_none_twice, counted, send
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

REQUESTS = 60
ARMS = ("small", "medium", "large")
UPSTREAMS = UpstreamSettings(
    timeouts=Timeouts(first_byte_s=3, idle_s=1),
    retries=RetrySettings(budget_floor_per_s=1000),
    breaker=BreakerSettings(cooldown_s=0.2, max_cooldown_s=0.5),
)


@dataclass(frozen=True)
class House:
    """A gateway with the breakers of every day, and the sandbox behind it."""

    url: str
    sandbox: Sandbox


@pytest.fixture
def house() -> Iterator[House]:
    """Yield a gateway whose chosen arm is `medium`, and whose next one is `large`."""
    with run_in_thread() as upstream:
        settings = Settings.sandbox(upstream, ARMS, upstreams=UPSTREAMS)
        with served(create_app(settings, FakeRouter())) as url:
            yield House(url, Sandbox(upstream))


@pytest.mark.parametrize(
    "fault",
    [
        "status=500",
        "status=429,retry_after_s=1",
        "status=500,times=7",
        "hang",
        "cut_after=0",
        "error_in_body",
        "error_after=0",
        "keep_alives,error_after=0",
    ],
)
def test_before_the_first_output_nobody_notices(house: House, fault: str) -> None:
    """However the chosen arm fails, each request has one good answer.

    The sandbox completed no more answers than clients got: none was made and thrown away.
    """
    house.sandbox.set_faults("medium", fault)
    answers = send(house.url, REQUESTS)
    assert len(answers) == REQUESTS
    assert [answer for answer in answers if not answer.is_good] == []
    check_none_twice(answers)
    wait_for(lambda: counted(house.url) == REQUESTS, "each request is counted once")
    completed = sum(counts["completed"] for counts in house.sandbox.stats()["by_model"].values())
    assert completed == REQUESTS


def test_a_dead_upstream() -> None:
    """Where nobody listens any more, each request is told so, once."""
    settings = Settings.sandbox("http://127.0.0.1:9/v1", ARMS, upstreams=UPSTREAMS)
    with served(create_app(settings, FakeRouter())) as url:
        answers = send(url, REQUESTS)
        assert {answer.status for answer in answers} <= {502, 503}
        check_none_twice(answers)
        wait_for(lambda: counted(url) == REQUESTS, "each request is counted once")


@pytest.mark.parametrize("fault", ["hang_after=2", "cut_after=2", "malformed", "error_after=2"])
def test_after_the_first_output_the_break_is_told(house: House, fault: str) -> None:
    """A stream that breaks ends with one error and no second answer; what is whole is repeated."""
    house.sandbox.set_faults("medium", fault)
    answers = send(house.url, REQUESTS)
    check_none_twice(answers)
    broken = [answer for answer in answers if answer.errors]
    assert broken, "some streams were under way when the arm was still asked"
    assert {answer.status for answer in answers} == {200}
    assert {answer.model for answer in broken} == {"medium"}
    wait_for(lambda: counted(house.url) == REQUESTS, "each request is counted once")


def test_an_outage_that_passes(house: House) -> None:
    """During an outage another arm answers; after it the chosen one does again."""
    house.sandbox.set_faults("medium", "status=500")
    during = send(house.url, REQUESTS)
    house.sandbox.set_faults("medium", "")
    wait_for(
        lambda: send(house.url, 1)[0].model == "medium", "the breaker lets the chosen arm in again"
    )
    after = send(house.url, REQUESTS)
    assert [answer for answer in (*during, *after) if not answer.is_good] == []
    assert {answer.model for answer in during} == {"large"}
    assert {answer.model for answer in after} == {"medium"}
    check_none_twice((*during, *after))
