"""One client's mistakes and failures do not affect other clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from router_service.core.keys import new_key
from router_service.serving.app import create_app
from router_service.settings import (
    BreakerSettings,
    Deployment,
    KeySettings,
    Model,
    RetrySettings,
    Settings,
    UpstreamSettings,
)
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import served, wait_for, wait_for_async

KEYS = {name: new_key() for name in ("attacker", "victim", "other")}
WANTED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


@dataclass
class Provider:
    """Upstream that refuses what OpenAI refuses; a message's text can select its answer."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of all requests."""
    knows_options: bool = True
    hanging: int = 0
    """Number of requests that wait until their client leaves."""

    @property
    def app(self) -> Starlette:
        """The upstream as an app."""
        return Starlette(routes=[Route("/v1/{path:path}", self._answer, methods=["POST"])])

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append(body)
        text = str(body.get("messages") or body.get("prompt"))
        if "stream_options" in body and (wrong := self._wrong_with_options(request, body)):
            return refusal(400, wrong)
        if body.get("temperature", 1) > 2:
            return refusal(422, f"'temperature' is too high. Your request was: {text}")
        if "hang" in text:
            self.hanging += 1
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.hanging -= 1
        for word, answer in ANSWERS.items():
            if word in text:
                return answer()
        if not body.get("stream"):
            message = {"role": "assistant", "content": "good"}
            return JSONResponse({"choices": [{"message": message}], "usage": USAGE})
        used: dict[str, object] = {"choices": [], "usage": USAGE}
        return events(
            {"choices": [{"index": 0, "delta": {"content": "good"}}]},
            *([used] if body.get("stream_options") else ()),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            is_whole=True,
        )

    def _wrong_with_options(self, request: Request, body: dict[str, Any]) -> str | None:
        if request.url.path == "/v1/completions":
            return "Unknown parameter: 'stream_options'"
        if not (self.knows_options and body.get("stream")):
            return "'stream_options' is only allowed with 'stream'"
        if "data_sources" in body:
            return "'stream_options' cannot be combined with 'data_sources'"
        unknown = body["stream_options"].keys() - {"include_usage"}
        return f"Unknown parameter: 'stream_options.{unknown}'" if unknown else None


def refusal(status: int, message: str) -> Response:
    """Return an error in OpenAI's form."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status)


def events(*data: dict[str, object], is_whole: bool = False) -> Response:
    """Return a stream of events, and its end if it is whole."""
    texts = [json.dumps(item) for item in data] + ["[DONE]"] * is_whole
    return Response("".join(f"data: {text}\n\n" for text in texts), media_type="text/event-stream")


ANSWERS: dict[str, Callable[[], Response]] = {
    "poison": lambda: refusal(500, "The server had an error"),
    "firewall": lambda: refusal(403, "blocked"),
    "moderated": lambda: refusal(403, "flagged"),
    "unpaid": lambda: refusal(402, "fewer max_tokens"),
    "conflict": lambda: refusal(409, "this idempotency key is in use"),
    "too large": lambda: refusal(429, "Request too large for m on tokens per min"),
    "bad image": lambda: JSONResponse(
        {"status": "failed", "error": {"code": "invalid_image_url", "message": "no"}}
    ),
    "bad stream": lambda: events(
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"error": {"code": "image_too_small", "message": "The image is too small."}},
    ),
    "router's code": lambda: events({"error": {"code": 403, "message": "flagged"}}),
}


@dataclass(frozen=True)
class GatewayWithProvider:
    """Gateway with keys in front of a provider."""

    url: str
    provider: Provider

    def ask(self, client: str, path: str = CHAT, **fields: object) -> httpx.Response:
        """Send a client's request to the model `medium`."""
        needed: dict[str, object] = {"prompt": "x"} if path != CHAT else {"messages": ASK}
        headers = {"authorization": f"Bearer {KEYS[client]}"} if client in KEYS else {}
        body = {"model": "medium", **needed, **fields}
        return httpx.post(self.url + path, json=body, headers=headers)

    def says(self, client: str, text: str, **fields: object) -> httpx.Response:
        """Send a chat request with a text."""
        return self.ask(client, CHAT, messages=[{"role": "user", "content": text}], **fields)


@contextmanager
def serve_gateway(
    *, has_keys: bool = True, max_connections: int = 500
) -> Iterator[GatewayWithProvider]:
    """Serve a gateway with one deployment, whose circuit opens at the second failure."""
    provider = Provider()
    with served(provider.app) as upstream:
        place = Deployment(upstream_model="m", base_url=f"{upstream}/v1")
        models = tuple(Model(name=arm, deployments=(place,)) for arm in FakeRouter().probabilities)
        keys = {name: SecretStr(key) for name, key in KEYS.items()} if has_keys else {}
        upstreams = UpstreamSettings(
            retries=RetrySettings(max_retries=0),
            breaker=BreakerSettings(allowed_fails=1, cooldown_s=60),
            max_connections=max_connections,
        )
        settings = Settings(models=models, upstreams=upstreams, keys=KeySettings(api=keys))
        with served(create_app(settings, FakeRouter())) as url:
            yield GatewayWithProvider(url, provider)


def has_usage(gateway: GatewayWithProvider, client: str) -> bool:
    """Return whether a client's stream has the provider's usage after a single request."""
    before = len(gateway.provider.seen)
    answer = gateway.ask(client, **WANTED)
    assert answer.status_code == 200
    assert len(gateway.provider.seen) == before + 1
    return '"completion_tokens": 2' in answer.text


MISTAKES: dict[str, dict[str, Any]] = {
    "without stream": {"stream_options": {"include_usage": True}},
    "unknown": {"stream": True, "stream_options": {"include_usage": True, "x": 1}},
    "a number": {"stream": True, "stream_options": {"include_usage": 1, "y": 1}},
    "a text": WANTED
    | {"temperature": 3, "messages": [{"role": "user", "content": "stream_options"}]},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_invalid_stream_options_disable_usage_for_nobody(name: str) -> None:
    """A refusal that the request itself may have caused changes nothing for the deployment."""
    with serve_gateway() as gateway:
        for _ in range(3):
            assert gateway.ask("attacker", **MISTAKES[name]).status_code in {400, 422}
        assert has_usage(gateway, "victim")
        assert has_usage(gateway, "attacker")


def test_refused_combination_of_options_affects_only_its_client() -> None:
    """If an option is refused only in a combination, the answer comes without the usage.

    The gateway remembers this only for the same client and endpoint.
    """
    with serve_gateway() as gateway:
        assert gateway.ask("attacker", **WANTED, data_sources=[1]).status_code == 200
        assert len(gateway.provider.seen) == 2
        assert not has_usage(gateway, "attacker")
        assert has_usage(gateway, "victim")


def test_unsupported_option_is_omitted_after_a_clients_first_request() -> None:
    """Each client's first request discovers the missing option; its next ones omit the option."""
    with serve_gateway() as gateway:
        gateway.provider.knows_options = False
        for client in ("victim", "other"):
            before = len(gateway.provider.seen)
            for _ in range(3):
                answer = gateway.ask(client, **WANTED)
                assert (answer.status_code, answer.text.count("[DONE]")) == (200, 1)
            assert len(gateway.provider.seen) == before + 4
        # An invalid request is still refused, because the gateway repairs no requests.
        assert gateway.ask("victim", **MISTAKES["without stream"]).status_code == 400


@pytest.mark.parametrize("word", [word for word in ANSWERS if word != "poison"])
def test_refusals_that_a_client_can_cause_open_no_circuit(word: str) -> None:
    """Such refusals do not count as failures for any client, with or without keys."""
    with serve_gateway(has_keys=False) as gateway:
        for _ in range(6):
            gateway.says("", word, stream="stream" in word)
        assert gateway.ask("").status_code == 200


@pytest.mark.parametrize("has_been_there", [True, False])
def test_one_clients_failures_open_no_circuit_for_others(has_been_there: bool) -> None:
    """The circuit opens only for the client whose requests fail; others are answered."""
    with serve_gateway() as gateway:
        if has_been_there:
            assert gateway.ask("victim").status_code == 200
        for _ in range(10):
            assert gateway.says("attacker", "poison").status_code in {500, 503}
            assert gateway.ask("victim" if has_been_there else "other").status_code == 200
        for _ in range(5):
            assert gateway.says("attacker", "poison").status_code in {500, 503}
        for client in ("victim", "other"):
            assert gateway.ask(client).status_code == 200


def test_one_client_does_not_hold_all_connections() -> None:
    """While an upstream hangs for one client, there is a connection for another one."""

    async def attack(gateway: GatewayWithProvider) -> httpx.Response:
        async def is_hanging() -> bool:
            return gateway.provider.hanging == 6

        body = BODY | {"model": "medium", "messages": [{"role": "user", "content": "hang"}]}
        headers = {"authorization": f"Bearer {KEYS['attacker']}"}
        async with httpx.AsyncClient() as client, anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(
                    lambda: client.post(gateway.url + CHAT, json=body, headers=headers)
                )
            await wait_for_async(is_hanging, "the attacker has its share of the connections")
            answer = await anyio.to_thread.run_sync(gateway.ask, "victim")
            assert gateway.provider.hanging == 6  # three quarters
            group.cancel_scope.cancel()
        return answer

    with serve_gateway(max_connections=8) as gateway:
        assert anyio.run(attack, gateway).status_code == 200
        wait_for(lambda: gateway.provider.hanging == 0, "all connections are free again")
        assert gateway.ask("attacker").status_code == 200
