"""Answers of all APIs give the same calls and text, whole or in events, and their usage."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.answers import (
    ParsedAnswer,
    WrittenCall,
)
from router_service.apis.parts import Request
from router_service.apis.registry import parse_answer, read_usage
from router_service.apis.usage import Usage
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.dialect_answers import CASES, events, whole


def accumulate(*events: Any) -> ParsedAnswer | None:  # noqa: ANN401 - JSON
    """Return the answer that a stream of events contains."""
    record = APIS.api_of(events[0]).record()
    for event in events:
        record.feed(event)
    return record.answer()


def test_a_custom_tools_call() -> None:
    """Free text is not JSON, and is marked."""
    call = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    expected = ParsedAnswer((WrittenCall("c", "sh", "ls", is_custom=True),))
    assert parse_answer({"choices": [{"message": {"tool_calls": [call]}}]}) == expected
    output = {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"}
    assert parse_answer({"object": "response", "output": [output]}) == expected


def expected_answer(name: str, dialect: UpstreamApi) -> ParsedAnswer:
    """Return the calls and the text of a case. In some APIs, a refusal is a text."""
    case = CASES[name]
    text = case.text + (case.refusal if dialect in (apis.MESSAGES, apis.CONVERSE) else "")
    return ParsedAnswer(tuple(WrittenCall(*call) for call in case.calls), text)


@pytest.mark.parametrize("dialect", APIS.of_upstreams)
@pytest.mark.parametrize("name", CASES)
def test_every_api_gives_the_same_answer(name: str, dialect: UpstreamApi) -> None:
    """The calls and the text of a whole answer are the same in each API, and so is the usage."""
    value = whole(CASES[name], dialect)
    assert parse_answer(value) == expected_answer(name, dialect)
    usage, case = read_usage(value), CASES[name]
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (case.prompt, case.cached)
    assert (usage.cache_write_tokens, usage.completion_tokens) == (case.written, case.completion)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("dialect", list(APIS))
@pytest.mark.parametrize("name", CASES)
def test_every_api_gives_the_same_streamed_answer(name: str, dialect: Api, size: int) -> None:
    """The calls and the text of a stream are the same in each API, in pieces of any size."""
    assert accumulate(*events(CASES[name], dialect, size)) == expected_answer(name, dialect)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("dialect", list(APIS))
@pytest.mark.parametrize(
    ("name", "begins_with_text"),
    [
        ("text", True),
        ("thinking", True),
        ("one call", True),
        ("parallel calls", False),
        ("thinking and a call", False),
    ],
)
def test_text_is_recognized_as_it_arrives(
    name: str, dialect: Api, size: int, begins_with_text: bool
) -> None:
    """Text is recognized before the answer is complete; reasoning and calls are no text."""
    accumulator, case = dialect.record(), CASES[name]
    found = []
    for event in events(case, dialect, size):
        accumulator.feed(event)
        found.append(accumulator.is_text)
    assert any(found[:-2]) == begins_with_text
    assert not found[0]
    answer = accumulator.answer()
    assert answer is not None
    assert accumulator.is_text == answer.is_text == (not case.calls)


def counted(completion: str = "completion_tokens", **counts: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an answer with 5 tokens, and with these counts."""
    return {"usage": {completion: 5, **counts}}


CACHED = {"prompt_tokens_details": {"cached_tokens": 60, "audio_tokens": 0}}
REASONED = {"completion_tokens_details": {"reasoning_tokens": 4}}
HITS = {"prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}
BESIDE = {"cache_read_input_tokens": 50, "cache_creation_input_tokens": 30}
FORMS: dict[str, tuple[dict[str, Any], Usage]] = {
    "chat": (
        counted(prompt_tokens=100, total_tokens=105, **CACHED, **REASONED),
        Usage(100, 5, cached_tokens=60, reasoning_tokens=4),
    ),
    "embeddings": ({"usage": {"prompt_tokens": 8, "total_tokens": 8}}, Usage(8, 0)),
    "DeepSeek": (counted(prompt_tokens=100, **CACHED, **HITS), Usage(100, 5, cached_tokens=60)),
    "Anthropic's own, where cached tokens are beside the others": (
        counted("output_tokens", input_tokens=20, **BESIDE),
        Usage(100, 5, cached_tokens=50, cache_write_tokens=30),
    ),
    "Groq's stream": ({"x_groq": {"id": "r", **counted(prompt_tokens=9)}}, Usage(9, 5)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    """Every provider's format gives the same usage, and each token counts once."""
    answer, wanted = FORMS[form]
    assert read_usage(answer) == wanted


def nameless(*calls: dict[str, Any]) -> dict[str, Any]:
    """Return an event with parts of calls that have no index."""
    return {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}}]}


NEXT = {"id": "call_2", "function": {"name": "f", "arguments": "{}"}}
WITHOUT_INDEX: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "later parts without an id": (
        [
            nameless({"id": "call_1", "function": {"name": "g", "arguments": ""}}),
            nameless({"function": {"arguments": '{"city":'}}),
            nameless({"id": "", "function": {"name": "", "arguments": '"Oslo"}'}}),
        ],
        [("g", '{"city":"Oslo"}')],
    ),
    "later parts with null": (
        [
            nameless({"index": None, "id": "call_1", "function": {"name": "g", "arguments": "{"}}),
            nameless({"index": None, "id": None, "function": {"name": None, "arguments": "}"}}),
        ],
        [("g", "{}")],
    ),
    "two calls one after the other": (
        [
            nameless({"id": "call_1", "function": {"name": "g", "arguments": '{"a":'}}),
            nameless({"function": {"arguments": "1}"}}, NEXT),
            nameless({"function": {"arguments": " "}}),
        ],
        [("g", '{"a":1}'), ("f", "{} ")],
    ),
    "whole calls without ids": (
        [
            nameless(
                {"function": {"name": "g", "arguments": '{"a":1}'}},
                {"function": {"name": "g", "arguments": '{"a":2}'}},
            ),
            nameless({"function": {"name": "g", "arguments": '{"a":3}'}}),
        ],
        [("g", '{"a":1}'), ("g", '{"a":2}'), ("g", '{"a":3}')],
    ),
    "whole calls with one index": (
        [
            nameless({"index": 0, "function": {"name": "g", "arguments": '{"a":1}'}}),
            nameless({"index": 0, "function": {"name": "g", "arguments": '{"a":2}'}}),
        ],
        [("g", '{"a":1}'), ("g", '{"a":2}')],
    ),
}


@pytest.mark.parametrize("name", WITHOUT_INDEX)
def test_parts_of_calls_without_an_index(name: str) -> None:
    """A part without index and id continues the last call, unless its name begins another one.

    A call with a name and all of its arguments is another one, even at the index of the last.
    """
    sent, calls = WITHOUT_INDEX[name]
    sent = [*sent, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
    passing = apis.CHAT.record()
    translator = AnswerTranslator(
        apis.CHAT, apis.RESPONSES, Request("m", ()), model="m", created_s=1
    )
    for event in sent:
        passing.feed(event)
        translator.feed(event)
    for record in (passing, translator.record):
        answer = record.answer()
        assert answer is not None
        assert [(call.name, call.arguments.strip()) for call in answer.calls] == [
            (name, arguments.strip()) for name, arguments in calls
        ]
