"""Tool calls, text and token usage of Chat Completions, Responses and Messages answers.

An answer may be whole or arrive as a stream of events.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

import orjson

from router_service.apis.conversation import Json

MAX_ANSWER_CHARACTERS = 1024 * 1024
"""Longest answer that is kept, in characters of its text and calls."""

CALL_CHARACTERS = 300
"""Characters that each call adds to an answer's length, in addition to its arguments: the bytes of
memory that a call takes."""

MAX_PARTS = 5_000
"""Limit on the choices, calls and items that are read of a whole answer or of one event. Reading
this many takes 5 ms. An answer with more of them is not kept."""

MAX_TOKENS = 1_000_000_000
"""Larger token counts are ignored. Their sums would exceed 64 bits, and one answer with such a
count would outweigh all other answers in the metrics."""

# Tuples instead of sets, because an upstream may send a type that cannot be hashed, such as a list.
_LAST_TYPES = ("response.completed", "response.incomplete")
_MESSAGE_TYPES = ("content_block_delta", "content_block_start", "message")
_CALL_TYPES = ("function_call", "custom_tool_call")


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as a model wrote it. Its arguments are text, which is JSON for functions."""

    id: str
    """Empty if the call has none."""
    name: str
    arguments: str
    is_custom: bool = False
    """Whether the arguments are free text (a custom tool)."""

    def decoded(self) -> dict[str, Json] | None:
        """Return the arguments, or None if they are not a JSON object.

        Some models write nothing for a call without arguments.
        """
        if not self.arguments.strip():
            return {}
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The tool calls and the text of an answer, or of its first choice if there are several."""

    calls: tuple[WrittenCall, ...] = ()
    text: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the answer is text without tool calls; neither is no text."""
        return not self.calls and bool(self.text.strip())

    @property
    def characters(self) -> int:
        """Return the length of the text and of the calls' arguments."""
        return len(self.text) + sum(len(call.arguments) for call in self.calls)

    def sha256(self) -> str:
        """Return a hash of the text and of the calls' names and arguments as they were written."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return hashlib.sha256(orjson.dumps([calls, self.text])).hexdigest()


def parse_answer(answer: Json) -> ParsedAnswer | None:
    """Parse a whole answer. Return None if it is too long to be kept."""
    accumulator = AnswerAccumulator()
    accumulator.feed(answer)
    return accumulator.answer()


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    # Not a list of strings: an event may add only a few characters, but each string takes 60 bytes.
    arguments: StringIO = field(default_factory=StringIO)
    is_custom: bool = False
    input: str = ""
    """JSON text of an `input` (Messages), which counts if no other arguments arrive."""


@dataclass(slots=True)
class AnswerAccumulator:
    """Parser for an answer that arrives whole or as events in order."""

    is_incomplete: bool = False
    """Whether a part of the answer was not read."""
    _calls: dict[object, _PartialCall] = field(default_factory=dict)
    _text: StringIO = field(default_factory=StringIO)
    _characters: int = 0
    _parts: int = 0
    _has_text: bool = False
    """Whether a part of `_text` is more than white space."""
    _has_text_delta: bool = False
    """Whether a part of a text has arrived whose whole is still to come (Responses)."""

    @property
    def is_text(self) -> bool:
        """Whether the answer so far is text without tool calls; white space is no text."""
        return not self._calls and (self._has_text_delta or self._has_text)

    @property
    def characters(self) -> int:
        """The length of what is kept of the answer."""
        return self._characters

    def give_up(self) -> None:
        """Keep nothing of the answer, because there is no memory for it."""
        self.is_incomplete = True
        self._clear()

    def _clear(self) -> None:
        self._calls.clear()
        self._text = StringIO()
        self._has_text = False
        self._characters = 0

    def answer(self) -> ParsedAnswer | None:
        """Return the answer, or None if it is too long or was not read completely."""
        if self.is_incomplete:
            return None
        calls = (
            WrittenCall(
                fix_surrogates(call.id),
                fix_surrogates(call.name),
                fix_surrogates(call.arguments.getvalue()) or call.input,
                call.is_custom,
            )
            for call in self._calls.values()
        )
        text = fix_surrogates(self._text.getvalue())
        return ParsedAnswer(tuple(call for call in calls if call.name), text)

    def feed(self, value: Json) -> None:
        """Add a whole answer or one event, already decoded. Any other value is ignored."""
        if isinstance(value, dict) and not self.is_incomplete:
            self._parts = 0
            self._read(value)
            if self._characters > MAX_ANSWER_CHARACTERS:
                self.give_up()

    def _read(self, value: Mapping[str, Json]) -> None:
        if "choices" in value:
            for choice in self._objects(value["choices"]):
                if choice.get("index", 0) == 0:
                    message = choice.get("delta", choice.get("message"))
                    message = message if isinstance(message, dict) else {}
                    self._add_text(message.get("content"))
                    for call in self._objects(message.get("tool_calls")):
                        # A call without an index is identified by its id. A delta without index
                        # and id continues call 0.
                        place = call.get("index", call.get("id")) or 0
                        self._add_call(place if isinstance(place, int | str) else 0, call)
                    legacy = message.get("function_call")
                    if isinstance(legacy, dict):
                        self._add_call("function_call", {"function": legacy})
            return
        kind = value.get("type")
        if value.get("object") == "response":
            self._add_output(value.get("output"))
        elif kind in _LAST_TYPES:
            response = value.get("response")
            output = response.get("output") if isinstance(response, dict) else None
            if isinstance(output, list) and output:  # the event repeats all earlier items
                self._clear()
                self._add_output(output)
        elif kind == "response.output_text.delta":
            delta = value.get("delta")
            self._has_text_delta |= isinstance(delta, str) and bool(delta.strip())
        elif kind == "response.output_item.done":
            self._add_item(value.get("item"), value.get("output_index"))
        elif kind in _MESSAGE_TYPES:
            self._add_content(value)

    def _add_text(self, value: Json) -> None:
        text = self._count(value)
        self._text.write(text)
        self._has_text = self._has_text or not (not text or text.isspace())

    def _add_call(self, place: object, call: Mapping[str, Json]) -> None:
        if place not in self._calls:
            self._calls[place] = _PartialCall()
            self._characters += CALL_CHARACTERS
        partial = self._calls[place]
        inner = call.get("function", call.get("custom"))
        inner = inner if isinstance(inner, dict) else {}
        partial.is_custom = partial.is_custom or "custom" in call
        partial.id = partial.id or self._count(call.get("id"))
        partial.name = partial.name or self._count(inner.get("name"))
        partial.arguments.write(self._count(inner.get("arguments", inner.get("input"))))

    def _add_content(self, value: Mapping[str, Json]) -> None:
        """Add a whole message, or an event of one."""
        delta, index = value.get("delta"), value.get("index")
        if value["type"] == "message":
            for place, block in enumerate(self._objects(value.get("content"))):
                self._add_block(block, place)
        elif value["type"] == "content_block_start":
            self._add_block(value.get("content_block"), index)
        elif isinstance(delta, dict):
            if delta.get("type") == "text_delta":
                self._add_text(delta.get("text"))
            elif delta.get("type") == "input_json_delta" and isinstance(index, int):
                self._add_call(index, {"function": {"arguments": delta.get("partial_json")}})

    def _add_block(self, block: Json, index: Json) -> None:
        if not isinstance(block, dict):
            return
        if block.get("type") == "text":
            self._add_text(block.get("text"))
        elif block.get("type") == "tool_use" and isinstance(index, int):
            self._add_call(index, {"id": block.get("id"), "function": {"name": block.get("name")}})
            try:
                self._calls[index].input = self._count(write_json(block.get("input", {})))
            except (RecursionError, TypeError):  # the latter for what no JSON can express
                self.is_incomplete = True

    def _add_output(self, output: Json) -> None:
        for index, item in enumerate(self._objects(output)):
            self._add_item(item, index)

    def _add_item(self, item: Json, index: Json) -> None:
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind in _CALL_TYPES:
            name, is_custom = self._count(item.get("name")), kind == "custom_tool_call"
            place = index if isinstance(index, int) else len(self._calls)
            partial = _PartialCall(self._count(item.get("call_id")), name, is_custom=is_custom)
            self._calls[place] = partial
            self._characters += CALL_CHARACTERS
            partial.arguments.write(self._count(item.get("arguments", item.get("input"))))
        elif kind == "message":
            for part in self._objects(item.get("content")):
                self._add_text(part.get("text"))

    def _objects(self, value: Json) -> Sequence[Mapping[str, Json]]:
        """Return the objects in a list, or none if the value fed has over `MAX_PARTS` in all."""
        items = (
            [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
        )
        self._parts += len(items)
        if self._parts <= MAX_PARTS:
            return items
        self.is_incomplete = True
        return ()

    def _count(self, value: Json) -> str:
        """Return a string and count its characters; return an empty string for any other value."""
        text = value if isinstance(value, str) else ""
        self._characters += len(text)
        return text


def write_json(value: Json) -> str:
    """Return the JSON text of a decoded value; lone surrogates are escaped.

    Raises RecursionError for about 1,000 levels.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def fix_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: surrogate pairs are joined, and lone halves become `?`.

    Providers split an emoji between two deltas: `"\ud83d"` and `"\ude00"` are one character of the
    answer. A lone half cannot be encoded (Unicode standard, section 3.9).
    """
    if has_surrogates(text):
        return join_surrogates(text).encode(errors="replace").decode()
    return text


def join_surrogates(text: str) -> str:
    """Return a text with surrogate pairs joined to the characters that they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def has_surrogates(text: str) -> bool:
    """Return whether a text has halves of surrogate pairs, so that it cannot be encoded."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request and its answer, as OpenAI defines them.

    `cached_tokens` and `cache_write_tokens` are included in `prompt_tokens`, and `reasoning_tokens`
    in `completion_tokens` (API reference: "The chat completion object", usage).
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """Whether the gateway estimated the counts, because the provider did not report them."""
    uncached_tokens: int = field(init=False, repr=False, compare=False)
    """Tokens of the prompt that were neither read from a cache nor written to it."""

    def __post_init__(self) -> None:
        """Limit parts to their totals: providers have reported more cached than prompt tokens."""
        cached = min(self.cached_tokens, self.prompt_tokens)
        written = min(self.cache_write_tokens, self.prompt_tokens - cached)
        object.__setattr__(self, "cached_tokens", cached)
        object.__setattr__(self, "cache_write_tokens", written)
        object.__setattr__(self, "uncached_tokens", self.prompt_tokens - cached - written)
        reasoning = min(self.reasoning_tokens, self.completion_tokens)
        object.__setattr__(self, "reasoning_tokens", reasoning)


NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)


def read_usage(answer: Json, before: Usage | None = None) -> Usage | None:
    """Return the usage that a decoded answer or event reports, if any.

    Supported are Chat Completions, Completions, Embeddings, Responses and Messages, whole or
    streamed. The last event of a streamed response contains the response with its usage. `before`
    is what earlier events have reported: the first event of a streamed message has the prompt's
    tokens, and a later event may have only the others.
    """
    if not isinstance(answer, dict):  # `isinstance` with `Mapping` would be slow
        return None
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        inner = answer.get("response", answer.get("x_groq", answer.get("message")))
        usage = inner.get("usage") if isinstance(inner, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt = _read_count(usage, "prompt_tokens", "input_tokens")
    completion = _read_count(usage, "completion_tokens", "output_tokens")
    if completion is None and _read_count(usage, "total_tokens") == prompt:
        completion = 0  # embeddings have no completion
    if completion is not None and before is not None and answer.get("type") == "message_delta":
        return _merge_usage(usage, completion, before)
    if prompt is None or completion is None:
        return None
    prompt_details = usage.get("prompt_tokens_details")
    if not isinstance(prompt_details, dict):
        prompt_details = usage.get("input_tokens_details")
    completion_details = usage.get("completion_tokens_details")
    if not isinstance(completion_details, dict):
        completion_details = usage.get("output_tokens_details")
    # `prompt_cache_hit_tokens` is DeepSeek's name, `cached_tokens` at the top level Moonshot's and
    # `cache_read_input_tokens` Anthropic's. All mean the same tokens, so only one is taken.
    cached = _read_count(prompt_details, "cached_tokens") or _read_count(
        usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens"
    )
    written = _read_count(
        prompt_details, "cache_write_tokens", "cache_creation_tokens"
    ) or _read_count(usage, "cache_creation_input_tokens")
    # In Anthropic's Messages API, `input_tokens` excludes cached tokens (prompt caching).
    is_anthropic = "prompt_tokens" not in usage and "input_tokens_details" not in usage
    if is_anthropic and (
        "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage
    ):
        prompt += (cached or 0) + (written or 0)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached or 0,
        cache_write_tokens=written or 0,
        reasoning_tokens=_read_count(completion_details, "reasoning_tokens", "thinking_tokens")
        or 0,
    )


def _merge_usage(usage: Mapping[str, Json], completion: int, before: Usage) -> Usage:
    """Return the usage at the end of a streamed message.

    Its counts are totals. They replace those of the first event, if they are there (API reference:
    "Streaming messages", `message_delta`).
    """
    uncached = _read_count(usage, "input_tokens")
    cached = _read_count(usage, "cache_read_input_tokens")
    written = _read_count(usage, "cache_creation_input_tokens")
    uncached = before.uncached_tokens if uncached is None else uncached
    cached = before.cached_tokens if cached is None else cached
    written = before.cache_write_tokens if written is None else written
    details = usage.get("output_tokens_details")
    return Usage(
        prompt_tokens=uncached + cached + written,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=_read_count(details, "thinking_tokens") or before.reasoning_tokens,
    )


def _read_count(values: Json, *names: str) -> int | None:
    """Return the first of the named members that is a valid count; -1, true and 2**63 are not."""
    if isinstance(values, dict):
        for name in names:
            count = values.get(name)
            # `type` instead of `isinstance`, because true and false are ints to the latter.
            if type(count) is int and 0 <= count <= MAX_TOKENS:
                return count
    return None
