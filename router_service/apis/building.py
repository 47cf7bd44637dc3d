"""An answer put together from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from io import StringIO

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
    Thinking,
    ToolUse,
)
from router_service.apis.usage import Usage


@dataclass(slots=True)
class PartialPart:
    """A part whose text, arguments or proof are still arriving."""

    start: AnswerPart
    # Not a list of strings: an event may add only a few characters, but each string takes 60 bytes.
    text: StringIO = field(default_factory=StringIO)
    proof: str = ""
    has_ended: bool = False

    def part(self) -> AnswerPart:
        """Return the part as far as it has arrived."""
        text = self.text.getvalue()
        match self.start:
            case ToolUse():
                return replace(self.start, arguments=self.start.arguments + text)
            case Thinking(proof=proof):
                return replace(self.start, text=self.start.text + text, proof=self.proof or proof)
            case _:
                return replace(self.start, text=self.start.text + text)


@dataclass(slots=True)
class AnswerBuilder:
    """Builder of an answer from events in order."""

    id: str = ""
    model: str = ""
    parts: dict[int, PartialPart] = field(default_factory=dict)
    """The parts by their place, in the order in which they began."""
    usage: Usage | None = None
    stop: Stop = Stop.END
    stop_text: str | None = None

    def add(self, event: Event) -> None:
        """Add the next event."""
        match event:
            case PartGrew(index, text):
                self.parts[index].text.write(text)
            case PartStarted(index, part):
                self.parts[index] = PartialPart(part)
            case PartProved(index, proof):
                self.parts[index].proof = proof
            case PartEnded(index):
                self.parts[index].has_ended = True
            case Started():
                self.id, self.model, self.usage = event.id, event.model, event.usage
            case Finished():
                self.stop, self.stop_text = event.stop, event.stop_text
                self.usage = event.usage or self.usage

    def answer(self) -> Answer:
        """Return the answer as far as it has arrived."""
        parts = tuple(partial.part() for partial in self.parts.values())
        return Answer(self.id, self.model, parts, self.stop, self.stop_text, self.usage)


def build(events: Iterable[Event]) -> Answer:
    """Return the answer that consists of these events."""
    builder = AnswerBuilder()
    for event in events:
        builder.add(event)
    return builder.answer()
