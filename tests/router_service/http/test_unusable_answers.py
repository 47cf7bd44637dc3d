"""Answers that no client can use: another model answers, and the failed one is billed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import orjson
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from router_service.serving.app import create_app
from router_service.settings import BreakerSettings, Settings, UpstreamSettings
from tests.answering import MODELS, settings_of
from tests.apis import CHAT, MESSAGES, RESPONSES, Api
from tests.bodies import ASK, BODY
from tests.dialect_answers import CALL, Content, events, whole
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import NO_RETRIES, VERIFIED, record_of, sandbox_settings
from tests.serving import WAIT_S, served

GOOD = Content(calls=(CALL,), stop="calls")
UNKNOWN = Content(calls=(("toolu_01A", "get_forecast", "{}"),), stop="calls")
EMPTY = Content()
THINKING = Content(thinking="Hm.")
FUNCTION = BODY["tools"][0]["function"]
REQUESTS: Mapping[Api, dict[str, Any]] = {
    CHAT: BODY,
    RESPONSES: {
        "model": "switchcraft",
        "input": "Weather in Oslo?",
        "store": False,
        "tools": [{"type": "function", **FUNCTION}],
    },
    MESSAGES: {
        "model": "switchcraft",
        "max_tokens": 100,
        "messages": ASK,
        "tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
    },
}


def written(content: Content, api: Api = CHAT, *, stream: bool = False) -> tuple[bytes, ...]:
    """Return an answer in an API, or the events of a streamed one."""
    if not stream:
        return (orjson.dumps(whole(content, api)),)
    lines = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events(content, api, 100)]
    return (*lines, b"data: [DONE]\n\n") if api is CHAT else tuple(lines)


def cut(api: Api = CHAT, *, stream: bool = False, stop: str = "calls") -> tuple[bytes, ...]:
    """Return an answer whose only call has `{"city":"Os` as its arguments."""
    parts = written(Content(calls=(CALL,), stop=stop), api, stream=stream)
    if api is MESSAGES and not stream:  # whose calls have objects
        return tuple(part.replace(b'{"city":"Oslo"}', b'"Os"') for part in parts)
    return tuple(part.replace(b'Oslo\\"}', b"Os") for part in parts)


@dataclass
class Models:
    """ASGI app of an upstream that gives each model its answers, whole or in parts."""

    answers: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    release: threading.Event | None = None
    """If set, what follows the third part waits for it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = await Request(scope, receive).json()
        self.asked.append(body["model"])
        kind = b"text/event-stream" if body.get("stream") else b"application/json"
        head = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for place, part in enumerate(self.answers[body["model"]]):
            if place == 3 and self.release is not None:
                await anyio.to_thread.run_sync(self.release.wait, WAIT_S)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True)
class House:
    """A gateway whose models `small`, `medium` and `large` answer as a test says."""

    http: httpx.Client
    models: Models

    def ask(
        self,
        api: Api = CHAT,
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
        **fields: object,
    ) -> httpx.Response:
        """Ask in an API, with some fields replaced."""
        body = REQUESTS[api] | {"stream": stream} | fields
        return self.http.post(f"/v1{api.path}", json=body, headers=headers)


Change = Callable[[Settings, str], Settings]


@contextmanager
def house_of(router: FakeRouter, change: Change | None = None) -> Iterator[House]:
    """Serve a gateway with a router; `change` may change its settings."""
    models = Models()
    with served(models) as url:
        settings: Settings = sandbox_settings(f"{url}/v1", NO_RETRIES)
        settings = change(settings, url) if change else settings
        with (
            served(create_app(settings, router)) as gateway,
            httpx.Client(base_url=gateway, timeout=20) as http,
        ):
            yield House(http, models)


@pytest.fixture(scope="module")
def verifying() -> Iterator[House]:
    """Yield a gateway that asks `small`, `medium`, `large`, and trusts the first one most."""
    with house_of(VerifyingRouter(trust={"small": 0.99, "medium": 0.6, "large": 0.7})) as house:
        yield house


@pytest.fixture(scope="module")
def choosing() -> Iterator[House]:
    """Yield a gateway that chooses `medium`, then `large`, then `small`."""
    with house_of(FakeRouter()) as house:
        yield house


@pytest.fixture(autouse=True)
def forget(verifying: House, choosing: House) -> None:
    """Forget which models were asked."""
    for house in (verifying, choosing):
        house.models.asked.clear()


def bad_answer(kind: str, api: Api, *, stream: bool) -> tuple[bytes, ...]:
    """Return an answer of a kind that cannot be used."""
    if kind == "cut":
        return cut(api, stream=stream)
    content = {"unknown": UNKNOWN, "empty": EMPTY, "thinking": THINKING}[kind]
    return written(content, api, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", REQUESTS, ids=str)
@pytest.mark.parametrize("kind", ["cut", "unknown", "empty", "thinking"])
def test_verification_asks_another_arm(verifying: House, api: Api, kind: str, stream: bool) -> None:
    """An answer that cannot be used is not delivered, however much its model is trusted."""
    good = written(GOOD, api, stream=stream)
    bad = bad_answer(kind, api, stream=stream)
    verifying.models.answers = {"small": bad, "medium": good}
    response = verifying.ask(api, stream=stream, headers=VERIFIED)
    assert (response.status_code, response.content) == (200, b"".join(good))
    assert response.headers["x-switchcraft-p-correct"] == "0.6000"
    record = record_of(verifying.http, response)
    found = [
        (c["arm"], c["is_accepted"], c["p_correct"], c["failure"]) for c in record["candidates"]
    ]
    assert found == [("small", False, 0.0, "unusable"), ("medium", True, 0.6, None)]
    assert record["actual_cost_usd"] == pytest.approx(
        sum(c["cost_usd"] for c in record["candidates"])
    )
    assert min(c["cost_usd"] for c in record["candidates"]) > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["cut", "unknown", "empty"])
def test_if_no_candidate_can_be_used_all_models_have_failed(
    verifying: House, kind: str, stream: bool
) -> None:
    """The client gets the error of the first model, which says what was wrong with its answer."""
    bad = bad_answer(kind, CHAT, stream=stream)
    verifying.models.answers = dict.fromkeys(("small", "medium", "large"), bad)
    response = verifying.ask(stream=stream, headers=VERIFIED)
    assert response.status_code == 502
    assert "'small'" in response.json()["error"]["message"]
    assert verifying.models.asked == ["small", "medium", "large"]
    record = record_of(verifying.http, response)
    assert {c["failure"] for c in record["candidates"]} == {"unusable"}
    assert record["ending"] == "failed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", REQUESTS, ids=str)
def test_answers_that_the_clients_limit_cuts_off_are_the_last_resort(
    verifying: House, api: Api, stream: bool
) -> None:
    """If every answer is cut off by the client's limit, the likeliest one is delivered."""
    good, bad = written(GOOD, api, stream=stream), cut(api, stream=stream, stop="length")
    names = ("small", "medium", "large")
    verifying.models.answers = {**dict.fromkeys(names, bad), "large": good}
    response = verifying.ask(api, stream=stream, headers=VERIFIED)
    assert (response.headers["x-switchcraft-model"], response.content) == ("large", b"".join(good))
    verifying.models.answers = dict.fromkeys(names, bad)
    response = verifying.ask(api, stream=stream, headers=VERIFIED)
    assert (response.status_code, response.content) == (200, b"".join(bad))
    assert response.headers["x-switchcraft-model"] == "large"  # by the router's probabilities
    assert response.headers["x-switchcraft-unverified"] == "candidates_failed"
    assert "no model gave an answer that can be used" in response.headers["x-switchcraft-why"]


def test_turn_that_ends_silently_after_a_result_is_no_error(verifying: House) -> None:
    """If every model says nothing after a tool's result, the agent's turn is over."""
    empty = written(EMPTY)
    verifying.models.answers = dict.fromkeys(("small", "medium", "large"), empty)
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "Rain"},
    ]  # fmt: skip
    response = verifying.ask(headers=VERIFIED, messages=turns)
    assert (response.status_code, response.content) == (200, empty[0])


@pytest.mark.parametrize("api", REQUESTS, ids=str)
@pytest.mark.parametrize("kind", ["cut", "unknown", "empty", "thinking"])
def test_next_model_answers_if_one_model_was_chosen(choosing: House, api: Api, kind: str) -> None:
    """A whole answer that cannot be used is billed, and a reason for the next model."""
    good = written(GOOD, api)
    choosing.models.answers = {"medium": bad_answer(kind, api, stream=False), "large": good}
    response = choosing.ask(api)
    assert (response.status_code, response.content) == (200, good[0])
    assert response.headers["x-switchcraft-reason"] == "fallback"
    assert response.headers["x-switchcraft-attempts"] == "2"
    record = record_of(choosing.http, response)
    assert (record["model"], record["attempts"]) == ("large", 2)
    assert record["actual_cost_usd"] == pytest.approx(
        float(response.headers["x-switchcraft-cost-usd"])
    )
    alone = choosing.ask(api, model="large")
    assert record["actual_cost_usd"] > float(alone.headers["x-switchcraft-cost-usd"])


def test_chosen_models_error_is_sent_if_no_answer_can_be_used(choosing: House) -> None:
    """If no model makes a call that can be used, the client gets the chosen model's error."""
    choosing.models.answers = dict.fromkeys(("small", "medium", "large"), cut())
    response = choosing.ask()
    assert response.status_code == 502
    assert "'medium' called 'get_weather' with arguments" in response.json()["error"]["message"]
    assert choosing.models.asked == ["medium", "large", "small"]
    record = record_of(choosing.http, response)
    assert (record["model"], record["ending"]) == ("medium", "failed")


@pytest.mark.parametrize("bad", [written(EMPTY), cut(stop="length")], ids=["empty", "length"])
def test_chosen_models_answer_is_better_than_an_error(
    choosing: House, bad: tuple[bytes, ...]
) -> None:
    """An empty answer, and one that the client's limit has cut off, are delivered in the end."""
    choosing.models.answers = dict.fromkeys(("small", "medium", "large"), bad)
    response = choosing.ask()
    assert (response.status_code, response.content) == (200, bad[0])
    assert response.headers["x-switchcraft-model"] == "medium"
    assert choosing.models.asked == ["medium", "large", "small"]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"tools": None, "max_tokens": 1}, Content(stop="length")),
        ({"stop": ["\n"]}, EMPTY),
        ({"n": 2}, EMPTY),
    ],
)
def test_answers_that_are_empty_by_request_are_relayed(
    choosing: House, fields: dict[str, Any], content: Content
) -> None:
    """Limits, stop texts and several choices explain an empty answer, so no other model answers."""
    answer = written(content)
    choosing.models.answers = dict.fromkeys(("small", "medium", "large"), answer)
    response = choosing.ask(**fields)
    assert (response.status_code, response.content) == (200, answer[0])
    assert len(choosing.models.asked) == 1


@pytest.mark.parametrize("api", REQUESTS, ids=str)
def test_stream_that_ends_without_output_leads_to_the_next_model(choosing: House, api: Api) -> None:
    """What can be known before the first output is sent counts: the stream has ended empty."""
    good = written(GOOD, api, stream=True)
    choosing.models.answers = {"medium": written(EMPTY, api, stream=True), "large": good}
    response = choosing.ask(api, stream=True)
    assert (response.content, response.headers["x-switchcraft-reason"]) == (
        b"".join(good),
        "fallback",
    )


def test_after_the_first_output_there_is_no_second_answer(choosing: House) -> None:
    """A stream whose call turns out to be cut off later is relayed to its end."""
    bad = cut(stream=True)
    choosing.models.answers = {"medium": bad, "large": written(GOOD, stream=True)}
    choosing.models.release = threading.Event()
    body, received = BODY | {"stream": True}, b""
    with choosing.http.stream("POST", "/v1/chat/completions", json=body) as response:
        for part in response.iter_raw():
            received += part
            choosing.models.release.set()
    choosing.models.release = None
    assert received == b"".join(bad)
    assert choosing.models.asked == ["medium"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", REQUESTS, ids=str)
@pytest.mark.parametrize("kind", ["cut", "unknown", "empty"])
def test_named_model_without_fallback_is_relayed_unchanged(
    choosing: House, api: Api, kind: str, stream: bool
) -> None:
    """A client that names a model without a fallback gets what that model answers."""
    bad = bad_answer(kind, api, stream=stream)
    choosing.models.answers = {"small": bad}
    response = choosing.ask(api, stream=stream, model="small")
    assert (response.status_code, response.content) == (200, b"".join(bad))
    assert choosing.models.asked == ["small"]


@pytest.fixture(scope="module")
def falling_back() -> Iterator[House]:
    """Yield a gateway whose model `small` has the fallback `medium`."""

    def change(settings: Settings, _: str) -> Settings:
        models = [
            model.model_copy(update={"fallbacks": ("medium",) if model.name == "small" else ()})
            for model in settings.models
        ]
        return settings.model_copy(update={"models": tuple(models)})

    with house_of(FakeRouter(), change) as house:
        yield house


@pytest.mark.parametrize("stream", [False, True])
def test_named_models_fallback_answers(falling_back: House, stream: bool) -> None:
    """A configured fallback answers; if it does not, the named model's answer is relayed."""
    bad, good = written(EMPTY, stream=stream), written(GOOD, stream=stream)
    falling_back.models.answers = {"small": bad, "medium": good}
    response = falling_back.ask(stream=stream, model="small")
    assert (response.content, response.headers["x-switchcraft-model"]) == (b"".join(good), "medium")
    falling_back.models.answers = {"small": bad, "medium": bad}
    response = falling_back.ask(stream=stream, model="small")
    assert (response.status_code, response.content) == (200, b"".join(bad))
    assert response.headers["x-switchcraft-model"] == "small"
    if not stream:
        for broken in (cut(), written(UNKNOWN)):
            falling_back.models.answers = {"small": broken, "medium": good}
            assert falling_back.ask(model="small").content == good[0]


@pytest.mark.parametrize("kind", ["cut", "empty", "length"])
def test_no_circuit_opens(kind: str) -> None:
    """What a model writes depends on the request, so that no answer touches a breaker."""
    strict = BreakerSettings(allowed_fails=0, cooldown_s=60)
    upstreams = UpstreamSettings(retries=NO_RETRIES.retries, breaker=strict)

    def change(settings: Settings, _: str) -> Settings:
        return settings.model_copy(update={"upstreams": upstreams})

    for router, headers in ((FakeRouter(), {}), (VerifyingRouter(), VERIFIED)):
        with house_of(router, change) as house:
            bad = cut(stop="length") if kind == "length" else bad_answer(kind, CHAT, stream=False)
            house.models.answers = dict.fromkeys(("small", "medium", "large"), bad)
            for _ in range(6):
                house.ask(headers=headers)
            house.models.asked.clear()
            house.ask(headers=headers)
            assert len(house.models.asked) == 3


@pytest.mark.parametrize("client", REQUESTS, ids=str)
@pytest.mark.parametrize("upstream", REQUESTS, ids=str)
def test_translated_answers_are_judged_too(client: Api, upstream: Api) -> None:
    """A model that speaks another API than the client fails in the same ways."""

    def change(_: Settings, url: str) -> Settings:
        return settings_of(f"{url}/v1", dict.fromkeys(MODELS.values(), upstream), NO_RETRIES)

    with house_of(FakeRouter(), change) as house:
        for kind in ("cut", "unknown", "empty"):
            house.models.answers = {
                "medium": bad_answer(kind, upstream, stream=False),
                "large": written(GOOD, upstream),
            }
            response = house.ask(client)
            assert response.headers["x-switchcraft-model"] == "large", kind
            assert b"Oslo" in response.content
        house.models.answers["medium"] = written(EMPTY, upstream, stream=True)
        house.models.answers["large"] = written(GOOD, upstream, stream=True)
        response = house.ask(client, stream=True)
        assert response.headers["x-switchcraft-model"] == "large"
