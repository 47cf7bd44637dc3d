"""The Responses API through the gateway, with the OpenAI client and a plain HTTP client."""

from __future__ import annotations

from typing import Any

import httpx

from router_service.policies.costs import Price
from router_service.serving.app import create_app
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.bodies import ASK, TOOLS
from tests.fakes import FakeRouter
from tests.sandbox import run_in_thread
from tests.serving import Sandbox, served

RESPONSES = "/v1/responses"
FREE = Price(input_usd_per_mtok=0, output_usd_per_mtok=0)
FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
BODY: dict[str, Any] = {"model": "switchcraft", "input": ASK, "tools": FLAT}


def served_at(*urls: str, pass_through: str | None = None) -> Settings:
    """Return settings whose arms have a deployment of equal weight at each of these upstreams."""
    return Settings(
        models=tuple(
            Model(
                name=arm,
                deployments=tuple(Deployment(upstream_model=arm, base_url=url) for url in urls),
            )
            for arm in FakeRouter().probabilities
        ),
        router=RouterSettings(pass_through=pass_through),
    )


def test_continuation_goes_to_the_deployment_of_the_response() -> None:
    """If a model has two deployments, the one that holds the response continues it."""
    with run_in_thread() as first, run_in_thread() as second:
        with served(create_app(served_at(first, second), FakeRouter())) as url:
            for number in range(20):
                asked = BODY | {"input": f"Question {number}"}
                made = httpx.post(url + RESPONSES, json=asked).json()
                body = {"model": "switchcraft", "input": "x", "previous_response_id": made["id"]}
                assert httpx.post(url + RESPONSES, json=body).status_code == 200
                assert httpx.get(f"{url}{RESPONSES}/{made['id']}").json() == made
        seen = [Sandbox(base_url).stats()["requests"] for base_url in (first, second)]
    assert min(seen) > 0
    assert sum(seen) == 40


def test_named_model_can_continue_a_response_of_its_account() -> None:
    """Another model of the same account may continue it; a model of another account is refused."""
    with run_in_thread() as first, run_in_thread() as second:
        at_second = Deployment(upstream_model="far", base_url=second)
        far = Model(name="far", deployments=(at_second,), price=FREE)
        near = served_at(first)
        settings = near.model_copy(update={"models": (*near.models, far)})
        with served(create_app(settings, FakeRouter())) as url:
            made = httpx.post(url + RESPONSES, json=BODY | {"model": "small"}).json()
            body = {"input": "x", "previous_response_id": made["id"]}
            beside = httpx.post(url + RESPONSES, json=body | {"model": "large"})
            elsewhere = httpx.post(url + RESPONSES, json=body | {"model": "far"})
    assert (beside.status_code, beside.json()["model"]) == (200, "large")
    assert beside.headers["x-switchcraft-reason"] == "continued"
    assert elsewhere.status_code == 409
    error = elsewhere.json()["error"]
    assert error["code"] == "response_held_elsewhere"
    assert "'small'" in error["message"]
