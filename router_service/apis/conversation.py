"""Immutable values for chat requests, and the functions that parse them.

Only what a routing decision needs is read. The gateway forwards the request itself unchanged. A
part that cannot be read, such as a turn that is not an object or a tool without a name, is listed
in `Conversation.unread` and is not an error, because the upstream decides whether it is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from sys import getsizeof
from typing import Any, NamedTuple

import orjson

from router_service.core import strict_json
from router_service.core.errors import InvalidRequestError
from router_service.core.resources import Cache, shared_cache
from router_service.core.values import request_value

Json = Any
"""A decoded JSON value of unknown type."""

MAX_MESSAGES = 10_000
"""Limit on the messages that are read of a request. Of a longer list, only the first 5,000 and the
last 5,000 are read. A decision on 10,000 messages takes 0.1 s."""
MAX_PARTS = 20_000
"""Limit on the content parts and tool calls that are read of all messages of a request."""
MAX_TOOLS = 1_000
MAX_TOOL_VALUES = 25_000
MAX_TOOL_CHARACTERS = 650_000
"""Limits on the tools that are read: their number, the JSON values in them, and the characters in
their keys and strings. The first tools that are within all three limits are read, and the remaining
tools count as unread. For tools that are not cached, a decision takes 7 us per value and 90 ns per
character. 128 tools of 5 KB have 14,000 values and 600,000 characters."""
MAX_SCHEMA_DEPTH = 64
"""Deeper schemas are refused. The deepest tool among the recorded benchmarks has 5 levels."""

_NODE_BYTES = 200
"""Memory of a tool or of a node of its schema, besides its texts."""

_PARSED_BYTES = 8
"""Approximate memory of a parsed schema for each byte of its JSON."""
_COMPOSITIONS = ("anyOf", "oneOf", "allOf")

CLIENT_TOOLS = ("function", "custom")
"""Types of tools that the client runs. No set, because a client may send an unhashable type."""


class Role(StrEnum):
    """Author of a turn, as the Chat Completions API names it."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FUNCTION = "function"


# The values that a request has many of are named tuples: to create, hash and compare one takes a
# third of the time of a frozen dataclass.


class ToolCall(NamedTuple):
    """One call by a model. `arguments` is JSON text, or free text for a custom tool."""

    name: str
    arguments: str


class Turn(NamedTuple):
    """One message. `attachments` counts images, audio and files, which are not read."""

    role: Role
    text: str
    attachments: int = 0
    tool_calls: tuple[ToolCall, ...] = ()


class SchemaSummary(NamedTuple):
    """The parts of a JSON-Schema node that signatures and features need."""

    type: str = "any"
    description: str = ""
    enum: tuple[str, ...] = ()
    has_default: bool = False
    properties: tuple[Parameter, ...] = ()
    items: SchemaSummary | None = None
    alternatives: tuple[SchemaSummary, ...] = ()

    def children(self) -> Iterator[SchemaSummary]:
        """Yield the schemas directly below this one."""
        yield from (parameter.schema for parameter in self.properties)
        if self.items is not None:
            yield self.items
        yield from self.alternatives


class Parameter(NamedTuple):
    """A named property of an object schema."""

    name: str
    schema: SchemaSummary
    required: bool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call: a function, or a custom tool without parameters."""

    name: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    hints: tuple[bool | None, bool | None] | None = None
    """MCP's `readOnlyHint` and `destructiveHint`, None for one that is not stated; None if the tool
    has neither."""
    _hash: int = field(init=False, repr=False, compare=False)
    size_bytes: int = field(init=False, repr=False, compare=False)
    """Memory that the tool takes."""

    def __post_init__(self) -> None:
        """Hash and measure the schema once, because caches look tools up with every request."""
        content = (self.name, self.description, self.parameters)
        object.__setattr__(self, "_hash", hash(content))
        size_bytes = _NODE_BYTES + getsizeof(self.name) + getsizeof(self.description)
        waiting = [parameter.schema for parameter in self.parameters]
        size_bytes += sum([getsizeof(parameter.name) for parameter in self.parameters])
        while waiting:
            node = waiting.pop()
            size_bytes += _NODE_BYTES + getsizeof(node.type) + getsizeof(node.description)
            size_bytes += sum([getsizeof(value) for value in node.enum])
            size_bytes += sum([getsizeof(parameter.name) for parameter in node.properties])
            waiting.extend(node.children())
        object.__setattr__(self, "size_bytes", size_bytes)

    def __hash__(self) -> int:
        """Return the hash of all fields."""
        return self._hash

    def __reduce__(self) -> tuple[type[ToolSpec], tuple[object, ...]]:
        """Pickle without the hash, because every process hashes the same text differently."""
        return ToolSpec, (self.name, self.description, self.parameters, self.hints)


@request_value(frozen=True, slots=True)
class Conversation:
    """Turns and tools of a request. `unread` holds the paths of parts that could not be read."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    unread: tuple[str, ...] = ()
    has_tools: bool = field(init=False, repr=False, compare=False)
    """Whether the request offers tools (paper, section 3), including unread ones."""
    deciding_turn: int | None = field(init=False, repr=False, compare=False)
    """Index of the turn whose text says what is asked for, as `find_deciding_turn` returns it."""

    def __post_init__(self) -> None:
        """Compute `has_tools` and `deciding_turn`, which every decision reads more than once."""
        has_tools = bool(self.tools) or any(
            path.startswith(("tools", "functions")) for path in self.unread
        )
        object.__setattr__(self, "has_tools", has_tools)
        object.__setattr__(self, "deciding_turn", find_deciding_turn(self.turns))

    @property
    def opening(self) -> tuple[str, str]:
        """The first system text and user text, which all requests of the conversation repeat."""
        system = user = None
        for turn in self.turns:
            if turn.role is Role.USER:
                user = turn.text if user is None else user
            elif turn.role in {Role.SYSTEM, Role.DEVELOPER}:
                system = turn.text if system is None else system
            if system is not None and user is not None:
                break
        return system or "", user or ""


MAX_CONFIRMATION_CHARACTERS = 40
_APPROVING = frozenset(
    "yes yeah yep yup y sure ok okay alright fine agreed approved confirmed confirm correct "
    "exactly absolutely definitely certainly continue proceed go do lgtm ja gerne oui si sí claro "
    "vale sim hai да はい 好 好的 是的".split()
)
"""A confirmation has at least one of these words."""
_ACCOMPANYING = frozenset(
    "please thanks thank you it that this so ahead on right now then good great perfect sounds "
    "looks of course let's lets and the with keep going carry bitte".split()
)
"""Words that a confirmation may have besides."""
_WORD = re.compile(r"[\w']+")


def is_confirmation(text: str) -> bool:
    """Return whether a text only approves something, as "yes", "ok, do it" and "go on" do.

    Any other word makes it a new request. Neither "yes, but cheaper" nor "no" is a confirmation.
    """
    if len(text) > MAX_CONFIRMATION_CHARACTERS:
        return False
    found = set(_WORD.findall(text.casefold().replace("\u2019", "'")))
    return bool(found & _APPROVING) and found <= _APPROVING | _ACCOMPANYING


def find_deciding_turn(turns: Sequence[Turn]) -> int | None:
    """Return the index of the turn whose text says what is asked for, or None without a user turn.

    It is the last user turn with text, or else the last user turn. If that only confirms something,
    it is the turn that it confirms: the assistant's text just before, or else the user turn before
    that, by the same rule.
    """
    fallback: int | None = None
    confirmation: int | None = None
    for index in reversed(range(len(turns))):
        turn = turns[index]
        has_text = bool(turn.text) and not turn.text.isspace()
        if turn.role is Role.ASSISTANT and confirmation is not None and has_text:
            return index
        if turn.role is not Role.USER:
            continue
        if not has_text:
            fallback = index if fallback is None else fallback
        elif turn.attachments or not is_confirmation(turn.text):
            return index
        elif confirmation is None:
            confirmation = index
    return fallback if confirmation is None else confirmation


@dataclass(frozen=True, slots=True)
class Reference:
    """The id of a stored object, and the field of the request that names it."""

    param: str
    id: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The parts of a Chat Completions or Responses request that the gateway acts on."""

    model: str
    stream: bool
    conversation: Conversation
    continues: Reference | None = None
    """The stored response or conversation that the request continues. Its turns are not in
    `conversation`."""


_ROLES = {role.value: role for role in Role}
_EMPTY_SCHEMA = SchemaSummary()

_parsed_tools: Cache[tuple[str, bytes], tuple[tuple[ToolSpec, ...], tuple[str, ...]]] = (
    shared_cache("tools", max_bytes=8 * 2**20)
)
"""Parsed tools and unread paths by the JSON of a tool list. Agents send the same tools with every
turn: parsing 30 tools takes 0.4 ms, and a look-up here 0.02 ms. Equal lists give identical objects,
which are fast to compare."""


def parse_chat_request(body: Mapping[str, Json]) -> ChatRequest:
    """Read a Chat Completions body (API reference: "Create chat completion").

    Raises InvalidRequestError if `model`, `messages`, `tools`, `functions` or `stream` is missing
    or has the wrong type, or if a tool's schema is deeper than `MAX_SCHEMA_DEPTH`.
    """
    return ChatRequest(
        model=read_model(body), stream=read_stream(body), conversation=parse_conversation(body)
    )


def parse_conversation(body: Mapping[str, Json]) -> Conversation:
    """Read the messages and tools of a chat body. Raises the errors of `parse_chat_request`."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array", messages, missing="messages" not in body)
    if not messages:
        raise empty_array("messages", "message")
    unread: list[str] = []
    turns = tuple(read_turns(with_paths(messages, "messages", unread), unread))
    tools = read_tools(body, unread)
    return Conversation(turns=turns, tools=tools, unread=tuple(unread))


def decode_object(body: bytes | str) -> Mapping[str, Json]:
    """Decode a request body. Raises InvalidRequestError if it is not one JSON object."""
    value = strict_json.decode(body)
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"The request body must be a JSON object, not {_type_name(value)}.", code="invalid_type"
        )
    return value


def read_model(body: Mapping[str, Json]) -> str:
    """Return the model that a request names. Raises InvalidRequestError."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise wrong_type("model", "a non-empty string", model, missing="model" not in body)
    return model


def read_stream(body: Mapping[str, Json]) -> bool:
    """Return whether a request asks for a stream. Raises InvalidRequestError."""
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise wrong_type("stream", "a boolean", stream)
    return bool(stream)


def wrong_type(
    param: str, wanted: str, value: Json, *, missing: bool = False
) -> InvalidRequestError:
    """Return the error for a parameter that has the wrong type or is missing."""
    if missing:
        return InvalidRequestError(
            f"Missing required parameter: '{param}'. Send it as {wanted}.",
            param=param,
            code="missing_required_parameter",
        )
    return InvalidRequestError(
        f"Invalid type for '{param}': expected {wanted}, but got {_type_name(value)}.",
        param=param,
        code="invalid_type",
    )


def empty_array(param: str, item: str) -> InvalidRequestError:
    """Return the error for an array that must have at least one item of a kind."""
    message = f"'{param}' is empty. Send at least one {item}."
    return InvalidRequestError(message, param=param, code="empty_array")


def _type_name(value: Json) -> str:
    """Return the type of a JSON value with its article, for error messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None or value == "":
        return "null" if value is None else "an empty string"
    return names.get(type(value), "a number")


def as_text(value: Json) -> str:
    """Return a string, or an empty string for a value of another type."""
    return value if isinstance(value, str) else ""


def as_dict(value: Json) -> dict[str, Json]:
    """Return an object, or an empty one for a value of another type."""
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> Sequence[Json]:
    """Return an array, or an empty one for a value of another type."""
    return value if isinstance(value, list) else ()


def pointer_names(reference: str) -> list[str]:
    """Return the names in a JSON pointer such as `#/$defs/place` (RFC 6901)."""
    return [name.replace("~1", "/").replace("~0", "~") for name in reference.split("/")[1:]]


def with_paths(
    items: Sequence[Json], field: str, unread: list[str] | None
) -> Iterator[tuple[str, Json]]:
    """Yield the items of an array, each with its path.

    If `unread` is given and there are more than `MAX_MESSAGES` items, those in the middle are
    skipped, and their path is added to `unread`.
    """
    skipped = range(0)
    if unread is not None and len(items) > MAX_MESSAGES:
        skipped = range(MAX_MESSAGES // 2, len(items) - MAX_MESSAGES // 2)
        unread.append(f"{field}[{skipped.start}:{skipped.stop}]")
    for index in chain(range(skipped.start), range(skipped.stop, len(items))):
        yield f"{field}[{index}]", items[index]


def read_turns(messages: Iterable[tuple[str, Json]], unread: list[str]) -> Iterator[Turn]:
    """Yield the turns of chat messages; add the paths of parts that cannot be read to `unread`.

    `messages` has (path, message) pairs.
    """
    parts_left = MAX_PARTS
    for path, message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _ROLES:
            unread.append(path)
            continue

        content = message.get("content")
        text, attachments = "", 0
        if isinstance(content, str):
            text = content
        elif isinstance(content, list):
            parts = content[:parts_left]
            parts_left -= len(parts)
            if len(parts) < len(content):
                unread.append(f"{path}.content[{len(parts)}:]")
            texts = []
            for part in parts:
                inner = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
                if isinstance(inner, str):
                    texts.append(inner)
                else:
                    attachments += 1
            text = "\n".join(texts)
        elif content is not None:
            unread.append(f"{path}.content")

        entries = as_list(message.get("tool_calls"))
        calls = list(entries[:parts_left])
        parts_left -= len(calls)
        if len(calls) < len(entries):
            unread.append(f"{path}.tool_calls[{len(calls)}:]")
        calls.append({"function": message.get("function_call")})  # the legacy field
        tool_calls = []
        for call in calls:
            inner = unwrap_tool(call)
            if inner is not None:
                arguments = inner.get("arguments", inner.get("input"))
                tool_calls.append(ToolCall(inner["name"], as_text(arguments)))
        yield Turn(_ROLES[role], text, attachments, tuple(tool_calls))


def unwrap_tool(entry: Json) -> Mapping[str, Json] | None:
    """Return the object that has the name of a tool or call, or None if there is no name.

    This is the value of `function` or `custom`, or the entry itself.
    """
    if not isinstance(entry, dict):
        return None
    inner = entry.get("function", entry.get("custom", entry))
    has_name = isinstance(inner, dict) and isinstance(inner.get("name"), str)
    return inner if has_name else None


def read_tools(body: Mapping[str, Json], unread: list[str]) -> tuple[ToolSpec, ...]:
    """Return the tools of a body; add the paths of nameless and surplus tools to `unread`."""
    found: list[tuple[ToolSpec, ...]] = []
    for param in ("tools", "functions"):
        entries = body.get(param)
        if entries is None:
            continue
        if not isinstance(entries, list):
            raise wrong_type(param, "an array", entries)
        try:
            key = param, orjson.dumps(entries)
        except orjson.JSONEncodeError:  # not for values that `strict_json` decodes
            key = param, b""
        parsed = _parsed_tools.get(key)
        if parsed is None:
            # A JSON value takes at least 2 bytes, so that short lists are within the limits.
            is_small = 0 < len(key[1]) <= 2 * MAX_TOOL_VALUES
            readable = min(len(entries), MAX_TOOLS) if is_small else _count_readable(entries)
            tools: list[ToolSpec] = []
            paths: list[str] = []
            for index, entry in enumerate(entries[:readable]):
                path = f"{param}[{index}]"
                tool = unwrap_tool({"function": entry} if param == "functions" else entry)
                if tool is None:
                    paths.append(path)
                else:
                    schema = parse_schema(tool.get("parameters"), f"{path}.parameters")
                    description = as_text(tool.get("description"))
                    hints = _read_hints(entry) or _read_hints(tool)
                    tools.append(ToolSpec(tool["name"], description, schema.properties, hints))
            if readable < len(entries):
                paths.append(f"{param}[{readable}:]")
            parsed = tuple(tools), tuple(paths)
            if key[1]:
                _parsed_tools.put(key, parsed, size_bytes=len(key[1]) * (1 + _PARSED_BYTES))
        found.append(parsed[0])
        unread.extend(parsed[1])
    return found[0] if len(found) == 1 else tuple(tool for tools in found for tool in tools)


def _read_hints(tool: Json) -> tuple[bool | None, bool | None] | None:
    """Return the MCP annotations of a tool, which clients pass on as `annotations`, if any."""
    annotations = as_dict(as_dict(tool).get("annotations"))
    read_only, destructive = annotations.get("readOnlyHint"), annotations.get("destructiveHint")
    hints = (
        read_only if isinstance(read_only, bool) else None,
        destructive if isinstance(destructive, bool) else None,
    )
    return None if hints == (None, None) else hints


def _count_readable(entries: Sequence[Json]) -> int:
    """Return how many entries, from the first on, are together within the limits on tools."""
    values = characters = 0
    for index, entry in enumerate(entries[:MAX_TOOLS]):
        left = [entry]
        while left:
            value = left.pop()
            values += 1
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, list):
                left += value
            elif isinstance(value, dict):
                left += value.values()
                characters += sum(map(len, value))
            if values + len(left) > MAX_TOOL_VALUES or characters > MAX_TOOL_CHARACTERS:
                return index
    return min(len(entries), MAX_TOOLS)


def parse_schema(node: Json, path: str, depth: int = 0) -> SchemaSummary:
    """Read a JSON-Schema node; raises InvalidRequestError if deeper than `MAX_SCHEMA_DEPTH`."""
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidRequestError(
            f"The schema at '{path}' is nested more than {MAX_SCHEMA_DEPTH} levels deep. "
            "Flatten it, or move the inner part behind a '$ref'.",
            param=path,
            code="schema_too_deep",
        )
    if not isinstance(node, dict) or not node:
        return _EMPTY_SCHEMA
    # One word for the type: `type`, the name of a `$ref`, or a guess.
    kind = node.get("type")
    if isinstance(kind, list):
        kind = "|".join([word for word in kind if isinstance(word, str)])
    elif not isinstance(kind, str):
        reference = node.get("$ref")
        if isinstance(reference, str):
            kind = reference.rsplit("/", 1)[-1]
        else:
            kind = "object" if "properties" in node else "any"
    properties = node.get("properties")
    parameters: tuple[Parameter, ...] = ()
    if isinstance(properties, dict):
        required = {name for name in as_list(node.get("required")) if isinstance(name, str)}
        parameters = tuple(
            [
                Parameter(name, parse_schema(child, path, depth + 1), name in required)
                for name, child in properties.items()
            ]
        )
    items = node.get("items")
    alternatives: tuple[SchemaSummary, ...] = ()
    if not node.keys().isdisjoint(_COMPOSITIONS):
        children = [child for keyword in _COMPOSITIONS for child in as_list(node.get(keyword))]
        alternatives = tuple([parse_schema(child, path, depth + 1) for child in children])
    return SchemaSummary(
        type=kind,
        description=as_text(node.get("description")),
        enum=tuple(map(str, as_list(node.get("enum")))),
        has_default="default" in node,
        properties=parameters,
        items=parse_schema(items, path, depth + 1) if isinstance(items, dict) else None,
        alternatives=alternatives,
    )
