"""Text in place of calls: verified policies deliver it at once if the router expects no call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from router_service.requests.planning import POLICY_HEADER
from router_service.sandbox.provider import run_in_thread
from tests.bodies import BODY, CHAT, TOOLS
from tests.fakes import VerifyingRouter
from tests.gateways import (
    VERIFIED,
    VerifyingGateway,
    verifying,
)
from tests.serving import scripted

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TEXT = {"tool_choice": "none"}
"""Makes the sandbox answer with text instead of a call."""

WEATHER = TOOLS[0]["function"]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: BODY | TEXT,
    RESPONSES: {
        "model": "switchcraft",
        "input": "What is the weather in Oslo?",
        "tools": [{"type": "function", **WEATHER}],
        "store": False,
        **TEXT,
    },
    MESSAGES: {
        "model": "switchcraft",
        "max_tokens": 100,
        "messages": BODY["messages"],
        "tools": [{"name": WEATHER["name"], "input_schema": WEATHER["parameters"]}],
        "tool_choice": {"type": "none"},
    },
}


@pytest.fixture(scope="module")
def shared() -> Iterator[VerifyingGateway]:
    """Yield a gateway that asks `small`, `medium` and `large`, and trusts only `large`."""
    with run_in_thread() as url, verifying(url) as gateway:
        yield gateway


@pytest.fixture
def house(shared: VerifyingGateway) -> Iterator[VerifyingGateway]:
    """Yield the gateway with a router that expects no call, and restore both afterwards."""
    shared.router.p_no_call = 0.95
    yield shared
    shared.router.p_no_call = None
    shared.router.steps.clear()
    for model in ("small", "medium", "large"):
        shared.sandbox.set_faults(model, "")


def ask(house: VerifyingGateway, path: str = CHAT, *, stream: bool = True) -> httpx.Response:
    """Ask for a verified answer, which will be text."""
    return house.http.post(path, json=BODIES[path] | {"stream": stream}, headers=VERIFIED)


def test_text_streams_before_its_end_is_known(house: VerifyingGateway) -> None:
    """The client gets the text while the model still writes it, from the first model asked."""
    house.sandbox.set_faults("small", "hang_after=3")
    body = BODIES[CHAT] | {"stream": True}
    with house.http.stream("POST", CHAT, json=body, headers=VERIFIED) as response:
        received = ""
        for line in response.iter_lines():
            received += line
            if '"content":"' in line.replace('"content":""', ""):
                break
    assert '"model":"small"' in received
    assert response.headers["x-switchcraft-model"] == "small"
    record = house.record(response)
    assert (record["ending"], record["reason"], record["arm"]) == ("client_left", "text", "small")
    assert [c["is_accepted"] for c in record["candidates"]] == [True]
    assert record["usage_is_estimated"]
    assert record["actual_cost_usd"] > 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_first_text_is_delivered_unverified(
    house: VerifyingGateway, path: str, stream: bool
) -> None:
    """In every API, one model is asked. Headers and the record say that nothing was verified."""
    response = ask(house, path, stream=stream)
    assert response.status_code == 200
    expected = {
        "model": "small",
        "reason": "text",
        "unverified": "text",
        "candidates": "1",
        "policy": "verified=0.002",
    }
    found = {name: response.headers.get(f"x-switchcraft-{name}") for name in expected}
    assert found == expected
    assert "x-switchcraft-p-correct" not in response.headers
    assert response.headers["x-switchcraft-why"].startswith("small: the first model")
    record = house.record(response)
    candidate = record["candidates"][0]
    assert (candidate["is_accepted"], candidate["failure"], candidate["calls"]) == (True, None, 0)
    assert (record["unverified"], record["calls"], record["propensity"]) == ("text", 0, None)
    assert record["actual_cost_usd"] == pytest.approx(candidate["cost_usd"])
    assert record["explanation"] == response.headers["x-switchcraft-why"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("p_no_call", [None, 0.89])
def test_unexpected_text_is_verified(
    house: VerifyingGateway, p_no_call: float | None, stream: bool
) -> None:
    """Text is verified like calls if a call is probable, or if the artifact cannot tell."""
    house.router.p_no_call = p_no_call
    response = ask(house, stream=stream)
    assert response.headers["x-switchcraft-reason"] == "verified"
    assert response.headers["x-switchcraft-candidates"] == "3"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["status=500", "malformed", "cut_after=1", "error_after=1"])
def test_failure_before_text_leads_to_the_next_arm(
    house: VerifyingGateway, fault: str, stream: bool
) -> None:
    """If the first model fails before its text, the next model's text is delivered at once."""
    house.sandbox.set_faults("small", fault)
    response = ask(house, stream=stream)
    assert response.status_code == 200
    assert response.headers["x-switchcraft-model"] == "medium"
    assert response.headers["x-switchcraft-reason"] == "text"
    accepted = [c["is_accepted"] for c in house.record(response)["candidates"]]
    assert accepted == [False, True]


def test_stream_that_breaks_after_text_ends_with_an_error(house: VerifyingGateway) -> None:
    """After the first text there is no second answer: the last event is an error."""
    house.sandbox.set_faults("small", "error_after=2,chunk_delay_s=0.05")
    response = ask(house)
    assert response.status_code == 200
    assert "error" in json.loads(response.text.rstrip().rpartition("data: ")[2])
    record = house.record(response)
    assert (record["ending"], record["arm"], len(record["candidates"])) == ("broken", "small", 1)
    assert record["candidates"][0]["failure"] is not None


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
        response = ask(gateway)
        assert response.text == events
        assert response.headers["x-switchcraft-reason"] == "verified"


DEFAULT_VERIFIED = {"default": "verified", "fast": "theta=0.2", "quality": "theta=0.8"}


@pytest.fixture(scope="module")
def verified_by_default() -> Iterator[VerifyingGateway]:
    """Yield a gateway whose artifact verifies answers by default."""
    router = VerifyingRouter(policies=DEFAULT_VERIFIED)
    with run_in_thread() as url, verifying(url, router=router) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("model", "fields", "policy", "reason"),
    [
        ("switchcraft", {}, "verified=0.002", "verified"),
        ("switchcraft:verified", {}, "verified=0.002", "verified"),
        ("switchcraft:fast", {}, "fast (theta=0.2)", "threshold"),
        ("switchcraft:quality", {}, "quality (theta=0.8)", "threshold"),
        ("switchcraft:theta=0.8", {}, "theta=0.8", "threshold"),
        ("switchcraft", {"n": 2}, "fast (theta=0.2)", "threshold"),
    ],
)
def test_artifact_may_verify_by_default(
    verified_by_default: VerifyingGateway,
    model: str,
    fields: dict[str, object],
    policy: str,
    reason: str,
) -> None:
    """The name `switchcraft` then means verified; what cannot be verified uses `fast`."""
    gateway = verified_by_default
    response = gateway.http.post(CHAT, json=BODY | {"model": model} | fields)
    assert response.headers[POLICY_HEADER] == policy
    assert response.headers["x-switchcraft-reason"] == reason
    record = gateway.record(response)
    name, _, rule = policy.rpartition(" ")
    assert (record["policy"], record["policy_name"]) == (rule.strip("()"), name or None)
