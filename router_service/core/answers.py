"""What an answer says: its tool calls and its text, whole or event by event, in both APIs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO

import orjson

from router_service.core.messages import Json

MAX_ANSWER_CHARACTERS = 1024 * 1024
"""Of an answer that says more nothing is kept."""

CALL_CHARACTERS = 300
"""What a call counts for beside its arguments: so many bytes it takes."""

MAX_PARTS = 5_000
"""Choices, calls and items of an answer, or of one event, that are listened to, in 5 ms. An answer
with more of them is not kept."""

# Tuples, not sets: what an upstream sends as a type may be a list, which no set is asked for.
_LAST_TYPES = ("response.completed", "response.incomplete")
_CALL_TYPES = ("function_call", "custom_tool_call")


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call as a model wrote it; `arguments` is text, and JSON where it is a function's."""

    id: str
    """Empty where there is none."""
    name: str
    arguments: str
    is_custom: bool = False
    """Whether the arguments are free text (a custom tool)."""

    def decoded(self) -> dict[str, Json] | None:
        """Return the arguments, or None where they are no JSON object."""
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What an answer said; of several choices the first."""

    calls: tuple[WrittenCall, ...] = ()
    text: str = ""

    @property
    def characters(self) -> int:
        """How long the text and the calls' arguments are."""
        return len(self.text) + sum(len(call.arguments) for call in self.calls)

    def sha256(self) -> str:
        """Return a hash of the calls' names and arguments, as they were written, and the text."""
        calls = [[call.name, call.arguments] for call in self.calls]
        return hashlib.sha256(orjson.dumps([calls, self.text])).hexdigest()


def fix_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: halves of surrogate pairs are joined or become `?`.

    Providers split an emoji between two deltas: `"\ud83d"` and `"\ude00"` are one character of
    the answer. A half alone cannot be encoded (Unicode standard, section 3.9).
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALVES.sub(_joined, text, MAX_JOINED).encode(errors="replace").decode()
    return text


MAX_JOINED = 10_000
"""Characters of an answer that are joined, which takes 20 ms for so many."""
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _joined(halves: re.Match[str]) -> str:
    return halves[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


@dataclass(slots=True)
class _Partial:
    id: str = ""
    name: str = ""
    # Not a list of parts: an event may add a few characters, and a part takes 60 bytes.
    arguments: StringIO = field(default_factory=StringIO)
    is_custom: bool = False

    def call(self) -> WrittenCall:
        arguments = fix_surrogates(self.arguments.getvalue())
        return WrittenCall(
            fix_surrogates(self.id), fix_surrogates(self.name), arguments, self.is_custom
        )


class AnswerAccumulator:
    """Hears an answer, whole or its events in order."""

    def __init__(self) -> None:
        self._calls: dict[object, _Partial] = {}
        self._text = StringIO()
        self._characters = 0
        self._parts = 0
        self.is_incomplete = False
        """Whether a part of the answer was not heard."""

    def answer(self) -> ParsedAnswer | None:
        """Return what was said, or None where not all of it was heard."""
        if self.is_incomplete or self._characters > MAX_ANSWER_CHARACTERS:
            return None
        calls = (partial.call() for partial in self._calls.values())
        text = fix_surrogates(self._text.getvalue())
        return ParsedAnswer(tuple(call for call in calls if call.name), text)

    def feed(self, value: Json) -> None:
        """Take in a whole answer or one event, decoded; what is of neither API says nothing."""
        if not isinstance(value, dict) or self._characters > MAX_ANSWER_CHARACTERS:
            return
        self._parts = 0
        if "choices" in value:
            self._hear_choices(value["choices"])
        elif value.get("object") == "response":
            self._hear_output(value.get("output"))
        elif value.get("type") in _LAST_TYPES:
            self._hear_last(value.get("response"))
        elif value.get("type") == "response.output_item.done":
            self._hear_item(value.get("item"), value.get("output_index"))

    def _hear_choices(self, choices: Json) -> None:
        for choice in self._each(choices):
            if choice.get("index", 0) == 0:
                said = choice.get("delta", choice.get("message"))
                self._hear_message(said if isinstance(said, dict) else {})

    def _hear_message(self, message: Mapping[str, Json]) -> None:
        self._add_text(message.get("content"))
        for call in self._each(message.get("tool_calls")):
            # Without a number a call has an id of its own, and what has neither goes on with it.
            place = call.get("index", call.get("id")) or 0
            self._add_call(place if isinstance(place, int | str) else 0, call)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            self._add_call("function_call", {"function": legacy})

    def _add_call(self, place: object, call: Mapping[str, Json]) -> None:
        if place not in self._calls:
            self._calls[place] = _Partial()
            self._characters += CALL_CHARACTERS
        partial = self._calls[place]
        inner = call.get("function", call.get("custom"))
        inner = inner if isinstance(inner, dict) else {}
        partial.is_custom = partial.is_custom or "custom" in call
        partial.id = partial.id or self._counted(call.get("id"))
        partial.name = partial.name or self._counted(inner.get("name"))
        self._add_arguments(partial, inner.get("arguments", inner.get("input")))

    def _hear_last(self, response: Json) -> None:
        """Take a stream's last event, which repeats all of it, in place of what came before."""
        output = response.get("output") if isinstance(response, dict) else None
        if isinstance(output, list) and output:
            self._calls.clear()
            self._text = StringIO()
            self._characters = 0
            self._hear_output(output)

    def _hear_output(self, output: Json) -> None:
        for index, item in enumerate(self._each(output)):
            self._hear_item(item, index)

    def _hear_item(self, item: Json, index: Json) -> None:
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind in _CALL_TYPES:
            name, is_custom = self._counted(item.get("name")), kind == "custom_tool_call"
            place = index if isinstance(index, int) else len(self._calls)
            partial = _Partial(self._counted(item.get("call_id")), name, is_custom=is_custom)
            self._calls[place] = partial
            self._characters += CALL_CHARACTERS
            self._add_arguments(partial, item.get("arguments", item.get("input")))
        for part in self._each(item.get("content")) if kind == "message" else ():
            self._add_text(part.get("text"))

    def _each(self, value: Json) -> Sequence[Mapping[str, Json]]:
        """Return the objects of a list, or none if there are too many in all."""
        items = _objects(value)
        self._parts += len(items)
        if self._parts <= MAX_PARTS:
            return items
        self.is_incomplete = True
        return ()

    def _add_arguments(self, partial: _Partial, arguments: Json) -> None:
        partial.arguments.write(self._counted(arguments))

    def _add_text(self, content: Json) -> None:
        self._text.write(self._counted(content))

    def _counted(self, value: Json) -> str:
        """Return a string, or an empty one for any other value, and count its characters."""
        text = value if isinstance(value, str) else ""
        self._characters += len(text)
        return text


def parse_answer(answer: Json) -> ParsedAnswer | None:
    """Return what a whole answer says, or None where it is too much."""
    accumulator = AnswerAccumulator()
    accumulator.feed(answer)
    return accumulator.answer()


def _objects(value: Json) -> Sequence[Mapping[str, Json]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()


MAX_TOKENS = 1_000_000_000
"""A larger count is not believed: sums would exceed 64 bits, and one such answer would outweigh all
others in the metrics."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request and of its answer, as OpenAI counts them.

    `cached_tokens` and `cache_write_tokens` are parts of `prompt_tokens`, `reasoning_tokens` of
    `completion_tokens` (API reference: "The chat completion object", usage): none is added to them.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """Whether the gateway counted it, where the provider did not."""

    def __post_init__(self) -> None:
        """Cut parts to what they are parts of: providers have reported more cached than read."""
        cached = min(self.cached_tokens, self.prompt_tokens)
        written = min(self.cache_write_tokens, self.prompt_tokens - cached)
        object.__setattr__(self, "cached_tokens", cached)
        object.__setattr__(self, "cache_write_tokens", written)
        reasoning = min(self.reasoning_tokens, self.completion_tokens)
        object.__setattr__(self, "reasoning_tokens", reasoning)

    @property
    def uncached_tokens(self) -> int:
        """Tokens of the prompt that no cache had or took."""
        return self.prompt_tokens - self.cached_tokens - self.cache_write_tokens


NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)


def read_usage(answer: Json) -> Usage | None:
    """Return what a decoded answer or event says that it used; None where it does not.

    Read are Chat Completions, Completions, Embeddings and Responses, whole or streamed: the
    last event of a streamed response carries the response, and so its usage, inside.
    """
    if not isinstance(answer, dict):  # what is decoded is one, and `Mapping` is slow to be asked
        return None
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        inner = answer.get("response", answer.get("x_groq"))
        usage = inner.get("usage") if isinstance(inner, dict) else None
    return _read(usage) if isinstance(usage, dict) else None


def _read(usage: Mapping[str, Json]) -> Usage | None:
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    completion = _completion(usage, prompt or 0)
    if prompt is None or completion is None:
        return None
    cached, written = _cached(usage), _written(usage)
    if _is_anthropic(usage):
        prompt += cached + written
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=_first(_completion_details(usage), "reasoning_tokens") or 0,
    )


def _completion(usage: Mapping[str, Json], prompt: int) -> int | None:
    """Return the answer's tokens; embeddings have none, which their total shows."""
    completion = _first(usage, "completion_tokens", "output_tokens")
    if completion is None and _count(usage.get("total_tokens")) == prompt:
        return 0
    return completion


def _cached(usage: Mapping[str, Json]) -> int:
    """Return the tokens read from a cache, under any of the names that providers give them.

    `prompt_cache_hit_tokens` is DeepSeek's, `cached_tokens` at the top Moonshot's and
    `cache_read_input_tokens` Anthropic's; all name the same tokens, so one is taken.
    """
    inner = _first(_prompt_details(usage), "cached_tokens")
    outer = _first(usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    return inner or outer or 0


def _written(usage: Mapping[str, Json]) -> int:
    inner = _first(_prompt_details(usage), "cache_write_tokens", "cache_creation_tokens")
    return inner or _first(usage, "cache_creation_input_tokens") or 0


def _is_anthropic(usage: Mapping[str, Json]) -> bool:
    """Whether cached tokens stand beside the others, as in the Messages API (prompt caching)."""
    return (
        "prompt_tokens" not in usage
        and "input_tokens_details" not in usage
        and ("cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage)
    )


def _prompt_details(usage: Mapping[str, Json]) -> Mapping[str, Json]:
    return _part(usage, "prompt_tokens_details", "input_tokens_details")


def _completion_details(usage: Mapping[str, Json]) -> Mapping[str, Json]:
    return _part(usage, "completion_tokens_details", "output_tokens_details")


def _part(usage: Mapping[str, Json], *names: str) -> Mapping[str, Json]:
    for name in names:
        part = usage.get(name)
        if isinstance(part, dict):
            return part
    return {}


def _first(values: Mapping[str, Json], *names: str) -> int | None:
    """Return the first of these that is a count."""
    for name in names:
        count = _count(values.get(name))
        if count is not None:
            return count
    return None


def _count(value: Json) -> int | None:
    """Return a number of tokens; None for what cannot be one, such as -1, true or 2**63."""
    # `type` and not `isinstance`, because true and false are ints to the latter.
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
