"""What requests require of a model, and whether a model is known not to support it."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.capabilities import (
    Capabilities,
    Feature,
    Requirements,
)


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({"context_window_tokens": 99}, ("about 100 tokens of input (limit: 99)",)),
        ({"max_output_tokens": 49}, ("50 tokens of output (limit: 49)",)),
        ({"max_tools": 2}, ("3 tools (limit: 2)",)),
        ({"unsupported": {Feature.IMAGES, Feature.TOOLS}}, ("images", "tools")),
        (
            {"max_tools": 1, "unsupported": {Feature.TOOLS}},
            ("3 tools (limit: 1)", "tools"),
        ),
    ],
)
def test_unmet_requirements_are_described(known: dict[str, Any], missing: tuple[str, ...]) -> None:
    """A request at the limit is served. Beyond it, each reason is named with its number."""
    asked = Requirements(100, 50, 3, frozenset({Feature.IMAGES, Feature.TOOLS}))
    assert Capabilities.model_validate(known).lacks(asked) == missing
