"""Requests and answers in which one thing is repeated: all that may repeat in the APIs.

Each function takes how often, and returns a decoded body or answer, or the events of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests import apis
from tests.apis import Api, UpstreamApi

Json = Any
MakeBody = Callable[[int], dict[str, Json]]
MakeEvents = Callable[[int], list[dict[str, Json]]]

USER = {"role": "user", "content": "What is the weather in Oslo?"}
PNG = "iVBORw0KGgo="
SEAL = "c2VhbA=="
_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
_INPUT_IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
_DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "word"},
}
_IMAGE_BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
}


def _chat(*messages: Json, **fields: Json) -> dict[str, Json]:
    tools = [{"type": "function", "function": _function()}]
    return {"model": "switchcraft", "messages": [USER, *messages], "tools": tools, **fields}


def _function(name: str = "f", parameters: Json = None) -> dict[str, Json]:
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"name": name, "description": "Does it.", "parameters": schema}


def _responses(*items: Json, **fields: Json) -> dict[str, Json]:
    tools = [{"type": "function", **_function()}]
    return {"model": "switchcraft", "input": [USER, *items], "tools": tools, **fields}


def _messages(*messages: Json, **fields: Json) -> dict[str, Json]:
    body = {"model": "switchcraft", "max_tokens": 99, "messages": [USER, *messages]}
    return {**body, "tools": [_tool("f")], **fields}


def _tool(name: str, parameters: Json = None, **fields: Json) -> dict[str, Json]:
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"name": name, "description": "Does it.", "input_schema": schema, **fields}


def _say(role: str, content: Json) -> dict[str, Json]:
    return {"role": role, "content": content}


def _chat_call(i: int) -> dict[str, Json]:
    return {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def _chat_result(i: int) -> dict[str, Json]:
    return {"role": "tool", "tool_call_id": f"c{i}", "content": "done"}


def _tool_use(i: int) -> dict[str, Json]:
    return {"type": "tool_use", "id": f"c{i}", "name": "f", "input": {"a": i}}


def _tool_result(i: int, content: Json = "done") -> dict[str, Json]:
    return {"type": "tool_result", "tool_use_id": f"c{i}", "content": content}


def _call_item(i: int) -> dict[str, Json]:
    return {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"}


def _output_item(i: int, output: Json = "done") -> dict[str, Json]:
    return {"type": "function_call_output", "call_id": f"c{i}", "output": output}


SCHEMAS: dict[str, Callable[[int], Json]] = {
    "properties": lambda n: {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(n)},
        "required": [f"p{i}" for i in range(n)],
        "additionalProperties": False,
    },
    "enum values": lambda n: {
        "type": "object",
        "properties": {"a": {"enum": [f"value {i}" for i in range(n)]}},
    },
    "alternatives": lambda n: {
        "type": "object",
        "properties": {"a": {"anyOf": [{"const": i, "description": "d"} for i in range(n)]}},
    },
    "definitions": lambda n: {
        "type": "object",
        "$defs": {f"d{i}": {"type": "string"} for i in range(n)},
    },
}
"""Schemas of a tool, or of the answer."""


def _chat_with_schema(make: Callable[[int], Json], n: int) -> Json:
    function = {**_function("f", make(n)), "strict": True}
    return _chat(tools=[{"type": "function", "function": function}])


def _responses_with_schema(make: Callable[[int], Json], n: int) -> Json:
    return _responses(tools=[{"type": "function", **_function("f", make(n)), "strict": True}])


def _messages_with_schema(make: Callable[[int], Json], n: int) -> Json:
    return _messages(tools=[_tool("f", make(n), strict=True)])


def _text(i: int) -> dict[str, Json]:
    return {"type": "text", "text": f"word {i}"}


CHAT: dict[str, MakeBody] = {
    "user messages": lambda n: _chat(*(_say("user", f"word {i}") for i in range(n))),
    "assistant messages": lambda n: _chat(*(_say("assistant", f"word {i}") for i in range(n))),
    "empty assistant messages": lambda n: _chat(*[_say("assistant", "")] * n),
    "system messages": lambda n: _chat(*(_say("system", f"word {i}") for i in range(n))),
    "first system messages": lambda n: (
        _chat() | {"messages": [*(_say("system", f"word {i}") for i in range(n)), USER]}
    ),
    "developer messages": lambda n: _chat(*(_say("developer", f"word {i}") for i in range(n))),
    "legacy function messages": lambda n: _chat(
        *[{"role": "function", "name": "f", "content": "1"}] * n
    ),
    "legacy calls": lambda n: _chat(
        *[{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}] * n
    ),
    "calls of one message": lambda n: _chat(
        {"role": "assistant", "tool_calls": [_chat_call(i) for i in range(n)]},
        *(_chat_result(i) for i in range(n)),
    ),
    "calls of many messages": lambda n: _chat(
        *(
            message
            for i in range(n)
            for message in (
                {"role": "assistant", "tool_calls": [_chat_call(i)]},
                _chat_result(i),
            )
        )
    ),
    "calls with one id": lambda n: _chat(
        *(
            message
            for _ in range(n)
            for message in (
                {"role": "assistant", "tool_calls": [_chat_call(0)]},
                _chat_result(0),
            )
        )
    ),
    "custom calls": lambda n: _chat(
        {
            "role": "assistant",
            "tool_calls": [
                {"id": f"c{i}", "type": "custom", "custom": {"name": "f", "input": "x"}}
                for i in range(n)
            ],
        },
        *(_chat_result(i) for i in range(n)),
    ),
    "calls without results": lambda n: _chat(
        {"role": "assistant", "tool_calls": [_chat_call(i) for i in range(n)]}
    ),
    "results without calls": lambda n: _chat(*(_chat_result(i) for i in range(n))),
    "results with images": lambda n: _chat(
        {"role": "assistant", "tool_calls": [_chat_call(i) for i in range(n)]},
        *({**_chat_result(i), "content": [_text(i), _IMAGE]} for i in range(n)),
    ),
    "parts of a result": lambda n: _chat(
        {"role": "assistant", "tool_calls": [_chat_call(0)]},
        {**_chat_result(0), "content": [_text(i) for i in range(n)]},
    ),
    "text parts": lambda n: _chat(_say("user", [_text(i) for i in range(n)])),
    "image parts": lambda n: _chat(_say("user", [_IMAGE] * n)),
    "messages with images": lambda n: _chat(*[_say("user", [_IMAGE])] * n),
    "audio parts": lambda n: _chat(
        _say("user", [{"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}] * n)
    ),
    "file parts": lambda n: _chat(
        _say("user", [{"type": "file", "file": {"file_data": PNG, "filename": "a.pdf"}}] * n)
    ),
    "stored files": lambda n: _chat(
        _say("user", [{"type": "file", "file": {"file_id": "a"}} for _ in range(n)])
    ),
    "refusal parts": lambda n: _chat(
        _say("assistant", [{"type": "refusal", "refusal": "No."}] * n)
    ),
    "unknown parts": lambda n: _chat(_say("user", [{"type": "new"}] * n)),
    "reasoning details": lambda n: _chat(
        {**_say("assistant", "a"), "reasoning_details": [{"text": "a", "signature": SEAL}] * n}
    ),
    "hidden reasoning details": lambda n: _chat(
        {**_say("assistant", "a"), "reasoning_details": [{"data": SEAL}] * n}
    ),
    "reasoning messages": lambda n: _chat(
        *[{**_say("assistant", "a"), "reasoning_content": "hm"}] * n
    ),
    "tools": lambda n: _chat(
        tools=[{"type": "function", "function": _function(f"f{i}")} for i in range(n)]
    ),
    "equal tools": lambda n: _chat(tools=[{"type": "function", "function": _function()}] * n),
    "custom tools": lambda n: _chat(
        tools=[{"type": "custom", "custom": {"name": f"f{i}"}} for i in range(n)]
    ),
    "foreign tools": lambda n: _chat(tools=[{"type": "web_search"}] * n),
    "functions": lambda n: _chat(functions=[_function(f"f{i}") for i in range(n)], tools=None),
    **{name: partial(_chat_with_schema, make) for name, make in SCHEMAS.items()},
    "properties of the answer": lambda n: _chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": SCHEMAS["properties"](n), "strict": True},
        }
    ),
    "allowed tools": lambda n: _chat(
        tools=[{"type": "function", "function": _function(f"f{i}")} for i in range(n)],
        tool_choice={
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n)],
            },
        },
    ),
    "stop sequences": lambda n: _chat(stop=[f"stop {i}" for i in range(n)]),
    "metadata": lambda n: _chat(metadata={f"k{i}": "v" for i in range(n)}),
    "logit bias": lambda n: _chat(logit_bias={str(i): 1 for i in range(n)}),
    "unknown fields": lambda n: {**_chat(), **{f"new{i}": 1 for i in range(n)}},
    "letters": lambda n: _chat(_say("user", "word " * n)),
    "system letters": lambda n: _chat(_say("system", "word " * n)),
    "letters of arguments": lambda n: _chat(
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a":"' + "word " * n + '"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "word " * n},
    ),
    "values of arguments": lambda n: _chat(
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "f", "arguments": f'{{"a":{[*range(n)]}}}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ),
    "long integers": lambda n: _chat(
        tools=[
            {
                "type": "function",
                "function": _function("f", {"enum": [2**64 + i for i in range(n)]}),
            }
        ]
    ),
}


RESPONSES: dict[str, MakeBody] = {
    "assistant items": lambda n: _responses(*[_say("assistant", "")] * n),
    "user items": lambda n: _responses(*(_say("user", f"word {i}") for i in range(n))),
    "system items": lambda n: _responses(*(_say("system", f"word {i}") for i in range(n))),
    "developer items": lambda n: _responses(*(_say("developer", f"word {i}") for i in range(n))),
    "calls, then results": lambda n: _responses(
        *(_call_item(i) for i in range(n)), *(_output_item(i) for i in range(n))
    ),
    "calls with results": lambda n: _responses(
        *(item for i in range(n) for item in (_call_item(i), _output_item(i)))
    ),
    "calls without results": lambda n: _responses(*(_call_item(i) for i in range(n))),
    "results without calls": lambda n: _responses(*(_output_item(i) for i in range(n))),
    "custom calls": lambda n: _responses(
        *(
            {"type": "custom_tool_call", "call_id": f"c{i}", "name": "f", "input": "x"}
            for i in range(n)
        ),
        *({"type": "custom_tool_call_output", "call_id": f"c{i}", "output": "x"} for i in range(n)),
    ),
    "searches": lambda n: _responses(
        *(
            {
                "type": "tool_search_call",
                "execution": "client",
                "call_id": f"c{i}",
                "arguments": {"q": i},
            }
            for i in range(n)
        ),
        *(
            {
                "type": "tool_search_output",
                "call_id": f"c{i}",
                "tools": [{"type": "function", **_function(f"g{i}")}],
            }
            for i in range(n)
        ),
    ),
    "parts of a result": lambda n: _responses(
        _call_item(0),
        _output_item(0, [{"type": "input_text", "text": f"word {i}"} for i in range(n)]),
    ),
    "images of results": lambda n: _responses(
        *(_call_item(i) for i in range(n)),
        *(_output_item(i, [_INPUT_IMAGE]) for i in range(n)),
    ),
    "reasoning items": lambda n: _responses(
        *[{"type": "reasoning", "summary": [], "encrypted_content": SEAL}] * n
    ),
    "summaries": lambda n: _responses(
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": f"word {i}"} for i in range(n)],
            "encrypted_content": SEAL,
        }
    ),
    "thoughts": lambda n: _responses(
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": f"word {i}"} for i in range(n)],
        }
    ),
    "additional tools": lambda n: _responses(
        *(
            {"type": "additional_tools", "tools": [{"type": "function", **_function(f"g{i}")}]}
            for i in range(n)
        )
    ),
    "items of the provider's tools": lambda n: _responses(*[{"type": "web_search_call"}] * n),
    "references": lambda n: _responses(
        *({"type": "item_reference", "id": f"i{i}"} for i in range(min(n, 1900)))
    ),
    "text parts": lambda n: _responses(
        _say("user", [{"type": "input_text", "text": f"word {i}"} for i in range(n)])
    ),
    "output parts": lambda n: _responses(
        _say("assistant", [{"type": "output_text", "text": f"word {i}"} for i in range(n)])
    ),
    "refusal parts": lambda n: _responses(
        _say("assistant", [{"type": "refusal", "refusal": "No."}] * n)
    ),
    "image parts": lambda n: _responses(_say("user", [_INPUT_IMAGE] * n)),
    "file parts": lambda n: _responses(
        _say("user", [{"type": "input_file", "file_data": PNG, "filename": "a.pdf"}] * n)
    ),
    "audio parts": lambda n: _responses(
        _say("user", [{"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}}] * n)
    ),
    "unknown parts": lambda n: _responses(_say("user", [{"type": "new"}] * n)),
    "tools": lambda n: _responses(
        tools=[{"type": "function", **_function(f"f{i}")} for i in range(n)]
    ),
    "custom tools": lambda n: _responses(
        tools=[{"type": "custom", "name": f"f{i}", "format": {"type": "text"}} for i in range(n)]
    ),
    "built-in tools": lambda n: _responses(tools=[{"type": "web_search"}] * n),
    "namespaces": lambda n: _responses(
        tools=[
            {"type": "namespace", "name": f"n{i}", "tools": [{"type": "function", **_function()}]}
            for i in range(n)
        ]
    ),
    "tools of a namespace": lambda n: _responses(
        tools=[
            {
                "type": "namespace",
                "name": "n",
                "tools": [{"type": "function", **_function(f"f{i}")} for i in range(n)],
            }
        ]
    ),
    **{name: partial(_responses_with_schema, make) for name, make in SCHEMAS.items()},
    "properties of the answer": lambda n: _responses(
        text={
            "format": {
                "type": "json_schema",
                "name": "a",
                "schema": SCHEMAS["properties"](n),
                "strict": True,
            }
        }
    ),
    "allowed tools": lambda n: _responses(
        tools=[{"type": "function", **_function(f"f{i}")} for i in range(n)],
        tool_choice={
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": f"f{i}"} for i in range(n)],
        },
    ),
    "foreign allowed tools": lambda n: _responses(
        tool_choice={
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "web_search"}] * n,
        },
    ),
    "included fields": lambda n: _responses(include=["reasoning.encrypted_content"] * n),
    "metadata": lambda n: _responses(metadata={f"k{i}": "v" for i in range(n)}),
    "unknown fields": lambda n: {**_responses(), **{f"new{i}": 1 for i in range(n)}},
    "letters": lambda n: _responses() | {"input": "word " * n},
    "letters of instructions": lambda n: _responses(instructions="word " * n),
}


MESSAGES: dict[str, MakeBody] = {
    "user messages": lambda n: _messages(*(_say("user", f"word {i}") for i in range(n))),
    "assistant messages": lambda n: _messages(*(_say("assistant", f"word {i}") for i in range(n))),
    "messages in turn": lambda n: _messages(
        *(_say(role, f"word {i}") for i in range(n) for role in ("assistant", "user"))
    ),
    "system messages": lambda n: _messages(*(_say("system", f"word {i}") for i in range(n))),
    "cleared messages": lambda n: _messages(
        *({**_say("system", f"{i}"), "clear_at": "next_user_message"} for i in range(n)), USER
    ),
    "efforts": lambda n: _messages(
        *[{"role": "system", "output_config": {"effort": "low"}}] * n,
    ),
    "system blocks": lambda n: _messages(system=[_text(i) for i in range(n)]),
    "text blocks": lambda n: _messages(_say("user", [_text(i) for i in range(n)])),
    "image blocks": lambda n: _messages(_say("user", [_IMAGE_BLOCK] * n)),
    "documents": lambda n: _messages(
        _say("user", [{**_DOCUMENT, "title": "a", "context": "b"}] * n),
    ),
    "parts of a document": lambda n: _messages(
        _say(
            "user",
            [
                {
                    "type": "document",
                    "source": {"type": "content", "content": [_text(i) for i in range(n)]},
                }
            ],
        )
    ),
    "search results": lambda n: _messages(
        _say(
            "user",
            [
                {
                    "type": "search_result",
                    "title": "a",
                    "source": "b",
                    "content": [_text(i)],
                }
                for i in range(n)
            ],
        )
    ),
    "calls of one message": lambda n: _messages(
        _say("assistant", [_tool_use(i) for i in range(n)]),
        _say("user", [_tool_result(i) for i in range(n)]),
    ),
    "calls of many messages": lambda n: _messages(
        *(
            message
            for i in range(n)
            for message in (_say("assistant", [_tool_use(i)]), _say("user", [_tool_result(i)]))
        )
    ),
    "calls of messages in a row": lambda n: _messages(
        *(_say("assistant", [_tool_use(i)]) for i in range(n)),
        *(_say("user", [_tool_result(i)]) for i in range(n)),
    ),
    "calls without results": lambda n: _messages(
        _say("assistant", [_tool_use(i) for i in range(n)])
    ),
    "results without calls": lambda n: _messages(_say("user", [_tool_result(i) for i in range(n)])),
    "blocks of a result": lambda n: _messages(
        _say("assistant", [_tool_use(0)]),
        _say("user", [_tool_result(0, [_text(i) for i in range(n)])]),
    ),
    "images of results": lambda n: _messages(
        _say("assistant", [_tool_use(i) for i in range(n)]),
        _say("user", [_tool_result(i, [_IMAGE_BLOCK]) for i in range(n)]),
    ),
    "tool references": lambda n: _messages(
        _say("assistant", [_tool_use(0)]),
        _say(
            "user",
            [_tool_result(0, [{"type": "tool_reference", "tool_name": f"f{i}"} for i in range(n)])],
        ),
        tools=[_tool(f"f{i}", defer_loading=True) for i in range(n)],
    ),
    "tool changes": lambda n: _messages(
        _say(
            "system",
            [
                {
                    "type": kind,
                    "tool": {"type": "tool_reference", "name": f"f{i}"},
                }
                for i in range(n)
                for kind in ("tool_addition", "tool_removal")
            ],
        ),
        tools=[_tool(f"f{i}") for i in range(n)],
    ),
    "tool definitions": lambda n: _messages(
        _say(
            "system",
            [
                {
                    "type": "tool_addition",
                    "tool": {"type": "tool_definition", "definition": _tool(f"g{i}")},
                }
                for i in range(n)
            ],
        )
    ),
    "thinking blocks": lambda n: _messages(
        _say(
            "assistant",
            [{"type": "thinking", "thinking": "hm", "signature": SEAL} for _ in range(n)],
        ),
        USER,
    ),
    "hidden thinking blocks": lambda n: _messages(
        _say("assistant", [{"type": "redacted_thinking", "data": SEAL}] * n), USER
    ),
    "messages with thinking": lambda n: _messages(
        *(
            _say("assistant", [{"type": "thinking", "thinking": "", "signature": SEAL}, _text(i)])
            for i in range(n)
        )
    ),
    "messages with thinking in a tool loop": lambda n: _messages(
        *(
            message
            for i in range(n)
            for message in (
                _say(
                    "assistant",
                    [{"type": "thinking", "thinking": "", "signature": SEAL}, _tool_use(i)],
                ),
                _say("user", [_tool_result(i)]),
            )
        )
    ),
    "blocks of the provider's tools": lambda n: _messages(
        _say("assistant", [{"type": "server_tool_use", "name": "a", "input": {}}] * n), USER
    ),
    "tools": lambda n: _messages(tools=[_tool(f"f{i}") for i in range(n)]),
    "built-in tools": lambda n: _messages(tools=[{"type": "web_search_20250305", "name": "w"}] * n),
    "examples of a tool": lambda n: _messages(
        tools=[_tool("f", input_examples=[{"a": i} for i in range(n)])]
    ),
    "callers of a tool": lambda n: _messages(tools=[_tool("f", allowed_callers=["direct"] * n)]),
    **{name: partial(_messages_with_schema, make) for name, make in SCHEMAS.items()},
    "properties of the answer": lambda n: _messages(
        output_config={"format": {"type": "json_schema", "schema": SCHEMAS["properties"](n)}}
    ),
    "stop sequences": lambda n: _messages(stop_sequences=[f"stop {i}" for i in range(n)]),
    "context edits": lambda n: _messages(
        context_management={"edits": [{"type": "clear_thinking_20251015"}] * n}
    ),
    "servers": lambda n: _messages(mcp_servers=[{"type": "url", "url": "a"}] * n),
    "unknown fields": lambda n: {**_messages(), **{f"new{i}": 1 for i in range(n)}},
    "letters": lambda n: _messages(_say("user", "word " * n)),
    "values of an input": lambda n: _messages(
        _say("assistant", [{**_tool_use(0), "input": {f"k{i}": i for i in range(n)}}]),
        _say("user", [_tool_result(0)]),
    ),
}

REQUESTS: dict[Api, dict[str, MakeBody]] = {
    apis.CHAT: CHAT,
    apis.RESPONSES: RESPONSES,
    apis.MESSAGES: MESSAGES,
}
"""Bodies by API and by what is repeated in them."""


def _chunk(delta: Json, reason: str | None = None, **fields: Json) -> dict[str, Json]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "a", "object": "chat.completion.chunk", "choices": [choice], **fields}


def _chat_stream(*deltas: Json, reason: str = "stop") -> list[dict[str, Json]]:
    return [_chunk({"role": "assistant"}), *map(_chunk, deltas), _chunk({}, reason)]


def _call_delta(i: int, arguments: str = "{}", **fields: Json) -> dict[str, Json]:
    call = {"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": arguments}}
    return {"tool_calls": [{**call, **fields}]}


def _rest_delta(i: int, arguments: str) -> dict[str, Json]:
    return {"tool_calls": [{"index": i, "function": {"arguments": arguments}}]}


def _many_choices(n: int) -> list[dict[str, Json]]:
    event = _chunk({"content": "a"})
    event["choices"] += [{"index": i, "delta": {"content": "a"}} for i in range(1, n)]
    return [event, _chunk({}, "stop")]


CHAT_EVENTS: dict[str, MakeEvents] = {
    "text": lambda n: _chat_stream(*({"content": f"word {i}"} for i in range(n))),
    "blanks": lambda n: _chat_stream(*[{"content": " "}] * n),
    "refusals": lambda n: _chat_stream(*[{"refusal": "No."}] * n),
    "reasoning": lambda n: _chat_stream(*[{"reasoning_content": "hm "}] * n),
    "changes between text and reasoning": lambda n: _chat_stream(
        *[{"content": "a"}, {"reasoning": "b"}] * n
    ),
    "reasoning details": lambda n: _chat_stream(
        *[{"reasoning_details": [{"text": "a", "signature": SEAL}]}] * n
    ),
    "hidden reasoning": lambda n: _chat_stream(*[{"reasoning_details": [{"data": SEAL}]}] * n),
    "parts of the content": lambda n: _chat_stream(
        *[{"content": [{"type": "text", "text": "a"}]}] * n
    ),
    "arguments": lambda n: _chat_stream(
        _call_delta(0, "{"),
        *[_rest_delta(0, " ")] * n,
        _rest_delta(0, "}"),
        reason="tool_calls",
    ),
    "blank arguments": lambda n: _chat_stream(
        _call_delta(0, ""), *[_rest_delta(0, " ")] * n, _rest_delta(0, "{}"), reason="tool_calls"
    ),
    "calls": lambda n: _chat_stream(*map(_call_delta, range(n)), reason="tool_calls"),
    "calls at one place": lambda n: _chat_stream(
        *(_call_delta(i, index=0) for i in range(n)), reason="tool_calls"
    ),
    "open calls": lambda n: _chat_stream(
        *(_call_delta(i, "{") for i in range(n)),
        *(_rest_delta(i, "}") for i in range(n)),
        reason="tool_calls",
    ),
    "calls of one event": lambda n: _chat_stream(
        {"tool_calls": [_call_delta(i)["tool_calls"][0] for i in range(n)]}, reason="tool_calls"
    ),
    "custom calls": lambda n: _chat_stream(
        *(
            {"tool_calls": [{"index": i, "id": f"c{i}", "custom": {"name": "f", "input": "x"}}]}
            for i in range(n)
        ),
        reason="tool_calls",
    ),
    "ends after many calls": lambda n: [
        *_chat_stream(*map(_call_delta, range(n)), reason="tool_calls"),
        *[_chunk({}, "tool_calls")] * n,
    ],
    "choices": _many_choices,
    "usage": lambda n: [
        _chunk({"content": "a"}),
        *[{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}] * n,
        _chunk({}, "stop"),
    ],
    "empty events": lambda n: _chat_stream(*[{}] * n),
    "annotations": lambda n: _chat_stream(*[{"annotations": [{"type": "url_citation"}]}] * n),
    "legacy arguments": lambda n: _chat_stream(
        {"function_call": {"name": "f", "arguments": "{"}},
        *[{"function_call": {"arguments": " "}}] * n,
        {"function_call": {"arguments": "}"}},
    ),
}


def _response(output: Sequence[Json] = (), status: str = "completed") -> dict[str, Json]:
    head = {"id": "resp_1", "object": "response", "model": "m", "status": status}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {**head, "output": [*output], "usage": usage}


def _response_stream(
    *events: Json, output: Sequence[Json] = (), is_done: bool = True
) -> list[dict[str, Json]]:
    last = {"type": "response.completed", "response": _response(output)}
    first = {"type": "response.created", "response": _response((), "in_progress")}
    return [first, *events, *([last] if is_done else ())]


def _message_item(text: str = "a", parts: int = 1, kind: str = "output_text") -> dict[str, Json]:
    part = {"type": kind, "text" if kind == "output_text" else "refusal": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part] * parts}


def _reasoning_item(texts: int = 1) -> dict[str, Json]:
    summary = [{"type": "summary_text", "text": "hm"}] * texts
    return {"type": "reasoning", "summary": summary, "encrypted_content": SEAL}


def _added(i: int, item: Json) -> dict[str, Json]:
    return {"type": "response.output_item.added", "output_index": i, "item": item}


def _done(i: int, item: Json) -> dict[str, Json]:
    return {"type": "response.output_item.done", "output_index": i, "item": item}


def _delta(kind: str, i: int = 0, text: str = "a ", **fields: Json) -> dict[str, Json]:
    return {"type": f"response.{kind}.delta", "output_index": i, "delta": text, **fields}


RESPONSES_EVENTS: dict[str, MakeEvents] = {
    "text": lambda n: _response_stream(
        _added(0, _message_item("")),
        *[_delta("output_text")] * n,
        _done(0, _message_item("a " * n)),
        output=[_message_item("a " * n)],
    ),
    "refusals": lambda n: _response_stream(
        _added(0, _message_item("")),
        *[_delta("refusal")] * n,
        _done(0, _message_item("a " * n, kind="refusal")),
    ),
    "parts": lambda n: _response_stream(
        _added(0, _message_item("")),
        *(_delta("output_text", content_index=i, text="a") for i in range(n)),
        _done(0, _message_item("a", n)),
    ),
    "annotations": lambda n: _response_stream(
        _added(0, _message_item("")),
        *[{"type": "response.output_text.annotation.added", "annotation": {}}] * n,
        _done(0, _message_item("a")),
    ),
    "messages": lambda n: _response_stream(
        *(
            event
            for i in range(n)
            for event in (_added(i, _message_item("")), _done(i, _message_item()))
        ),
        output=[_message_item()] * n,
    ),
    "items without deltas": lambda n: _response_stream(output=[_message_item()] * n),
    "open messages": lambda n: _response_stream(
        *(_delta("output_text", i) for i in range(n)),
        *(_done(i, _message_item("a ")) for i in range(n)),
    ),
    "arguments": lambda n: _response_stream(
        _added(0, _call_item(0) | {"arguments": ""}),
        _delta("function_call_arguments", text="{"),
        *[_delta("function_call_arguments", text=" ")] * n,
        _delta("function_call_arguments", text="}"),
        _done(0, _call_item(0) | {"arguments": "{" + " " * n + "}"}),
    ),
    "calls": lambda n: _response_stream(
        *(event for i in range(n) for event in (_added(i, _call_item(i)), _done(i, _call_item(i)))),
        output=[_call_item(i) for i in range(n)],
    ),
    "open calls": lambda n: _response_stream(
        *(_added(i, _call_item(i)) for i in range(n)),
        *(_done(i, _call_item(i)) for i in range(n)),
    ),
    "open calls, ended by the last event": lambda n: _response_stream(
        *(_added(i, _call_item(i)) for i in range(n)),
    ),
    "reasoning": lambda n: _response_stream(
        _added(0, _reasoning_item(0)),
        *[_delta("reasoning_summary_text", summary_index=0)] * n,
        _done(0, _reasoning_item()),
    ),
    "summaries": lambda n: _response_stream(
        _added(0, _reasoning_item(0)),
        *(_delta("reasoning_summary_text", summary_index=i) for i in range(n)),
        _done(0, _reasoning_item(n)),
    ),
    "thoughts": lambda n: _response_stream(
        *(
            event
            for i in range(n)
            for event in (_added(i, _reasoning_item(0)), _done(i, _reasoning_item()))
        )
    ),
    "events of other kinds": lambda n: _response_stream(*[{"type": "response.in_progress"}] * n),
    "keep-alives": lambda n: _response_stream(*[{"type": "keepalive"}] * n),
}


def _message(content: Sequence[Json] = ()) -> dict[str, Json]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    return {**head, "content": [*content], "usage": {"input_tokens": 1, "output_tokens": 1}}


def _message_stream(*events: Json) -> list[dict[str, Json]]:
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 1},
    }
    start = {"type": "message_start", "message": _message()}
    return [start, *events, end, {"type": "message_stop"}]


def _start(i: int, block: Json) -> dict[str, Json]:
    return {"type": "content_block_start", "index": i, "content_block": block}


def _grow(i: int, kind: str, **fields: Json) -> dict[str, Json]:
    return {"type": "content_block_delta", "index": i, "delta": {"type": kind, **fields}}


def _stop(i: int) -> dict[str, Json]:
    return {"type": "content_block_stop", "index": i}


_TEXT = {"type": "text", "text": ""}
_THINKING = {"type": "thinking", "thinking": "", "signature": ""}

MESSAGES_EVENTS: dict[str, MakeEvents] = {
    "text": lambda n: _message_stream(
        _start(0, _TEXT), *[_grow(0, "text_delta", text="a ")] * n, _stop(0)
    ),
    "blocks": lambda n: _message_stream(
        *(
            event
            for i in range(n)
            for event in (_start(i, _TEXT), _grow(i, "text_delta", text="a"), _stop(i))
        )
    ),
    "empty blocks": lambda n: _message_stream(
        *(event for i in range(n) for event in (_start(i, _TEXT), _stop(i)))
    ),
    "open blocks": lambda n: _message_stream(
        *(_start(i, _TEXT) for i in range(n)),
        *(_grow(i, "text_delta", text="a") for i in range(n)),
        *(_stop(i) for i in range(n)),
    ),
    "open calls": lambda n: _message_stream(
        *(_start(i, {**_tool_use(i), "input": {}}) for i in range(n)),
    ),
    "arguments": lambda n: _message_stream(
        _start(0, {**_tool_use(0), "input": {}}),
        _grow(0, "input_json_delta", partial_json="{"),
        *[_grow(0, "input_json_delta", partial_json=" ")] * n,
        _grow(0, "input_json_delta", partial_json="}"),
        _stop(0),
    ),
    "calls": lambda n: _message_stream(
        *(event for i in range(n) for event in (_start(i, _tool_use(i)), _stop(i)))
    ),
    "thinking": lambda n: _message_stream(
        _start(0, _THINKING), *[_grow(0, "thinking_delta", thinking="hm ")] * n, _stop(0)
    ),
    "signatures": lambda n: _message_stream(
        _start(0, _THINKING), *[_grow(0, "signature_delta", signature=SEAL)] * n, _stop(0)
    ),
    "hidden thinking": lambda n: _message_stream(
        *(
            event
            for i in range(n)
            for event in (_start(i, {"type": "redacted_thinking", "data": SEAL}), _stop(i))
        )
    ),
    "citations": lambda n: _message_stream(
        _start(0, _TEXT), *[_grow(0, "citations_delta", citation={})] * n, _stop(0)
    ),
    "pings": lambda n: _message_stream(*[{"type": "ping"}] * n),
    "ends": lambda n: _message_stream(
        *[{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}] * n
    ),
    "events of other kinds": lambda n: _message_stream(*[{"type": "new"}] * n),
}


def _converse_stream(*events: Json) -> list[dict[str, Json]]:
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    end = [{"messageStop": {"stopReason": "end_turn"}}, {"metadata": {"usage": usage}}]
    return [{"messageStart": {"role": "assistant"}}, *events, *end]


def _converse_call(i: int) -> dict[str, Json]:
    start = {"toolUse": {"toolUseId": f"c{i}", "name": "f"}}
    return {"contentBlockStart": {"contentBlockIndex": i, "start": start}}


def _converse_delta(i: int, **delta: Json) -> dict[str, Json]:
    return {"contentBlockDelta": {"contentBlockIndex": i, "delta": delta}}


def _converse_stop(i: int) -> dict[str, Json]:
    return {"contentBlockStop": {"contentBlockIndex": i}}


CONVERSE_EVENTS: dict[str, MakeEvents] = {
    "text": lambda n: _converse_stream(*[_converse_delta(0, text="a ")] * n, _converse_stop(0)),
    "blocks": lambda n: _converse_stream(
        *(e for i in range(n) for e in (_converse_delta(i, text="a"), _converse_stop(i)))
    ),
    "open blocks": lambda n: _converse_stream(*(_converse_delta(i, text="a") for i in range(n))),
    "calls": lambda n: _converse_stream(
        *(e for i in range(n) for e in (_converse_call(i), _converse_stop(i)))
    ),
    "open calls": lambda n: _converse_stream(*(_converse_call(i) for i in range(n))),
    "arguments": lambda n: _converse_stream(
        _converse_call(0),
        _converse_delta(0, toolUse={"input": "{"}),
        *[_converse_delta(0, toolUse={"input": " "})] * n,
        _converse_delta(0, toolUse={"input": "}"}),
    ),
    "reasoning": lambda n: _converse_stream(
        *[_converse_delta(0, reasoningContent={"text": "hm "})] * n,
        *[_converse_delta(0, reasoningContent={"signature": SEAL})] * n,
    ),
    "encrypted reasoning": lambda n: _converse_stream(
        *[_converse_delta(0, reasoningContent={"redactedContent": SEAL})] * n
    ),
    "citations": lambda n: _converse_stream(*[_converse_delta(0, citation={})] * n),
    "empty blocks": lambda n: _converse_stream(*(_converse_stop(i) for i in range(n))),
    "ends": lambda n: _converse_stream(*[{"messageStop": {"stopReason": "end_turn"}}] * n),
    "events of other kinds": lambda n: _converse_stream(*[{"new": {}}] * n),
}

EVENTS: dict[UpstreamApi, dict[str, MakeEvents]] = {
    apis.CHAT: CHAT_EVENTS,
    apis.RESPONSES: RESPONSES_EVENTS,
    apis.MESSAGES: MESSAGES_EVENTS,
    apis.CONVERSE: CONVERSE_EVENTS,
}
"""Streams by API and by the kind of event that is repeated in them."""


def _completion(**message: Json) -> dict[str, Json]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "a", "object": "chat.completion", "choices": [choice]}


def _completion_of_choices(n: int) -> dict[str, Json]:
    answer = _completion(content="a")
    return {**answer, "choices": answer["choices"] * n}


def _converse(*content: Json) -> dict[str, Json]:
    message = {"role": "assistant", "content": list(content)}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": {}}


def _converse_use(i: int, **arguments: Json) -> dict[str, Json]:
    return {"toolUse": {"toolUseId": f"c{i}", "name": "f", "input": arguments}}


ANSWERS: dict[UpstreamApi, dict[str, MakeBody]] = {
    apis.CHAT: {
        "choices": _completion_of_choices,
        "calls": lambda n: _completion(tool_calls=[_chat_call(i) for i in range(n)]),
        "calls with objects": lambda n: _completion(
            tool_calls=[
                {"id": f"c{i}", "function": {"name": "f", "arguments": {"a": i}}} for i in range(n)
            ]
        ),
        "values of arguments": lambda n: _completion(
            tool_calls=[
                {"id": "c", "function": {"name": "f", "arguments": f'{{"a":{[*range(n)]}}}'}}
            ]
        ),
        "parts": lambda n: _completion(content=[{"type": "text", "text": "a"}] * n),
        "thoughts": lambda n: _completion(
            content=[{"type": "thinking", "thinking": [{"text": "hm"}] * n}]
        ),
        "reasoning details": lambda n: _completion(
            content="a", reasoning_details=[{"text": "a", "signature": SEAL}] * n
        ),
        "annotations": lambda n: _completion(content="a", annotations=[{"type": "url"}] * n),
        "letters": lambda n: _completion(content="word " * n),
        "halves of emoji": lambda n: _completion(content="\ud83d\ude00" * n),
    },
    apis.RESPONSES: {
        "messages": lambda n: _response([_message_item()] * n),
        "parts": lambda n: _response([_message_item("a", n)]),
        "calls": lambda n: _response([_call_item(i) for i in range(n)]),
        "custom calls": lambda n: _response(
            [
                {"type": "custom_tool_call", "call_id": f"c{i}", "name": "f", "input": "x"}
                for i in range(n)
            ]
        ),
        "reasoning": lambda n: _response([_reasoning_item()] * n),
        "summaries": lambda n: _response([_reasoning_item(n)]),
        "letters": lambda n: _response([_message_item("word " * n)]),
    },
    apis.MESSAGES: {
        "blocks": lambda n: _message([_text(i) for i in range(n)]),
        "calls": lambda n: _message([_tool_use(i) for i in range(n)]),
        "thinking": lambda n: _message(
            [{"type": "thinking", "thinking": "hm", "signature": SEAL}] * n
        ),
        "hidden thinking": lambda n: _message([{"type": "redacted_thinking", "data": SEAL}] * n),
        "values of an input": lambda n: _message(
            [{**_tool_use(0), "input": {f"k{i}": i for i in range(n)}}]
        ),
        "letters": lambda n: _message([{"type": "text", "text": "word " * n}]),
    },
    apis.CONVERSE: {
        "texts": lambda n: _converse(*[{"text": "a"}] * n),
        "calls": lambda n: _converse(*(_converse_use(i) for i in range(n))),
        "values of an input": lambda n: _converse(
            _converse_use(0, **{f"k{i}": i for i in range(n)})
        ),
        "reasoning": lambda n: _converse(
            *[{"reasoningContent": {"reasoningText": {"text": "hm", "signature": SEAL}}}] * n
        ),
        "encrypted reasoning": lambda n: _converse(
            *[{"reasoningContent": {"redactedContent": SEAL}}] * n
        ),
        "cited texts": lambda n: _converse({"citationsContent": {"content": [{"text": "a"}] * n}}),
        "letters": lambda n: _converse({"text": "word " * n}),
    },
}
"""Whole answers by API and by what is repeated in them."""
