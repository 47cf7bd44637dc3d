"""Goals in requests: in the model's name and in a header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import RouterSettings, Settings, VerificationSettings
from tests.bodies import BODY
from tests.frontiers import POINTS, VERIFIED_POINTS, with_frontier
from tests.serving import Sandbox, served

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway whose router has a measured frontier."""
    router = Router(with_frontier(*POINTS))
    settings = Settings.sandbox(sandbox.base_url, list(router.arms))
    with (
        served(create_app(settings, router)) as url,
        httpx.Client(base_url=url, timeout=10) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("model", "header", "rule"),
    [
        ("switchcraft:accuracy=best", None, "drift=0.05"),
        ("switchcraft:accuracy=best@95", None, "theta=0.9"),
        ("switchcraft:accuracy=best-1@95", None, "drift=0.05"),
        ("switchcraft", "accuracy=0.8@95", "drift=0.05"),
        ("switchcraft:accuracy=best@95", "usd_per_1k=0.5@95", "drift=0.1"),
    ],
)
def test_goal_is_converted_to_the_rule_that_reaches_it(
    http: httpx.Client, model: str, header: str | None, rule: str
) -> None:
    """A goal in the model's name or in a header is answered by the rule that was measured."""
    headers = {} if header is None else {"x-switchcraft-policy": header}
    response = http.post(CHAT, json=BODY | {"model": model}, headers=headers)
    goal = header or model.removeprefix("switchcraft:")
    assert response.status_code == 200
    assert response.headers["x-switchcraft-policy"] == f"{goal} ({rule})"


@pytest.mark.parametrize("where", ["model", "x-switchcraft-policy"])
def test_unreachable_goal_is_refused(http: httpx.Client, where: str) -> None:
    """The error names the field with the goal, and the closest goal that can be reached."""
    goal = "accuracy=0.89@95"
    body = BODY | ({"model": f"switchcraft:{goal}"} if where == "model" else {})
    headers = {"x-switchcraft-policy": goal} if where != "model" else {}
    response = http.post(CHAT, json=body, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_policy")
    assert error["param"] == where
    assert "theta=0.9, reached 88.0% at the worse end of its 95% interval" in error["message"]


def verifying_gateway(
    sandbox: Sandbox, default: str | None = None, **verification: bool
) -> AbstractContextManager[str]:
    """Serve a gateway whose artifact has verified points, with this configuration."""
    router = Router(with_frontier(*POINTS, verified=VERIFIED_POINTS))
    base = Settings.sandbox(sandbox.base_url, list(router.arms))
    section = RouterSettings(
        verification=VerificationSettings.model_validate(verification), default_policy=default
    )
    return served(create_app(base.model_copy(update={"router": section}), router))


@pytest.fixture(scope="module")
def verifying(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway with a goal as its default, as configured by default."""
    with (
        verifying_gateway(sandbox, default="accuracy=0.92") as url,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        yield client


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
    verifying: httpx.Client, headers: dict[str, str], policy: str, is_verified: bool
) -> None:
    """The goal, also the default one, is reached by verified answers if they are the better point.

    The header forbids it for one request. So does a limit on the candidates that is lower than the
    one that was measured.
    """
    response = verifying.post(CHAT, json=BODY, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["x-switchcraft-policy"] == policy
    assert (response.headers["x-switchcraft-reason"] == "verified") is is_verified
    assert "x-switchcraft-unverified" not in response.headers


@pytest.mark.parametrize(
    ("fields", "headers", "policy", "reason"),
    [
        ({"n": 2}, GOAL, "accuracy=best (drift=0.05)", "several_choices"),
        ({"n": 2}, {}, "accuracy=0.92 (theta=0.9)", "several_choices"),
        ({"tools": []}, GOAL, None, "no_tools"),
    ],
)
def test_unverifiable_request_gets_the_best_policy_that_chooses_once(
    verifying: httpx.Client,
    fields: dict[str, Any],
    headers: dict[str, str],
    policy: str | None,
    reason: str,
) -> None:
    """It is the one for the goal, or the nearest one. A header says why nothing was verified."""
    response = verifying.post(CHAT, json=BODY | fields, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers.get("x-switchcraft-policy") == policy
    assert response.headers["x-switchcraft-unverified"] == reason


def test_header_allows_verified_answers_for_one_goal(sandbox: Sandbox) -> None:
    """Without it, goals choose once, and a goal out of reach says how to allow more."""
    allowed = {"x-switchcraft-verified-goals": "true"}
    with verifying_gateway(sandbox, goals=False) as url, httpx.Client(base_url=url) as client:
        plain = client.post(CHAT, json=BODY, headers=GOAL)
        verified = client.post(CHAT, json=BODY, headers=GOAL | allowed)
        wrong = client.post(CHAT, json=BODY, headers={"x-switchcraft-verified-goals": "yes"})
        far = client.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "accuracy=0.92"})
    assert plain.headers["x-switchcraft-policy"] == "accuracy=best (drift=0.05)"
    assert verified.headers["x-switchcraft-policy"] == "accuracy=best (verified=0.001)"
    assert verified.headers["x-switchcraft-reason"] == "verified"
    assert wrong.status_code == far.status_code == 400
    assert wrong.json()["error"]["param"] == "x-switchcraft-verified-goals"
    assert "x-switchcraft-verified-goals: true" in far.json()["error"]["message"]
