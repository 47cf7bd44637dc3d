"""Verified answers: what is delivered, what text is not verified, and the limits of a request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from router_service.requests.planning import POLICY_HEADER
from router_service.settings import Timeouts
from tests.bodies import ASK, BODY, CHAT, TOOLS
from tests.fakes import VerifyingRouter
from tests.gateways import (
    VERIFIED,
    VerifyingGateway,
    metric,
    sandbox_settings,
    verifying,
)
from tests.serving import Sandbox, scripted

ARMS = ("small", "medium", "large")
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
WEATHER = TOOLS[0]["function"]
RESPONSES_BODY: dict[str, Any] = {
    "model": "switchcraft",
    "input": "What is the weather in Oslo?",
    "tools": [{"type": "function", **WEATHER}],
    "store": False,
}


def candidates(record: dict[str, Any]) -> list[tuple[str, bool, float | None, str | None]]:
    """Return each candidate's arm, whether it was accepted, its estimate, and its failure."""
    return [
        (c["arm"], c["is_accepted"], c["p_correct"], c["failure"]) for c in record["candidates"]
    ]


def told(response: httpx.Response, *names: str) -> list[str | None]:
    """Return the values of some of the gateway's headers."""
    return [response.headers.get(f"x-switchcraft-{name}") for name in names]


@pytest.mark.parametrize("stream", [False, True])
def test_first_trusted_candidate_is_delivered(house: VerifyingGateway, stream: bool) -> None:
    """Arms are asked until a candidate is trusted, and only that one reaches the client.

    The header, the record and the metrics count each candidate's cost exactly once.
    """
    series = ("switchcraft_cost_usd_total", "switchcraft_rejected_cost_usd_total")
    before = [metric(house.http, name) for name in series]
    house.router.trust["medium"] = 0.8
    response = house.ask(stream)
    assert response.status_code == 200
    assert b'"model":"medium"' in response.content
    assert b'"model":"small"' not in response.content
    names = ("model", "reason", "policy", "candidates", "p-correct")
    assert told(response, *names) == ["medium", "verified", "verified=0.002", "2", "0.8000"]
    record = house.record(response)
    assert candidates(record) == [("small", False, 0.2, None), ("medium", True, 0.8, None)]
    assert (record["arm"], record["model"], record["reason"]) == ("medium", "medium", "verified")
    costs_usd = [candidate["cost_usd"] for candidate in record["candidates"]]
    assert min(costs_usd) > 0
    assert record["actual_cost_usd"] == pytest.approx(sum(costs_usd))
    assert float(response.headers["x-switchcraft-cost-usd"]) == pytest.approx(sum(costs_usd))
    spent, rejected = [metric(house.http, s) - b for s, b in zip(series, before, strict=True)]
    assert (spent, rejected) == (pytest.approx(sum(costs_usd)), pytest.approx(costs_usd[0]))


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (CHAT, {"tools": []}, "no_tools"),
        (CHAT, {"n": 2}, "several_choices"),
        (CHAT, {"messages": [*ASK, {"role": "user", "content": [IMAGE]}]}, "attachments"),
        (RESPONSES, {"store": None}, "stored"),
        (RESPONSES, {"previous_response_id": "ID"}, "continued"),
    ],
)
def test_unverifiable_requests_are_routed_once(
    house: VerifyingGateway, path: str, fields: dict[str, object], reason: str
) -> None:
    """A request that cannot be verified is routed by the default policy, and told why."""
    body = BODY if path == CHAT else RESPONSES_BODY
    if reason == "continued":
        stored = house.http.post(RESPONSES, json=RESPONSES_BODY | {"store": True}).json()["id"]
        fields = {"previous_response_id": stored}
    response = house.http.post(path, json=body | fields, headers=VERIFIED)
    # Like OpenAI, the sandbox refuses a message with an unknown role.
    assert response.status_code == (400 if reason == "unread" else 200)
    assert response.headers["x-switchcraft-unverified"] == reason
    assert response.headers.get(POLICY_HEADER) in {None, "theta=0.5"}
    assert house.router.steps == []
    record = house.record(response)
    assert (record["unverified"], record["candidates"]) == (reason, None)


def test_unasked_model_answers_if_the_verifier_names_no_arm(house: VerifyingGateway) -> None:
    """If no candidate can be delivered, and the limits allow it, another model answers."""
    house.sandbox.set_faults("small", "status=500")
    house.router.groups = (("small",),)
    response = house.ask(x_switchcraft_max_candidates="2")
    assert told(response, "model", "unverified") == ["medium", "candidates_failed"]
    record = house.record(response)
    assert candidates(record) == [("small", False, None, "status")]
    assert record["actual_cost_usd"] > 0
    house.sandbox.set_faults("medium", "status=500")
    before = calls(house.sandbox).get("large", 0)
    assert house.ask(x_switchcraft_max_cost_usd="0.0005").status_code == 500
    assert calls(house.sandbox).get("large", 0) == before, "only `large` would cost more"


def test_failing_verifier_delivers_the_candidate_in_hand(house: VerifyingGateway) -> None:
    """A failure of the verifier does not fail the request, and is counted."""
    series = 'switchcraft_router_failures_total{release="stable"}'
    house.router.is_broken, before = True, metric(house.http, series)
    response = house.ask()
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "small")
    assert candidates(house.record(response)) == [("small", True, None, None)]
    assert metric(house.http, series) == before + 1


def calls(sandbox: Sandbox) -> dict[str, int]:
    """Return how often each model was called."""
    counts: dict[str, dict[str, int]] = sandbox.stats()["by_model"]
    return {model: each["requests"] for model, each in counts.items()}


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("fault", ["status=500", "malformed", "cut_after=0"])
def test_limit_of_candidates_counts_every_model_that_is_asked(
    house: VerifyingGateway, fault: str, limit: int
) -> None:
    """However models fail, at most `max_candidates` get the request, and the first error is told.

    No further model answers instead of the candidates.
    """
    for model in ARMS:
        house.sandbox.set_faults(model, fault)
    before = calls(house.sandbox)
    response = house.ask(x_switchcraft_max_candidates=str(limit))
    assert response.status_code >= 500
    assert response.headers["x-switchcraft-model"] == "small"
    after = calls(house.sandbox)
    assert {arm for arm in ARMS if after.get(arm, 0) > before.get(arm, 0)} == set(ARMS[:limit])


def test_a_model_that_was_not_reached_is_replaced(sandbox: Sandbox) -> None:
    """An arm whose upstream did not get the request does not count, and is not in the record."""
    settings = sandbox_settings(sandbox.base_url)
    small, *others = settings.models
    nowhere = small.deployments[0].model_copy(update={"base_url": "http://127.0.0.1:9/v1"})
    models = (small.model_copy(update={"deployments": (nowhere,)}), *others)
    settings = settings.model_copy(update={"models": models})
    with verifying(sandbox.base_url, settings) as gateway:
        response = gateway.ask(x_switchcraft_max_candidates="1")
        record = gateway.record(response)
        assert metric(gateway.http, 'switchcraft_candidates_total{arm="small"') == 0
    assert told(response, "model", "candidates", "attempts") == ["medium", "1", "2"]
    assert [candidate["arm"] for candidate in record["candidates"]] == ["medium"]


@pytest.mark.parametrize("policy", ["verified", "theta=0.2"])
def test_total_time_is_one_deadline_for_all_attempts(sandbox: Sandbox, policy: str) -> None:
    """If every model hangs, candidates and fallbacks share `timeouts.total_s`."""
    settings = sandbox_settings(sandbox.base_url)
    timeouts = {"timeouts": Timeouts(total_s=0.5)}
    models = tuple(
        model.model_copy(
            update={"deployments": (model.deployments[0].model_copy(update=timeouts),)}
        )
        for model in settings.models
    )
    upstreams = settings.upstreams.model_copy(update=timeouts)
    settings = settings.model_copy(update={"models": models, "upstreams": upstreams})
    before = sandbox.stats()["requests"]
    with verifying(sandbox.base_url, settings) as gateway:
        headers = {POLICY_HEADER: policy, "x-sandbox": "hang"}
        response = gateway.http.post(CHAT, json=BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
    assert sandbox.stats()["requests"] == before + 1


TEXT_BODY = BODY | {"tool_choice": "none", "stream": True}
"""A request that the sandbox answers with text instead of a call."""


def ask_text(house: VerifyingGateway) -> httpx.Response:
    """Ask for a verified stream, which will be text."""
    return house.http.post(CHAT, json=TEXT_BODY, headers=VERIFIED)


def test_text_streams_before_its_end_is_known(house: VerifyingGateway) -> None:
    """The client gets the text while the model still writes it, from the first model asked."""
    house.router.p_no_call = 0.95
    house.sandbox.set_faults("small", "hang_after=3")
    with house.http.stream("POST", CHAT, json=TEXT_BODY, headers=VERIFIED) as response:
        received = ""
        for line in response.iter_lines():
            received += line
            if '"content":"' in line.replace('"content":""', ""):
                break
    assert '"model":"small"' in received
    record = house.record(response)
    assert (record["ending"], record["reason"], record["arm"]) == ("client_left", "text", "small")
    assert [c["is_accepted"] for c in record["candidates"]] == [True]
    assert record["usage_is_estimated"]
    assert record["actual_cost_usd"] > 0


@pytest.mark.parametrize(
    ("fault", "arm", "accepted", "ending"),
    [
        ("cut_after=1", "medium", [False, True], "complete"),
        ("error_after=2,chunk_delay_s=0.05", "small", [True], "broken"),
    ],
)
def test_failure_leads_to_the_next_arm_only_before_the_text(
    house: VerifyingGateway, fault: str, arm: str, accepted: list[bool], ending: str
) -> None:
    """After the first text there is no second answer: the last event is an error."""
    house.router.p_no_call = 0.95
    house.sandbox.set_faults("small", fault)
    response = ask_text(house)
    record = house.record(response)
    assert (record["ending"], record["arm"], record["reason"]) == (ending, arm, "text")
    assert [c["is_accepted"] for c in record["candidates"]] == accepted
    assert ("error" in response.text) == (ending == "broken")


def test_reasoning_and_white_space_are_no_text() -> None:
    """A call that follows reasoning and a line break is verified; nothing is sent before it."""
    call = {"index": 0, "id": "1", "function": {"name": "get_weather", "arguments": "{}"}}
    deltas = [
        {"role": "assistant", "reasoning_content": "Let me see."},
        {"content": "\n\n"},
        {"tool_calls": [call]},
    ]
    chunks = [
        *({"choices": [{"index": 0, "delta": delta}]} for delta in deltas),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    with (
        scripted((head + events).encode()) as url,
        verifying(url, router=VerifyingRouter(trust={"small": 0.9})) as gateway,
    ):
        gateway.router.p_no_call = 0.95
        body = BODY | {"stream": True}
        response = gateway.http.post(CHAT, json=body, headers=VERIFIED)
        assert response.text == events
        assert response.headers["x-switchcraft-reason"] == "verified"


@pytest.mark.parametrize(
    ("header", "value", "said"),
    [
        ("x-switchcraft-max-candidates", "0", ""),
        ("x-switchcraft-max-cost-usd", "inf", ""),
        ("x-switchcraft-max-cost-usd", "0.000001", "'small'"),  # the cheapest arm costs more
        ("x-switchcraft-max-added-latency-s", "nan", ""),
    ],
)
def test_limit_that_no_request_can_keep_is_refused(
    house: VerifyingGateway, header: str, value: str, said: str
) -> None:
    """The error names the header."""
    response = house.http.post(CHAT, json=BODY, headers=VERIFIED | {header: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, header)
    assert said in error["message"]
