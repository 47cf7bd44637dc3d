"""Reader of answers of Chat Completions, whole and in events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from router_service.apis.answers import PartialCall
from router_service.apis.chat import NAME
from router_service.apis.chat.record import (
    STOPS,
    CallPlace,
    is_another,
    is_object,
    place_of,
    read_usage,
)
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.encoding import encode
from router_service.apis.foreign import ATTACHED, read_text
from router_service.apis.parts import Stop, Text, Thinking, ToolUse
from router_service.apis.reading import AnswerReader, OpenPart

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
            self.grow(self._opened(start), text)

    def _opened(self, start: Text | Thinking) -> OpenPart:
        if self._open is None or self._open.part is not start:
            self._end_open()
            self._open = self.start(start)
        return self._open

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
        if call is None or is_another(call, call_id, name, is_whole=is_whole):
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
