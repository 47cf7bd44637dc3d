"""A gateway that is configured only by a LiteLLM file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests.bodies import ASK, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client
from tests.sandbox import run_in_thread
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
    litellm_params:
      model: openai/large
      api_base: os.environ/BASE
      reasoning_effort: high
      extra_body: {prompt_cache_key: agents}
  - model_name: embed
    litellm_params: {model: openai/embed, api_base: os.environ/BASE}
    model_info: {input_cost_per_token: 1e-8, output_cost_per_token: 0, mode: embedding}
  - model_name: any/*
    litellm_params: {model: openai/*, api_base: os.environ/BASE}
    model_info: {input_cost_per_token: 1e-8, output_cost_per_token: 1e-8}
router_settings:
  num_retries: 0
  allowed_fails: 1000
  fallbacks: [{medium: [large]}]
  model_group_alias: {gpt-4: medium}
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Yield a sandbox that only this file uses, so that its counts are exact."""
    with run_in_thread() as url:
        yield Sandbox(url)


@pytest.fixture
def http(sandbox: Sandbox, tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of the gateway that the file configures."""
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    settings = read_settings(path, environ={"BASE": sandbox.base_url})
    assert settings.unsupported == ()
    with gateway_client(settings, FakeRouter()) as client:
        yield client


def test_paths_without_v1_are_served(http: httpx.Client) -> None:
    """A client whose base URL lacks `/v1`, as in LiteLLM's documentation, gets the same answers."""
    ask = {"model": "small", "messages": ASK}
    bare = http.post("/chat/completions", json=ask)
    assert bare.json()["choices"] == http.post(CHAT, json=ask).json()["choices"]
    assert bare.headers["x-switchcraft-model"] == "small"
    assert http.get("/models").json() == http.get("/v1/models").json()
    assert http.post("/embeddings", json={"model": "embed", "input": "a"}).is_success
    assert http.get("/chat/completions").status_code == 405
    # Only these paths: others stay below `/v1`.
    assert http.get("/decisions/dec_1").status_code == 404


def test_paths_without_v1_need_a_key_too(sandbox: Sandbox, tmp_path: Path) -> None:
    """Authentication and the limits of keys hold for both forms of a path."""
    path = tmp_path / "config.yaml"
    path.write_text(f"{FILE}\ngeneral_settings: {{master_key: sk-a-key-for-this-test-4711}}\n")
    settings = read_settings(path, environ={"BASE": sandbox.base_url})
    with served(create_app(settings, FakeRouter())) as url:
        for start in (url, f"{url}/v1"):
            ask = {"model": "small", "messages": ASK}
            assert httpx.post(f"{start}/chat/completions", json=ask).status_code == 401
            key = {"authorization": "Bearer sk-a-key-for-this-test-4711"}
            assert httpx.post(f"{start}/chat/completions", json=ask, headers=key).is_success
