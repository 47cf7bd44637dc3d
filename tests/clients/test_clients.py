"""What the vendors' SDKs make of failures, by each API, and switches between models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any

import anthropic
import httpx
import openai
import pytest

from router_service.apis.parts import Text, Thinking, ToolUse
from router_service.router import Router
from router_service.serving.app import create_app
from tests import apis
from tests.answering import settings_of
from tests.apis import APIS, Api, UpstreamApi
from tests.dialect_answers import Clients, StreamFailedError
from tests.fakes import PROBABILITIES, FakeRouter
from tests.goldens.exchanges import ask
from tests.goldens.recording import ARTIFACT, configuration, read_configuration
from tests.goldens.scripted import MODELS, Play, ScriptedUpstream
from tests.serving import served

MODEL = "sonnet"
TEXT = Text("It is -3 °C in Tromsø, and the sky is clear. ☀")
FAULTS: dict[str, Sequence[Play]] = {
    "error before output": [Play(status=429), Play(status=500)],
    "error in mid-stream": [Play([TEXT], has_error=True)],
    "cut stream": [Play([TEXT], is_cut=True)],
}


@dataclass(frozen=True)
class Matrix:
    """A gateway for each API of upstreams, in front of one upstream that has them all."""

    clients: dict[UpstreamApi, Clients]
    """The clients of each gateway."""
    upstream: ScriptedUpstream


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    """Start the upstream, and a gateway that reaches it by each API."""
    router, upstream = Router.load(ARTIFACT), ScriptedUpstream()
    with ExitStack() as stack:
        address, clients = stack.enter_context(served(upstream)), {}
        for api in APIS.of_upstreams:
            text = configuration(address, dict.fromkeys(MODELS, api), has_keys=False)
            url = stack.enter_context(served(create_app(read_configuration(text), router)))
            clients[api] = Clients(
                openai.OpenAI(base_url=f"{url}/v1", api_key="client-key", max_retries=0),
                anthropic.Anthropic(base_url=url, api_key="client-key", max_retries=0),
            )
        yield Matrix(clients, upstream)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream_api", APIS.of_upstreams)
@pytest.mark.parametrize("client", APIS)
def test_clients_get_an_error_of_their_own_api(
    matrix: Matrix, client: Api, upstream_api: UpstreamApi, fault: str, *, stream: bool
) -> None:
    """However an upstream fails, the vendor's SDK raises an explicit error, with its status."""
    for play in FAULTS[fault]:
        matrix.upstream.script = {MODEL: [play] * 4}  # also for the gateway's retries
        try:
            found = matrix.clients[upstream_api].ask(client, stream=stream, model=MODEL)
        except (openai.APIError, anthropic.APIError, StreamFailedError) as exc:
            error: Exception = exc
        else:
            raise AssertionError(f"no error: {found}")
        assert "Connection" not in type(error).__name__, f"not an error, but a break: {error!r}"
        if play.status != 200 or not stream:
            status = getattr(error, "status_code", None)
            least = 429 if play.status == 429 else 500
            assert status is not None, f"no status: {error!r}"
            assert least <= status < least + 100, f"status: {status}"
        if play.status != 200 or (play.has_error and stream):
            assert "The scripted" in str(error), f"message: {error!r}"


NAMES = ("haiku", "sonnet", "opus")
POOLS = (
    (apis.MESSAGES, apis.RESPONSES, apis.CONVERSE),
    (apis.MESSAGES, apis.MESSAGES, apis.CHAT),
    (apis.RESPONSES, apis.RESPONSES, apis.CHAT),
)
"""The APIs of a gateway's three models, each of which is at a provider of its own."""


@pytest.fixture(scope="module")
def upstream() -> ScriptedUpstream:
    """Return the upstream of all models."""
    return ScriptedUpstream()


@pytest.fixture(scope="module")
def gateways(upstream: ScriptedUpstream) -> Iterator[list[httpx.Client]]:
    """Yield a client of a gateway for each pool."""
    router = Router.load(ARTIFACT)
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(served(upstream)) for name in NAMES}
        clients = []
        for pool in POOLS:
            text = configuration("ADDRESS", dict(zip(NAMES, pool, strict=True)), has_keys=False)
            for name, address in addresses.items():
                text = text.replace(f"ADDRESS/{name}", f"{address}/{name}")
            url = stack.enter_context(served(create_app(read_configuration(text), router)))
            clients.append(stack.enter_context(httpx.Client(base_url=url)))
        yield clients


def with_answer(api: Api, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return a request that continues after an answer, with the results of its calls."""
    if api is apis.RESPONSES:
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
            for item in answer["output"]
            if item["type"] == "function_call"
        ]
        return body | {"input": [*body["input"], *answer["output"], *results]}
    if api is apis.CHAT:
        message = answer["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            for call in message["tool_calls"]
        ]
        return body | {"messages": [*body["messages"], message, *results]}
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "rain"}
        for block in answer["content"]
        if block["type"] == "tool_use"
    ]
    said = {"role": "assistant", "content": answer["content"]}
    return body | {"messages": [*body["messages"], said, {"role": "user", "content": results}]}


@pytest.mark.parametrize("pool", range(len(POOLS)))
@pytest.mark.parametrize("client", APIS)
def test_reasoning_reaches_only_the_provider_that_has_signed_it(
    gateways: list[httpx.Client], upstream: ScriptedUpstream, client: Api, pool: int
) -> None:
    """In each direction, a model gets its own reasoning back, and none of another provider's."""
    for number, (first, second) in enumerate(product(range(len(NAMES)), repeat=2)):
        proof = f"EpProof{number:02}Of{first}0="
        call = ToolUse(f"toolu_{number}", "get_forecast", '{"city": "Lisbon"}')
        thinking = Play([Thinking("Lisbon is in Portugal.", proof), call])
        upstream.script = {NAMES[first]: [thinking], NAMES[second]: [thinking, thinking]}
        body = ask(client, NAMES[first], stream=False)
        if client is apis.MESSAGES:
            body |= {"max_tokens": 2048, "temperature": 1}
            body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        path = f"/v1{client.path}"
        answer = gateways[pool].post(path, json=body)
        assert answer.is_success, answer.text
        further = with_answer(client, body | {"model": NAMES[second]}, answer.json())
        assert gateways[pool].post(path, json=further).is_success
        sent = json.dumps(json.loads(upstream.received[-1].body))
        if POOLS[pool][second] is not apis.CHAT:  # which has no proofs, and gets what clients send
            assert (proof in sent) == (first == second), (client, first, second, sent)
        assert call.id in sent


def test_long_ids_of_calls_are_shortened_for_openai(upstream: ScriptedUpstream) -> None:
    """Ids of another provider, which OpenAI would reject, are shortened in calls and results."""
    with served(upstream) as address:
        settings = settings_of(f"{address}/v1", dict.fromkeys(PROBABILITIES, apis.CHAT))
        model, *others = settings.models
        place = model.deployments[0].model_copy(
            update={"provider": "openai", "upstream_model": NAMES[0]}
        )
        models = (model.model_copy(update={"deployments": (place,)}), *others)
        app = create_app(settings.model_copy(update={"models": models}), FakeRouter())
        upstream.script = {NAMES[0]: [Play([ToolUse("c", "get_forecast", "{}")])]}
        long_id = "call-" * 20
        message = {"role": "assistant", "content": None, "tool_calls": [_call(long_id)]}
        result = {"role": "tool", "tool_call_id": long_id, "content": "rain"}
        body = ask(apis.CHAT, model.name, stream=False)
        body["messages"] = [*body["messages"], message, result]
        with served(app) as url:
            assert httpx.post(f"{url}/v1/chat/completions", json=body).is_success
    *_, called, returned = json.loads(upstream.received[-1].body)["messages"]
    assert called["tool_calls"][0]["id"] == returned["tool_call_id"]
    assert len(returned["tool_call_id"]) <= 40


def _call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
