"""Record of an answer of Chat Completions that passes through unchanged."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from router_service.apis.answers import AnswerIdentity, AnswerRecord, PartialCall, write_json
from router_service.apis.conversation import Json, as_dict, as_text
from router_service.apis.parts import Stop
from router_service.apis.usage import Usage, read_counts

MAX_CHOICES = 128
"""Most choices of a stream whose ends are awaited. OpenAI allows as many (API reference: `n`)."""

STOPS = {
    "stop": Stop.END,
    "length": Stop.LENGTH,
    "model_length": Stop.LENGTH,  # Mistral: the context window
    "tool_calls": Stop.CALLS,
    "function_call": Stop.CALLS,
    "content_filter": Stop.FILTER,
}

CallPlace = int | str | None
"""A call's index, its id, or a negative number without either; None before the first call."""

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_OTHER_OUTPUT = ("refusal", "audio", "images")


class ChatRecord(AnswerRecord):
    """Record of one answer. It also reads answers of the older Completions, and Embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self._unfinished: set[int] = set()
        """Places of the choices that have begun and not ended."""
        self._finished: set[int] = set()
        """Places of the choices that have ended."""
        self._last_call: CallPlace = None
        """Place of the call that was read last."""

    def read(self, value: Mapping[str, Json]) -> None:
        """Read a whole answer or one event."""
        if "usage" in value or "x_groq" in value:
            self.usage = read_usage(value) or self.usage
        if self.identity.id is None:
            self.identity = AnswerIdentity.of(value)
        if not self.has_output:
            self.has_output = not is_beginning(value)
        for choice in self.objects(value.get("choices")):
            place, reason = choice.get("index", 0), choice.get("finish_reason")
            if isinstance(place, int) and (reason or place not in self._unfinished):
                self._read_stop(place, reason)
            delta = choice.get("delta", choice.get("message"))
            if not isinstance(delta, dict):
                text = choice.get("text")
                self.written_characters += len(text) if isinstance(text, str) else 0
                continue
            for name, text in delta.items():
                if name in _TEXTS and isinstance(text, str):
                    self.written_characters += len(text)
            is_kept = place == 0 and not self.is_incomplete
            if is_kept:
                self._read_content(delta)
            self._read_calls(delta, is_kept, is_part="delta" in choice)

    def _read_calls(self, message: Mapping[str, Json], is_kept: bool, *, is_part: bool) -> None:
        """Read the calls of a message, or of a part of one."""
        calls = message.get("tool_calls")
        self.has_calls = self.has_calls or bool(calls)
        for position, call in enumerate(self.objects(calls)):
            place: int | str = position  # a message has whole calls, some without ids
            if is_part:
                place = self._last_call = place_of(call, self._last_call)
            self._read_call(place, call, is_kept)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            self.has_calls = True
            self._read_call("function_call", {"function": legacy}, is_kept)

    def text_of(self, value: Json) -> str | None:
        """Return the text that an event adds to the first choice, or None if it does more."""
        choices = value.get("choices") if isinstance(value, dict) else None
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return None
        if choice.get("finish_reason"):  # the answer ends
            return None
        delta = choice.get("delta")
        if not isinstance(delta, dict) or any(delta[name] for name in delta if name != "content"):
            return None
        text = delta.get("content")
        return text if isinstance(text, str) else None

    def _read_stop(self, place: int, reason: Json) -> None:
        """Record whether the answer has ended.

        OpenRouter repeats a choice that has ended, without its reason, in the event with the usage.
        """
        if place == 0 and isinstance(reason, str):
            self.stop = STOPS.get(reason, Stop.END)
        if reason:
            self._unfinished.discard(place)
            if len(self._finished) < MAX_CHOICES:
                self._finished.add(place)
            self.has_stopped = not self._unfinished
        elif place not in self._finished and len(self._unfinished) < MAX_CHOICES:
            self._unfinished.add(place)
            self.has_stopped = False

    def _read_content(self, message: Mapping[str, Json]) -> None:
        """Read what a message, or a part of one, has besides calls."""
        content = message.get("content")
        if isinstance(content, list):  # Mistral writes parts
            for part in self.objects(content):
                self.add_text(part.get("text"))
                if "text" not in part and part.get("type") != "thinking":
                    self.has_other_output = True
        else:
            self.add_text(content)
        if not self.has_other_output:
            self.has_other_output = any(map(message.get, _OTHER_OUTPUT))

    def _read_call(self, place: int | str, fields: Mapping[str, Json], is_kept: bool) -> None:
        inner = as_dict(fields.get("function", fields.get("custom")))
        name, text = inner.get("name"), inner.get("arguments", inner.get("input"))
        if not isinstance(text, str | None):  # some servers send the object instead of its text
            try:
                text = write_json(text)
            except (RecursionError, TypeError):  # the latter for what no JSON can express
                self.is_incomplete = True
        for each in (name, text):
            self.written_characters += len(each) if isinstance(each, str) else 0
        if is_kept and not self.is_incomplete:
            begun, call_id = self.calls.get(place), as_text(fields.get("id"))
            is_whole = is_object(text) if name and text else False
            if begun is not None and is_another(begun, call_id, name, is_whole=is_whole):
                self.calls[place, len(self.calls)] = self.calls.pop(place)
            call = self.add_call(place)
            call.is_whole = call.is_whole or is_whole
            call.is_custom = call.is_custom or "custom" in fields
            call.id = call.id or self.count(fields.get("id"))
            call.name = call.name or self.count(name)
            call.arguments.write(self.count(text))


def is_object(text: str) -> bool:
    """Return whether a text is one JSON object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def is_another(begun: PartialCall, call_id: str, name: Json, *, is_whole: bool) -> bool:
    """Return whether a part of a call begins another one at the place of a call that has begun.

    Some servers send several calls with the index 0. `is_whole` says that the part has a name and
    an object of arguments.
    """
    has_other_id = bool(name and begun.id) and call_id not in ("", begun.id)
    return has_other_id or (is_whole and begun.is_whole)


def place_of(call: Mapping[str, Json], last: CallPlace) -> int | str:
    """Return the place of a call, or of a part of one, given the place of the last one.

    That is its index, or else its id. Without either, a name begins a call, and all else continues
    the last one.
    """
    for place in (call.get("index"), call.get("id")):
        if isinstance(place, int | str) and place != "":
            return place
    inner = call.get("function", call.get("custom"))
    if last is not None and isinstance(inner, dict) and inner.get("name"):
        return min(last, 0) - 1 if isinstance(last, int) else -1
    return last or 0


def read_usage(value: Json) -> Usage | None:
    """Return the usage of an answer or of an event; Groq has it in `x_groq`."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        usage = as_dict(value.get("x_groq")).get("usage")
    return None if usage is None else read_counts(usage)


def is_beginning(event: Mapping[str, Json]) -> bool:
    """Return whether an event contains nothing but the role."""
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if not isinstance(delta, dict) or choice.get("finish_reason"):
            return False
        if any(value for name, value in delta.items() if name != "role"):
            return False
    return True
