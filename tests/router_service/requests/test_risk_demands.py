"""Requests that offer risky tools: the probability and the policy that the operator demands."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from router_service.core.reasons import Reason
from router_service.requests.parsing import parse_request
from router_service.requests.planning import Plan, PolicyHeaders
from router_service.requests.pool import Pool
from router_service.runtime.engine import make_planner
from router_service.settings import RiskSettings, Settings
from tests.endpoints import CHAT
from tests.fakes import FakeRouter

ROUTER = FakeRouter()  # small: 0.3, medium: 0.7, large: 0.9; the default policy is theta=0.5


def plan(
    risk: RiskSettings, tool: str, policy: str | None = None, exploration_share: float = 0.0
) -> Plan:
    """Return the plan of a request that offers one tool."""
    manifest = ROUTER.artifact.manifest
    settings = Settings.sandbox("http://127.0.0.1:9/v1", manifest.arms)
    changes = {"risk": risk, "exploration_share": exploration_share}
    router = settings.router.model_copy(update=changes)
    settings = settings.model_copy(update={"router": router})
    planner = make_planner(settings, ROUTER, Pool.build(settings, manifest))
    function: dict[str, Any] = {"name": tool, "parameters": {"type": "object"}}
    body = {
        "model": "switchcraft",
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": function}],
    }
    request = parse_request(CHAT, orjson.dumps(body))
    plan = planner.prepare(request, PolicyHeaders(policy))
    planner.choose(plan, ROUTER.predict(request.conversation))
    planner.explore(plan)
    return plan


def level(**fields: object) -> dict[str, object]:
    """Return the settings of one level."""
    return {"destructive": fields}


@pytest.mark.parametrize(
    ("tool", "policy", "floor", "arm", "reason"),
    [
        ("get_rows", None, 0.8, "medium", Reason.THRESHOLD),
        ("delete_rows", None, 0.8, "large", Reason.RISK),
        ("delete_rows", None, 0.6, "medium", Reason.THRESHOLD),
        ("delete_rows", None, 0.99, "large", Reason.RISK),
        ("delete_rows", "economy", 0.6, "medium", Reason.RISK),
        ("delete_rows", "utility=0", 0.6, "medium", Reason.RISK),
    ],
)
def test_destructive_tools_demand_a_probability(
    tool: str, policy: str | None, floor: float, arm: str, reason: Reason
) -> None:
    """The policy chooses among arms that reach it, else the most probable arm is chosen."""
    settings = RiskSettings.model_validate(level(min_probability=floor))
    decision = plan(settings, tool, policy).decision
    assert decision is not None
    assert (decision.arm, decision.reason) == (arm, reason)


def test_arms_below_the_demand_are_tried_last() -> None:
    """Fallbacks keep to the demand while they can, and then take the most probable arm first."""
    settings = RiskSettings.model_validate(level(min_probability=0.8))
    decision = plan(settings, "delete_rows", "economy").decision
    assert decision is not None
    assert decision.ranking == ("large", "medium", "small")


def test_destructive_tools_have_a_policy_unless_the_request_names_one() -> None:
    """The level's policy replaces the default policy, and never the client's."""
    settings = RiskSettings.model_validate(level(policy="quality"))
    for tool, policy, used in (
        ("delete_rows", None, "quality (theta=0.8)"),
        ("delete_rows", "default", "quality (theta=0.8)"),
        ("delete_rows", "economy", "economy (theta=0.2)"),
        ("get_rows", None, "theta=0.5"),
    ):
        assert str(plan(settings, tool, policy).policy) == used


def test_requests_with_a_demand_are_not_explored() -> None:
    """A random arm would break the demand."""
    settings = RiskSettings.model_validate(level(min_probability=0.8))
    for _ in range(20):
        decision = plan(settings, "delete_rows", exploration_share=1.0).decision
        assert decision is not None
        assert (decision.arm, decision.propensity) == ("large", 1.0)
