"""Reader of answers of Chat Completions, whole and in events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from router_service.apis.answers import AnswerIdentity, AnswerRecord, PartialCall, write_json
from router_service.apis.chat import NAME
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.encoding import encode
from router_service.apis.foreign import ATTACHED, read_text
from router_service.apis.parts import PartGrew, Stop, Text, Thinking, ToolUse
from router_service.apis.reading import AnswerReader, OpenPart
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
        self.has_refused = self.has_refused or bool(message.get("refusal"))
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
            if begun is not None and name and is_another(begun, call_id, is_whole=is_whole):
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


def is_another(begun: PartialCall, call_id: str, *, is_whole: bool) -> bool:
    """Return whether a part with a name begins another call at the place of a call that has begun.

    Some servers send several calls with the index 0. `is_whole` says that the part has an object of
    arguments.
    """
    has_other_id = bool(begun.id) and call_id not in ("", begun.id)
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


_TEXT = Text("")
_REFUSAL = Text("", is_refusal=True)
_THINKING = Thinking("", origin=NAME)


@dataclass(slots=True)
class _Call(PartialCall):
    """A call, of which several may be arriving."""

    opened: OpenPart | None = None
    """None before the name is known."""
    attached: dict[str, Json] = field(default_factory=dict)
    has_ended: bool = False

    def is_complete(self) -> bool:
        """Return whether nothing but white space can follow the arguments."""
        return not (self.is_custom or self.has_ended) and is_object(self.arguments.getvalue())


class ChatReader(AnswerReader):
    """Reader of one answer. Its text and its calls arrive without ends, and calls may overlap."""

    api = NAME

    def __init__(self, stops: Iterable[str]) -> None:
        """Set `stops` to the request's stop texts. vLLM says with which one an answer ended."""
        super().__init__()
        self._stops = frozenset(stops)
        self._open: OpenPart | None = None
        """The text or thinking that has not ended."""
        self._calls: dict[int | str, _Call] = {}
        """The latest call at each place."""
        self._last_place: CallPlace = None
        """The place of the call that was read last."""
        self._open_calls: list[_Call] = []
        """The calls since the last end, of which some may have ended."""
        self._last: _Call | None = None
        """The last call that has begun."""

    def read_whole(self, value: Json) -> None:
        """Read a whole answer as if it was one event."""
        fields = as_dict(value)
        choice = as_dict(next(iter(as_list(fields.get("choices"))), None))
        message = choice.get("message")
        if not isinstance(message, dict):
            raise self.foreign("has no choice with a message")
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            objects = [call for call in calls if isinstance(call, dict)]
            numbered = [{**call, "index": index} for index, call in enumerate(objects)]
            message = {**message, "tool_calls": numbered}
        self.read({**fields, "choices": [{**choice, "index": 0, "delta": message}]})

    def read(self, event: Json) -> None:
        """Read one event."""
        choices = event.get("choices") if isinstance(event, dict) else None
        if not isinstance(choices, list):
            if not isinstance(event, dict) or event.get("error") or "usage" not in event:
                raise self.foreign("has an event without choices")
            choices = []
        self.usage = read_usage(event) or self.usage
        for choice in choices:
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                continue
            if not self._has_started:
                self.begin(event)
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._read_delta(delta)
            if isinstance(reason := choice.get("finish_reason"), str) and reason:
                self._read_stop(reason, choice.get("stop_reason"))

    def _read_delta(self, delta: dict[str, Json]) -> None:
        self._read_thinking(delta)
        content = delta.get("content")
        if isinstance(content, str):
            self._say(_TEXT, content)
        elif isinstance(content, list):
            self._read_content(content)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._say(_REFUSAL, refusal)
        legacy = delta.get("function_call")
        for call in as_list(delta.get("tool_calls")):
            if isinstance(call, dict):
                self._last_place = place_of(call, self._last_place)
                self._read_call(self._last_place, call)
        if isinstance(legacy, dict):
            self._read_call("function_call", {"function": legacy})

    def _read_thinking(self, delta: dict[str, Json]) -> None:
        """Read the reasoning of DeepSeek and vLLM (`reasoning_content`) or of OpenRouter."""
        text = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(text, str) and text:
            self._say(_THINKING, text)
        for detail in as_list(delta.get("reasoning_details")):
            if not isinstance(detail, dict):
                continue
            own = detail.get("text") or detail.get("summary")
            if isinstance(own, str) and not (isinstance(text, str) and text):
                self._say(_THINKING, own)
            signature, hidden = detail.get("signature"), detail.get("data")
            if isinstance(signature, str) and signature:
                self.prove(self._opened(_THINKING), signature)
            if isinstance(hidden, str) and hidden:
                self._end_open()
                part = Thinking("", read_text(hidden), is_hidden=True, origin=NAME)
                self.close(self.start(part))

    def _read_content(self, content: list[Json]) -> None:
        """Read content that is a list of parts, as Mistral writes it."""
        for part in content:
            match part:
                case {"type": "text", "text": str(text)}:
                    self._say(_TEXT, text)
                case {"type": "thinking", "thinking": str(text)}:
                    self._say(_THINKING, text)
                case {"type": "thinking", "thinking": list(inner)}:
                    for each in inner:
                        if isinstance(each, dict) and isinstance(each.get("text"), str):
                            self._say(_THINKING, each["text"])
                case {"type": "refusal", "refusal": str(text)}:
                    self._say(_REFUSAL, text)
                case _:
                    kind = as_dict(part).get("type")
                    raise self.foreign(
                        f"has content of the type {kind!r:.50}, which cannot be translated"
                    )

    def _say(self, start: Text | Thinking, text: str) -> None:
        """Add to the text or thinking that begins with `start`."""
        if text:
            opened = self._open
            if opened is None or opened.part is not start:
                opened = self._opened(start)
            self._events.append(PartGrew(opened.index, text))

    def _opened(self, start: Text | Thinking) -> OpenPart:
        opened = self._open
        if opened is None or opened.part is not start:
            self._end_open()
            self._open = opened = self.start(start)
        return opened

    def _end_open(self) -> None:
        if self._open is not None:
            self.close(self._open)
            self._open = None

    def _read_call(self, place: int | str, fields: dict[str, Json]) -> None:
        inner = as_dict(fields.get("function", fields.get("custom")))
        call_id, name = as_text(fields.get("id")), as_text(inner.get("name"))
        text = inner.get("arguments", inner.get("input"))
        if isinstance(text, dict):  # some servers send the object instead of its text
            text = encode(text).decode()
        text = as_text(text)
        is_whole = is_object(text) if name and text else False
        call = self._calls.get(place)
        if call is None or (name and is_another(call, call_id, is_whole=is_whole)):
            call = self._calls[place] = _Call(is_whole=is_whole)
            self._open_calls.append(call)
        call.id, call.name = call.id or call_id, call.name or name
        call.is_custom = call.is_custom or "custom" in fields
        call.attached |= {name: fields[name] for name in ATTACHED if fields.get(name)}
        if call.opened is None and call.name:
            self._start_call(call)
        if not text or (call.has_ended and text.isspace()):
            return
        if call.has_ended:
            raise self.foreign("continues the arguments of a call that was complete")
        call.arguments.write(text)
        if call.opened is not None:
            self.grow(call.opened, text)

    def _start_call(self, call: _Call) -> None:
        self._end_open()
        # The last call has ended if it is complete. Then the next one need not wait for it.
        last, self._last = self._last, call
        if last is not None and last.is_complete():
            self._end_call(last)
        attached = encode(call.attached).decode() if call.attached else ""
        call.opened = self.start(ToolUse(call.id, call.name, "", call.is_custom, attached))
        self.grow(call.opened, call.arguments.getvalue())

    def _end_call(self, call: _Call) -> None:
        if call.opened is None:
            raise self.foreign("has a call without a name")
        call.has_ended = True
        self.close(call.opened)

    def end_parts(self) -> None:
        """End the text and the calls."""
        self._end_open()
        for call in self._open_calls:
            if not call.has_ended:
                self._end_call(call)
        self._open_calls.clear()

    def _read_stop(self, reason: str, stop_text: Json) -> None:
        if reason == "error":  # Mistral and OpenRouter
            raise self.foreign("ended with an error")
        self._stop = STOPS.get(reason, Stop.END)
        is_known = isinstance(stop_text, str) and stop_text in self._stops
        if self._stop is Stop.END and is_known:
            self._stop, self._stop_text = Stop.SEQUENCE, stop_text
        self.end_parts()
