"""What the readers of answers share. A whole answer is read as its events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from router_service.apis.answer_errors import ForeignAnswerError
from router_service.apis.conversation import Json
from router_service.apis.foreign import read_text
from router_service.apis.parts import (
    Answer,
    AnswerPart,
    Event,
    Finished,
    PartEnded,
    PartGrew,
    PartProved,
    PartStarted,
    Started,
    Stop,
    Text,
    ToolUse,
    build,
)
from router_service.apis.usage import Usage


@dataclass(slots=True)
class OpenPart:
    """A part that has begun and not ended."""

    part: AnswerPart
    """As it began."""
    index: int
    characters: int = 0


class AnswerReader(ABC):
    """Reader of one answer in the format of one API. All methods raise ForeignAnswerError.

    A subclass for an API implements `read`, `read_whole` and `end_parts` with the other methods,
    which add neutral events.
    """

    api: ClassVar[str]
    """The API's name."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """The usage that the answer has reported so far."""
        self.default_stop: Stop | None = None
        """Why an answer has ended whose last event gives no reason; if None, it is incomplete."""
        self._stop: Stop | None = None
        """The reason that the answer gives."""
        self._stop_text: str | None = None
        self._events: list[Event] = []
        self._next = 0
        """The place of the next part."""
        self._has_started = False
        self._has_finished = False
        self._has_calls = False
        self._has_refused = False

    def feed(self, event: Json) -> Sequence[Event]:
        """Read one event."""
        self._events = []
        self.read(event)
        return self._events

    def end(self) -> Sequence[Event]:
        """Return the events that complete the answer."""
        self._events = []
        self.finish()
        return self._events

    def whole(self, value: Json) -> Answer:
        """Read a whole answer."""
        return build(self.events_of(value))

    def events_of(self, value: Json) -> Sequence[Event]:
        """Return the events of a whole answer, which may give no reason for its end."""
        self._events, self.default_stop = [], Stop.END
        self.read_whole(value)
        self.finish()
        return self._events

    @abstractmethod
    def read(self, event: Json) -> None:
        """Read one event."""

    @abstractmethod
    def read_whole(self, value: Json) -> None:
        """Read a whole answer."""

    @abstractmethod
    def end_parts(self) -> None:
        """End the parts that have not ended."""

    def begin(self, head: Mapping[str, Json], usage: Usage | None = None) -> None:
        """Begin the answer, if it has not begun; `head` has its id and its model."""
        if not self._has_started:
            self._has_started = True
            answer_id, model = read_text(head.get("id")), read_text(head.get("model"))
            self._events.append(Started(answer_id, model, usage))

    def start(self, part: AnswerPart) -> OpenPart:
        """Start a part."""
        opened = OpenPart(part, self._next)
        self._next += 1
        self._has_calls = self._has_calls or isinstance(part, ToolUse)
        self._has_refused = self._has_refused or (isinstance(part, Text) and part.is_refusal)
        self._events.append(PartStarted(opened.index, part))
        return opened

    def grow(self, opened: OpenPart, text: str) -> None:
        """Add a text to a part; an empty one adds nothing."""
        if text:
            opened.characters += len(text)
            self._events.append(PartGrew(opened.index, text))

    def prove(self, opened: OpenPart, proof: Json) -> None:
        """Add the proof of a part of reasoning."""
        self._events.append(PartProved(opened.index, read_text(proof)))

    def close(self, opened: OpenPart, arguments: str = "{}") -> None:
        """End a part; a call of a function without arguments gets these."""
        if isinstance(opened.part, ToolUse) and not (opened.characters or opened.part.is_custom):
            self.grow(opened, arguments)
        self._events.append(PartEnded(opened.index))

    def finish(self) -> None:
        """Complete the answer, if that has not happened."""
        if self._has_finished:
            return
        stop = self._stop or self.default_stop
        if stop is None or not self._has_started:
            raise self.foreign("ended before it was complete")
        self._has_finished = True
        self.end_parts()
        if stop in {Stop.END, Stop.CALLS}:  # some servers end their turn in spite of calls
            ended = Stop.REFUSAL if self._has_refused else Stop.END
            stop = Stop.CALLS if self._has_calls else ended
        self._events.append(Finished(stop, self._stop_text, self.usage))

    def foreign(self, problem: str) -> ForeignAnswerError:
        """Return the error for an answer that is not one of the API."""
        return ForeignAnswerError(self.api, problem)
