"""Which models may answer a request: those that are capable of it, and the best if it is unlike."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.capabilities import Capabilities, Feature
from router_service.router import Router
from router_service.settings import RiskSettings, RouterSettings, Settings
from router_service.telemetry.logs import FIELDS
from tests import apis
from tests.bodies import BODY, CHAT, RESPONSES_BODY
from tests.fakes import FakeRouter, VerifyingRouter, with_familiarity
from tests.frontiers import POINTS, VERIFIED_POINTS, with_frontier
from tests.gateways import ask_routed, gateway_client, record_of, sandbox_settings, with_models
from tests.serving import Sandbox

IMAGE = {"type": "image_url", "image_url": {"url": "https://h/cat.png"}}
SHOWN = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]
LONG: Any = [{"role": "user", "content": "word " * 100}]
BLIND = Capabilities(unsupported=frozenset({Feature.IMAGES}))
SHORT = Capabilities(context_window_tokens=50)
ONLY_CHAT = Capabilities(unsupported=frozenset({apis.RESPONSES.title}))


@pytest.mark.parametrize(
    ("known", "path", "fields", "expected"),
    [
        ({"medium": BLIND}, CHAT, {}, "medium"),
        ({"medium": BLIND}, CHAT, {"messages": SHOWN}, "large"),
        ({"medium": SHORT}, CHAT, {"messages": LONG}, "large"),
        ({"medium": ONLY_CHAT}, "/v1/responses", RESPONSES_BODY, "large"),
        ({"large": BLIND, "small": BLIND}, CHAT, {"tools": []}, "large"),
        ({"large": BLIND, "small": BLIND}, CHAT, {"tools": [], "messages": SHOWN}, "medium"),
        (dict.fromkeys(("small", "medium", "large"), BLIND), CHAT, {"messages": SHOWN}, ""),
        (
            {"small": BLIND, "medium": BLIND, "large": SHORT},
            CHAT,
            {"messages": [*SHOWN, *LONG]},
            "context_length_exceeded",
        ),
    ],
)
def test_models_that_lack_a_capability_are_not_chosen(
    sandbox: Sandbox,
    known: dict[str, Capabilities],
    path: str,
    fields: dict[str, object],
    expected: str,
) -> None:
    """A request that names a model goes to it; its upstream decides whether it can answer.

    Without a capable model, none is called, and the error says what each model lacks.
    """
    settings = with_models(
        sandbox_settings(sandbox.base_url, chat_model="large"),
        lambda model: {"capabilities": known.get(model.name, Capabilities())},
    )
    before = sandbox.stats()["requests"]
    with gateway_client(settings, FakeRouter()) as http:
        response = http.post(path, json=BODY | fields if path == CHAT else fields)
    if expected in {"small", "medium", "large"}:
        assert response.headers["x-switchcraft-model"] == expected
        return
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, expected or "unsupported_feature")
    assert "'small' does not support images" in error["message"]
    assert "'large' does not support" in error["message"]
    assert sandbox.stats()["requests"] == before


FAR = 0.005
"""A familiarity below the limit of 0.05."""
FAR_OFF = {"messages": [{"role": "user", "content": "Какая погода в Осло?"}]}


@pytest.mark.parametrize(
    ("section", "fields", "policy", "reason", "unverified"),
    [
        ({}, {}, "verified=0.01", "verified", None),
        ({}, {"n": 2}, "best (theta=1)", "unfamiliar", "several_choices"),
        ({}, FAR_OFF, "best (theta=1)", "unfamiliar", "far_off"),
        ({"unfamiliar": "best"}, {}, "best (theta=1)", "unfamiliar", None),
        (
            {"risk": {"writing": {"policy": "quality", "tools": ["get_*"]}}},
            {},
            "quality (theta=0.8)",
            "threshold",
            None,
        ),
    ],
)
def test_unfamiliar_requests_are_verified_unless_their_tools_demand_more(
    sandbox: Sandbox,
    section: dict[str, Any],
    fields: dict[str, object],
    policy: str,
    reason: str,
    unverified: str | None,
) -> None:
    """A default that verifies keeps its price; with `best`, none verifies; risky tools go before.

    The most accurate model answers what cannot be verified, and what is unlike all that was.
    """
    if "risk" in section:
        section = {"risk": RiskSettings.model_validate(section["risk"])}
    router = with_familiarity(VerifyingRouter(), FAR)
    settings = sandbox_settings(sandbox.base_url, default_policy="verified=0.01", **section)
    with gateway_client(settings, router) as http:
        told = http.post(CHAT, json=BODY | fields).headers
    assert told["x-switchcraft-policy"] == policy
    assert told["x-switchcraft-reason"] == reason
    assert told.get("x-switchcraft-unverified") == unverified


@pytest.mark.parametrize("policy", ["verified=0.01", "theta=0.5"])
def test_header_record_and_log_say_that_a_request_is_unfamiliar(
    sandbox: Sandbox, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever chose the model, its sentence says that the estimate is uncertain, and why."""
    router = with_familiarity(VerifyingRouter(), FAR)
    with (
        caplog.at_level("INFO", "switchcraft.request"),
        gateway_client(sandbox_settings(sandbox.base_url), router) as http,
    ):
        response = ask_routed(http, x_switchcraft_policy=policy)
        record = record_of(http, response)
    lines = [line for line in caplog.records if line.name == "switchcraft.request"]
    logged = [fields["why"] for line in lines if "why" in (fields := vars(line)[FIELDS])]
    assert record["is_unfamiliar"]
    for sentence in (response.headers["x-switchcraft-why"], record["explanation"], *logged):
        assert "request is unlike the training data" in sentence
    assert len(logged) == 1


RISKY = {"type": "function", "function": {"name": "delete_rows", "parameters": {}}}


@pytest.mark.parametrize(
    ("tool", "policy", "told"),
    [
        (BODY["tools"][0], None, ("medium", "theta=0.5", "threshold")),
        (RISKY, None, ("large", "quality (theta=0.8)", "threshold")),
        (RISKY, "economy", ("small", "economy (theta=0.2)", "threshold")),
    ],
)
def test_destructive_tools_demand_a_policy(
    sandbox: Sandbox, tool: dict[str, object], policy: str | None, told: tuple[str, str, str]
) -> None:
    """The level's policy replaces the default policy, and never the client's."""
    risk = RiskSettings.model_validate({"destructive": {"policy": "quality"}})
    settings = sandbox_settings(sandbox.base_url, risk=risk)
    headers = {"x-switchcraft-policy": policy} if policy else {}
    with gateway_client(settings, FakeRouter()) as http:
        response = http.post(CHAT, json=BODY | {"tools": [tool]}, headers=headers)
    names = ("model", "policy", "reason")
    assert told == tuple(response.headers[f"x-switchcraft-{name}"] for name in names)


GOAL = {"x-switchcraft-policy": "accuracy=best"}
FORBIDDEN = {"x-switchcraft-verified-goals": "false"}


@pytest.mark.parametrize(
    ("headers", "policy", "is_verified"),
    [
        (GOAL, "accuracy=best (verified=0.001)", True),
        ({}, "accuracy=0.92 (verified=0.005)", True),
        ({"x-switchcraft-policy": "usd_per_1k=0.15"}, "usd_per_1k=0.15 (drift=0.1)", False),
        (GOAL | FORBIDDEN, "accuracy=best (drift=0.05)", False),
        (GOAL | {"x-switchcraft-max-candidates": "2"}, "accuracy=best (drift=0.05)", False),
    ],
)
def test_goals_may_choose_verified_answers_by_default(
    sandbox: Sandbox, headers: dict[str, str], policy: str, is_verified: bool
) -> None:
    """The goal, also the default one, is reached by verified answers if they are the better point.

    The header forbids it for one request. So does a limit on the candidates that is lower than the
    one that was measured.
    """
    router = Router(with_frontier(*POINTS, verified=VERIFIED_POINTS))
    settings = Settings.sandbox(sandbox.base_url, list(router.arms))
    section = RouterSettings(default_policy="accuracy=0.92")
    with gateway_client(settings.model_copy(update={"router": section}), router) as http:
        told = http.post(CHAT, json=BODY, headers=headers).headers
    assert told["x-switchcraft-policy"] == policy
    assert (told["x-switchcraft-reason"] == "verified") is is_verified
    assert "x-switchcraft-unverified" not in told
