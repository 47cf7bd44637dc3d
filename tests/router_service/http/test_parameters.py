"""One model with two reasoning efforts: two arms, whose parameters the gateway adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests.bodies import ASK, TOOLS
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

FILE = """
model_list:
  - model_name: gpt-5@low
    litellm_params: {model: openai/gpt-5, api_base: os.environ/BASE, reasoning_effort: low}
  - model_name: gpt-5@high
    litellm_params:
      model: openai/gpt-5
      api_base: os.environ/BASE
      reasoning_effort: high
      extra_body: {prompt_cache_key: agents}
  - model_name: plain
    litellm_params: {model: openai/gpt-5, api_base: os.environ/BASE}
router:
  arms: {small: gpt-5@low, medium: plain, large: gpt-5@high}
"""
FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
HIGH = "switchcraft:quality"
LOW = "switchcraft:economy"


@pytest.fixture(scope="module")
def url(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway with the file."""
    path = tmp_path_factory.mktemp("efforts") / "config.yaml"
    path.write_text(FILE)
    settings = read_settings(path, environ={"BASE": sandbox.base_url})
    assert settings.unsupported == ()
    with served(create_app(settings, FakeRouter())) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """Yield the OpenAI client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(("model", "effort"), [(LOW, "low"), (HIGH, "high")])
def test_requests_are_sent_with_the_arms_effort(
    client: openai.OpenAI, sandbox: Sandbox, model: str, effort: str
) -> None:
    """The upstream gets its model's name and the effort, next to the client's other options."""
    answer = client.chat.completions.with_raw_response.create(
        model=model, messages=ASK, tools=TOOLS
    )
    assert answer.headers["x-switchcraft-model"] == f"gpt-5@{effort}"
    sent = json.loads(sandbox.last_body())
    assert (sent["model"], sent["reasoning_effort"]) == ("gpt-5", effort)
    assert sent.get("prompt_cache_key") == (None if effort == "low" else "agents")
    client.responses.create(
        model=model, input="Weather in Oslo?", tools=FLAT, reasoning={"summary": "auto"}
    )
    sent = json.loads(sandbox.last_body())
    assert (sent["model"], sent["reasoning"]) == ("gpt-5", {"effort": effort, "summary": "auto"})
