"""The Responses API through the gateway, with the OpenAI client and a plain HTTP client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

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


def test_unknown_response_is_404(client: openai.OpenAI) -> None:
    """A response that no replica relayed is a 404 with OpenAI's code, and says what to do."""
    with pytest.raises(openai.NotFoundError, match="Send the whole conversation") as caught:
        client.responses.create(model="switchcraft", previous_response_id="resp_none", input="x")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="switchcraft", conversation="conv_none", input="x")
    assert caught.value.code == "conversation_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve("resp_none")
    assert caught.value.code == "response_not_found"


def test_stored_response_is_reached_by_its_id(client: openai.OpenAI) -> None:
    """It can be fetched, cancelled and deleted, and its input can be listed."""
    made = client.responses.create(model="medium", input="hello", background=True)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert [item.type for item in client.responses.input_items.list(made.id)] == ["message"]
    assert client.responses.cancel(made.id).id == made.id
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


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


def test_unknown_response_is_requested_from_the_pass_through_upstream() -> None:
    """If such an upstream is configured, the client gets its answer about an unknown response."""
    with run_in_thread() as base_url:
        made = httpx.post(f"{base_url}/responses", json=BODY | {"model": "m"}).json()
        settings = served_at(base_url, pass_through="large")
        with served(create_app(settings, FakeRouter())) as url:
            body = {"model": "switchcraft", "input": "x", "previous_response_id": made["id"]}
            known = httpx.post(url + RESPONSES, json=body)
            fetched = httpx.get(f"{url}{RESPONSES}/{made['id']}")
            unknown = httpx.get(f"{url}{RESPONSES}/resp_none")
    assert (known.status_code, known.headers["x-switchcraft-model"]) == (200, "large")
    assert fetched.json() == made
    assert (unknown.status_code, unknown.headers["x-sandbox"]) == (404, "true")


def test_continuation_has_no_fallback() -> None:
    """If the holder of a response fails, no other model knows the conversation so far."""
    with run_in_thread() as base_url, served(create_app(served_at(base_url), FakeRouter())) as url:
        made = httpx.post(url + RESPONSES, json=BODY).json()
        Sandbox(base_url).set_faults("medium", "status=500")
        body = BODY | {"previous_response_id": made["id"]}
        answer = httpx.post(url + RESPONSES, json=body)
        asked = Sandbox(base_url).stats()["by_model"]
    assert answer.status_code == 500
    assert answer.headers["x-switchcraft-model"] == "medium"
    assert set(asked) == {"medium"}
