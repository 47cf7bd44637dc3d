"""The matrix of APIs: each client's, by its vendor's SDK, with each upstream's, in eight cases.

    python -m tests.clients.matrix

prints the table of docs/translation.md. That translated requests are what the vendors accept is the
claim of `tests/router_service/apis/test_request_properties.py`.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import NamedTuple

from router_service.apis.parts import Text, Thinking, ToolUse
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.clients.conversations import CONVERSATIONS, STOPS, SYSTEM, TOOLS, Conversation, Heard
from tests.goldens.recording import ARTIFACT, configuration
from tests.goldens.scripted import MODELS, Play, ScriptedUpstream
from tests.providers.answers import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS, Written
from tests.serving import served

MODEL = "sonnet"
THINKING = Thinking("The user wants a forecast. Ĳsland is far away, so I look it up.", "c2lnbmVk")
TEXT = Text("It is -3 °C in Tromsø, and the sky is clear. ☀")
CALL = ToolUse("call_Zr0001", "get_weather", '{"city": "Tromsø"}')
OTHER_CALL = ToolUse("call_Zr0002", "get_time", '{"city": "Los \\"Ángeles\\""}')
PNG = bytes.fromhex("89504e470d0a1a0a") + bytes(range(256))
RESULTS = {"get_weather": "-3 °C", "get_time": "12:00"}
TOKENS = (PROMPT_TOKENS, CACHED_TOKENS, COMPLETION_TOKENS)


class Case(StrEnum):
    """What happens in a conversation."""

    TEXT = "text"
    ONE_CALL = "one call, and its result"
    PARALLEL_CALLS = "parallel calls, and their results"
    THINKING = "thinking, a call, and its result"
    IMAGE = "image"
    ERROR_BEFORE_OUTPUT = "error before output"
    ERROR_IN_MIDSTREAM = "error in mid-stream"
    CUT_STREAM = "cut stream"


SCRIPTS: dict[Case, Sequence[Written]] = {
    Case.TEXT: [TEXT],
    Case.ONE_CALL: [CALL],
    Case.PARALLEL_CALLS: [Text("I look it up."), CALL, OTHER_CALL],
    Case.THINKING: [THINKING, CALL],
    Case.IMAGE: [TEXT],
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

    urls: dict[UpstreamApi, str]
    upstream: ScriptedUpstream

    def problem(self, cell: Cell) -> str:
        """Run a cell; return what was wrong, or an empty text if it passed."""
        thinks = cell.case is Case.THINKING
        url = self.urls[cell.upstream]
        talk = CONVERSATIONS[cell.client](url, MODEL, stream=cell.stream, thinks=thinks)
        try:
            check = _check_failure if cell.case in FAULTS else _check_content
            check(talk, self.upstream, cell)
        except AssertionError as exc:
            return str(exc) or repr(exc)
        except Exception as exc:  # noqa: BLE001 - an SDK fails in its own way if an answer is wrong
            return f"the SDK raised {exc!r}"
        finally:
            talk.close()
        return ""


@contextmanager
def running() -> Iterator[Matrix]:
    """Start the upstream, and a gateway that reaches it by each API."""
    router, upstream = Router.load(ARTIFACT), ScriptedUpstream()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address, urls = stack.enter_context(served(upstream)), {}
        for api in APIS.of_upstreams:
            config = folder / f"{api}.yaml"
            config.write_text(configuration(address, dict.fromkeys(MODELS, api), has_keys=False))
            settings = read_settings(config, environ={})
            urls[api] = stack.enter_context(served(create_app(settings, router)))
        yield Matrix(urls, upstream)


def equal(found: object, expected: object, what: str) -> None:
    """Raise AssertionError if two values differ."""
    assert found == expected, f"{what}: {found!r} instead of {expected!r}"


def _received(upstream: ScriptedUpstream) -> str:
    """Return the body of the last request that the upstream got, without escaped letters."""
    return json.dumps(json.loads(upstream.received[-1].body), ensure_ascii=False)


def _check_content(talk: Conversation, upstream: ScriptedUpstream, cell: Cell) -> None:
    """Check that the client gets what the model wrote, and the model the results of its calls."""
    script = SCRIPTS[cell.case]
    answer = Text("The results are here.")
    upstream.script = {MODEL: [Play(script), Play([answer])]}
    image = PNG if cell.case is Case.IMAGE else None
    heard = talk.ask(cell.case, image)
    _check_heard(heard, script, cell)
    sent = _received(upstream)
    for said in (SYSTEM, cell.case, *TOOLS):
        assert f'"{said}"' in sent, f"{said!r} is missing in {sent}"
    if image:
        assert base64.b64encode(image).decode() in sent, f"the image is missing in {sent}"
    if not heard.calls:
        return
    second = talk.answer({call_id: RESULTS[name] for call_id, name, _ in heard.calls})
    _check_heard(second, [answer], cell)
    sent = _received(upstream)
    for call in (part for part in script if isinstance(part, ToolUse)):
        for said in (call.id, call.name, RESULTS[call.name], "Tromsø"):
            assert said in sent, f"{said!r} is missing in {sent}"
    if cell.case is Case.THINKING and cell.upstream is not apis.CHAT:
        assert THINKING.text in sent, f"the upstream's thinking is missing in {sent}"


def _check_failure(talk: Conversation, upstream: ScriptedUpstream, cell: Cell) -> None:
    """Check that the client gets an explicit error, with or without the beginning of an answer."""
    for play in FAULTS[cell.case]:
        upstream.script = {MODEL: [play] * 4}
        heard = talk.ask(cell.case)
        assert heard.error, f"no error: {heard}"
        assert "Connection" not in heard.error, f"broken connection instead of an error: {heard}"
        equal(heard.stop, "", "stop reason")
        assert TEXT.text.startswith(heard.text), f"text: {heard.text!r}"
        if play.status != 200 or not cell.stream:
            equal(heard.text, "", "text before the error")
            assert heard.status is not None, f"no status: {heard}"
            least = 429 if play.status == 429 else 500
            assert least <= heard.status < least + 100, f"status: {heard.status}"
        else:
            assert heard.text, "nothing of the text that preceded the error"
        if play.status != 200 or (play.has_error and cell.stream):
            assert "The scripted" in heard.message, f"message: {heard.message}"
        talk.history.pop()


def _check_heard(heard: Heard, script: Sequence[Written], cell: Cell) -> None:
    """Check what a client understood of an answer."""
    calls = [part for part in script if isinstance(part, ToolUse)]
    equal(heard.error, "", f"error ({heard.message})")
    texts = [part.text for part in script if isinstance(part, Text)]
    equal(heard.text, "".join(texts), "text")
    thinking = [part.text for part in script if isinstance(part, Thinking)]
    equal(heard.thinking, "".join(thinking), "thinking")
    written = [(call.id, call.name, json.loads(call.arguments)) for call in calls]
    equal(heard.calls, written, "calls")
    equal(heard.stop, STOPS[cell.client][bool(calls)], "stop reason")
    equal(tuple(heard.tokens), TOKENS, "tokens")


def table(problems: dict[Cell, str]) -> str:
    """Return the results as a Markdown table: passed conversations by client and upstream."""
    upstreams = [*APIS.of_upstreams]
    lines = [
        "| client's API | " + " | ".join(f"to {NAMES[upstream]}" for upstream in upstreams) + " |",
        "|---|" + "---|" * len(upstreams),
    ]
    for client in APIS:
        row = []
        for upstream in upstreams:
            pair = [cell for cell in problems if (cell.client, cell.upstream) == (client, upstream)]
            row.append(f"{sum(not problems[cell] for cell in pair)} of {len(pair)}")
        lines.append(f"| {NAMES[client]} | " + " | ".join(row) + " |")
    passed = sum(not problem for problem in problems.values())
    return "\n".join(lines) + f"\n\n{passed} of {len(problems)} conversations passed.\n"


NAMES: dict[UpstreamApi, str] = {
    apis.CHAT: "Chat Completions",
    apis.RESPONSES: "Responses",
    apis.MESSAGES: "Messages",
    apis.CONVERSE: "Converse (Amazon Bedrock)",
}


def main() -> None:
    """Run all cells; print the table, and the problems on standard error."""
    with running() as matrix:
        problems = {cell: matrix.problem(cell) for cell in CELLS}
    sys.stdout.write(table(problems))
    for cell, problem in problems.items():
        if problem:
            sys.stderr.write(f"{cell.id}: {problem}\n")


if __name__ == "__main__":
    main()
