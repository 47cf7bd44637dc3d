"""Conversations that the gateway follows over HTTP: headers and records."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from router_service.policies.costs import Price
from router_service.requests.planning import POLICY_HEADER
from router_service.settings import Model
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import VerifyingRouter
from tests.gateways import gateway_client, record_of, sandbox_settings, with_models
from tests.serving import Sandbox

CALL: Any = {
    "id": "c",
    "type": "function",
    "function": {"name": "get_weather", "arguments": "{}"},
}


def send(
    http: httpx.Client, messages: list[Any], policy: str, session: str, **fields: object
) -> httpx.Response:
    """Send a conversation so far."""
    headers = {POLICY_HEADER: policy, "x-switchcraft-session-id": session}
    response = http.post(CHAT, json=BODY | {"messages": messages} | fields, headers=headers)
    assert response.is_success, response.text
    return response


RESULT = {"role": "tool", "tool_call_id": "c", "content": "clear"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
LOOP = [*ASK, CALLED, RESULT]
TURN = [*LOOP, {"role": "assistant", "content": "Clear."}, *ASK]


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
    prices = {
        name: {"price": Price(input_usd_per_mtok=usd, output_usd_per_mtok=usd)}
        for name, usd in usd_per_mtok.items()
    }
    settings = sandbox_settings(sandbox.base_url)
    settings = with_models(settings, lambda model: prices.get(model.name, {}))
    with gateway_client(settings, VerifyingRouter()) as http:
        first = record_of(http, send(http, ASK, "verified", "s"))
        assert [each["arm"] for each in first["candidates"]] == ["small", "medium", "large"]
        after = record_of(http, send(http, messages, "verified", "s"))
    assert after["previous_arm"] == "large"
    assert [each["arm"] for each in after["candidates"]] == asked


def balanced(model: Model) -> dict[str, object]:
    """Return two deployments of equal weight for a model."""
    (own,) = model.deployments
    return {"deployments": (own, own.model_copy(update={"upstream_model": f"{model.name}-2"}))}


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("large", "x-switchcraft-session-id"),
        ("large", "prompt_cache_key"),
        ("large", "metadata"),
        ("large", None),
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
    settings = with_models(sandbox_settings(sandbox.base_url, **section), balanced)
    with gateway_client(settings, router) as http:
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
