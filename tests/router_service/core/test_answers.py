"""What an answer says is heard the same, whole or in events, from either API."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router_service.core.answers import (
    MAX_ANSWER_CHARACTERS,
    MAX_PARTS,
    AnswerAccumulator,
    ParsedAnswer,
    WrittenCall,
    parse_answer,
)

OSLO = WrittenCall("call_1", "get_weather", '{"city":"Oslo"}')
BERGEN = WrittenCall("call_2", "get_weather", '{"city":"Bergen"}')


def heard(*events: Any) -> ParsedAnswer | None:  # noqa: ANN401 - JSON
    """Return what a stream of these events says."""
    accumulator = AnswerAccumulator()
    for event in events:
        accumulator.feed(event)
    return accumulator.answer()


def delta(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an event of Chat Completions."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields}]}


def function(call: WrittenCall) -> dict[str, Any]:
    """Return a call as Chat Completions write it."""
    inner = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": inner}


def item(call: WrittenCall) -> dict[str, Any]:
    """Return a call as the Responses API writes it."""
    named = {"name": call.name, "arguments": call.arguments}
    return {"type": "function_call", "id": "fc_1", "call_id": call.id, **named}


def test_a_whole_chat_answer() -> None:
    """Text and calls of the first choice are heard, others not."""
    message = {"content": "Let me see.", "tool_calls": [function(OSLO), function(BERGEN)]}
    other = {"index": 1, "message": {"content": "No.", "tool_calls": [function(OSLO)]}}
    answer = {"choices": [{"index": 0, "message": message}, other]}
    assert parse_answer(answer) == ParsedAnswer((OSLO, BERGEN), "Let me see.")


def deltas(calls: Sequence[WrittenCall], cuts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the events of parallel calls whose arguments come in pieces."""
    for index, call in enumerate(calls):
        named = {"id": call.id, "function": {"name": call.name, "arguments": ""}}
        yield delta(tool_calls=[{"index": index, **named}])
        places = sorted({0, *(cut % (len(call.arguments) + 1) for cut in cuts)})
        for start, stop in zip(places, [*places[1:], len(call.arguments)], strict=True):
            piece = {"arguments": call.arguments[start:stop]}
            yield delta(tool_calls=[{"index": index, "function": piece}])


@given(st.lists(st.integers(0, 100), max_size=6))
def test_a_streamed_chat_answer_says_what_the_whole_one_does(cuts: list[int]) -> None:
    """However the arguments are cut, the calls are the same."""
    assert heard(*deltas((OSLO, BERGEN), cuts)) == ParsedAnswer((OSLO, BERGEN))


def test_calls_without_a_number_are_known_by_their_id() -> None:
    """Some providers send each call whole, and leave out its index."""
    events = [delta(tool_calls=[function(call)]) for call in (OSLO, BERGEN)]
    assert heard(*events) == ParsedAnswer((OSLO, BERGEN))


def test_a_legacy_function_call() -> None:
    """`function_call` is a call without an id."""
    legacy = {"name": "f", "arguments": "{}"}
    assert heard(delta(function_call=legacy)) == ParsedAnswer((WrittenCall("", "f", "{}"),))


def test_a_custom_tools_call() -> None:
    """Free text is no JSON, and is marked."""
    call = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    expected = ParsedAnswer((WrittenCall("c", "sh", "ls", is_custom=True),))
    assert parse_answer({"choices": [{"message": {"tool_calls": [call]}}]}) == expected
    output = {"type": "custom_tool_call", "call_id": "c", "name": "sh", "input": "ls"}
    assert parse_answer({"object": "response", "output": [output]}) == expected


def test_a_whole_response() -> None:
    """Messages and calls are heard; what the provider's own tools did is not."""
    text = {"type": "message", "content": [{"type": "output_text", "text": "Hm."}]}
    output = [{"type": "reasoning"}, text, item(OSLO), {"type": "web_search_call"}]
    assert parse_answer({"object": "response", "output": output}) == ParsedAnswer((OSLO,), "Hm.")


@pytest.mark.parametrize("has_output", [True, False])
def test_a_streamed_response(has_output: bool) -> None:
    """The items count once, whether or not the last event repeats them."""
    done = {"type": "response.output_item.done", "output_index": 0, "item": item(OSLO)}
    output = [item(OSLO)] if has_output else []
    last = {"type": "response.completed", "response": {"output": output}}
    pieces = {"type": "response.function_call_arguments.delta", "delta": '{"city":'}
    assert heard(pieces, done, last) == ParsedAnswer((OSLO,))


def test_what_was_not_heard_whole_is_not_known() -> None:
    """An event that was not read, or too much of them, leave nothing to be judged."""
    accumulator = AnswerAccumulator()
    accumulator.is_incomplete = True
    assert accumulator.answer() is None
    piece = delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "x" * 1024}}])
    assert heard(*[piece] * (MAX_ANSWER_CHARACTERS // 1024 + 1)) is None


FLOODS = {
    "empty deltas": delta(content="", tool_calls=None),
    "short deltas": delta(content="\u00e9\u4e2d"),
    "short arguments": delta(
        tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "\u00e9\u4e2d"}}]
    ),
    "calls": delta(tool_calls=[{"index": 0}]),
    "items": {"type": "response.output_item.done", "item": {"type": "function_call"}},
}


@pytest.mark.parametrize("field", ["id", "name"])
def test_names_and_ids_count(field: str) -> None:
    """They are remembered and logged, too."""
    long = {"id": "c", "name": "f", field: "x" * (MAX_ANSWER_CHARACTERS + 1)}
    function = {"name": long["name"], "arguments": "{}"}
    assert heard(delta(tool_calls=[{"id": long["id"], "function": function}])) is None
    item = {"type": "function_call", "call_id": long["id"], **function}
    assert parse_answer({"object": "response", "output": [item]}) is None


@pytest.mark.parametrize("what", FLOODS)
def test_what_is_listened_to_takes_little_memory(what: str) -> None:
    """Neither empty deltas, nor short ones, nor calls without arguments add up to much."""
    event, accumulator = FLOODS[what], AnswerAccumulator()
    calls = event["choices"][0]["delta"].get("tool_calls") if "choices" in event else None
    tracemalloc.start()
    for number in range(100_000):
        if what == "calls" and calls:
            calls[0]["index"] = number
        accumulator.feed(event)
    grown_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown_bytes < 3_000_000


def test_an_answer_of_very_many_parts_is_not_kept() -> None:
    """It is found out early, because looking at each part takes time."""
    calls = [{"function": {"name": "f", "arguments": "{}"}}] * (MAX_PARTS + 1)
    assert parse_answer({"choices": [{"message": {"tool_calls": calls}}]}) is None
    assert parse_answer({"choices": [{}] * (MAX_PARTS + 1)}) is None
    output = [{"type": "message", "content": [{"text": "a"}] * 100}] * (MAX_PARTS // 100)
    assert parse_answer({"object": "response", "output": output}) is None


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "choices delta message tool_calls function index id type output item".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(junk, max_size=5))
def test_whatever_an_upstream_sends_is_heard(events: list[Any]) -> None:
    """What is of neither API says nothing, and raises nothing."""
    heard(*events)
