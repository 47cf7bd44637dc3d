"""Gateways in this process in front of a sandbox, and what they recorded and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from router_service.requests.planning import POLICY_HEADER
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import (
    BreakerSettings,
    Model,
    RetrySettings,
    RouterSettings,
    Settings,
    UpstreamSettings,
)
from tests.bodies import BODY, CHAT
from tests.fakes import PROBABILITIES, VerifyingRouter
from tests.serving import Sandbox, served, wait_for

NO_RETRIES = UpstreamSettings(
    retries=RetrySettings(max_retries=0, budget_floor_per_s=1000),
    breaker=BreakerSettings(allowed_fails=1000, cooldown_s=0.01, max_cooldown_s=0.01),
)
"""A failed model is not asked again, other models may be, and breakers have no effect."""

VERIFIED = {POLICY_HEADER: "verified"}
"""Headers of a request for a verified answer."""


def sandbox_settings(
    url: str, upstreams: UpstreamSettings = NO_RETRIES, **router: object
) -> Settings:
    """Return settings whose models are the fake routers' arms; other arguments are of `router`."""
    settings = Settings.sandbox(url, list(PROBABILITIES), upstreams=upstreams)
    # Before a keep-alive, which a busy machine may send, the head has no model.
    router = {"verification": {"keep_alive_s": 300}, **router}
    return settings.model_copy(update={"router": RouterSettings.model_validate(router)})


def with_models(settings: Settings, changes: Callable[[Model], Mapping[str, object]]) -> Settings:
    """Return settings in which each model has the fields that `changes` returns for it."""
    models = tuple(model.model_copy(update=changes(model)) for model in settings.models)
    return settings.model_copy(update={"models": models})


@contextmanager
def gateway_client(settings: Settings, router: Router) -> Iterator[httpx.Client]:
    """Serve a gateway; yield a client whose base URL is the gateway's."""
    with (
        served(create_app(settings, router)) as url,
        httpx.Client(base_url=url) as http,
    ):
        yield http


def record_of(
    http: httpx.Client, response: httpx.Response, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the decision record of a gateway's response, once it is stored."""
    path = f"/v1/decisions/{response.headers['x-switchcraft-decision-id']}"
    wait_for(lambda: http.get(path, headers=headers).is_success, "the decision is recorded")
    record: dict[str, Any] = http.get(path, headers=headers).json()
    return record


def listed_request(http: httpx.Client, request_id: str) -> dict[str, Any]:
    """Return a request as the page lists it, once it has ended."""

    def read() -> list[dict[str, Any]]:
        answer = http.get("/ui/api/traffic/requests", params={"search": request_id}).json()
        found: list[dict[str, Any]] = answer.get("requests", [])  # none while the database is busy
        return found

    wait_for(read, "the request has ended and is listed")
    return read()[0]


def metric(http: httpx.Client, beginning: str) -> float:
    """Return the sum of all series that begin with this text, or 0 without such a series."""
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))


def ask_routed(http: httpx.Client, model: str = "switchcraft", **headers: str) -> httpx.Response:
    """Return the successful answer to a request with a tool; headers have underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = http.post(CHAT, json=BODY | {"model": model}, headers=named)
    assert response.status_code == 200, response.text
    return response


def ask_verified(http: httpx.Client, *, stream: bool = False, **headers: str) -> httpx.Response:
    """Ask for a verified answer; further headers have underscores instead of dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(CHAT, json=BODY | {"stream": stream}, headers=VERIFIED | named)


@dataclass(frozen=True)
class VerifyingGateway:
    """A client of a gateway that verifies answers, its router, and the sandbox behind it."""

    http: httpx.Client
    router: VerifyingRouter
    sandbox: Sandbox

    def ask(self, stream: bool = False, **headers: str) -> httpx.Response:
        """Ask for a verified answer; further headers have underscores instead of dashes."""
        return ask_verified(self.http, stream=stream, **headers)

    def record(self, response: httpx.Response) -> dict[str, Any]:
        """Return the decision record of a response, once it is stored."""
        return record_of(self.http, response)


@contextmanager
def verifying(
    sandbox_url: str, settings: Settings | None = None, router: VerifyingRouter | None = None
) -> Iterator[VerifyingGateway]:
    """Serve a gateway that asks `small`, `medium` and `large`, and trusts only `large`."""
    router = router or VerifyingRouter()
    with gateway_client(settings or sandbox_settings(sandbox_url), router) as http:
        yield VerifyingGateway(http, router, Sandbox(sandbox_url))
