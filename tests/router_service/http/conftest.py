"""A gateway on a real port with a fake router, in front of a real sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.answering import Peers, peers
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import VerifyingGateway, verifying
from tests.router_service.http.scripted import Script, scripted_gateway
from tests.sandbox import run_in_thread
from tests.serving import ONE_TRY, Sandbox, served


@pytest.fixture(scope="session")
def router() -> FakeRouter:
    """Return the router that decides for the gateway."""
    return FakeRouter()


@pytest.fixture(scope="session")
def gateway_url(sandbox: Sandbox, router: FakeRouter) -> Iterator[str]:
    """Serve a gateway whose arms are models of the sandbox; yield http://HOST:PORT."""
    arms = list(router.probabilities)
    settings = Settings.sandbox(sandbox.base_url, arms, upstreams=ONE_TRY)
    with served(create_app(settings, router)) as url:
        yield url


@pytest.fixture(scope="session")
def http(gateway_url: str) -> Iterator[httpx.Client]:
    """Yield a plain HTTP client of the gateway."""
    with httpx.Client(base_url=gateway_url) as client:
        yield client


@pytest.fixture(scope="session")
def _scripted() -> Iterator[Script]:
    with scripted_gateway() as made:
        yield made


@pytest.fixture
def script(_scripted: Script) -> Script:
    """Return the gateway whose upstream's bytes are scripted, without earlier answers."""
    _scripted.upstream.answers.clear()
    _scripted.upstream.asked.clear()
    _scripted.upstream.connections = 0
    return _scripted


@pytest.fixture(scope="session")
def _verifying() -> Iterator[VerifyingGateway]:
    with run_in_thread() as url, verifying(url) as made:
        yield made


@pytest.fixture
def house(_verifying: VerifyingGateway) -> Iterator[VerifyingGateway]:
    """Yield a gateway that asks `small`, `medium` and `large`, and trusts only `large`.

    Its router and its sandbox are restored afterwards.
    """
    initial, router = VerifyingRouter(), _verifying.router
    yield _verifying
    router.groups, router.trust = initial.groups, initial.trust
    router.p_no_call, router.is_broken, router.judging_s = None, False, 0.0
    router.steps.clear()
    for model in router.probabilities:
        _verifying.sandbox.set_faults(model, "")


@pytest.fixture(scope="session")
def _peers() -> Iterator[Peers]:
    with peers() as made:
        yield made


@pytest.fixture
def it(_peers: Peers) -> Peers:
    """Return a gateway: `small` speaks Chat Completions, `medium` Responses, `large` Messages."""
    _peers.upstream.bodies.clear()
    _peers.upstream.paths.clear()
    _peers.problems.clear()
    return _peers
