"""Reader of answers of Chat Completions, whole and in events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Literal

import orjson

from router_service.apis.answer_errors import (
    ForeignAnswerError,
)
from router_service.apis.building import build
from router_service.apis.chat import NAME
from router_service.apis.chat.record import STOPS, CallPlace, place_of, read_usage
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.encoding import encode
from router_service.apis.foreign import ATTACHED, read_text
from router_service.apis.parts import (
    Answer,
    Event,
    Finished,
    PartEnded,
    PartGrew,
    PartProved,
    PartStarted,
    Started,
    Stop,
    Text,
    Thinking,
    ToolUse,
)
from router_service.apis.usage import Usage

_Kind = Literal["text", "refusal", "thinking"]

_STARTS: dict[_Kind, Text | Thinking] = {
    "text": Text(""),
    "refusal": Text("", is_refusal=True),
    "thinking": Thinking("", origin=NAME),
}


@dataclass(slots=True)
class _Call:
    """A call that is still arriving."""

    index: int | None = None
    """Place of the part, once the name is known and the part has begun."""
    id: str = ""
    name: str = ""
    is_custom: bool = False
    attached: dict[str, Json] = field(default_factory=dict)
    arguments: StringIO = field(default_factory=StringIO)
    has_ended: bool = False

    def is_complete(self) -> bool:
        """Return whether nothing but white space can follow the arguments."""
        if self.is_custom or self.has_ended:
            return False
        try:
            return isinstance(orjson.loads(self.arguments.getvalue()), dict)
        except orjson.JSONDecodeError:
            return False


class ChatReader:
    """Reader of one answer. Its text and its calls arrive without ends, and calls may overlap."""

    def __init__(self, stops: Iterable[str]) -> None:
        """Set `stops` to the request's stop texts. vLLM says with which one an answer ended."""
        self._stops = frozenset(stops)
        self._events: list[Event] = []
        self._next = 0
        """The place of the next part."""
        self._open: tuple[_Kind, int] | None = None
        """The text or thinking that has not ended."""
        self._calls: dict[int | str, _Call] = {}
        """The latest call at each place."""
        self._last_place: CallPlace = None
        """The place of the call that was read last."""
        self._open_calls: list[_Call] = []
        """The calls since the last end, of which some may have ended."""
        self._last: _Call | None = None
        """The last call that has begun."""
        self._has_started = False
        self._has_refused = False
        self._has_finished = False
        self._stop: Stop | None = None
        self._stop_text: str | None = None
        self.usage: Usage | None = None
        """The usage that the answer has reported so far."""
        self.default_stop: Stop | None = None
        """Why an answer has ended that gives no reason; if None, it is incomplete."""

    def whole(self, value: Json) -> Answer:
        """Read a whole answer as if it was one event; raise ForeignAnswerError."""
        fields = as_dict(value)
        choice = as_dict(next(iter(as_list(fields.get("choices"))), None))
        message = choice.get("message")
        if not isinstance(message, dict):
            raise _foreign("has no choice with a message")
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            objects = [call for call in calls if isinstance(call, dict)]
            numbered = [{**call, "index": index} for index, call in enumerate(objects)]
            message = {**message, "tool_calls": numbered}
        event = {**fields, "choices": [{**choice, "index": 0, "delta": message}]}
        events = self.feed(event)
        self.default_stop = Stop.END  # some servers give no reason
        return build([*events, *self.end()])

    def feed(self, event: Json) -> Sequence[Event]:
        """Read one event; raise ForeignAnswerError."""
        choices = event.get("choices") if isinstance(event, dict) else None
        if not isinstance(choices, list):
            if not isinstance(event, dict) or event.get("error") or "usage" not in event:
                raise _foreign("has an event without choices")
            choices = []
        self._events = []
        self.usage = read_usage(event) or self.usage
        for choice in choices:
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                continue
            if not self._has_started:
                self._has_started = True
                head = read_text(event.get("id")), read_text(event.get("model"))
                self._events.append(Started(*head))
            delta = choice.get("delta")
            if isinstance(delta, dict):
                self._read_delta(delta)
            if isinstance(reason := choice.get("finish_reason"), str) and reason:
                self._read_stop(reason, choice.get("stop_reason"))
        return self._events

    def end(self) -> Sequence[Event]:
        """Return the events that complete the answer; raise ForeignAnswerError."""
        if self._has_finished:
            return ()
        stop = self._stop or self.default_stop
        if stop is None or not self._has_started:
            raise _foreign("ended before it was complete")
        self._has_finished = True
        self._events = []
        self._end_parts()
        if stop in {Stop.END, Stop.CALLS}:  # some servers write `stop` in spite of calls
            stop = Stop.CALLS if self._calls else Stop.END
        if stop is Stop.END and self._has_refused:
            stop = Stop.REFUSAL
        return [*self._events, Finished(stop, self._stop_text, self.usage)]

    def _read_delta(self, delta: dict[str, Json]) -> None:
        self._read_thinking(delta)
        content = delta.get("content")
        if isinstance(content, str):
            self._grow("text", content)
        elif isinstance(content, list):
            self._read_content(content)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._has_refused = True
            self._grow("refusal", refusal)
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
            self._grow("thinking", text)
        for detail in as_list(delta.get("reasoning_details")):
            if not isinstance(detail, dict):
                continue
            own = detail.get("text") or detail.get("summary")
            if isinstance(own, str) and not (isinstance(text, str) and text):
                self._grow("thinking", own)
            signature, hidden = detail.get("signature"), detail.get("data")
            if isinstance(signature, str) and signature:
                if self._open is None or self._open[0] != "thinking":
                    self._start("thinking")
                if self._open:
                    self._events.append(PartProved(self._open[1], read_text(signature)))
            if isinstance(hidden, str) and hidden:
                self._end_open()
                part = Thinking("", read_text(hidden), is_hidden=True, origin=NAME)
                self._events += [PartStarted(self._next, part), PartEnded(self._next)]
                self._next += 1

    def _read_content(self, content: list[Json]) -> None:
        """Read content that is a list of parts, as Mistral writes it."""
        for part in content:
            match part:
                case {"type": "text", "text": str(text)}:
                    self._grow("text", text)
                case {"type": "thinking", "thinking": str(text)}:
                    self._grow("thinking", text)
                case {"type": "thinking", "thinking": list(inner)}:
                    for each in inner:
                        if isinstance(each, dict) and isinstance(each.get("text"), str):
                            self._grow("thinking", each["text"])
                case {"type": "refusal", "refusal": str(text)}:
                    self._has_refused = True
                    self._grow("refusal", text)
                case _:
                    kind = as_dict(part).get("type")
                    raise _foreign(
                        f"has content of the type {kind!r:.50}, which cannot be translated"
                    )

    def _grow(self, kind: _Kind, text: str) -> None:
        if not text:
            return
        if self._open is None or self._open[0] != kind:
            self._start(kind)
        if self._open is not None:
            self._events.append(PartGrew(self._open[1], text))

    def _start(self, kind: _Kind) -> None:
        self._end_open()
        self._open = kind, self._next
        self._events.append(PartStarted(self._next, _STARTS[kind]))
        self._next += 1

    def _end_open(self) -> None:
        if self._open is not None:
            self._events.append(PartEnded(self._open[1]))
            self._open = None

    def _read_call(self, place: int | str, fields: dict[str, Json]) -> None:
        inner = as_dict(fields.get("function", fields.get("custom")))
        call_id, name = as_text(fields.get("id")), as_text(inner.get("name"))
        call = self._calls.get(place)
        if call is None or (call_id and name and call.id and call_id != call.id):
            # Some servers send several calls with the index 0.
            call = self._calls[place] = _Call()
            self._open_calls.append(call)
        call.id, call.name = call.id or call_id, call.name or name
        call.is_custom = call.is_custom or "custom" in fields
        call.attached |= {name: fields[name] for name in ATTACHED if fields.get(name)}
        text = inner.get("arguments", inner.get("input"))
        if isinstance(text, dict):  # some servers send the object instead of its text
            text = encode(text).decode()
        text = as_text(text)
        if call.index is None and call.name:
            self._end_open()
            # The last call has ended if it is complete. Then the next one need not wait for it.
            last, self._last = self._last, call
            if last is not None and last.is_complete():
                self._end_call(last)
            call.index, self._next = self._next, self._next + 1
            attached = encode(call.attached).decode() if call.attached else ""
            start = ToolUse(call.id, call.name, "", call.is_custom, attached)
            self._events.append(PartStarted(call.index, start))
            if early := call.arguments.getvalue():
                self._events.append(PartGrew(call.index, early))
        if not text or (call.has_ended and text.isspace()):
            return
        if call.has_ended:
            raise _foreign("continues the arguments of a call that was complete")
        call.arguments.write(text)
        if call.index is not None:
            self._events.append(PartGrew(call.index, text))

    def _end_call(self, call: _Call) -> None:
        if call.index is None:
            raise _foreign("has a call without a name")
        call.has_ended = True
        if not call.arguments.getvalue() and not call.is_custom:
            self._events.append(PartGrew(call.index, "{}"))
        self._events.append(PartEnded(call.index))

    def _end_parts(self) -> None:
        self._end_open()
        for call in self._open_calls:
            if not call.has_ended:
                self._end_call(call)
        self._open_calls.clear()

    def _read_stop(self, reason: str, stop_text: Json) -> None:
        if reason == "error":  # Mistral and OpenRouter
            raise _foreign("ended with an error")
        self._stop = STOPS.get(reason, Stop.END)
        is_known = isinstance(stop_text, str) and stop_text in self._stops
        if self._stop is Stop.END and is_known:
            self._stop, self._stop_text = Stop.SEQUENCE, stop_text
        self._end_parts()


def _foreign(problem: str) -> ForeignAnswerError:
    return ForeignAnswerError(NAME, problem)
