"""Requests whose budget allows only a cheaper policy: what applies, and where that can be seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from router_service.access.admission import Access
from router_service.access.limits import Admission
from router_service.access.pacing import Allowance
from router_service.core.record import Record
from router_service.measurement.operating_points import OperatingPoints
from router_service.serving.app import create_app
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter, VerifyingRouter
from tests.frontiers import point
from tests.gateways import ask_routed, record_of, sandbox_settings
from tests.serving import Sandbox, served

POINTS = OperatingPoints(
    (
        point("theta=0.2", 0.6, 1),
        point("theta=0.5", 0.7, 2),
        point("theta=0.8", 0.9, 10),
        point("verified=0.001", 0.65, 1.5),
        point("verified=0.01", 0.8, 3),
    ),
    {"default": "theta=0.5", "economy": "theta=0.2", "quality": "theta=0.8"},
    point("best", 0.85, 20),
)
VERIFYING = OperatingPoints(
    POINTS.measured, {**POINTS.rules, "default": "verified=0.01"}, POINTS.best_single
)


class Paced(Access):
    """Access that gives every request the same allowance."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance

    async def admit(self, admission: Admission) -> None:
        """Admit the request with the allowance."""
        admission.allowance = self.allowance

    def settle(self, admission: Admission, status: int, record: Record | None) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


@contextmanager
def gateway(
    sandbox: Sandbox,
    max_cost_usd: float,
    router: FakeRouter | None = None,
    points: OperatingPoints = POINTS,
    **section: Any,  # noqa: ANN401
) -> Iterator[httpx.Client]:
    """Yield a client whose requests may cost so much; other arguments are settings of `router`."""
    allowance = Allowance("team:crew", 100.0, 20.0, 1_800_000_000.0, points, max_cost_usd)
    settings = sandbox_settings(sandbox.base_url, **section)
    app = create_app(settings, router or FakeRouter())
    app.state.gateway.access = Paced(allowance)
    with served(app) as url, httpx.Client(base_url=url) as http:
        yield http


@pytest.mark.parametrize(
    ("model", "header", "policy"),
    [
        ("switchcraft", None, "theta=0.5"),
        ("switchcraft:quality", None, "quality (theta=0.5)"),
        ("switchcraft", "default", "theta=0.5"),
        ("switchcraft", "drift=0.1", "drift=0.1 (theta=0.5)"),
        ("large", None, None),
    ],
)
def test_what_the_request_asks_for_counts(
    sandbox: Sandbox, model: str, header: str | None, policy: str | None
) -> None:
    """A cheaper policy stays, a dearer or unmeasured one is replaced, and so is one in the suffix.

    A model that the request names answers it.
    """
    with gateway(sandbox, 0.002) as http:
        response = ask_routed(http, model, **({"x_switchcraft_policy": header} if header else {}))
        assert response.headers.get("x-switchcraft-policy") == policy
        is_changed = policy is not None and policy.endswith(" (theta=0.5)")
        changed = response.headers.get("x-switchcraft-budget-policy")
        assert changed == ("theta=0.5" if is_changed else None)
        assert ("x-switchcraft-expected-accuracy" in response.headers) == is_changed
        assert response.headers["x-switchcraft-budget-left-usd"] == "20.000000"
        if policy is None:
            assert response.headers["x-switchcraft-model"] == "large"


def test_verified_policies_become_cheaper_verified_ones(sandbox: Sandbox) -> None:
    """A verified default stays verified, at a lower price of a correct answer.

    Requests that cannot be verified get a policy that chooses once and is as cheap.
    """
    router, default = VerifyingRouter(), "verified=0.01"
    with gateway(sandbox, 0.0016, router, VERIFYING, default_policy=default) as http:
        response = ask_routed(http)
        assert response.headers["x-switchcraft-policy"] == "default (verified=0.001)"
        assert response.headers["x-switchcraft-reason"] == "verified"
        assert response.headers["x-switchcraft-expected-accuracy"] == "0.650"
        record = record_of(http, response)
        assert "The budget of the team crew has 20% left" in record["explanation"]
        once = http.post(CHAT, json=BODY | {"n": 2})
        assert once.headers["x-switchcraft-policy"] == "default (theta=0.2)"
        assert once.headers["x-switchcraft-unverified"]
