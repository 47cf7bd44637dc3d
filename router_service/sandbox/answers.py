"""What the sandbox answers: the tool that the query speaks of, called with arguments that fit.

The rules, so that a test can rely on them: a tool is called where there are tools, unless
`tool_choice` forbids it or the last message is a tool's result (an agent's loop ends there). The
tool that shares most words with the latest user turn is called, the first one among equals, and
after it, unless `parallel_tool_calls` is false, each tool whose whole name the turn speaks of.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import ChatRequest, Json, Role, parse_chat_request
from router_service.sandbox.clues import READ_CHARACTERS, words
from router_service.sandbox.filling import fill
from router_service.sandbox.schemas import mapping

NAME_WEIGHT = 3
"""How many words of a description weigh as much as one of a tool's name."""

MAX_CALLS = 8
_ECHO_CHARACTERS = 80
_TOOL_FIELDS = ("tools", "functions")
_PROMPT_FIELDS = ("messages", *_TOOL_FIELDS, "response_format")
_RESULTS: Final = (Role.TOOL, Role.FUNCTION)


class Kind(StrEnum):
    """How a tool was offered, and so how its call is written."""

    FUNCTION = "function"
    CUSTOM = "custom"
    LEGACY = "legacy"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as a request offers it; `parameters` is its JSON schema."""

    kind: Kind
    name: str
    description: str
    parameters: Json


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `payload` is JSON text, or free text for a custom tool."""

    kind: Kind
    call_id: str
    name: str
    payload: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Text or calls, never both; a legacy answer has one call."""

    text: str | None = None
    calls: tuple[Call, ...] = ()

    @property
    def finish_reason(self) -> str:
        """Return why the answer ended, as OpenAI says it."""
        if not self.calls:
            return "stop"
        return "function_call" if self.calls[0].kind is Kind.LEGACY else "tool_calls"


def encode_prompt(body: Mapping[str, Json]) -> bytes:
    """Return what a model would read of a request, as JSON; raises InvalidRequestError."""
    return _encode([body.get(name) for name in _PROMPT_FIELDS])


def read_request(body: Mapping[str, Json]) -> ChatRequest:
    """Read a request but for its tools, which are read as they came; raises InvalidRequestError.

    The core's reading of 10 tools takes 140 us, twice as much as everything else here.
    """
    return parse_chat_request({name: body[name] for name in body if name not in _TOOL_FIELDS})


def make_answer(body: Mapping[str, Json], request: ChatRequest, prompt: bytes) -> Answer:
    """Answer a request whose prompt is encoded.

    Raises InvalidRequestError for tools that are no array, and for a `tool_choice` that cannot be
    met.
    """
    turns = request.conversation.turns
    latest = request.conversation.latest_user
    query = "" if latest is None else turns[latest].text[:READ_CHARACTERS]
    tools, forced = _choose_from(body, tuple(_read_tools(body)))
    has_result = bool(turns) and turns[-1].role in _RESULTS
    if not tools or (has_result and not forced):
        return Answer(text=_text(body, query))
    several = body.get("parallel_tool_calls") is not False and tools[0].kind is not Kind.LEGACY
    chosen = _best(tools, query, several=several)
    # Ids must differ from turn to turn of a conversation, and be the same for the same request.
    seed = zlib.crc32(prompt)
    return Answer(calls=tuple(_call(tool, query, seed + i) for i, tool in enumerate(chosen)))


def _read_tools(body: Mapping[str, Json]) -> Iterator[Tool]:
    """Yield the tools that have a name; `functions` count only where there are no `tools`."""
    entries = _entries(body, "tools")
    for entry in entries:
        kind = Kind.CUSTOM if mapping(entry).get("type") == "custom" else Kind.FUNCTION
        yield from _read_tool(kind, mapping(entry).get(kind, entry))
    if not entries:
        for entry in _entries(body, "functions"):
            yield from _read_tool(Kind.LEGACY, entry)


def _entries(body: Mapping[str, Json], field: str) -> Sequence[Json]:
    entries = body.get(field)
    if entries is None or isinstance(entries, list):
        return entries or ()
    raise InvalidRequestError(
        f"Invalid type for '{field}': expected an array.", param=field, code="invalid_type"
    )


def _read_tool(kind: Kind, entry: Json) -> Iterator[Tool]:
    name, description = mapping(entry).get("name"), mapping(entry).get("description")
    if isinstance(name, str):
        text = description if isinstance(description, str) else ""
        yield Tool(kind, name, text, mapping(entry).get("parameters"))


def _choose_from(
    body: Mapping[str, Json], tools: tuple[Tool, ...]
) -> tuple[tuple[Tool, ...], bool]:
    """Return the tools that may be called, and whether one must be."""
    field = "function_call" if "tool_choice" not in body and "functions" in body else "tool_choice"
    choice = body.get(field)
    match choice:
        case None | "auto":
            return tools, False
        case "none":
            return (), False
        case "required" if tools:
            return tools, True
        case {"allowed_tools": {"tools": [*allowed], "mode": "auto" | "required" as mode}}:
            names = {_chosen_name(entry) for entry in allowed}
            return tuple(tool for tool in tools if tool.name in names), mode == "required"
    named = tuple(tool for tool in tools if tool.name == _chosen_name(choice))
    if not named:
        raise _unusable_choice(field, tools)
    return named[:1], True


def _chosen_name(choice: Json) -> str | None:
    """Return the name in `{"type": "function", "function": {"name"}}`, or in `{"name"}`."""
    entry = mapping(choice)
    name = mapping(entry.get("function", entry.get("custom", entry))).get("name")
    return name if isinstance(name, str) else None


def _unusable_choice(field: str, tools: Sequence[Tool]) -> InvalidRequestError:
    known = ", ".join(tool.name for tool in tools) or "none"
    return InvalidRequestError(
        f"Invalid value for '{field}': it names no tool of this request. Tools here: {known}.",
        param=field,
        code="invalid_value",
    )


def _best(tools: Sequence[Tool], query: str, *, several: bool) -> list[Tool]:
    said = words(query)
    best = max(tools, key=lambda tool: _overlap(tool, said))
    others = [tool for tool in tools if tool is not best and _is_named(tool, said)]
    return [best, *(others if several else [])][:MAX_CALLS]


def _overlap(tool: Tool, said: frozenset[str]) -> int:
    parameters = mapping(mapping(tool.parameters).get("properties"))
    told = words(f"{tool.description[:READ_CHARACTERS]} {' '.join(parameters)}")
    return NAME_WEIGHT * len(said & words(tool.name)) + len(said & told)


def _is_named(tool: Tool, said: frozenset[str]) -> bool:
    name = words(tool.name)
    return bool(name) and name <= said


def _call(tool: Tool, query: str, seed: int) -> Call:
    return Call(tool.kind, f"call_sandbox_{seed:08x}", tool.name, _payload(tool, query))


def _payload(tool: Tool, query: str) -> str:
    """Return a custom tool's input, or arguments: an object, whatever the schema says."""
    if tool.kind is Kind.CUSTOM:
        return query
    if not isinstance(tool.parameters, dict):
        return "{}"
    return _encode(mapping(fill(tool.parameters, query))).decode()


def _text(body: Mapping[str, Json], query: str) -> str:
    """Return a short text, or JSON where `response_format` asks for it."""
    form = mapping(body.get("response_format"))
    match form.get("type"):
        case "json_schema":
            schema = mapping(form.get("json_schema")).get("schema")
            return _encode(fill(schema, query)).decode()
        case "json_object":
            return '{"answer":"sandbox"}'
    echo = " ".join(query.split())[:_ECHO_CHARACTERS]
    return f"This is the sandbox: no model was asked. The last user turn begins: {echo!r}."


def _encode(value: Json) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        # What came as JSON can fail in this one way: 1024 levels are read, and 254 written.
        raise InvalidRequestError(
            "The request is nested too deeply. Flatten it.", code="nested_too_deeply"
        ) from exc
