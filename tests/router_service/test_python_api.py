"""The public Python API: `from router_service import Router`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import assert_type

import pytest

import router_service
from router_service import Decision, Router
from router_service.core.errors import ArtifactError, InvalidRequestError, PolicyError
from router_service.policies.threshold import Threshold
from tests.bodies import ASK, TOOLS

REQUEST = {"messages": ASK, "tools": TOOLS}


@pytest.fixture(scope="module")
def router() -> Router:
    """Return the shipped router."""
    return Router.load()


def test_importing_the_package_loads_no_model_runtime() -> None:
    """`import router_service` is cheap; the router is imported on first use."""
    code = (
        "import sys, router_service; print('onnxruntime' in sys.modules);"
        "router_service.Router; print('onnxruntime' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == ["False", "True"]


def test_unknown_attribute_is_an_attribute_error() -> None:
    """The lazy import answers only for public names."""
    with pytest.raises(AttributeError, match="no attribute 'Gateway'"):
        _ = getattr(router_service, "Gateway")  # noqa: B009 - types know that it is missing


@pytest.mark.parametrize("body", [json.dumps(REQUEST), json.dumps(REQUEST).encode(), REQUEST])
def test_decides_for_text_bytes_and_objects(
    router: Router, body: Mapping[str, object] | bytes | str
) -> None:
    """All forms of a body give the same decision, by the policy that chooses once."""
    decision = router.decide(body)
    assert decision == router.decide(REQUEST, "fast")
    assert decision.arm in router.arms
    assert decision.policy == router.artifact.manifest.policies["fast"]


def test_policy_may_be_name_rule_or_value(router: Router) -> None:
    """A rule as text and as a value are the same; a name is the artifact's."""
    by_rule = router.decide(REQUEST, "theta=0.5")
    assert by_rule == router.decide(REQUEST, Threshold(0.5))
    assert router.decide(REQUEST, policy="fast").policy == str(router.policy("fast"))


def test_arms_restrict_the_choice(router: Router) -> None:
    """Only the given arms have probabilities, and one of them is chosen."""
    arms = router.arms[1:3]
    decision = router.decide(REQUEST, arms=arms)
    assert set(decision.probabilities) == set(arms)
    assert decision.arm in arms


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


def test_types_are_public() -> None:
    """Type checkers see the classes and what the methods return."""

    def check(router: Router) -> None:
        assert_type(Router.load(), Router)
        assert_type(router.decide({}), Decision)
        assert_type(router.decide(b"", arms=["a"]), Decision)
        assert_type(router.decide("", policy=Threshold(0.5)).arm, str)
        assert_type(router.decide({}).cost_usd, Mapping[str, float])

    assert callable(check)
