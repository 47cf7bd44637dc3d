"""Answers that no client can use: another model answers, and the failed one is billed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson
import pytest

from router_service.settings import BreakerSettings
from router_service.upstream.streams import MAX_HELD_BYTES
from tests.apis import CHAT, MESSAGES, RESPONSES, Api
from tests.bodies import BODY, MESSAGES_BODY, RESPONSES_BODY
from tests.dialect_answers import CALL, CASES, Content, events, whole
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import NO_RETRIES, VERIFIED, record_of
from tests.router_service.http import scripted
from tests.router_service.http.scripted import Script, scripted_gateway

GOOD = Content(calls=(CALL,), stop="calls")
UNKNOWN = Content(calls=(("toolu_01A", "get_forecast", "{}"),), stop="calls")
EMPTY = Content()
THINKING = Content(thinking="Hm.")
REQUESTS: Mapping[Api, dict[str, Any]] = {
    CHAT: BODY,
    RESPONSES: RESPONSES_BODY | {"store": False},
    MESSAGES: MESSAGES_BODY,
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


STRICT = NO_RETRIES.model_copy(update={"breaker": BreakerSettings(allowed_fails=0, cooldown_s=60)})
"""Breakers open at the first failure, which an answer that cannot be used is not."""


@pytest.fixture(scope="module")
def verifying() -> Iterator[Script]:
    """Yield a gateway that asks `small`, `medium`, `large`, and trusts the first one most."""
    router = VerifyingRouter(trust={"small": 0.99, "medium": 0.6, "large": 0.7})
    with scripted_gateway(router, STRICT) as made:
        yield made


@pytest.fixture(scope="module")
def choosing() -> Iterator[Script]:
    """Yield a gateway that chooses `medium`, then `large`, then `small`."""
    with scripted_gateway(FakeRouter(), STRICT) as made:
        yield made


def play(script: Script, stream: bool, **answers: tuple[bytes, ...]) -> None:
    """Set the answers of models, and forget which were asked."""
    script.upstream.asked.clear()
    for model, parts in answers.items():
        answer = scripted.stream(*parts) if stream else scripted.whole(parts[0])
        script.play(answer, at=model)


def ask(
    script: Script,
    api: Api = CHAT,
    *,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
    **fields: object,
) -> httpx.Response:
    """Ask in an API, with some fields replaced."""
    body = REQUESTS[api] | {"stream": stream} | fields
    return script.http.post(f"/v1{api.path}", json=body, headers=headers)


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
def test_verification_asks_another_arm(
    verifying: Script, api: Api, kind: str, stream: bool
) -> None:
    """An answer that cannot be used is not delivered, however much its model is trusted.

    If no candidate can be used, the client gets the error of the first model.
    """
    good = written(GOOD, api, stream=stream)
    bad = bad_answer(kind, api, stream=stream)
    play(verifying, stream, small=bad, medium=good)
    response = ask(verifying, api, stream=stream, headers=VERIFIED)
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
    play(verifying, stream, small=bad, medium=bad, large=bad)
    response = ask(verifying, api, stream=stream, headers=VERIFIED)
    assert response.status_code == 502
    assert "'small'" in response.json()["error"]["message"]
    assert verifying.places() == ["small", "medium", "large"]
    assert record_of(verifying.http, response)["ending"] == "failed"


def test_stream_that_is_too_long_to_be_held_is_not_delivered(verifying: Script) -> None:
    """Another arm is asked as soon as a candidate has more bytes than can be verified."""
    call = ("toolu_01A", "get_weather", f'{{"city":"{"o" * MAX_HELD_BYTES}"}}')
    parts = events(Content(calls=(call,), stop="calls"), CHAT, MAX_HELD_BYTES // 3)
    huge = tuple(b"data: " + orjson.dumps(part) + b"\n\n" for part in parts)
    play(verifying, True, small=huge, medium=written(GOOD, stream=True))
    response = ask(verifying, stream=True, headers=VERIFIED)
    assert response.headers["x-switchcraft-model"] == "medium"
    assert record_of(verifying.http, response)["candidates"][0]["failure"] == "unfit"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", REQUESTS, ids=str)
def test_answers_that_the_clients_limit_cuts_off_are_the_last_resort(
    verifying: Script, api: Api, stream: bool
) -> None:
    """If every answer is cut off by the client's limit, the likeliest one is delivered."""
    good, bad = written(GOOD, api, stream=stream), cut(api, stream=stream, stop="length")
    play(verifying, stream, small=bad, medium=bad, large=good)
    response = ask(verifying, api, stream=stream, headers=VERIFIED)
    assert (response.headers["x-switchcraft-model"], response.content) == ("large", b"".join(good))
    play(verifying, stream, large=bad)
    response = ask(verifying, api, stream=stream, headers=VERIFIED)
    assert (response.status_code, response.content) == (200, b"".join(bad))
    assert response.headers["x-switchcraft-model"] == "large"  # by the router's probabilities
    assert response.headers["x-switchcraft-unverified"] == "candidates_failed"
    assert "no model gave an answer that can be used" in response.headers["x-switchcraft-why"]


@pytest.mark.parametrize("api", REQUESTS, ids=str)
@pytest.mark.parametrize("kind", ["cut", "unknown", "empty", "thinking"])
def test_next_model_answers_if_one_model_was_chosen(choosing: Script, api: Api, kind: str) -> None:
    """A whole answer that cannot be used is billed, and a reason for the next model."""
    good = written(GOOD, api)
    play(choosing, False, medium=bad_answer(kind, api, stream=False), large=good)
    response = ask(choosing, api)
    assert (response.status_code, response.content) == (200, good[0])
    assert response.headers["x-switchcraft-reason"] == "fallback"
    assert response.headers["x-switchcraft-attempts"] == "2"
    record = record_of(choosing.http, response)
    assert (record["model"], record["attempts"]) == ("large", 2)
    assert record["actual_cost_usd"] == pytest.approx(
        float(response.headers["x-switchcraft-cost-usd"])
    )
    alone = ask(choosing, api, model="large")
    assert record["actual_cost_usd"] > float(alone.headers["x-switchcraft-cost-usd"])


def test_after_the_first_output_there_is_no_second_answer(choosing: Script) -> None:
    """A stream whose call turns out to be cut off later is relayed to its end."""
    bad = cut(stream=True)
    play(choosing, True, large=written(GOOD, stream=True))
    proceed = threading.Event()
    choosing.play(scripted.stream(*bad[:3], b"".join(bad[3:]), wait=proceed), at="medium")
    body, received = BODY | {"stream": True}, b""
    with choosing.http.stream("POST", "/v1/chat/completions", json=body) as response:
        for part in response.iter_raw():
            received += part
            proceed.set()
    assert received == b"".join(bad)
    assert choosing.places() == ["medium"]


@pytest.fixture(scope="module")
def willing() -> Iterator[Script]:
    """Yield a gateway that asks another model if one refuses."""
    with scripted_gateway(VerifyingRouter(), STRICT, fallback_on_refusal=True) as made:
        yield made


REFUSAL = CASES["refusal"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES], ids=str)
def test_refusal_goes_to_the_next_model_once(willing: Script, api: Api, stream: bool) -> None:
    """The header says who refused. The second refusal is delivered."""
    for second in (GOOD, REFUSAL):
        refusal, answered = (written(each, api, stream=stream) for each in (REFUSAL, second))
        play(willing, stream, small=refusal, medium=answered)
        answer = ask(willing, api, stream=stream, model="small")
        assert answer.status_code == 200
        assert answer.headers["x-switchcraft-model"] == "medium"
        assert answer.headers["x-switchcraft-why"] == "medium: small refused to answer."


def test_refusal_is_an_answer_by_default(choosing: Script) -> None:
    """It is relayed although another model could be asked."""
    play(choosing, False, small=written(REFUSAL), medium=written(GOOD))
    assert ask(choosing, model="small").headers["x-switchcraft-model"] == "small"
