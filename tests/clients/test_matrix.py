"""The matrix of APIs: each client's, by its vendor's SDK, with each upstream's, in seven cases.

That translated requests are what the vendors accept is the claim of
`tests/router_service/apis/test_request_properties.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple

import anthropic
import openai
import pytest

from router_service.apis.parts import Text, Thinking, ToolUse
from router_service.router import Router
from router_service.serving.app import create_app
from tests.apis import APIS, Api, UpstreamApi
from tests.dialect_answers import Clients, Content, StreamFailedError
from tests.goldens.recording import ARTIFACT, configuration, read_configuration
from tests.goldens.scripted import MODELS, Play, ScriptedUpstream
from tests.providers.answers import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS, Usage, Written
from tests.serving import served

MODEL = "sonnet"
THINKING = Thinking("The user wants a forecast. Ĳsland is far away, so I look it up.", "c2lnbmVk")
TEXT = Text("It is -3 °C in Tromsø, and the sky is clear. ☀")
CALL = ToolUse("call_Zr0001", "get_weather", '{"city": "Tromsø"}')
OTHER_CALL = ToolUse("call_Zr0002", "get_time", '{"city": "Los \\"Ángeles\\""}')
USAGE = Usage(written=0, reasoning=0)


class Case(StrEnum):
    """What happens in a conversation."""

    TEXT = "text"
    ONE_CALL = "one call"
    PARALLEL_CALLS = "parallel calls"
    THINKING = "thinking and a call"
    ERROR_BEFORE_OUTPUT = "error before output"
    ERROR_IN_MIDSTREAM = "error in mid-stream"
    CUT_STREAM = "cut stream"


SCRIPTS: dict[Case, Sequence[Written]] = {
    Case.TEXT: [TEXT],
    Case.ONE_CALL: [CALL],
    Case.PARALLEL_CALLS: [Text("I look it up."), CALL, OTHER_CALL],
    Case.THINKING: [THINKING, CALL],
}
FAULTS: dict[Case, Sequence[Play]] = {
    Case.ERROR_BEFORE_OUTPUT: [Play(status=429), Play(status=500)],
    Case.ERROR_IN_MIDSTREAM: [Play([TEXT], has_error=True)],
    Case.CUT_STREAM: [Play([TEXT], is_cut=True)],
}


class Cell(NamedTuple):
    """One conversation of the matrix."""

    client: Api
    upstream: UpstreamApi
    stream: bool
    case: Case

    @property
    def id(self) -> str:
        """Its name in test reports."""
        form = "stream" if self.stream else "whole"
        return f"{self.client}-{self.upstream}-{form}-{self.case.name.lower()}"


CELLS = [Cell(*each) for each in product(APIS, APIS.of_upstreams, (False, True), Case)]


@dataclass(frozen=True)
class Matrix:
    """A gateway for each API of upstreams, in front of one upstream that has them all."""

    clients: dict[UpstreamApi, Clients]
    """The clients of each gateway."""
    upstream: ScriptedUpstream

    def ask(self, cell: Cell, play: Play) -> Content:
        """Say the case's name to the model, which answers so, also to the gateway's retries."""
        self.upstream.script = {MODEL: [play] * 4}
        clients = self.clients[cell.upstream]
        return clients.ask(cell.client, stream=cell.stream, model=MODEL, text=cell.case)


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


def _check_content(matrix: Matrix, cell: Cell) -> None:
    """Check that the client gets what the model wrote, and the model what the client said."""
    script = SCRIPTS[cell.case]
    found = matrix.ask(cell, Play(script, usage=USAGE))
    texts = {
        kind: "".join(part.text for part in script if isinstance(part, kind))
        for kind in (Text, Thinking)
    }
    assert (found.text, found.thinking) == (texts[Text], texts[Thinking]), found
    calls = [part for part in script if isinstance(part, ToolUse)]
    assert [(id_, name, json.loads(arguments)) for id_, name, arguments in found.calls] == [
        (call.id, call.name, json.loads(call.arguments)) for call in calls
    ], found
    assert found.stop == ("calls" if calls else "end"), found
    tokens = (found.prompt, found.cached, found.completion)
    assert tokens == (PROMPT_TOKENS, CACHED_TOKENS, COMPLETION_TOKENS), found
    assert f'"{cell.case}"'.encode() in matrix.upstream.received[-1].body


def _check_failure(matrix: Matrix, cell: Cell) -> None:
    """Check that the client gets an explicit error of its own API."""
    for play in FAULTS[cell.case]:
        try:
            found = matrix.ask(cell, play)
        except (openai.APIError, anthropic.APIError, StreamFailedError) as exc:
            error: Exception = exc
        else:
            raise AssertionError(f"no error: {found}")
        assert "Connection" not in type(error).__name__, f"not an error, but a break: {error!r}"
        if play.status != 200 or not cell.stream:
            status = getattr(error, "status_code", None)
            least = 429 if play.status == 429 else 500
            assert status is not None, f"no status: {error!r}"
            assert least <= status < least + 100, f"status: {status}"
        if play.status != 200 or (play.has_error and cell.stream):
            assert "The scripted" in str(error), f"message: {error!r}"


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_conversation_passes(matrix: Matrix, cell: Cell) -> None:
    """The client gets what the model wrote, or an explicit error of its own API."""
    check = _check_failure if cell.case in FAULTS else _check_content
    check(matrix, cell)
