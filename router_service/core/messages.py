"""OpenAI request JSON -> frozen values that the router reads.

Only what a routing decision needs is read; the request itself is forwarded as it came. What
cannot be read (a turn that is no object, a tool without a name) is noted in
`Conversation.unread` rather than refused: judging the rest of a request is the upstream's task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from router_service.core.errors import InvalidRequestError

MAX_SCHEMA_DEPTH = 64
"""Deeper schemas are refused. The deepest tool among the recorded benchmarks has 5 levels."""

Json = Any
"""A decoded JSON value, of which nothing is known yet."""


class Role(StrEnum):
    """Who speaks in a turn, as the Chat Completions API names them."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FUNCTION = "function"


_ROLES = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a model wrote it; `arguments` is JSON text, or free text for a custom tool."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `attachments` counts images, audio and files, which are not read."""

    role: Role
    text: str
    attachments: int = 0
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON-Schema node, as far as a signature or a feature needs it."""

    type: str = "any"
    description: str = ""
    enum: tuple[str, ...] = ()
    has_default: bool = False
    properties: tuple[Parameter, ...] = ()
    items: Schema | None = None
    alternatives: tuple[Schema, ...] = ()

    def children(self) -> Iterator[Schema]:
        """Yield the schemas directly below this one."""
        yield from (parameter.schema for parameter in self.properties)
        if self.items is not None:
            yield self.items
        yield from self.alternatives


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named property of an object schema."""

    name: str
    schema: Schema
    required: bool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call: a function with parameters, or a custom tool without."""

    name: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a routing decision is made from; `unread` holds the paths that could not be read."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def latest_user(self) -> int | None:
        """Index of the last user turn that says anything, else of the last user turn, if any."""
        users = [i for i, turn in enumerate(self.turns) if turn.role is Role.USER]
        spoken = [i for i in users if self.turns[i].text.strip()]
        return max(spoken or users, default=None)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A Chat Completions request: what the gateway itself acts on, and the conversation."""

    model: str
    stream: bool
    conversation: Conversation

    @property
    def has_tools(self) -> bool:
        """Whether this is a tool-calling request (paper, section 3)."""
        return bool(self.conversation.tools) or any(
            path.startswith(("tools", "functions")) for path in self.conversation.unread
        )


def decode_object(body: bytes | str) -> Mapping[str, Json]:
    """Decode a request body that must be one JSON object; raises InvalidRequestError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequestError(
            f"The request body is not valid JSON: {exc}. Send one JSON object, UTF-8 encoded.",
            code="invalid_json",
        ) from exc
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"The request body must be a JSON object, not {_kind(value)}.", code="invalid_type"
        )
    return value


def parse_chat_request(body: Mapping[str, Json]) -> ChatRequest:
    """Read a Chat Completions body (API reference: "Create chat completion").

    Raises InvalidRequestError where `model`, `messages`, `tools`, `functions` or `stream` is
    missing or of the wrong type, or where a tool's schema is deeper than `MAX_SCHEMA_DEPTH`.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _wrong_type("model", "a non-empty string", model, missing="model" not in body)
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong_type("stream", "a boolean", stream)
    return ChatRequest(model=model, stream=bool(stream), conversation=parse_conversation(body))


def parse_conversation(body: Mapping[str, Json]) -> Conversation:
    """Read the messages and the tools of a request body; raises as `parse_chat_request` does."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise _wrong_type("messages", "an array", messages, missing="messages" not in body)
    if not messages:
        raise InvalidRequestError(
            "'messages' is empty. Send at least one message.", param="messages", code="empty_array"
        )
    unread: list[str] = []
    turns = tuple(_read_turns(messages, unread))
    tools = tuple(_read_tools(body, unread))
    return Conversation(turns=turns, tools=tools, unread=tuple(unread))


def _read_turns(messages: Sequence[Json], unread: list[str]) -> Iterator[Turn]:
    for index, message in enumerate(messages):
        turn = _read_turn(message, f"messages[{index}]", unread)
        if turn is not None:
            yield turn


def _read_turn(message: Json, path: str, unread: list[str]) -> Turn | None:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        unread.append(path)
        return None
    text, attachments = _read_content(message.get("content"), f"{path}.content", unread)
    return Turn(_ROLES[role], text, attachments, tuple(_read_calls(message)))


def _read_content(content: Json, path: str, unread: list[str]) -> tuple[str, int]:
    """Return the text of a content field, and how many of its parts are no text."""
    if content is None:
        return "", 0
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        unread.append(path)
        return "", 0
    texts, attachments = [], 0
    for part in content:
        text = _part_text(part)
        if text is None:
            attachments += 1
        else:
            texts.append(text)
    return "\n".join(texts), attachments


def _part_text(part: Json) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else None
    return None


def _read_calls(message: Mapping[str, Json]) -> Iterator[ToolCall]:
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    entries = [*(calls if isinstance(calls, list) else []), {"function": legacy}]
    for entry in entries:
        inner = _inner_tool(entry)
        if inner is not None:
            arguments = inner.get("arguments", inner.get("input"))
            yield ToolCall(inner["name"], arguments if isinstance(arguments, str) else "")


def _read_tools(body: Mapping[str, Json], unread: list[str]) -> Iterator[ToolSpec]:
    yield from _read_tool_list(body, "tools", unread)
    yield from _read_tool_list(body, "functions", unread)


def _read_tool_list(body: Mapping[str, Json], field: str, unread: list[str]) -> Iterator[ToolSpec]:
    entries = body.get(field)
    if entries is None:
        return
    if not isinstance(entries, list):
        raise _wrong_type(field, "an array", entries)
    for index, entry in enumerate(entries):
        inner = _inner_tool({"function": entry} if field == "functions" else entry)
        if inner is None:
            unread.append(f"{field}[{index}]")
        else:
            yield _read_tool(inner, f"{field}[{index}]")


def _inner_tool(entry: Json) -> Mapping[str, Json] | None:
    """Return the object that bears the name: `function`, `custom`, or the entry itself."""
    if not isinstance(entry, dict):
        return None
    inner = entry.get("function", entry.get("custom", entry))
    named = isinstance(inner, dict) and isinstance(inner.get("name"), str)
    return inner if named else None


def _read_tool(tool: Mapping[str, Json], path: str) -> ToolSpec:
    schema = parse_schema(tool.get("parameters"), f"{path}.parameters")
    return ToolSpec(tool["name"], _text(tool.get("description")), schema.properties)


def parse_schema(node: Json, path: str, depth: int = 0) -> Schema:
    """Read a JSON-Schema node; raises InvalidRequestError below `MAX_SCHEMA_DEPTH` levels."""
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidRequestError(
            f"The schema at '{path}' is nested more than {MAX_SCHEMA_DEPTH} levels deep. "
            "Flatten it, or move the inner part behind a '$ref'.",
            param=path,
            code="schema_too_deep",
        )
    if not isinstance(node, dict):
        return Schema()
    items = node.get("items")
    return Schema(
        type=_type_word(node),
        description=_text(node.get("description")),
        enum=tuple(str(value) for value in _sequence(node.get("enum"))),
        has_default="default" in node,
        properties=tuple(_read_properties(node, path, depth)),
        items=parse_schema(items, path, depth + 1) if isinstance(items, dict) else None,
        alternatives=tuple(_read_alternatives(node, path, depth)),
    )


def _read_properties(node: Mapping[str, Json], path: str, depth: int) -> Iterator[Parameter]:
    properties = node.get("properties")
    required = {name for name in _sequence(node.get("required")) if isinstance(name, str)}
    for name, child in properties.items() if isinstance(properties, dict) else ():
        yield Parameter(name, parse_schema(child, path, depth + 1), name in required)


def _read_alternatives(node: Mapping[str, Json], path: str, depth: int) -> Iterator[Schema]:
    for keyword in ("anyOf", "oneOf", "allOf"):
        for child in _sequence(node.get(keyword)):
            yield parse_schema(child, path, depth + 1)


def _type_word(node: Mapping[str, Json]) -> str:
    """Return the node's type in one word: its `type`, the name of its `$ref`, or `any`."""
    kind = node.get("type")
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return "|".join(word for word in kind if isinstance(word, str))
    reference = node.get("$ref")
    if isinstance(reference, str):
        return reference.rsplit("/", 1)[-1]
    return "object" if "properties" in node else "any"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _sequence(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else ()


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def _wrong_type(
    param: str, wanted: str, value: Json, *, missing: bool = False
) -> InvalidRequestError:
    if missing:
        return InvalidRequestError(
            f"Missing required parameter: '{param}'. Send it as {wanted}.",
            param=param,
            code="missing_required_parameter",
        )
    return InvalidRequestError(
        f"Invalid type for '{param}': expected {wanted}, but got {_kind(value)}.",
        param=param,
        code="invalid_type",
    )
