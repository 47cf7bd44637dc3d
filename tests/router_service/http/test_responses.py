"""The Responses API through the gateway, with the OpenAI client and a plain HTTP client."""

from __future__ import annotations

import httpx

from router_service.serving.app import create_app
from router_service.settings import Deployment, Model, Settings
from tests.bodies import RESPONSES_BODY
from tests.fakes import FakeRouter
from tests.sandbox import run_in_thread
from tests.serving import Sandbox, served

RESPONSES = "/v1/responses"


def served_at(*urls: str) -> Settings:
    """Return settings whose arms have a deployment of equal weight at each of these upstreams."""
    return Settings(
        models=tuple(
            Model(
                name=arm,
                deployments=tuple(Deployment(upstream_model=arm, base_url=url) for url in urls),
            )
            for arm in FakeRouter().probabilities
        ),
    )


def test_continuation_goes_to_the_deployment_of_the_response() -> None:
    """If a model has two deployments, the one that holds the response continues it."""
    with run_in_thread() as first, run_in_thread() as second:
        with served(create_app(served_at(first, second), FakeRouter())) as url:
            for number in range(20):
                asked = RESPONSES_BODY | {"input": f"Question {number}"}
                made = httpx.post(url + RESPONSES, json=asked).json()
                body = {"model": "switchcraft", "input": "x", "previous_response_id": made["id"]}
                assert httpx.post(url + RESPONSES, json=body).status_code == 200
                assert httpx.get(f"{url}{RESPONSES}/{made['id']}").json() == made
        seen = [Sandbox(base_url).stats()["requests"] for base_url in (first, second)]
    assert min(seen) > 0
    assert sum(seen) == 40
