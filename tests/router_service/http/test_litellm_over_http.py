"""A gateway that runs by a LiteLLM user's file alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from router_service.http.app import create_app
from router_service.sandbox.server import run_in_thread
from router_service.settings import load_settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

FILE = """
model_list:
  - model_name: small
    litellm_params: {model: openai/small-a, api_base: os.environ/BASE, weight: 3}
  - model_name: small
    litellm_params: {model: openai/small-b, api_base: os.environ/BASE, weight: 1}
  - model_name: medium
    litellm_params: {model: openai/medium, api_base: os.environ/BASE}
    model_info: {supports_vision: false}
  - model_name: large
    litellm_params: {model: openai/large, api_base: os.environ/BASE}
  - model_name: embed
    litellm_params: {model: openai/embed, api_base: os.environ/BASE}
    model_info: {input_cost_per_token: 1e-8, output_cost_per_token: 0, mode: embedding}
router_settings:
  num_retries: 0
  allowed_fails: 1000
  fallbacks: [{medium: [large]}]
  model_group_alias: {gpt-4: medium}
"""
IMAGE = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/a.png"}}]}
]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox of this file's own, whose counts nobody else moves."""
    with run_in_thread() as url:
        yield Sandbox(url)


@pytest.fixture
def http(sandbox: Sandbox, tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of a gateway that was configured by the file."""
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    settings = load_settings(path, {"BASE": sandbox.base_url})
    assert settings.unsupported == ()
    with (
        served(create_app(settings, FakeRouter())) as url,
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        yield client


def asked(sandbox: Sandbox) -> Counter[str]:
    """Return how many requests each upstream model has got."""
    by_model = sandbox.stats()["by_model"]
    return Counter({name: counts["requests"] for name, counts in by_model.items()})


def test_deployments_share_requests_by_weight(http: httpx.Client, sandbox: Sandbox) -> None:
    """Of 80 requests to one name, each deployment gets about its share, and none is lost."""
    before = asked(sandbox)
    for _ in range(80):
        assert http.post(CHAT, json={"model": "small", "messages": ASK}).status_code == 200
    got = asked(sandbox) - before
    assert got.total() == 80
    # Three in four: 60, with a standard deviation of 3.9.
    assert 40 < got["small-a"] < 76


def test_an_alias_and_its_fallback(http: httpx.Client, sandbox: Sandbox) -> None:
    """A client's old name reaches the model; where it fails, what the file names answers."""
    response = http.post(CHAT, json={"model": "gpt-4", "messages": ASK})
    assert response.headers["x-switchcraft-model"] == "medium"
    sandbox.set_faults("medium", "status=500")
    try:
        response = http.post(CHAT, json={"model": "medium", "messages": ASK})
    finally:
        sandbox.set_faults("medium", "")
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "large")


def test_what_the_file_denies_is_not_asked_for(http: httpx.Client) -> None:
    """The router's choice for an image is a model of which the file does not deny vision."""
    assert http.post(CHAT, json=BODY).headers["x-switchcraft-model"] == "medium"
    response = http.post(CHAT, json=BODY | {"messages": IMAGE})
    assert response.headers["x-switchcraft-model"] == "large"


def test_all_names_are_listed(http: httpx.Client) -> None:
    """Groups and aliases are models; deployments are not."""
    names = {model["id"] for model in http.get("/v1/models").json()["data"]}
    assert {"small", "medium", "large", "embed", "gpt-4"} <= names
    assert not {"small-a", "small-b"} & names
