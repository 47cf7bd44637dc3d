"""Requests, answers and streams in which one thing is repeated: all that may repeat in the APIs.

They are made from samples. A `#` in a text of a sample is the number of the repetition, and a text
that is only `#` is that number as an integer. In a sample, each item of each list is repeated, and
all items of a list in turn and in groups, each member whose name has a `#`, and each text that has
`word`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import Api, UpstreamApi
from tests.providers.answers import DONE, Reply, data_of

Json = Any
Path = tuple[str | int, ...]
Make = Callable[[int], Json]
"""Returns a body, an answer, or the events of a stream, in which something occurs so often."""

PNG = "iVBORw0KGgo="
SEAL = "c2VhbA=="


def _numbered(value: Json, number: int) -> Json:
    """Return a copy with a number for each `#`."""
    match value:
        case dict():
            return {
                key.replace("#", str(number)): _numbered(inner, number)
                for key, inner in value.items()
            }
        case list():
            return [_numbered(inner, number) for inner in value]
        case str():
            return number if value == "#" else value.replace("#", str(number))
        case _:
            return value


def _in_turn(items: Sequence[Json], count: int) -> list[Json]:
    return [_numbered(item, number) for number in range(count) for item in items]


def _in_groups(items: Sequence[Json], count: int) -> list[Json]:
    return [_numbered(item, number) for item in items for number in range(count)]


def _item(at: int, items: Sequence[Json], count: int) -> list[Json]:
    copies = _in_turn([items[at]], count)
    return [*_in_turn(items[:at], 1), *copies, *_in_turn(items[at + 1 :], 1)]


def _member(name: str, members: Mapping[str, Json], count: int) -> dict[str, Json]:
    copies = {name.replace("#", str(i)): _numbered(members[name], i) for i in range(count)}
    return {**_numbered(members, 0), **copies}


def _places(value: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    yield path, value
    if isinstance(value, (dict, list)):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in members:
            yield from _places(inner, (*path, key))


def _made(sample: Json, path: Path, repeat: Callable[[Json, int], Json], count: int) -> Json:
    """Return a sample in which `repeat` has changed what is at a path."""
    if not path:
        return repeat(sample, count)
    first, *rest = path
    made = _numbered(sample, 0)
    place = first.replace("#", "0") if isinstance(first, str) else first
    made[place] = _made(sample[first], tuple(rest), repeat, count)
    return made


def _ways(value: Json) -> Iterator[tuple[str, Callable[[Json, int], Json]]]:
    """Yield the ways to repeat something in a value, by name."""
    match value:
        case list():
            yield from ((f"[{at}]", partial(_item, at)) for at in range(len(value)))
            if len(value) > 1:
                yield " in turn", lambda items, n: _in_turn(items, max(1, n // len(items)))
                yield " in groups", lambda items, n: _in_groups(items, max(1, n // len(items)))
        case dict():
            yield from ((f".{name}", partial(_member, name)) for name in value if "#" in name)
        case str() if "word" in value:
            yield " letters", lambda text, n: text.replace("word", "word " * n)


def repetitions(sample: Json) -> dict[str, Make]:
    """Return everything that may repeat in a sample, by its path."""
    return {
        ".".join(map(str, path)) + way: partial(_made, sample, path, repeat)
        for path, value in _places(sample)
        for way, repeat in _ways(value)
    }


def _with_more(sample: Mapping[str, Json], more: Mapping[str, Sequence[Json]]) -> dict[str, Make]:
    """Return repetitions in a sample, of unknown fields, and of further items of its lists.

    These are items that not every API can express, so that they are not in the sample. A list in
    place of an item has items that belong together.
    """
    made = repetitions(sample)
    made["unknown fields"] = partial(_made, {**sample, "new#": 1}, (), partial(_member, "new#"))
    for name, further in more.items():
        for number, item in enumerate(further):
            items = item if isinstance(item, list) else [item]
            before = [*sample.get(name, ())]
            found = repetitions({**sample, name: [*before, *items]})
            for at in range(len(before), len(before) + len(items)):
                ours = (f"{name}[{at}]", f"{name}.{at}.")
                made |= {f"+{number} {key}": found[key] for key in found if key.startswith(ours)}
    return made


_SCHEMA = {
    "type": "object",
    "properties": {
        "p#": {"type": "string"},
        "a": {"enum": ["value #"]},
        "b": {"anyOf": [{"const": "#", "description": "d"}]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"d#": {"type": "string"}},
}
_FUNCTION = {"name": "f#", "description": "Does it.", "parameters": _SCHEMA}
_PLAIN = {**_FUNCTION, "parameters": {"type": "object"}}
_USER = {"role": "user", "content": "What is the weather in Oslo?"}


def _say(role: str, content: Json, **fields: Json) -> dict[str, Json]:
    return {"role": role, "content": content, **fields}


_TEXT = {"type": "text", "text": "word #"}
_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
_CALL = {
    "id": "c#",
    "type": "function",
    "function": {"name": "f0", "arguments": '{"a":"word"}'},
}
_CUSTOM_CALL = {"id": "d#", "type": "custom", "custom": {"name": "g0", "input": "x"}}

_CHAT = {
    "model": "switchcraft",
    "messages": [
        _say("system", "word #"),
        _say("developer", "word #"),
        _USER,
        _say("user", [_TEXT, _IMAGE]),
        _say("assistant", "", reasoning_content="hm"),
        {"role": "assistant", "tool_calls": [_CALL]},
        _say("tool", [_TEXT], tool_call_id="c#"),
        _say("user", "word #"),
    ],
    "tools": [{"type": "function", "function": _FUNCTION}],
    "stop": ["stop #"],
    "metadata": {"k#": "v"},
}
_MORE_OF_CHAT: Mapping[str, Sequence[Json]] = {
    "messages": [
        _say("user", [{"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}]),
        _say("user", [{"type": "file", "file": {"file_data": PNG, "filename": "a.pdf"}}]),
        _say("user", [{"type": "file", "file": {"file_id": "a"}}]),
        _say("user", [{"type": "new"}]),
        _say("assistant", [{"type": "refusal", "refusal": "No."}]),
        _say("assistant", "a", reasoning_details=[{"text": "a", "signature": SEAL}]),
        _say("assistant", "a", reasoning_details=[{"data": SEAL}]),
        {"role": "assistant", "tool_calls": [{**_CALL, "id": "without a result #"}]},
        [
            {"role": "assistant", "tool_calls": [_CUSTOM_CALL]},
            _say("tool", [_IMAGE], tool_call_id="d#"),
        ],
        _say("tool", "a result without its call", tool_call_id="e#"),
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ],
    "tools": [
        {"type": "custom", "custom": {"name": "g#"}},
        {"type": "web_search"},
        {"type": "function", "function": {**_FUNCTION, "name": "s#", "strict": True}},
    ],
    "functions": [_PLAIN],
}

_INPUT_TEXT = {"type": "input_text", "text": "word #"}
_INPUT_IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
_CALL_ITEM = {"type": "function_call", "call_id": "c#", "name": "f0", "arguments": "{}"}

_RESPONSES = {
    "model": "switchcraft",
    "instructions": "word",
    "input": [
        _say("system", "word #"),
        _USER,
        _say("user", [_INPUT_TEXT, _INPUT_IMAGE]),
        _say("assistant", [{"type": "output_text", "text": "word #"}]),
        _CALL_ITEM,
        {"type": "function_call_output", "call_id": "c#", "output": [_INPUT_TEXT]},
        _say("assistant", ""),
        _say("user", "word #"),
    ],
    "tools": [{"type": "function", **_FUNCTION}],
    "include": ["reasoning.encrypted_content"],
    "metadata": {"k#": "v"},
}
_MORE_OF_RESPONSES: Mapping[str, Sequence[Json]] = {
    "input": [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "word #"}],
            "content": [{"type": "reasoning_text", "text": "word #"}],
            "encrypted_content": SEAL,
        },
        {**_CALL_ITEM, "call_id": "without a result #"},
        {"type": "function_call_output", "call_id": "e#", "output": "without its call"},
        [
            {"type": "custom_tool_call", "call_id": "d#", "name": "g", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "d#", "output": [_INPUT_IMAGE]},
        ],
        [
            {"type": "tool_search_call", "execution": "client", "call_id": "s#", "arguments": {}},
            {
                "type": "tool_search_output",
                "call_id": "s#",
                "tools": [{"type": "function", **_PLAIN, "name": "h#"}],
            },
        ],
        {
            "type": "additional_tools",
            "tools": [{"type": "function", **_PLAIN, "name": "i#"}],
        },
        {"type": "web_search_call"},
        {"type": "item_reference", "id": "i#"},
        _say("assistant", [{"type": "refusal", "refusal": "No."}]),
        _say("user", [{"type": "input_file", "file_data": PNG, "filename": "a.pdf"}]),
        _say("user", [{"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}]),
        _say("user", [{"type": "new"}]),
    ],
    "tools": [
        {"type": "custom", "name": "g#", "format": {"type": "text"}},
        {"type": "web_search"},
        {
            "type": "namespace",
            "name": "n#",
            "tools": [{"type": "function", **_PLAIN, "name": "j#"}],
        },
        {"type": "function", **_FUNCTION, "name": "s#", "strict": True},
    ],
}

_BLOCK_IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
}
_TOOL = {"name": "f#", "description": "Does it.", "input_schema": _SCHEMA}
_PLAIN_TOOL = {**_TOOL, "input_schema": {"type": "object"}}
_TOOL_USE = {"type": "tool_use", "id": "c#", "name": "f0", "input": {"k#": "#"}}
_TOOL_RESULT = {"type": "tool_result", "tool_use_id": "c#", "content": [_TEXT]}
_THINKING = {"type": "thinking", "thinking": "hm", "signature": SEAL}
_HIDDEN_THINKING = {"type": "redacted_thinking", "data": SEAL}
_REFERENCE = {"type": "tool_reference", "tool_name": "f#"}

_MESSAGES = {
    "model": "switchcraft",
    "max_tokens": 99,
    "system": [_TEXT],
    "messages": [
        _USER,
        _say("assistant", "word #"),
        _say("user", [_TEXT, _BLOCK_IMAGE]),
        _say("assistant", [_TOOL_USE]),
        _say("user", [_TOOL_RESULT]),
        _say("user", "word #"),
    ],
    "tools": [_TOOL],
    "stop_sequences": ["stop #"],
}
_MORE_OF_MESSAGES: Mapping[str, Sequence[Json]] = {
    "messages": [
        _say("assistant", [_THINKING, _TEXT]),
        _say("assistant", [_HIDDEN_THINKING]),
        _say("assistant", [{**_TOOL_USE, "id": "without a result #"}]),
        _say("user", [{**_TOOL_RESULT, "tool_use_id": "without a call #"}]),
        [
            _say("assistant", [_THINKING, {**_TOOL_USE, "id": "d#"}]),
            _say("user", [{**_TOOL_RESULT, "tool_use_id": "d#", "content": [_BLOCK_IMAGE]}]),
        ],
        [
            _say("assistant", [{**_TOOL_USE, "id": "e#"}]),
            _say("user", [{"type": "tool_result", "tool_use_id": "e#", "content": [_REFERENCE]}]),
        ],
        _say("user", [{"type": "document", "source": {"type": "content", "content": [_TEXT]}}]),
        _say("user", [{"type": "search_result", "title": "a", "source": "b", "content": [_TEXT]}]),
        _say("assistant", [{"type": "server_tool_use", "name": "a", "input": {}}]),
        _say("system", "word #"),
        {**_say("system", "word #"), "clear_at": "next_user_message"},
        _say(
            "system",
            [
                {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f#"}},
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f#"}},
            ],
        ),
        _say(
            "system",
            [
                {
                    "type": "tool_addition",
                    "tool": {
                        "type": "tool_definition",
                        "definition": {**_PLAIN_TOOL, "name": "h#"},
                    },
                }
            ],
        ),
    ],
    "tools": [
        {**_TOOL, "name": "s#", "strict": True},
        {**_PLAIN_TOOL, "name": "d#", "defer_loading": True, "input_examples": [{"a": "#"}]},
        {"type": "web_search_20250305", "name": "w"},
    ],
    "mcp_servers": [{"type": "url", "url": "a"}],
}

REQUESTS: Mapping[Api, dict[str, Make]] = {
    apis.CHAT: _with_more(_CHAT, _MORE_OF_CHAT),
    apis.RESPONSES: _with_more(_RESPONSES, _MORE_OF_RESPONSES),
    apis.MESSAGES: _with_more(_MESSAGES, _MORE_OF_MESSAGES),
}
"""Bodies by API and by what is repeated in them."""

SAMPLES: Mapping[Api, Json] = {
    apis.CHAT: _numbered(_CHAT, 0),
    apis.RESPONSES: _numbered(_RESPONSES, 0),
    apis.MESSAGES: _numbered(_MESSAGES, 0),
}
"""Bodies that every API can express."""


_PARTS = (
    Thinking("hm", SEAL),
    Thinking("", SEAL, is_hidden=True),
    Text("word"),
    ToolUse("c#", "f0", '{"k":"a"}'),
    ToolUse("d#", "f1", "{}"),
)


def _chunk(**delta: Json) -> dict[str, Json]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


_OTHER_EVENTS: Mapping[UpstreamApi, Sequence[Json]] = {
    apis.CHAT: (
        _chunk(content=" "),
        _chunk(refusal="No."),
        _chunk(reasoning_details=[{"text": "a", "signature": SEAL}]),
        _chunk(reasoning_details=[{"data": SEAL}]),
        _chunk(content=[{"type": "text", "text": "a"}]),
        _chunk(tool_calls=[{"index": "#", "id": "e#", "function": {"name": "f", "arguments": ""}}]),
        _chunk(tool_calls=[{"index": 0, "id": "e#", "function": {"name": "f", "arguments": "{"}}]),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        _chunk(),
    ),
    apis.RESPONSES: (
        {"type": "response.refusal.delta", "output_index": "#", "delta": "a "},
        {"type": "response.output_text.annotation.added", "annotation": {}},
        {"type": "keepalive"},
    ),
    apis.MESSAGES: (
        {
            "type": "content_block_delta",
            "index": "#",
            "delta": {"type": "citations_delta", "citation": {}},
        },
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "new"},
    ),
    apis.CONVERSE: (
        {"contentBlockDelta": {"contentBlockIndex": "#", "delta": {"citation": {}}}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"new": {}},
    ),
}
"""Events that a usual answer does not have."""


def _with_numbers(value: Json) -> Json:
    """Return an event with a number for the place of its part in the answer."""
    if isinstance(value, list):
        return [_with_numbers(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    places = {"output_index", "contentBlockIndex"}
    if "finish_reason" not in value:  # the only choice of a chat answer
        places.add("index")
    return {key: "#" if key in places else _with_numbers(inner) for key, inner in value.items()}


def _sample(dialect: UpstreamApi) -> tuple[Json, list[Json], list[Json]]:
    """Return the first event of a stream, those of its parts, and the last ones."""
    usual = [data_of(each) for each in Reply(dialect, "m", _PARTS).events() if each != DONE]
    last = len(usual) - (1 if dialect is apis.RESPONSES else 2)
    middle = [_with_numbers(each) for each in usual[1:last]]
    return usual[0], [*middle, *_OTHER_EVENTS[dialect]], usual[last:]


def _stream(
    dialect: UpstreamApi, repeat: Callable[[Sequence[Json], int], list[Json]], count: int
) -> list[Json]:
    first, middle, last = _sample(dialect)
    return [_numbered(first, 0), *repeat(middle, count), *_numbered(last, 0)]


def _event_ways(events: Sequence[Json]) -> dict[str, Callable[[Sequence[Json], int], list[Json]]]:
    """Return the ways to repeat one of the events, or all of them."""
    ways = dict(_ways(list(events)))
    return {f"{name} {_kind(events, name)}".strip(): way for name, way in ways.items()}


def _kind(events: Sequence[Json], name: str) -> str:
    """Return what an event such as `[3]` is called."""
    if not name.startswith("["):
        return ""
    event = events[int(name[1:-1])]
    if "choices" in event:
        return " ".join(event["choices"][0]["delta"]) or "end"
    return str(event.get("type") or next(iter(event)))


ANSWERS: Mapping[UpstreamApi, dict[str, Make]] = {
    dialect: repetitions(Reply(dialect, "m", _PARTS).whole()) for dialect in _OTHER_EVENTS
}
"""Whole answers by API and by what is repeated in them."""

EVENTS: Mapping[UpstreamApi, dict[str, Make]] = {
    dialect: {
        name: partial(_stream, dialect, way)
        for name, way in _event_ways(_sample(dialect)[1]).items()
    }
    for dialect in _OTHER_EVENTS
}
"""Streams by API and by the events that are repeated in them."""
