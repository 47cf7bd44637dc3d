"""The public Python API: `from router_service import Router`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from router_service import Router
from router_service.core.errors import ArtifactError, InvalidRequestError, PolicyError
from tests.bodies import ASK, TOOLS

REQUEST = {"messages": ASK, "tools": TOOLS}


@pytest.fixture(scope="module")
def router() -> Router:
    """Return the shipped router."""
    return Router.load()


@pytest.mark.parametrize("body", [json.dumps(REQUEST), json.dumps(REQUEST).encode(), REQUEST])
def test_decides_for_text_bytes_and_objects(
    router: Router, body: Mapping[str, object] | bytes | str
) -> None:
    """All forms of a body give the same decision, by the policy that chooses once."""
    decision = router.decide(body)
    assert decision == router.decide(REQUEST, "fast")
    assert decision.arm in router.arms
    assert decision.policy == router.artifact.manifest.policies["fast"]


@pytest.mark.parametrize(
    ("body", "policy", "arms", "error"),
    [
        ("{", "fast", None, InvalidRequestError),
        ({"messages": []}, "fast", None, InvalidRequestError),
        (REQUEST, "cheapest", None, PolicyError),
        (REQUEST, "economy", None, PolicyError),  # it verifies answers, and there are none
        (REQUEST, "fast", ["gpt-9"], ArtifactError),
        (REQUEST, "fast", [], ArtifactError),
    ],
)
def test_mistakes_raise_specific_errors(
    router: Router, body: str, policy: str, arms: list[str] | None, error: type[Exception]
) -> None:
    """An invalid body, an unknown policy, an unknown arm and no arm at all are errors."""
    with pytest.raises(error):
        router.decide(body, policy, arms)
