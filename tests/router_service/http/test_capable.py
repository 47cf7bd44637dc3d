"""Models that lack a capability of a request are excluded before the choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from router_service.apis.capabilities import Capabilities, Feature
from router_service.settings import RouterSettings, Settings
from tests import apis
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, record_of
from tests.serving import Sandbox

IMAGE = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "https://h/cat.png"}},
        ],
    }
]
BLIND = Capabilities(unsupported=frozenset({Feature.IMAGES}))
SHORT = Capabilities(context_window_tokens=50)


@contextmanager
def gateway(
    sandbox: Sandbox, known: dict[str, Capabilities], chat_model: str | None = None
) -> Iterator[httpx.Client]:
    """Serve the models small, medium and large with these capabilities."""
    base = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    models = tuple(
        model.model_copy(update={"capabilities": known.get(model.name, Capabilities())})
        for model in base.models
    )
    router = RouterSettings(chat_model=chat_model)
    settings = base.model_copy(update={"models": models, "router": router})
    with gateway_client(settings, FakeRouter()) as http:
        yield http


def chosen(http: httpx.Client, **fields: object) -> str:
    """Return the model that answers this request."""
    response = http.post(CHAT, json=BODY | fields)
    assert response.status_code == 200, response.text
    return response.headers["x-switchcraft-model"]


def test_router_chooses_among_capable_models(sandbox: Sandbox) -> None:
    """With an image, the cheapest good model with vision is chosen; otherwise nothing changes."""
    with gateway(sandbox, {"medium": BLIND}) as http:
        assert chosen(http) == "medium"
        assert chosen(http, messages=IMAGE) == "large"
        response = http.post(CHAT, json=BODY | {"messages": IMAGE})
        assert set(record_of(http, response)["probabilities"]) == {"small", "large"}


def test_long_input_goes_to_a_model_with_a_large_window(sandbox: Sandbox) -> None:
    """An input that exceeds a model's context window goes to the others."""
    long: Any = [{"role": "user", "content": "word " * 100}]
    with gateway(sandbox, {"medium": SHORT}) as http:
        assert chosen(http) == "medium"
        assert chosen(http, messages=long) == "large"


def test_model_without_an_endpoint_is_not_chosen_for_it(sandbox: Sandbox) -> None:
    """A model that serves only chat completions is not chosen for a Responses request."""
    chat_alone = Capabilities(unsupported=frozenset({apis.RESPONSES.title}))
    tools = [{"type": "function", **tool["function"]} for tool in BODY["tools"]]
    body = {"model": "switchcraft", "input": "What is the weather in Oslo?", "tools": tools}
    with gateway(sandbox, {"medium": chat_alone}) as http:
        assert chosen(http) == "medium"
        response = http.post("/v1/responses", json=body)
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "large")


def test_plain_chat_goes_to_a_capable_model(sandbox: Sandbox) -> None:
    """If the chat model lacks vision, an image goes to the cheapest arm that has it."""
    with gateway(sandbox, {"large": BLIND, "small": BLIND}, chat_model="large") as http:
        assert chosen(http, tools=[]) == "large"
        assert chosen(http, tools=[], messages=IMAGE) == "medium"


@pytest.mark.parametrize(
    ("known", "messages", "code"),
    [
        (dict.fromkeys(("small", "medium", "large"), BLIND), IMAGE, "unsupported_feature"),
        (
            {"small": BLIND, "medium": BLIND, "large": SHORT},
            [IMAGE[0], {"role": "user", "content": "word " * 100}],
            "context_length_exceeded",
        ),
    ],
)
def test_error_lists_missing_capabilities_if_no_model_is_capable(
    sandbox: Sandbox, known: dict[str, Capabilities], messages: list[object], code: str
) -> None:
    """No model is called, and the error says what each model lacks and what would help."""
    with gateway(sandbox, known) as http:
        response = http.post(CHAT, json=BODY | {"messages": messages})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, code)
    assert "'small' does not support images" in error["message"]
    assert "'large' does not support" in error["message"]


def test_capabilities_do_not_restrict_named_models(sandbox: Sandbox) -> None:
    """A request that names a model goes to it; its upstream decides whether it can answer."""
    with gateway(sandbox, {"medium": BLIND}) as http:
        assert chosen(http, model="medium", messages=IMAGE) == "medium"
        assert chosen(http, model="medium", messages=ASK) == "medium"
