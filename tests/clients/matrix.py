"""The matrix of APIs: each client's with each upstream's, in eight cases.

    python -m tests.clients.matrix

prints the table of docs/translation.md.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple

import orjson

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.clients.conversations import CONVERSATIONS, STOPS, SYSTEM, TOOLS, Conversation, Heard
from tests.providers.answers import CACHED_TOKENS, COMPLETION_TOKENS, PROMPT_TOKENS, Written
from tests.providers.app import ERROR_MESSAGE, Fault, Play, Provider
from tests.providers.gateways import deployment, gateway, names
from tests.providers.requests import ProviderRequest
from tests.serving import served

THINKING = Thinking("The user wants a forecast. Ĳsland is far away, so I look it up.")
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
}
UNREADABLE = (Fault.CUT_EVENT, Fault.NO_OBJECT, Fault.FOREIGN_EVENT)
FAULTS: dict[tuple[Case, bool], Sequence[Fault]] = {
    (Case.ERROR_BEFORE_OUTPUT, False): [Fault.OVERLOADED, Fault.RATE_LIMIT, Fault.SERVER_ERROR],
    (Case.ERROR_BEFORE_OUTPUT, True): [Fault.OVERLOADED, Fault.RATE_LIMIT, Fault.ERROR_EVENT],
    (Case.ERROR_IN_MIDSTREAM, False): [Fault.ERROR_BODY],
    (Case.ERROR_IN_MIDSTREAM, True): [Fault.ERROR_EVENT, Fault.FAILURE_EVENT, *UNREADABLE],
    (Case.CUT_STREAM, False): [Fault.BROKEN_CONNECTION, Fault.EARLY_END],
    (Case.CUT_STREAM, True): [Fault.BROKEN_CONNECTION, Fault.EARLY_END, Fault.HALF_EVENT],
}
"""Faults of each case, whole and streamed. An error in the middle of a whole answer is an error in
a body with status 200."""


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


def play(asked: ProviderRequest) -> Play:
    """Answer as the user's text says: it is the name of a case or of a fault."""
    if asked.results:
        results = sorted(asked.results.values())
        return Play([Text(f"Results: {', '.join(results)}")])
    if asked.images:
        return Play([Text(f"Image: {asked.images[-1]}")])
    said = asked.texts[-1]
    if said in SCRIPTS:
        return Play(SCRIPTS[Case(said)])
    fault, _, place = said.partition(" / ")
    return Play([TEXT], Fault(fault), before_output=place == "before")


@dataclass(frozen=True)
class Matrix:
    """A running gateway with a provider for each API behind it."""

    url: str
    provider: Provider

    def problem(self, cell: Cell) -> str:
        """Run a cell; return what was wrong, or an empty text if it passed."""
        self.provider.asked.clear()
        self.provider.rejected.clear()
        thinks = cell.case is Case.THINKING
        model = names()[cell.upstream]
        talk = CONVERSATIONS[cell.client](self.url, model, stream=cell.stream, thinks=thinks)
        try:
            _CHECKS[cell.case](talk, self.provider, cell)
            assert not self.provider.rejected, self.provider.rejected
        except AssertionError as exc:
            return str(exc) or repr(exc)
        except Exception as exc:  # noqa: BLE001 - an SDK fails in its own way if an answer is wrong
            return f"the SDK raised {exc!r}"
        finally:
            talk.close()
        return ""


@contextmanager
def running() -> Iterator[Matrix]:
    """Start a provider and a gateway that reaches it by each API."""
    provider = Provider(play)
    with served(provider) as upstream, ExitStack() as stack:
        models = {name: deployment(upstream, dialect) for dialect, name in names().items()}
        yield Matrix(stack.enter_context(gateway(models)), provider)


def equal(found: object, expected: object, what: str) -> None:
    """Raise AssertionError if two values differ."""
    assert found == expected, f"{what}: {found!r} instead of {expected!r}"


def _check_content(talk: Conversation, provider: Provider, cell: Cell) -> None:
    """Check that the client gets what the model wrote, and the model the results of its calls."""
    script = SCRIPTS[cell.case]
    heard = talk.ask(cell.case)
    check_heard(heard, script, cell)
    first = provider.asked[-1]
    equal(first.dialect, cell.upstream, "API of the upstream")
    equal(first.system, [SYSTEM], "system text")
    equal(first.texts, [cell.case], "user's texts")
    equal(first.tools, TOOLS, "tools")
    if not heard.calls:
        return
    second = talk.answer({call_id: RESULTS[name] for call_id, name, _ in heard.calls})
    expected = sorted(RESULTS[name] for _, name, _ in heard.calls)
    check_heard(second, [Text(f"Results: {', '.join(expected)}")], cell)
    last = provider.asked[-1]
    calls = [part for part in script if isinstance(part, ToolUse)]
    decoded = {call.id: (call.name, _decoded(call)) for call in calls}
    equal(last.calls, decoded, "calls that the upstream gets back")
    equal(last.results, {call.id: RESULTS[call.name] for call in calls}, "results")
    if cell.case is Case.THINKING and cell.upstream is not apis.CHAT:
        equal(last.thinking, [THINKING.text], "thinking that the upstream gets back")


def _check_image(talk: Conversation, provider: Provider, cell: Cell) -> None:
    """Check that the model gets the same bytes of an image, and the text next to it."""
    heard = talk.ask("What is this?", PNG)
    check_heard(heard, [Text(f"Image: {hashlib.sha256(PNG).hexdigest()}")], cell)
    equal(provider.asked[-1].texts, ["What is this?"], "user's texts")


def _check_failure(talk: Conversation, provider: Provider, cell: Cell) -> None:
    """Check that the client gets an explicit error, with or without the beginning of an answer."""
    del provider
    for fault in FAULTS[cell.case, cell.stream]:
        is_before = cell.case is Case.ERROR_BEFORE_OUTPUT
        heard = talk.ask(f"{fault} / {'before' if is_before else 'middle'}")
        error = heard.error
        assert error, f"no error: {heard}"
        assert "Connection" not in error, f"broken connection instead of an error: {heard}"
        equal(heard.stop, "", "stop reason")
        assert TEXT.text.startswith(heard.text), f"text: {heard.text!r}"
        if is_before or not cell.stream:
            equal(heard.text, "", "text before the error")
            assert heard.status is not None, f"no status: {heard}"
            least = 429 if fault is Fault.RATE_LIMIT else 500
            assert least <= heard.status < least + 100, f"status: {heard.status}"
        else:
            assert heard.text, "nothing of the text that preceded the error"
        if fault.status or (not is_before and fault in (Fault.ERROR_EVENT, Fault.FAILURE_EVENT)):
            assert ERROR_MESSAGE in heard.message, f"message: {heard.message}"
        talk.history.pop()


def check_heard(heard: Heard, script: Sequence[Written], cell: Cell) -> None:
    """Check what a client understood of an answer."""
    calls = [part for part in script if isinstance(part, ToolUse)]
    equal(heard.error, "", f"error ({heard.message})")
    texts = [part.text for part in script if isinstance(part, Text)]
    equal(heard.text, "".join(texts), "text")
    thinking = [part.text for part in script if isinstance(part, Thinking)]
    equal(heard.thinking, "".join(thinking), "thinking")
    written = [(call.id, call.name, _decoded(call)) for call in calls]
    equal(heard.calls, written, "calls")
    equal(heard.stop, STOPS[cell.client][bool(calls)], "stop reason")
    equal(tuple(heard.tokens), TOKENS, "tokens")


def _decoded(call: ToolUse) -> object:
    return orjson.loads(call.arguments)


_CHECKS = {
    Case.TEXT: _check_content,
    Case.ONE_CALL: _check_content,
    Case.PARALLEL_CALLS: _check_content,
    Case.THINKING: _check_content,
    Case.IMAGE: _check_image,
    Case.ERROR_BEFORE_OUTPUT: _check_failure,
    Case.ERROR_IN_MIDSTREAM: _check_failure,
    Case.CUT_STREAM: _check_failure,
}


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
