"""Familiarity: how it falls with the distance, and which requests the shipped artifact flags."""

from __future__ import annotations

import math
from typing import Any

import pytest

from router_service.apis.conversation import parse_conversation
from router_service.artifact import ARTIFACTS, read_manifest
from router_service.predictor.familiarity import LIMIT, Familiarity, FamiliaritySpec
from router_service.predictor.features import extract
from tests.bodies import ASK, BODY, WEATHER

NAMES = ("turns", "tools", "query_chars", "system_chars")
SPEC = FamiliaritySpec(
    sizes=(("tools",), ("query_chars", "system_chars")),
    mean=(math.log1p(1), math.log1p(99)),
    scale=(1.0, 1.0),
    precision=((1.0, 0.0), (0.0, 1.0)),
    distances=(1.0, 2.0, 4.0),
    shares=(1.0, 0.1, 0.01),
    queries=100,
    base_rates={"a": 0.5},
)


def features(tools: float = 1, query: float = 99, system: float = 0) -> tuple[float, ...]:
    """Return the features in the order of `NAMES`."""
    return (1.0, float(tools), float(query), float(system))


def test_familiarity_falls_with_the_distance_from_1_to_0() -> None:
    """It is interpolated between the kept shares, and is 0 beyond all held-out queries."""
    familiarity = Familiarity(SPEC, NAMES)
    tools = [math.exp(distance) * 2 - 1 for distance in (0, 1, 1.5, 2, 3, 4, 4.01, 100)]
    found = [familiarity.of(features(count)) for count in tools]
    assert found == pytest.approx([1, 1, 0.55, 0.1, 0.055, 0.01, 0, 0], abs=1e-6)
    assert familiarity.of(features(math.nan)) == 0


def of_shipped(name: str, **fields: Any) -> float:  # noqa: ANN401
    """Return the familiarity of a request to a shipped artifact."""
    manifest = read_manifest(ARTIFACTS / name / "manifest.json")
    assert manifest.familiarity is not None
    names = manifest.packing.features
    conversation = parse_conversation({**BODY, **fields})
    return Familiarity(manifest.familiarity, names).of(extract(conversation, names))


def named(count: int) -> list[dict[str, Any]]:
    """Return tools with different names."""
    function = WEATHER["function"]
    names = (f"get_{number}" for number in range(count))
    return [{"type": "function", "function": {**function, "name": name}} for name in names]


SHIPPED = [path.name for path in sorted(ARTIFACTS.iterdir()) if path.is_dir()]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_artifacts_know_short_requests_and_not_large_ones(name: str) -> None:
    """One tool and a short question are familiar, and so is a short system prompt before them.

    Sixty tools are not, nor ten pages of text, nor a script that no training query has.
    """
    system = {"role": "system", "content": "You are a helpful assistant."}
    assert of_shipped(name) > LIMIT
    assert of_shipped(name, messages=[system, *ASK]) > LIMIT
    for fields in (
        {"tools": named(60)},
        {"messages": [{"role": "system", "content": "Follow the rules.\n" * 2_000}, *ASK]},
        {"messages": [{"role": "user", "content": "明天北京的天气怎么样, 请用中文回答。"}]},
        {"messages": [*ASK, {"role": "assistant", "content": "Where?"}] * 20 + ASK},
    ):
        assert of_shipped(name, **fields) < LIMIT
