"""Verified answers: which candidate is delivered, what is refused, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from router_service.artifact import NO_VERIFIER
from router_service.requests.planning import POLICY_HEADER
from router_service.router import Router
from router_service.sandbox.provider import run_in_thread
from router_service.settings import Settings, VerificationSettings
from tests.bodies import ASK, BODY, CHAT, TOOLS
from tests.fakes import VerifyingRouter
from tests.gateways import (
    VERIFIED,
    VerifyingGateway,
    ask_verified,
    gateway_client,
    metric,
    sandbox_settings,
    verifying,
)
from tests.publishing import without_verifier

RESPONSES = "/v1/responses"
RESPONSES_BODY: dict[str, Any] = {
    "model": "switchcraft",
    "input": "What is the weather in Oslo?",
    "tools": [{"type": "function", **TOOLS[0]["function"]}],
    "store": False,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[VerifyingGateway]:
    """Yield a gateway that asks `small`, `medium` and `large`, and trusts only `large`."""
    with run_in_thread() as url, verifying(url) as gateway:
        yield gateway


@pytest.fixture
def house(shared: VerifyingGateway) -> Iterator[VerifyingGateway]:
    """Yield the shared gateway, and restore the router and the sandbox afterwards."""
    initial = VerifyingRouter()
    yield shared
    shared.router.groups, shared.router.trust = initial.groups, initial.trust
    shared.router.steps.clear()
    for model in ("small", "medium", "large"):
        shared.sandbox.set_faults(model, "")


def candidates(record: dict[str, Any]) -> list[tuple[str, bool, float | None, str | None]]:
    """Return each candidate's arm, whether it was accepted, its estimate, and its failure."""
    return [
        (c["arm"], c["is_accepted"], c["p_correct"], c["failure"]) for c in record["candidates"]
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_first_trusted_candidate_is_delivered(house: VerifyingGateway, stream: bool) -> None:
    """Arms are asked until a candidate is trusted, and only that one reaches the client."""
    house.router.trust["medium"] = 0.8
    response = house.ask(stream)
    assert response.status_code == 200
    assert b'"model":"medium"' in response.content
    assert b'"model":"small"' not in response.content
    assert response.headers["x-switchcraft-model"] == "medium"
    assert response.headers["x-switchcraft-reason"] == "verified"
    assert response.headers[POLICY_HEADER] == "verified=0.002"
    assert response.headers["x-switchcraft-candidates"] == "2"
    assert response.headers["x-switchcraft-p-correct"] == "0.8000"
    record = house.record(response)
    assert candidates(record) == [("small", False, 0.2, None), ("medium", True, 0.8, None)]
    assert (record["arm"], record["model"], record["reason"]) == ("medium", "medium", "verified")
    assert record["calls"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_every_candidate_is_billed_once(house: VerifyingGateway, stream: bool) -> None:
    """The header, the record and the metrics count each candidate's cost exactly once."""
    series = ("switchcraft_cost_usd_total", "switchcraft_rejected_cost_usd_total")
    before = [metric(house.http, name) for name in series]
    response = house.ask(stream)
    record = house.record(response)
    cost_usd = [candidate["cost_usd"] for candidate in record["candidates"]]
    assert len(cost_usd) == 3
    assert min(cost_usd) > 0
    assert record["actual_cost_usd"] == pytest.approx(sum(cost_usd))
    assert float(response.headers["x-switchcraft-cost-usd"]) == pytest.approx(sum(cost_usd))
    spent, rejected = [metric(house.http, s) - b for s, b in zip(series, before, strict=True)]
    assert spent == pytest.approx(sum(cost_usd))
    assert rejected == pytest.approx(sum(cost_usd[:2]))


def test_metrics_count_candidates_steps_and_requests(house: VerifyingGateway) -> None:
    """Candidates are counted by arm and outcome, and each step once."""
    names = {
        'switchcraft_candidates_total{arm="small",outcome="rejected"}': 1,
        'switchcraft_candidates_total{arm="large",outcome="accepted"}': 1,
        'switchcraft_release_candidates_total{outcome="accepted",release="stable"}': 1,
        'switchcraft_release_expected_correct_total{release="stable"}': pytest.approx(0.9),
        "switchcraft_verification_steps_count": 1,
        "switchcraft_verification_steps_sum": 3,
        "switchcraft_verification_added_seconds_count": 1,
        'switchcraft_requests_total{model="large",policy="verified",status="200"}': 1,
        'switchcraft_decisions_total{arm="large",reason="verified"}': 1,
        'switchcraft_upstream_seconds_count{model="small"}': 1,
    }
    before = {name: metric(house.http, name) for name in names}
    house.record(house.ask())
    assert {name: metric(house.http, name) - before[name] for name in names} == names


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (CHAT, {"tools": []}, "no_tools"),
        (CHAT, {"n": 2}, "several_choices"),
        (CHAT, {"store": True}, "stored"),
        (CHAT, {"web_search_options": {"search_context_size": "low"}}, "server_tools"),
        (CHAT, {"messages": [*ASK, {"role": "user", "content": [IMAGE]}]}, "attachments"),
        (CHAT, {"messages": [*ASK, {"role": "nobody"}]}, "unread"),
        (RESPONSES, {"store": True}, "stored"),
        (RESPONSES, {"store": None}, "stored"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "server_tools"),
    ],
)
def test_unverifiable_requests_are_routed_once(
    house: VerifyingGateway, path: str, fields: dict[str, object], reason: str
) -> None:
    """A request that cannot be verified is routed by the default policy, and told why."""
    body = BODY if path == CHAT else RESPONSES_BODY
    series = f'switchcraft_unverified_requests_total{{reason="{reason}"}}'
    before = metric(house.http, series)
    response = house.http.post(path, json=body | fields, headers=VERIFIED)
    assert response.status_code == 200
    assert response.headers["x-switchcraft-unverified"] == reason
    assert response.headers.get(POLICY_HEADER) in {None, "theta=0.5"}
    assert house.router.steps == []
    record = house.record(response)
    assert (record["unverified"], record["candidates"]) == (reason, None)
    assert metric(house.http, series) == before + 1


def test_continued_responses_are_not_verified(house: VerifyingGateway) -> None:
    """A request that continues a response goes to the model that stored it."""
    first = house.http.post(RESPONSES, json=RESPONSES_BODY | {"store": True})
    body = RESPONSES_BODY | {"previous_response_id": first.json()["id"]}
    response = house.http.post(RESPONSES, json=body, headers=VERIFIED)
    assert response.headers["x-switchcraft-unverified"] == "continued"
    assert response.headers["x-switchcraft-reason"] == "continued"


def test_verified_policy_needs_an_artifact_with_a_verifier() -> None:
    """Without a verifier, the error names the policy and says how to get a verifier."""
    with run_in_thread() as url:
        router = Router(without_verifier())
        arms = router.artifact.manifest.arms
        with gateway_client(Settings.sandbox(url, arms), router) as http:
            response = ask_verified(http)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_policy", POLICY_HEADER)
    assert NO_VERIFIER in error["message"]


def test_unasked_model_answers_if_the_verifier_names_no_arm(house: VerifyingGateway) -> None:
    """If no candidate can be delivered, and the limits allow it, another model answers."""
    house.sandbox.set_faults("small", "status=500")
    house.router.groups = (("small",),)
    response = house.ask(x_switchcraft_max_candidates="2")
    assert response.headers["x-switchcraft-model"] == "medium"
    assert response.headers["x-switchcraft-unverified"] == "candidates_failed"
    record = house.record(response)
    assert candidates(record) == [("small", False, None, "status")]
    assert record["actual_cost_usd"] > 0


@pytest.mark.parametrize(
    ("header", "value", "asked"),
    [
        ("x-switchcraft-max-candidates", "1", 1),
        ("x-switchcraft-max-candidates", "2", 2),
        ("x-switchcraft-max-candidates", "50", 3),
        ("x-switchcraft-max-cost-usd", "0.0002", 1),
        ("x-switchcraft-max-added-latency-s", "0", 1),
        ("x-switchcraft-max-added-latency-s", "30", 3),
    ],
)
def test_headers_lower_the_limits(
    house: VerifyingGateway, header: str, value: str, asked: int
) -> None:
    """A limit of the request ends verification with the best candidate so far."""
    response = house.http.post(CHAT, json=BODY, headers=VERIFIED | {header: value})
    assert response.headers["x-switchcraft-candidates"] == str(asked)
    assert response.headers["x-switchcraft-model"] == ("small", "medium", "large")[asked - 1]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-switchcraft-max-candidates", "0"),
        ("x-switchcraft-max-candidates", "1.5"),
        ("x-switchcraft-max-cost-usd", "cheap"),
        ("x-switchcraft-max-cost-usd", "-1"),
        ("x-switchcraft-max-cost-usd", "inf"),
        ("x-switchcraft-max-added-latency-s", "nan"),
    ],
)
def test_invalid_limit_is_refused(house: VerifyingGateway, header: str, value: str) -> None:
    """The error for an invalid limit names the header."""
    response = house.http.post(CHAT, json=BODY, headers=VERIFIED | {header: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, header)


def test_cost_limit_below_every_arm_is_refused(house: VerifyingGateway) -> None:
    """If no arm is expected to be cheap enough, the error names the header and the cheapest arm."""
    response = house.ask(x_switchcraft_max_cost_usd="0.000001")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "x-switchcraft-max-cost-usd")
    assert "'small'" in error["message"]


@pytest.fixture(scope="module")
def early() -> Iterator[VerifyingGateway]:
    """Yield a gateway whose streams begin with comments after a short time."""
    soon = VerificationSettings(keep_alive_s=0.05)
    with (
        run_in_thread() as url,
        verifying(url, sandbox_settings(url, verification=soon)) as gateway,
    ):
        yield gateway


def early_stream(house: VerifyingGateway, faults: str, **headers: str) -> httpx.Response:
    """Return a stream that began with comments, because `small` is slow and has these faults."""
    house.sandbox.set_faults("small", f"delay_s=0.3{faults and ','}{faults}")
    response = house.ask(stream=True, **headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers[POLICY_HEADER] == "verified=0.002"
    assert not {"x-switchcraft-model", "x-switchcraft-cost-usd"} & response.headers.keys()
    assert response.text.startswith(": keep-alive\n\n: keep-alive\n\n")
    return response


def test_stream_begins_with_comments_while_candidates_are_checked(early: VerifyingGateway) -> None:
    """A stream begins with comments if checking takes long, and then has the accepted answer."""
    response = early_stream(early, "")
    assert '"model":"large"' in response.text
    assert '"model":"small"' not in response.text
    assert response.text.endswith("data: [DONE]\n\n")
    assert early.record(response)["model"] == "large"


def test_unverified_answer_may_follow_comments(early: VerifyingGateway) -> None:
    """If all candidates fail after the first comment, the next model's stream follows."""
    groups, early.router.groups = early.router.groups, (("small",),)
    response = early_stream(early, "status=500", x_switchcraft_max_candidates="2")
    early.router.groups = groups
    assert '"model":"medium"' in response.text
    assert response.text.endswith("data: [DONE]\n\n")
    assert early.record(response)["unverified"] == "candidates_failed"


@pytest.mark.parametrize("status", [422, 500])
def test_error_after_comments_is_an_event(early: VerifyingGateway, status: int) -> None:
    """An error after the first comment is the last event, and counts as a failure."""
    for model in ("medium", "large"):
        early.sandbox.set_faults(model, f"status={status}")
    response = early_stream(early, f"status={status}")
    for model in ("medium", "large"):
        early.sandbox.set_faults(model, "")
    event = json.loads(response.text.rstrip().rpartition("data: ")[2])
    assert "message" in event["error"]
    record = early.record(response)
    assert (record["status"], record["ending"]) == (200, "failed")


def test_failing_verifier_delivers_the_candidate_in_hand() -> None:
    """A failure of the verifier does not fail the request, and is counted."""
    broken = VerifyingRouter(is_broken=True)
    with run_in_thread() as url, verifying(url, router=broken) as gateway:
        response = gateway.ask()
        record = gateway.record(response)
        series = 'switchcraft_router_failures_total{release="stable"}'
        assert metric(gateway.http, series) == 1
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "small")
    assert candidates(record) == [("small", True, None, None)]
