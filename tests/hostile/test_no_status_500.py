"""No request and no answer makes the gateway fail: no status 500, and no traceback in its log.

The inputs are those of the fuzzer, and one for everything that may repeat. Each is sent as it is,
and then changed again and again, through a gateway. `make check-hostile` runs the long form.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from tests.answering import MODELS, PATHS, Peers, peers
from tests.apis import APIS, Api
from tests.attacks import IS_LONG
from tests.fuzz.changes import change_json, read_inputs
from tests.hostile.repeats import ANSWERS, EVENTS, REQUESTS, SAMPLES

Json = Any

ROUNDS = 20 if IS_LONG else 1
"""How often each input is changed and sent."""
CHANGES = 3
"""Longest chain of changes from an input."""
SEED = 7
NAMES = ("switchcraft", *MODELS.values())
OTHER_PATHS = (
    "/v1/messages/count_tokens",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/feedback",
    "/v1/files",
    "/v1/responses/input_tokens",
)
"""Endpoints beside those that translate."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Peers]:
    """Serve a gateway between peers that send anything."""
    with peers() as running:
        yield running


def changed(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield an input, and then chains of changes of it."""
    yield data
    for _ in range(ROUNDS):
        text = data
        for _ in range(rng.randint(1, CHANGES)):
            text = change_json(text, rng)
            yield text


def bodies() -> list[bytes]:
    """Return requests of all APIs."""
    made = [make(2) for dialect in APIS for make in REQUESTS[dialect].values()]
    cases = [json.loads(entry) for entry in read_inputs("translations")]
    return [
        *(
            json.dumps(case.get("body") if isinstance(case, dict) else case).encode()
            for case in cases
        ),
        *(json.dumps(body).encode() for body in made),
    ]


def with_model(body: bytes, model: str) -> bytes:
    """Return a body that names a model, if it is an object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    return json.dumps(value | {"model": model}).encode() if isinstance(value, dict) else body


def check(gateway: Peers, response: httpx.Response, sent: Sequence[bytes]) -> None:
    """Assert that the gateway has answered properly."""
    assert response.status_code != 500, (sent, response.text)
    assert not gateway.problems, (sent, gateway.problems)


def test_no_request_makes_the_gateway_fail(gateway: Peers) -> None:
    """Changed requests to every endpoint and every model get an answer, or a proper error."""
    rng = random.Random(SEED)
    gateway.upstream.is_stream, gateway.upstream.answer = False, b"{}"
    for body in bodies():
        for text in changed(body, rng):
            paths = list(PATHS.values()) if IS_LONG else [rng.choice(list(PATHS.values()))]
            for path in (*paths, *([rng.choice(OTHER_PATHS)] if rng.random() < 0.2 else [])):
                sent = with_model(text, rng.choice(NAMES)) if rng.random() < 0.9 else text
                check(gateway, gateway.post(path, sent), [path.encode(), sent])


def answers(source: Api) -> list[tuple[bytes, bool]]:
    """Return answers of one API, each with whether it is a stream."""
    cases = [json.loads(entry) for entry in read_inputs("translations")]
    made: list[Json] = [
        *(case["answer"] for case in cases if isinstance(case, dict) and "answer" in case),
        *(make(2) for make in ANSWERS[source].values()),
        *(make(2) for make in EVENTS[source].values()),
    ]
    return [(json.dumps(answer).encode(), isinstance(answer, list)) for answer in made]


def as_stream(data: bytes) -> bytes:
    """Return a list of events as server-sent events."""
    value = json.loads(data)
    sent = value if isinstance(value, list) else [value]
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in sent)


@pytest.mark.parametrize("source", APIS)
@pytest.mark.parametrize("client", APIS)
def test_no_answer_makes_the_gateway_fail(gateway: Peers, client: Api, source: Api) -> None:
    """Changed answers of every API are relayed, translated, or reported as the upstream's fault."""
    rng = random.Random(SEED)
    body = {**SAMPLES[client], "model": MODELS[source]}
    texts = {stream: json.dumps(body | {"stream": stream}).encode() for stream in (False, True)}
    for data, is_stream in answers(source):
        if not IS_LONG and rng.random() < 0.5:
            continue
        for text in changed(data, rng):
            answer = as_stream(text) if is_stream else text
            response = gateway.ask(client, texts[is_stream], answer, stream=is_stream)
            check(gateway, response, [answer])
