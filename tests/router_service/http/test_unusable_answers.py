"""Answers that no client can use: another model answers, and the failed one is billed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import orjson
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from router_service.settings import BreakerSettings, UpstreamSettings
from tests.apis import CHAT, MESSAGES, RESPONSES, Api
from tests.bodies import ASK, BODY
from tests.dialect_answers import CALL, CASES, Content, events, whole
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import NO_RETRIES, VERIFIED, gateway_client, record_of, sandbox_settings
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


@contextmanager
def house_of(router: FakeRouter, **section: object) -> Iterator[House]:
    """Serve a gateway whose breakers open at the first failure, and whose `small` has a fallback.

    `section` has the settings of `router`.
    """
    models, strict = Models(), BreakerSettings(allowed_fails=0, cooldown_s=60)
    upstreams = UpstreamSettings(retries=NO_RETRIES.retries, breaker=strict)
    with served(models) as url:
        settings = sandbox_settings(f"{url}/v1", upstreams, **section)
        small, *others = settings.models
        small = small.model_copy(update={"fallbacks": ("medium",)})
        settings = settings.model_copy(update={"models": (small, *others)})
        with gateway_client(settings, router) as http:
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
def _forget(verifying: House, choosing: House) -> None:
    """Forget which models were asked."""
    for house in (verifying, choosing):
        house.models.asked.clear()


def bad_answer(kind: str, api: Api, *, stream: bool) -> tuple[bytes, ...]:
    """Return an answer of a kind that cannot be used."""
    if kind == "cut":
        return cut(api, stream=stream)
    content = {"unknown": UNKNOWN, "empty": EMPTY, "thinking": THINKING}[kind]
    return written(content, api, stream=stream)


BAD = ("cut", "unknown", "empty", "thinking")


@pytest.mark.parametrize(
    ("api", "kind", "stream"),
    [*((api, kind, False) for api in REQUESTS for kind in BAD), *((CHAT, x, True) for x in BAD)],
)
def test_verification_asks_another_arm(verifying: House, api: Api, kind: str, stream: bool) -> None:
    """An answer that cannot be used is not delivered, however much its model is trusted.

    If no candidate can be used, the client gets the error of the first model.
    """
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
    costs_usd = [c["cost_usd"] for c in record["candidates"]]
    assert (min(costs_usd) > 0, record["actual_cost_usd"]) == (True, pytest.approx(sum(costs_usd)))
    if kind == "thinking":
        return
    verifying.models.answers = dict.fromkeys(("small", "medium", "large"), bad)
    verifying.models.asked.clear()
    response = verifying.ask(api, stream=stream, headers=VERIFIED)
    assert response.status_code == 502
    assert "'small'" in response.json()["error"]["message"]
    assert verifying.models.asked == ["small", "medium", "large"]
    assert record_of(verifying.http, response)["ending"] == "failed"


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


@pytest.fixture(scope="module")
def willing() -> Iterator[House]:
    """Yield a gateway that asks another model if one refuses."""
    with house_of(VerifyingRouter(), fallback_on_refusal=True) as house:
        yield house


REFUSAL = CASES["refusal"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES], ids=str)
def test_refusal_goes_to_the_next_model_once(willing: House, api: Api, stream: bool) -> None:
    """The header says who refused. The second refusal is delivered."""
    for second in (GOOD, REFUSAL):
        willing.models.answers = {
            "small": written(REFUSAL, api, stream=stream),
            "medium": written(second, api, stream=stream),
        }
        answer = willing.ask(api, stream=stream, model="small")
        assert answer.status_code == 200
        assert answer.headers["x-switchcraft-model"] == "medium"
        assert answer.headers["x-switchcraft-why"] == "medium: small refused to answer."


def test_refusal_is_an_answer_by_default(choosing: House) -> None:
    """It is relayed although another model could be asked."""
    choosing.models.answers = {"small": written(REFUSAL), "medium": written(GOOD)}
    assert choosing.ask(model="small").headers["x-switchcraft-model"] == "small"
