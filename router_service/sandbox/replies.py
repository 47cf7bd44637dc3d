"""The sandbox's answer: calls of the tools that match the query, or a text, and the usage.

Tests may rely on these rules. If there are tools, one is called, unless `tool_choice` forbids it or
the last message is a tool's result (this ends an agent's loop). It is the tool that shares most
words with the latest user turn, or the first of several equal ones. Unless `parallel_tool_calls` is
false, it is followed by calls of all other tools whose whole name occurs in the turn.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

import orjson

from router_service.apis.conversation import ChatRequest, Json, Role, parse_chat_request
from router_service.apis.parts import Text, ToolUse
from router_service.apis.usage import Usage
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.filling import READ_CHARACTERS, fill, mapping

NAME_WEIGHT = 3
"""Weight of a word in a tool's name, compared to a word in its description."""

MAX_CALLS = 8
FRAGMENT_CHARACTERS = 16
"""Length of the text in one event; OpenAI sends about one token, 4 characters."""

_CHARACTERS_PER_TOKEN = 4
_REASONING_TOKENS: Final[Mapping[str, int]] = {
    "none": 0,
    "minimal": 16,
    "low": 64,
    "medium": 256,
    "high": 1024,
}
_MOST_REASONING_TOKENS = 4096

_ECHO_CHARACTERS = 80
_TOOL_FIELDS = ("tools", "functions")
_PROMPT_FIELDS = ("messages", *_TOOL_FIELDS, "response_format")
_RESULTS: Final = (Role.TOOL, Role.FUNCTION)

_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STOP_WORDS = frozenset(
    "a an and are as at be by can do does for from get give how i if in is it list make me my of "
    "on or our please set show tell that the them this to use we what when where which who will "
    "with you your".split()
)


class Kind(StrEnum):
    """Format in which a request declares a tool; the call of the tool has the matching format."""

    FUNCTION = "function"
    CUSTOM = "custom"
    LEGACY = "legacy"


@dataclass(frozen=True, slots=True)
class SandboxTool:
    """A tool of a request; `parameters` is its JSON schema."""

    kind: Kind
    name: str
    description: str
    parameters: Json


@dataclass(frozen=True, slots=True)
class SandboxCall:
    """One tool call; `payload` is JSON text, or free text for a custom tool."""

    kind: Kind
    call_id: str
    name: str
    payload: str


@dataclass(frozen=True, slots=True)
class SandboxAnswer:
    """A text, or calls; never both. An answer that uses legacy functions has one call."""

    text: str | None = None
    calls: tuple[SandboxCall, ...] = ()

    def parts(self, *, id_prefix: str = "call_") -> list[Text | ToolUse]:
        """Return the answer's parts; the ids of its calls begin with a prefix."""
        if not self.calls:
            return [Text(self.text or "")]
        return [
            ToolUse(
                f"{id_prefix}{call.call_id.removeprefix('call_')}",
                call.name,
                call.payload,
                is_custom=call.kind is Kind.CUSTOM,
            )
            for call in self.calls
        ]

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's word for why the answer ended."""
        if not self.calls:
            return "stop"
        return "function_call" if self.calls[0].kind is Kind.LEGACY else "tool_calls"


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """Approximate tokens of a request and its answer: one for every 4 bytes of JSON or text.

    The prompt's tokens are those of the messages, the tools and the response format as JSON. The
    completion's tokens are those of the text, or of the names and arguments of the calls. Each
    number is at least 1. A reasoning effort adds a fixed number of reasoning tokens, which are
    included in the completion's tokens.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0

    def to_json(self) -> dict[str, Json]:
        """Return the usage in the format of the Chat Completions API."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
            },
        }

    def to_usage(self) -> Usage:
        """Return the usage as the writers of answers take it."""
        return Usage(
            self.prompt_tokens, self.completion_tokens, reasoning_tokens=self.reasoning_tokens
        )


def count_usage(
    prompt: bytes, answer: SandboxAnswer, *, copies: int = 1, effort: Json = None
) -> SandboxUsage:
    """Return the usage of an encoded prompt and of `copies` times this answer."""
    written = len((answer.text or "").encode())
    written += sum(len((call.name + call.payload).encode()) for call in answer.calls)
    reasoning_tokens = 0
    if isinstance(effort, str):
        reasoning_tokens = _REASONING_TOKENS.get(effort, _MOST_REASONING_TOKENS)
    total_tokens = count_tokens(written) + reasoning_tokens
    return SandboxUsage(count_tokens(len(prompt)), copies * total_tokens, copies * reasoning_tokens)


def count_tokens(count_bytes: int) -> int:
    """Return the approximate number of tokens of a text of this length, at least one."""
    return max(1, -(-count_bytes // _CHARACTERS_PER_TOKEN))


def fragments(text: str) -> Iterator[str]:
    """Yield a text in the pieces in which it is streamed."""
    for start in range(0, len(text), FRAGMENT_CHARACTERS):
        yield text[start : start + FRAGMENT_CHARACTERS]


def encode_prompt(body: Mapping[str, Json]) -> bytes:
    """Return the part of a request that a model would read, as JSON; raise InvalidRequestError."""
    return _encode([body.get(name) for name in _PROMPT_FIELDS])


def read_request(body: Mapping[str, Json]) -> ChatRequest:
    """Parse a request without its tools; raise InvalidRequestError.

    `_read_tools` reads the tools instead of the core's parser, which takes 140 us for 10 tools,
    twice as much as everything else that the sandbox does.
    """
    return parse_chat_request({name: body[name] for name in body if name not in _TOOL_FIELDS})


def make_answer(body: Mapping[str, Json], request: ChatRequest, prompt: bytes) -> SandboxAnswer:
    """Return the answer to a request; `prompt` is its encoded prompt.

    Raise InvalidRequestError if the tools are not an array or `tool_choice` names no tool.
    """
    turns = request.conversation.turns
    latest = request.conversation.deciding_turn
    query = "" if latest is None else turns[latest].text[:READ_CHARACTERS]
    tools, is_forced = _choose_from(body, tuple(_read_tools(body)))
    has_result = bool(turns) and turns[-1].role in _RESULTS
    if not tools or (has_result and not is_forced):
        return SandboxAnswer(text=_text(body, query))
    query_words = words(query)

    def overlap(tool: SandboxTool) -> int:
        parameters = mapping(mapping(tool.parameters).get("properties"))
        described = words(f"{tool.description[:READ_CHARACTERS]} {' '.join(parameters)}")
        in_name = len(query_words & words(tool.name))
        return NAME_WEIGHT * in_name + len(query_words & described)

    chosen = [max(tools, key=overlap)]
    if body.get("parallel_tool_calls") is not False and tools[0].kind is not Kind.LEGACY:
        for tool in tools:
            name = words(tool.name)
            if tool is not chosen[0] and name and name <= query_words:
                chosen.append(tool)
    # Ids must differ between the turns of a conversation, and be the same for the same request.
    seed = zlib.crc32(prompt)
    calls: list[SandboxCall] = []
    for index, tool in enumerate(chosen[:MAX_CALLS]):
        payload = query  # the input of a custom tool
        if tool.kind is not Kind.CUSTOM:  # arguments are an object, whatever the schema is
            has_schema = isinstance(tool.parameters, dict)
            arguments = mapping(fill(tool.parameters, query)) if has_schema else {}
            payload = _encode(arguments).decode()
        call_id = f"call_sandbox_{seed + index:08x}"
        calls.append(SandboxCall(tool.kind, call_id, tool.name, payload))
    return SandboxAnswer(calls=tuple(calls))


@lru_cache(maxsize=8192)
def words(text: str) -> frozenset[str]:
    """Return a text's words in lower case and singular, without stop words.

    `getStockPrices` and `get_stock_price` have the same words.
    """
    found = (word for word in _WORD.findall(_CAMEL_CASE.sub(" ", text).lower()))
    return frozenset(
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in found
        if word not in _STOP_WORDS
    )


def _read_tools(body: Mapping[str, Json]) -> Iterator[SandboxTool]:
    """Yield the tools that have a name; `functions` are read only if there are no `tools`."""
    field = "tools" if body.get("tools") not in (None, []) else "functions"
    entries = body.get(field)
    if entries is not None and not isinstance(entries, list):
        raise InvalidRequestError(
            f"Invalid type for '{field}': expected an array.", param=field, code="invalid_type"
        )
    for entry in entries or ():
        kind, function = Kind.LEGACY, mapping(entry)
        if field == "tools":
            kind = Kind.CUSTOM if function.get("type") == "custom" else Kind.FUNCTION
            function = mapping(function.get(kind, entry))
        name, description = function.get("name"), function.get("description")
        if isinstance(name, str):
            text = description if isinstance(description, str) else ""
            yield SandboxTool(kind, name, text, function.get("parameters"))


def _choose_from(
    body: Mapping[str, Json], tools: tuple[SandboxTool, ...]
) -> tuple[tuple[SandboxTool, ...], bool]:
    """Return the tools that may be called, and whether one must be called."""
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
        known = ", ".join(tool.name for tool in tools) or "none"
        raise InvalidRequestError(
            f"Invalid value for '{field}': it names no tool of this request. Tools here: {known}.",
            param=field,
            code="invalid_value",
        )
    return named[:1], True


def _chosen_name(choice: Json) -> str | None:
    """Return the name in `{"type": "function", "function": {"name"}}`, or in `{"name"}`."""
    entry = mapping(choice)
    name = mapping(entry.get("function", entry.get("custom", entry))).get("name")
    return name if isinstance(name, str) else None


def _text(body: Mapping[str, Json], query: str) -> str:
    """Return a short text, or JSON if `response_format` requires it."""
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
        # Parsed JSON fails for one reason only: orjson reads 1024 levels and writes 254.
        raise InvalidRequestError(
            "The request is nested too deeply. Flatten it.", code="nested_too_deeply"
        ) from exc
