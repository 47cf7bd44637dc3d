"""With failing upstreams under load, every request gets exactly one answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from router_service.sandbox.provider import run_in_thread
from router_service.serving.app import create_app
from router_service.settings import (
    BreakerSettings,
    RetrySettings,
    Settings,
    Timeouts,
    UpstreamSettings,
)
from tests.drills.answers import check_one_answer_each, ended_requests, send
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
class GatewayAndSandbox:
    """Gateway with its sandbox, with short circuit breaker times."""

    url: str
    sandbox: Sandbox


@pytest.fixture
def house() -> Iterator[GatewayAndSandbox]:
    """Yield a gateway that chooses the arm `medium` first and `large` next."""
    with run_in_thread() as upstream:
        settings = Settings.sandbox(upstream, ARMS, upstreams=UPSTREAMS)
        with served(create_app(settings, FakeRouter())) as url:
            yield GatewayAndSandbox(url, Sandbox(upstream))


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
        "error_after=1",
    ],
)
def test_failure_before_the_first_output_is_hidden_by_the_fallback(
    house: GatewayAndSandbox, fault: str
) -> None:
    """However the chosen arm fails, each request gets one good answer.

    The sandbox completes exactly as many answers as clients get, so no answer is wasted.
    """
    house.sandbox.set_faults("medium", fault)
    answers = send(house.url, REQUESTS)
    assert len(answers) == REQUESTS
    assert [answer for answer in answers if not answer.is_good] == []
    check_one_answer_each(answers)
    wait_for(lambda: ended_requests(house.url) == REQUESTS, "each request is counted once")
    completed = sum(counts["completed"] for counts in house.sandbox.stats()["by_model"].values())
    assert completed == REQUESTS


def test_unreachable_upstream_gives_each_request_one_error() -> None:
    """If no upstream listens, each request gets one error."""
    settings = Settings.sandbox("http://127.0.0.1:9/v1", ARMS, upstreams=UPSTREAMS)
    with served(create_app(settings, FakeRouter())) as url:
        answers = send(url, REQUESTS)
        assert {answer.status for answer in answers} <= {502, 503}
        check_one_answer_each(answers)
        wait_for(lambda: ended_requests(url) == REQUESTS, "each request is counted once")


@pytest.mark.parametrize("fault", ["hang_after=2", "cut_after=2", "error_after=2"])
def test_failure_after_the_first_output_ends_the_stream_with_one_error(
    house: GatewayAndSandbox, fault: str
) -> None:
    """A broken stream ends with one error and no second answer; other requests are retried."""
    house.sandbox.set_faults("medium", fault)
    answers = send(house.url, REQUESTS)
    check_one_answer_each(answers)
    broken = [answer for answer in answers if answer.errors]
    assert broken, "some streams had started before the circuit opened"
    assert {answer.status for answer in answers} == {200}
    assert {answer.model for answer in broken} == {"medium"}
    wait_for(lambda: ended_requests(house.url) == REQUESTS, "each request is counted once")


def test_chosen_arm_returns_after_an_outage(house: GatewayAndSandbox) -> None:
    """During an outage another arm answers; afterwards the chosen arm answers again."""
    house.sandbox.set_faults("medium", "status=500")
    during = send(house.url, REQUESTS)
    house.sandbox.set_faults("medium", "")
    wait_for(
        lambda: send(house.url, 1)[0].model == "medium", "the circuit of the chosen arm closes"
    )
    after = send(house.url, REQUESTS)
    assert [answer for answer in (*during, *after) if not answer.is_good] == []
    assert {answer.model for answer in during} == {"large"}
    assert {answer.model for answer in after} == {"medium"}
    check_one_answer_each((*during, *after))
