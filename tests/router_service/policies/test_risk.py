"""Levels of risk: patterns, annotations, and guesses by names and descriptions."""

from __future__ import annotations

import pytest

from router_service.apis.conversation import ToolSpec, parse_conversation
from router_service.policies.risk import Risk, RiskRules, guess_risk


@pytest.mark.parametrize(
    ("name", "description", "level"),
    [
        ("get_weather", "", Risk.READ_ONLY),
        ("get_deleted_items", "Lists items that were deleted", Risk.READ_ONLY),
        ("mcp__github__list_issues", "", Risk.READ_ONLY),
        ("createAlarm", "", Risk.WRITING),
        ("update_plan", "Permanently replaces the plan", Risk.DESTRUCTIVE),
        ("users_deletePhoto", "", Risk.DESTRUCTIVE),
        ("walmart.purchase", "", Risk.DESTRUCTIVE),
        ("Bash", "", Risk.DESTRUCTIVE),
        ("janitor", "Deletes old files", Risk.DESTRUCTIVE),
        ("math.hcf", "Highest common factor", None),
    ],
)
def test_guesses(name: str, description: str, level: Risk | None) -> None:
    """The first verb after the server's name decides, and signs of destruction outweigh it."""
    assert guess_risk(name, description) is level


@pytest.mark.parametrize(
    ("annotations", "level"),
    [
        ({"readOnlyHint": True}, Risk.READ_ONLY),
        ({"readOnlyHint": False}, Risk.DESTRUCTIVE),
        ({"readOnlyHint": False, "destructiveHint": False}, Risk.WRITING),
        ({"destructiveHint": True}, Risk.DESTRUCTIVE),
        ({"title": "Delete"}, Risk.READ_ONLY),
        ({"readOnlyHint": "yes"}, Risk.READ_ONLY),
    ],
)
@pytest.mark.parametrize("place", ["tool", "function"])
def test_annotations_outweigh_the_guess(annotations: object, level: Risk, place: str) -> None:
    """MCP's hints count with their defaults, next to the function or in it; others are ignored."""
    tool: dict[str, object] = {"name": "get_rows", "parameters": {}}
    entry: dict[str, object] = {"type": "function", "function": tool}
    (entry if place == "tool" else tool)["annotations"] = annotations
    body = {"messages": [{"role": "user", "content": "go"}], "tools": [entry]}
    assert RiskRules().highest(parse_conversation(body).tools) is level


def test_patterns_outweigh_annotations_and_the_most_severe_one_counts() -> None:
    """A pattern decides whatever the tool says about itself."""
    rules = RiskRules({Risk.READ_ONLY: ["*_rows"], Risk.DESTRUCTIVE: ["delete_*"]})
    assert rules.risk_of(ToolSpec("drop_rows", hints=(False, True))) is Risk.READ_ONLY
    assert rules.risk_of(ToolSpec("delete_rows", hints=(True, None))) is Risk.DESTRUCTIVE
