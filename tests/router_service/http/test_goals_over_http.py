"""Goals in requests: in the model's name and in a header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import httpx
import pytest

from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import RouterSettings, Settings, VerificationSettings
from tests.bodies import BODY
from tests.frontiers import POINTS, VERIFIED_POINTS, with_frontier
from tests.serving import Sandbox, served

CHAT = "/v1/chat/completions"


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
