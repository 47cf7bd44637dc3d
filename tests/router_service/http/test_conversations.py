"""Conversations that the gateway follows over HTTP: headers, records and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from router_service.policies.costs import Price
from router_service.requests.planning import POLICY_HEADER
from router_service.settings import RiskSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import gateway_client, metric, record_of, sandbox_settings
from tests.serving import Sandbox, wait_for

CALL: Any = {
    "id": "c",
    "type": "function",
    "function": {"name": "get_weather", "arguments": "{}"},
}


@pytest.fixture(scope="module")
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway that follows conversations and may spend on a better arm."""
    conversations = {"enabled": True, "budget_usd": 100, "correct_answer_usd": 100}
    settings = sandbox_settings(sandbox.base_url, conversations=conversations)
    with gateway_client(settings, FakeRouter()) as client:
        yield client


def send(
    http: httpx.Client, messages: list[Any], policy: str, session: str, **fields: object
) -> httpx.Response:
    """Send a conversation so far."""
    headers = {POLICY_HEADER: policy, "x-switchcraft-session-id": session}
    response = http.post(CHAT, json=BODY | {"messages": messages} | fields, headers=headers)
    assert response.is_success, response.text
    return response


SWITCHES = 'switchcraft_decisions_total{arm="large",reason="switched"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_keeps_its_arm_in_a_tool_loop_and_changes_it_for_a_users_turn(
    http: httpx.Client, stream: bool
) -> None:
    """The reason is in a header, the arm before in the record, and changes are counted."""
    session, changes = f"loop-{stream}", metric(http, SWITCHES)
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    first = send(http, ASK, "economy", session, stream=stream, **usage)
    assert first.headers["x-switchcraft-model"] == "small"
    assert first.headers["x-switchcraft-reason"] == "threshold"
    assert record_of(http, first)["previous_arm"] is None
    loop = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "clear"},
    ]
    second = send(http, loop, "quality", session, stream=stream, **usage)
    assert second.headers["x-switchcraft-model"] == "small"
    assert second.headers["x-switchcraft-reason"] == "sticky"
    assert record_of(http, second)["previous_arm"] == "small"
    turn = [*loop, {"role": "assistant", "content": "Clear."}, *ASK]
    third = send(http, turn, "quality", session, stream=stream, **usage)
    assert third.headers["x-switchcraft-model"] == "large"
    assert third.headers["x-switchcraft-reason"] == "switched"
    assert record_of(http, third)["previous_arm"] == "small"
    assert metric(http, SWITCHES) == changes + 1
    assert metric(http, "switchcraft_conversation_cost_usd_total") > 0


def followed(http: httpx.Client, response: httpx.Response) -> list[str]:
    """Return the ids of the decisions of a response's conversation, as the page gets them."""
    decision_id = response.headers["x-switchcraft-decision-id"]
    details = http.get(f"/ui/api/traffic/requests/{decision_id}").json()
    found: list[str] = details["conversation"]
    return found


def test_decisions_of_a_conversation_can_be_followed(http: httpx.Client, sandbox: Sandbox) -> None:
    """Each decision leads to all decisions of its conversation, also of verified requests."""
    longer = [*ASK, {"role": "assistant", "content": "Clear."}, *ASK]
    settings = sandbox_settings(sandbox.base_url, conversations={"enabled": True})
    with gateway_client(settings, VerifyingRouter()) as verifying:
        for client, policy in ((http, "economy"), (verifying, "verified")):
            sent = [send(client, turns, policy, "followed") for turns in (ASK, longer)]
            other = send(client, ASK, policy, "not followed")
            ids = [each.headers["x-switchcraft-decision-id"] for each in sent]
            conversations = {record_of(client, each)["conversation_id"] for each in sent}
            assert len(conversations) == 1
            assert record_of(client, other)["conversation_id"] not in conversations
            for each in sent:
                wait_for(partial(is_followed, client, each, ids), "both decisions are known")
    settings = sandbox_settings(sandbox.base_url, conversations={"enabled": False})
    with gateway_client(settings, FakeRouter()) as client:
        alone = send(client, ASK, "economy", "alone")
        assert record_of(client, alone)["conversation_id"] is None
        assert followed(client, alone) == []


def is_followed(http: httpx.Client, response: httpx.Response, ids: list[str]) -> bool:
    """Return whether the conversation of a response has these decisions."""
    return followed(http, response) == ids


def test_an_arm_that_replaced_a_failed_one_does_not_stay_if_it_is_dearer(
    http: httpx.Client, sandbox: Sandbox
) -> None:
    """A failure changes the arm inside a tool loop only as long as the cheaper one fails."""
    record_of(http, send(http, ASK, "economy", "failing"))
    step: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "clear"},
    ]
    sandbox.set_faults("small", "status=500")
    try:
        failed = send(http, [*ASK, *step], "economy", "failing")
    finally:
        sandbox.set_faults("small", "")
    assert failed.headers["x-switchcraft-reason"] == "fallback"
    replaced_by = failed.headers["x-switchcraft-model"]
    record_of(http, failed)
    after = send(http, [*ASK, *step, *step], "economy", "failing")
    assert replaced_by != "small"
    assert after.headers["x-switchcraft-reason"] == "switched"
    assert after.headers["x-switchcraft-model"] == "small"


RESULT = {"role": "tool", "tool_call_id": "c", "content": "clear"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
LOOP = [*ASK, CALLED, RESULT]
TURN = [*LOOP, {"role": "assistant", "content": "Clear."}, *ASK]
FAILING = [*ASK, *[CALLED, RESULT | {"content": "Error: no"}] * 2]
STALLED = {"change_when_stalled": True}
DEMAND = {"destructive": {"tools": ["get_weather"], "min_probability": 0.6}}


@pytest.mark.parametrize(
    ("changes", "risk", "messages", "policies", "told"),
    [
        ({}, None, LOOP, ("economy", "quality"), ("small", "sticky")),
        ({}, None, TURN, ("economy", "quality"), ("small", "sticky")),  # a better arm costs more
        ({}, None, FAILING, ("quality", "quality"), ("large", "sticky")),
        (STALLED, None, FAILING, ("quality", "quality"), ("medium", "switched")),
        ({}, DEMAND, LOOP, ("economy", "quality"), ("medium", "sticky")),
    ],
)
def test_the_arm_of_a_conversation_stays_unless_the_settings_allow_a_change(
    sandbox: Sandbox,
    changes: dict[str, object],
    risk: dict[str, object] | None,
    messages: list[Any],
    policies: tuple[str, str],
    told: tuple[str, str],
) -> None:
    """A tool loop that stalls may change its arm, and risky tools keep what they demand."""
    section: dict[str, Any] = {"conversations": {"enabled": True, **changes}}
    if risk is not None:
        section["risk"] = RiskSettings.model_validate(risk)
    with gateway_client(sandbox_settings(sandbox.base_url, **section), FakeRouter()) as http:
        record_of(http, send(http, ASK, policies[0], "s"))
        after = send(http, messages, policies[1], "s")
    found = (after.headers["x-switchcraft-model"], after.headers["x-switchcraft-reason"])
    assert found == told


@pytest.mark.parametrize(
    ("enabled", "messages", "told", "previous"),
    [
        ("loops", LOOP, ("small", "sticky"), "small"),
        ("loops", TURN, ("large", "threshold"), "small"),
        (False, LOOP, ("large", "threshold"), None),
    ],
)
def test_by_default_only_a_tool_loop_keeps_its_arm(
    sandbox: Sandbox, enabled: object, messages: list[Any], told: tuple[str, str], previous: object
) -> None:
    """The user's next message is decided by itself; without the setting, so is every request."""
    settings = sandbox_settings(sandbox.base_url)
    if enabled != "loops":
        settings = sandbox_settings(sandbox.base_url, conversations={"enabled": enabled})
    with gateway_client(settings, FakeRouter()) as http:
        record_of(http, send(http, ASK, "economy", "s"))
        after = send(http, messages, "quality", "s")
        assert record_of(http, after)["previous_arm"] == previous
    found = (after.headers["x-switchcraft-model"], after.headers["x-switchcraft-reason"])
    assert found == told


@pytest.mark.parametrize(
    ("usd_per_mtok", "messages", "asked"),
    [
        ({"small": 0.1, "medium": 9.5}, LOOP, ["small", "medium", "large"]),
        ({"small": 9.0, "medium": 9.5}, LOOP, ["large"]),
        ({"small": 9.0, "medium": 9.5}, TURN, ["small", "medium", "large"]),
    ],
)
def test_a_verified_tool_loop_asks_the_arm_first_that_answered_last_unless_a_cheaper_one_pays(
    sandbox: Sandbox, usd_per_mtok: dict[str, float], messages: list[Any], asked: list[str]
) -> None:
    """The verifier then decides about its answer; it chooses the first arm for the user's turn."""
    settings = sandbox_settings(sandbox.base_url)
    models = [
        model.model_copy(
            update={
                "price": Price(
                    input_usd_per_mtok=usd_per_mtok[model.name],
                    output_usd_per_mtok=usd_per_mtok[model.name],
                )
            }
        )
        if model.name in usd_per_mtok
        else model
        for model in settings.models
    ]
    settings = settings.model_copy(update={"models": tuple(models)})
    with gateway_client(settings, VerifyingRouter()) as http:
        first = record_of(http, send(http, ASK, "verified", "s"))
        assert [each["arm"] for each in first["candidates"]] == ["small", "medium", "large"]
        after = record_of(http, send(http, messages, "verified", "s"))
    assert after["previous_arm"] == "large"
    assert [each["arm"] for each in after["candidates"]] == asked


def balanced(settings: Settings) -> Settings:
    """Return settings whose models have two deployments of equal weight each."""
    models = []
    for model in settings.models:
        (own,) = model.deployments
        other = own.model_copy(update={"upstream_model": f"{model.name}-2"})
        models.append(model.model_copy(update={"deployments": (own, other)}))
    return settings.model_copy(update={"models": tuple(models)})


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("large", "x-switchcraft-session-id"),
        ("large", "session_id"),
        ("large", "prompt_cache_key"),
        ("large", "metadata"),
        ("large", None),
        ("switchcraft:quality", None),
        ("switchcraft:verified", None),
    ],
)
@pytest.mark.parametrize("section", [{}, {"conversations": {"enabled": False}}])
def test_a_conversation_stays_with_one_deployment(
    sandbox: Sandbox, model: str, named: str | None, section: dict[str, Any]
) -> None:
    """The client's session names it, or else its opening; all deployments get some of them."""
    router = VerifyingRouter((("large",),))
    seen: list[set[str]] = []
    with gateway_client(balanced(sandbox_settings(sandbox.base_url, **section)), router) as http:
        for number in range(12):
            text, session = f"What is the weather in Oslo on day {number}?", f"session {number}"
            headers = (
                {named: session} if named in {"x-switchcraft-session-id", "session_id"} else {}
            )
            named_by: dict[str, dict[str, Any]] = {
                "prompt_cache_key": {"prompt_cache_key": session},
                "metadata": {"metadata": {"user_id": f"user_1_{session}"}},
            }
            fields = named_by.get(named or "", {})
            opening = ASK if named else [{"role": "user", "content": text}]
            used = set()
            for messages in (opening, [*opening, CALLED, RESULT]):
                body = BODY | {"model": model, "messages": messages} | fields
                used.add(record_of(http, http.post(CHAT, json=body, headers=headers))["deployment"])
            seen.append(used)
    assert {len(used) for used in seen} == {1}
    assert len(set.union(*seen)) == 2


def test_the_deployment_of_a_request_that_cannot_be_read_is_drawn(sandbox: Sandbox) -> None:
    """The upstream judges the body of a request that names its model."""
    with gateway_client(balanced(sandbox_settings(sandbox.base_url)), FakeRouter()) as http:
        response = http.post(CHAT, json={"model": "large", "messages": 7})
    assert response.headers["x-switchcraft-model"] == "large"
