"""Unfamiliar requests: who answers them, and where that can be seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from router_service.settings import Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter, VerifyingRouter, with_familiarity
from tests.gateways import gateway_client, metric, record_of, sandbox_settings
from tests.serving import Sandbox

FAR = 0.005
"""A familiarity below the limit of 0.05."""


@contextmanager
def gateway(sandbox: Sandbox, router: FakeRouter, **section: Any) -> Iterator[httpx.Client]:  # noqa: ANN401
    """Yield a client of a gateway with these settings of `router`."""
    settings: Settings = sandbox_settings(sandbox.base_url, **section)
    with gateway_client(settings, router) as http:
        yield http


def ask(http: httpx.Client, model: str = "switchcraft", **headers: str) -> httpx.Response:
    """Send a request with a tool, and return its successful answer."""
    response = http.post(CHAT, json=BODY | {"model": model}, headers=headers)
    assert response.status_code == 200, response.text
    return response


def test_most_accurate_model_answers_unfamiliar_requests(sandbox: Sandbox) -> None:
    """It is the one with the highest accuracy in training, whatever the probabilities say.

    Headers, the decision record, the metrics and the page's overview say that it was unfamiliar.
    """
    with gateway(sandbox, with_familiarity(FakeRouter(), FAR)) as http:
        response = ask(http)
        headers = {name: response.headers[f"x-switchcraft-{name}"] for name in ("model", "reason")}
        assert headers == {"model": "small", "reason": "unfamiliar"}
        assert response.headers["x-switchcraft-familiarity"] == "0.0050"
        assert response.headers["x-switchcraft-policy"] == "best (theta=1)"
        why = response.headers["x-switchcraft-why"]
        assert why.startswith("small: the most accurate model on the training data")
        record = record_of(http, response)
        assert (record["familiarity"], record["reason"]) == (FAR, "unfamiliar")
        assert metric(http, 'switchcraft_unfamiliar_requests_total{arm="small"') == 1


def test_default_policy_applies_not_far_below_the_limit(sandbox: Sandbox) -> None:
    """With a lower `unfamiliar_below`, a request may be called unfamiliar and be routed."""
    router = with_familiarity(FakeRouter(), 0.03)
    with gateway(sandbox, router, unfamiliar_below=0.01) as http:
        response = ask(http)
        assert response.headers["x-switchcraft-policy"] == "theta=0.5"
        assert "is unlike" in response.headers["x-switchcraft-why"]
        assert metric(http, "switchcraft_unfamiliar_requests_total") == 1
    with gateway(sandbox, router) as http:
        assert ask(http).headers["x-switchcraft-policy"] == "best (theta=1)"


@pytest.mark.parametrize(
    ("unfamiliar", "model", "header", "used"),
    [
        ("best", "switchcraft:economy", None, "economy (theta=0.2)"),
        ("best", "switchcraft", "quality", "quality (theta=0.8)"),
        ("best", "switchcraft", "default", "best (theta=1)"),
        ("best", "switchcraft:default", None, "best (theta=1)"),
        ("route", "switchcraft", None, "theta=0.5"),
        ("quality", "switchcraft", None, "quality (theta=0.8)"),
        ("theta=0.9", "switchcraft", None, "theta=0.9"),
    ],
)
def test_only_the_default_policy_is_replaced(
    sandbox: Sandbox, unfamiliar: str, model: str, header: str | None, used: str
) -> None:
    """A policy that the request names applies, and the sentence says what is uncertain."""
    headers = {} if header is None else {"x-switchcraft-policy": header}
    router = with_familiarity(FakeRouter(), FAR)
    with gateway(sandbox, router, unfamiliar=unfamiliar) as http:
        response = ask(http, model, **headers)
        assert response.headers["x-switchcraft-policy"] == used
        assert "is unlike" in response.headers["x-switchcraft-why"]


def test_unfamiliar_requests_can_be_verified(sandbox: Sandbox) -> None:
    """With `verified`, candidates are asked; with `best`, no default policy verifies."""
    for unfamiliar, policy, reason in (
        ("verified", "verified=0.002", "verified"),
        ("best", "best (theta=1)", "unfamiliar"),
    ):
        router = with_familiarity(VerifyingRouter(), FAR)
        section = {"unfamiliar": unfamiliar, "default_policy": "verified=0.01"}
        with gateway(sandbox, router, **section) as http:
            response = ask(http)
            assert response.headers["x-switchcraft-policy"] == policy
            assert response.headers["x-switchcraft-reason"] == reason
            assert "x-switchcraft-unverified" not in response.headers


def test_playground_explains_unfamiliar_requests(sandbox: Sandbox) -> None:
    """It says what would answer, and why."""
    with gateway(sandbox, with_familiarity(FakeRouter(), FAR)) as http:
        explained = http.post("/ui/api/explain", json=BODY).json()
        assert (explained["is_unfamiliar"], explained["familiarity"]) == (True, FAR)
        assert explained["chosen"]["arm"] == "small"
        assert explained["explanation"].startswith("small: the most accurate model")
