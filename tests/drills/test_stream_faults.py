"""Streams that fail, in every API of the client and of the upstream, never look complete."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import httpx
import pytest

from router_service.apis.parts import Text
from router_service.settings import Timeouts
from tests import apis
from tests.apis import APIS, Api
from tests.clients.conversations import PARAMETERS
from tests.gateways import NO_RETRIES
from tests.products import pairwise
from tests.providers.app import Fault, Play, Provider
from tests.providers.gateways import deployment, gateway
from tests.providers.requests import ProviderRequest
from tests.serving import served

TEXT = "It is -3 °C in Tromsø, and the sky is clear. ☀"
OTHER_TEXT = "The other model says that it is cold."
TEN_KINDS = (
    Fault.ERROR_EVENT,
    Fault.FAILURE_EVENT,
    Fault.BROKEN_CONNECTION,
    Fault.EARLY_END,
    Fault.HALF_EVENT,
    Fault.CUT_EVENT,
    Fault.NO_OBJECT,
    Fault.FOREIGN_EVENT,
    Fault.CORRUPT_GZIP,
    Fault.SILENCE,
)
ONLY_BEFORE_OUTPUT = (
    Fault.RATE_LIMIT,
    Fault.SERVER_ERROR,
    Fault.OVERLOADED,
    Fault.ERROR_BODY,
    Fault.PAGE,
)
IDLE_S = 0.5
PATIENT = NO_RETRIES.model_copy(update={"timeouts": Timeouts(idle_s=IDLE_S)})
"""How long a silent upstream is waited for."""

BODIES: Mapping[Api, dict[str, Any]] = {
    apis.CHAT: {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
    },
    apis.RESPONSES: {
        "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
        "store": False,
    },
    apis.MESSAGES: {
        "tools": [{"name": "f", "input_schema": PARAMETERS}],
        "max_tokens": 1000,
    },
}


@dataclass
class Received:
    """What a client reads of a stream."""

    model: str
    text: str = ""
    errors: list[str] = field(default_factory=list)
    is_complete: bool = False
    """Whether the answer says that it is complete."""
    last: str = ""
    """The kind of the last event: `error`, `end` or another."""


class Trial(NamedTuple):
    """One request and its fault."""

    client: Api
    upstream: Api
    fault: Fault
    before_output: bool

    @property
    def id(self) -> str:
        """Its name in test reports."""
        place = "before" if self.before_output else "middle"
        return f"{self.client}-{self.upstream}-{self.fault.name.lower()}-{place}"


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[Api, str]]:
    """Yield gateways by the API of the upstream that fails; the next upstream has another API."""
    with ExitStack() as stack:
        yield {dialect: stack.enter_context(_gateway(dialect)) for dialect in APIS}


@contextmanager
def _gateway(dialect: Api) -> Iterator[str]:
    other = list(APIS)[(list(APIS).index(dialect) + 1) % len(APIS)]
    failing, working = Provider(_fail), Provider(_work)
    with served(failing) as failing_url, served(working) as working_url:
        models = {
            "medium": deployment(failing_url, dialect, PATIENT),
            "large": deployment(working_url, other, PATIENT),
        }
        with gateway(models, PATIENT) as url:
            yield url


def _fail(asked: ProviderRequest) -> Play:
    fault, _, place = asked.texts[-1].partition(" / ")
    return Play([Text(TEXT)], Fault(fault), before_output=place == "before")


def _work(asked: ProviderRequest) -> Play:
    del asked
    return Play([Text(OTHER_TEXT)])


def ask(gateways: Mapping[Api, str], trial: Trial) -> Received:
    """Send a routed request, whose first upstream fails as the trial says."""
    said = f"{trial.fault} / {'before' if trial.before_output else 'middle'}"
    turns = "input" if trial.client is apis.RESPONSES else "messages"
    message = [{"role": "user", "content": said}]
    body = BODIES[trial.client] | {"model": "switchcraft", "stream": True, turns: message}
    url = f"{gateways[trial.upstream]}/v1{trial.client.path}"
    response = httpx.post(url, json=body, timeout=20)
    assert response.status_code == 200, response.text
    received = Received(response.headers["x-switchcraft-model"])
    for block in response.text.split("\n\n"):
        data = "".join(line[6:] for line in block.splitlines() if line.startswith("data: "))
        if data and data != "[DONE]":
            _READERS[trial.client](received, _decoded(data))
    return received


def _decoded(data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except json.JSONDecodeError:
        return {}  # what the upstream sent, in the client's own API
    return value if isinstance(value, dict) else {}


def _read_chat(received: Received, event: dict[str, Any]) -> None:
    received.last = "other"
    if error := event.get("error"):
        received.errors.append(error["message"])
        received.last = "error"
    for choice in event.get("choices", []):
        received.text += choice["delta"].get("content") or ""
        received.is_complete |= choice.get("finish_reason") in ("stop", "tool_calls", "length")


def _read_responses(received: Received, event: dict[str, Any]) -> None:
    kind = event.get("type")
    received.last = "other"
    if kind == "response.output_text.delta":
        received.text += event["delta"]
    elif kind == "error":
        received.errors.append(event["message"])
        received.last = "error"
    elif kind == "response.failed":
        received.errors.append(event["response"]["error"]["message"])
        received.last = "error"
    received.is_complete |= kind in ("response.completed", "response.incomplete")


def _read_messages(received: Received, event: dict[str, Any]) -> None:
    kind = event.get("type")
    received.last = "other"
    if kind == "content_block_delta":
        received.text += event["delta"].get("text", "")
    elif kind == "error":
        received.errors.append(event["error"]["message"])
        received.last = "error"
    received.is_complete |= kind in ("message_delta", "message_stop")


_READERS = {
    apis.CHAT: _read_chat,
    apis.RESPONSES: _read_responses,
    apis.MESSAGES: _read_messages,
}


def check(received: Received, trial: Trial) -> None:
    """Check that the answer is another model's whole answer, or ends with an error.

    Corrupt data that arrives together with good data makes both unreadable, so nothing has been
    sent yet.
    """
    is_whole = trial.fault is Fault.CORRUPT_GZIP and received.model == "large"
    if trial.before_output or is_whole:
        assert received == Received("large", OTHER_TEXT, [], is_complete=True, last="other")
    else:
        assert received.model == "medium"
        assert received.text
        assert TEXT.startswith(received.text)
        assert received.errors
        assert (received.last, received.is_complete) == ("error", False)


TRIALS = [
    Trial(*each)
    for each in (
        *product(APIS, APIS, TEN_KINDS, (True, False)),
        *product(APIS, APIS, ONLY_BEFORE_OUTPUT, (True,)),
    )
]
QUICK = pairwise(
    [trial for trial in TRIALS if trial.fault is not Fault.SILENCE],
    # Each API recognizes each fault, and reports it, in streams that are relayed and translated.
    lambda trial: (
        trial.client is trial.upstream,
        trial.upstream,
        trial.fault,
        trial.before_output,
    ),
    lambda trial: (trial.client is trial.upstream, trial.client, trial.fault, trial.before_output),
)
SLOW = [trial for trial in TRIALS if trial.fault is Fault.SILENCE]


@pytest.mark.parametrize("trial", QUICK, ids=lambda trial: trial.id)
def test_failed_stream_is_continued_or_ends_with_an_error(
    gateways: Mapping[Api, str], trial: Trial
) -> None:
    """Before the first output another model answers; afterwards the stream ends with an error."""
    check(ask(gateways, trial), trial)


def test_silent_stream_is_continued_or_ends_with_an_error(
    gateways: Mapping[Api, str],
) -> None:
    """The same for upstreams that stop without closing the connection, all at once."""
    with ThreadPoolExecutor(len(SLOW)) as threads:
        answers = list(threads.map(lambda trial: ask(gateways, trial), SLOW))
    for trial, received in zip(SLOW, answers, strict=True):
        check(received, trial)
