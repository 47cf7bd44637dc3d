"""What a request, an answer and its events contain, whichever API they come from.

A reader turns one API's JSON into these values, and a writer turns them into another API's JSON.
So one reader and one writer for each API translate in all directions. Only requests and answers
that have to be translated are read: an upstream that speaks the client's API gets the client's
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from io import StringIO
from typing import Literal, NamedTuple

from router_service.apis.conversation import Json
from router_service.apis.usage import Usage


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a message or of a tool's result."""

    text: str
    is_refusal: bool = False
    """Whether a model refused to answer with this text (OpenAI's `refusal`)."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a document or a recording. Either `url` or `data` is set."""

    kind: Literal["image", "document", "audio"]
    url: str | None = None
    data: str | None = None
    """Base64, without the prefix of a data URL; the text itself if `media_type` is `text/plain`."""
    media_type: str | None = None
    """Such as `image/png`; None if it is not stated."""
    name: str | None = None
    """A document's title or file name."""
    detail: str | None = None
    """Resolution at which OpenAI's models read an image."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """A part of a model's reasoning."""

    text: str
    """What may be read of it; empty if it is hidden."""
    proof: str = ""
    """What only the provider that made it can read: Anthropic's `signature` or `data`, or OpenAI's
    `encrypted_content`."""
    is_hidden: bool = False
    """Whether `proof` contains the reasoning itself (Anthropic's `redacted_thinking`)."""
    origin: str | None = None
    """Name of the API whose provider made the proof, or the text if there is no proof."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A model's call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON text, or free text for a custom tool."""
    is_custom: bool = False
    attached: str = ""
    """JSON object of what the provider added to the call and wants back, such as the signature of
    the thought before it."""
    provider: str = ""
    """LiteLLM's name of the provider that added it; empty for an unknown server."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool returned for a call."""

    call_id: str
    content: tuple[Text | Media, ...]
    is_error: bool = False
    is_custom: bool = False


Role = Literal["system", "developer", "user", "assistant"]
Part = Text | Media | Thinking | ToolUse | Result
AnswerPart = Text | Thinking | ToolUse
"""A part that a model writes."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. The parts of an assistant's message are in the order in which it wrote them."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the client runs: a function, or OpenAI's custom tool."""

    name: str
    description: str = ""
    parameters: Json = None
    """The JSON schema of a function's arguments; None without one."""
    is_strict: bool | None = None
    """Whether arguments must match the schema exactly; None if the request does not say."""
    is_custom: bool = False
    grammar: Json = None
    """A custom tool's grammar: an object with `syntax` and `definition`; None for free text."""
    namespace: str = ""
    """The group that Responses names beside the tool; `name` then begins with `namespace__`."""
    is_search: bool = False
    """Whether the client searches its own tools with it (`tool_search` of Responses)."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may or must call."""

    mode: Literal["auto", "none", "required"]
    names: tuple[str, ...] = ()
    """The only tools that may be called; empty for all."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of the answer's text: any JSON object, or JSON that matches a schema."""

    schema: Json = None
    """The JSON schema; None for any JSON object."""
    name: str = "answer"
    description: str | None = None
    is_strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as far as more than one of the APIs can express it. None means not set."""

    model: str
    messages: tuple[Message, ...]
    lost: tuple[str, ...] = ()
    """Paths of what only the client's API can express, so that a translation would lose it."""
    blank_end: str = ""
    """Path of the last message's content, if it is not the assistant's and has only white space."""
    stream: bool = False
    tools: tuple[OfferedTool, ...] = ()
    tool_choice: ToolChoice | None = None
    is_parallel: bool | None = None
    """Whether one answer may call several tools."""
    max_tokens: int | None = None
    """Longest answer, including its reasoning."""
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    """Texts before which an answer ends."""
    output_format: OutputFormat | None = None
    effort: str | None = None
    """How much the model should reason: `none`, `minimal`, `low`, `medium`, `high` and so on."""
    shows_thinking: bool = False
    """Whether the client wants to read the model's reasoning."""
    accepts_thinking: bool = True
    """Whether the client expects that answers contain reasoning. A client of Messages does not if
    it has not asked for thinking."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning (Anthropic's `budget_tokens`)."""
    verbosity: str | None = None
    user: str | None = None
    """The client's id for its end user."""
    cache_key: str | None = None
    """OpenAI's `prompt_cache_key`."""
    service_tier: str | None = None
    compacts: Literal["turn", "conversation"] | None = None
    """Whether the answer is a summary, with which the client replaces the conversation: as a turn
    of it (`compaction_trigger` of Responses), or asked for at an endpoint of its own."""
    wants_usage: bool = False
    """Whether a chat stream ends with an event that has the usage."""


def media_of(request: Request) -> Iterator[Media]:
    """Yield the images, documents and recordings of a request, including those in results."""
    for message in request.messages:
        for outer in message.parts:
            for part in outer.content if isinstance(outer, Result) else (outer,):
                if isinstance(part, Media):
                    yield part


def summary_of(parts: Iterable[Part]) -> str:
    """Return the texts of an answer, without its refusals, reasoning and calls."""
    return "".join(p.text for p in parts if isinstance(p, Text) and not p.is_refusal).strip()


def has_content(message: Message) -> bool:
    """Return whether a message has more than white space and reasoning."""
    return any(
        isinstance(part, Media | Result | ToolUse)
        or (isinstance(part, Text) and part.text and not part.text.isspace())
        for part in message.parts
    )


class Stop(StrEnum):
    """Why an answer ended."""

    END = "end"
    CALLS = "calls"
    """The model calls tools and waits for their results."""
    LENGTH = "length"
    """The longest allowed answer, or the context window, was reached."""
    SEQUENCE = "sequence"
    """The model wrote one of the request's stop texts."""
    FILTER = "filter"
    """The provider withheld the rest of the answer."""
    REFUSAL = "refusal"
    """The model refused to answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    id: str
    model: str
    parts: tuple[AnswerPart, ...]
    stop: Stop
    stop_text: str | None = None
    """The stop text that the model wrote."""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """Event: an answer begins."""

    id: str
    model: str
    usage: Usage | None = None
    """The prompt's tokens, if the API reports them at the beginning."""


@dataclass(frozen=True, slots=True)
class PartStarted:
    """Event: a part begins. Its text or arguments follow in `PartGrew`."""

    index: int
    """Place of the part in the answer, from 0."""
    part: AnswerPart


class PartGrew(NamedTuple):
    """Event: text is added to a part: to its text, or to a call's arguments.

    A stream has many of them. To create a named tuple takes a third of the time of a dataclass.
    """

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class PartProved:
    """Event: the `proof` of a `Thinking` part is known."""

    index: int
    proof: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """Event: a part is complete. Parts may overlap: a part may begin before another one ends."""

    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the answer is complete."""

    stop: Stop
    stop_text: str | None = None
    usage: Usage | None = None


Event = Started | PartStarted | PartGrew | PartProved | PartEnded | Finished


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
