"""A client of OpenRouter moves as docs/migrate-from-openrouter.md says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from router_service.router import Router
from router_service.settings import read_settings
from tests.bodies import TOOLS
from tests.documentation.documents import ROOT, Document
from tests.moving.gateways import moved_gateway
from tests.serving import Sandbox

PAGE = Document(ROOT / "docs" / "migrate-from-openrouter.md")
ADDRESS = "http://127.0.0.1:8080"
OWN_FIELDS = {
    "models": ["openai/gpt-5-mini"],
    "route": "fallback",
    "provider": {"sort": "price"},
    "transforms": ["middle-out"],
    "usage": {"include": True},
}
"""Fields of a request that only OpenRouter has."""


@pytest.fixture(scope="module")
def url(
    sandbox: Sandbox, shipped: Router, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Serve the page's configuration; yield the address."""
    (block,) = (block for block in PAGE.blocks if block.file_name == "gateway.yaml")
    path = tmp_path_factory.mktemp("openrouter") / block.file_name
    path.write_text(block.text)
    settings = read_settings(path, environ={"OPENROUTER_API_KEY": "sk-or-any"})
    assert settings.unsupported == ()
    with moved_gateway(settings, sandbox.base_url, shipped) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """Yield OpenAI's client with the headers that OpenRouter recommends."""
    headers = {"HTTP-Referer": "https://app.example", "X-Title": "App"}
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="any", max_retries=0, default_headers=headers
    ) as made:
        yield made


def ask(client: openai.OpenAI, model: str, **fields: Any) -> tuple[ChatCompletion, str]:  # noqa: ANN401 - any fields
    """Return the answer of a model, and the name of the model that gave it."""
    asked = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        **fields,
    )
    return asked.parse(), asked.headers["x-switchcraft-model"]


def test_documented_program_prints_a_model_and_its_cost(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's program prints a model of the file, and a cost in USD."""
    (block,) = (block for block in PAGE.blocks if block.language == "python")
    exec(compile(block.text.replace(ADDRESS, url), str(block), "exec"), {})  # noqa: S102 - it is ours
    model, cost = capsys.readouterr().out.split()
    assert "/" in model
    assert float(cost) > 0


def test_names_of_models_stay(client: openai.OpenAI, sandbox: Sandbox) -> None:
    """`vendor/model` reaches OpenRouter's model, with the app's headers and every own field."""
    answer, model = ask(client, "anthropic/claude-sonnet-4.5", extra_body=OWN_FIELDS)
    assert answer.model == model == "anthropic/claude-sonnet-4.5"
    sent = json.loads(sandbox.last_body())
    assert {name: sent[name] for name in OWN_FIELDS} == OWN_FIELDS
    headers = sandbox.last_headers()
    assert (headers["http-referer"], headers["x-title"]) == ("https://app.example", "App")


def test_auto_and_variants_are_routed(client: openai.OpenAI) -> None:
    """`openrouter/auto` and `:floor` mean the router, which chooses among the file's models."""
    for name in ("openrouter/auto", "openai/gpt-5-mini:floor"):
        answer, model = ask(client, name, tools=TOOLS)
        assert model == "google/gemini-2.5-flash-lite"
        assert answer.choices[0].message.tool_calls
