"""Anthropic's client for Python: agents' loops over the beta API, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest
from anthropic import beta_tool

from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.apis import APIS
from tests.fakes import PROBABILITIES, FakeRouter
from tests.serving import Sandbox, served

asked: list[str] = []


@beta_tool
def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: Name of the city.
    """
    asked.append(city)
    return "rain"


@pytest.fixture(scope="module")
def claude(sandbox: Sandbox) -> Iterator[anthropic.Anthropic]:
    """Yield the client of a gateway whose models speak one API each."""
    settings = Settings.sandbox(sandbox.base_url, list(PROBABILITIES))
    models = tuple(
        model.model_copy(
            update={"deployments": (model.deployments[0].model_copy(update={"apis": (dialect,)}),)}
        )
        for model, dialect in zip(settings.models, APIS, strict=True)
    )
    settings = settings.model_copy(update={"models": models})
    with (
        served(create_app(settings, FakeRouter())) as url,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["switchcraft", "claude-opus-4", *PROBABILITIES])
def test_agents_loop_ends_with_a_text(
    claude: anthropic.Anthropic, model: str, stream: bool
) -> None:
    """The client runs the tool that the model calls, and the model answers the result."""
    asked.clear()
    runner = claude.beta.messages.tool_runner(
        model=model,
        max_tokens=500,
        tools=[get_weather],
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        stream=stream,
    )
    final = runner.until_done()
    assert asked == ["Oslo"]
    assert final.stop_reason == "end_turn"
    assert final.content[0].type == "text"
