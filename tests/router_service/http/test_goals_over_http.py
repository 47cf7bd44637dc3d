"""Goals in requests: in the model's name and in a header."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from router_service.http.app import create_app
from router_service.router import Router
from router_service.settings import Settings
from tests.bodies import BODY
from tests.frontiers import POINTS, with_frontier
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
    assert response.status_code == 200
    assert response.headers["x-switchcraft-policy"] == rule


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
