"""Translation of a whole answer, or of an answer's events, from one API's format to another's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from uuid import uuid4

from router_service.apis.answer_errors import AnswerError, ForeignAnswerError
from router_service.apis.answers import CALL_CHARACTERS, TranslatedRecord
from router_service.apis.api import Api, UpstreamApi
from router_service.apis.conversation import Json
from router_service.apis.encoding import (
    UnwritableError,
    encode,
    fix_surrogates,
    has_surrogates,
    join_surrogates,
)
from router_service.apis.foreign import (
    INVALID_JSON,
    carry_attached,
    to_input,
    unwrap_custom,
    wrap_custom,
)
from router_service.apis.parts import (
    AnswerPart,
    Event,
    Finished,
    PartEnded,
    PartGrew,
    PartProved,
    PartStarted,
    Request,
    Started,
    Stop,
    Text,
    Thinking,
    ToolUse,
    summary_of,
)
from router_service.apis.registry import APIS
from router_service.apis.writing import written_tools

MAX_CHARACTERS = 4 * 1024 * 1024
"""Longest stream that is translated, in characters of its texts and calls: a million tokens. Parts
of it are kept in memory, and all of it for Responses, whose last event repeats the answer."""

PROGRESS_CHARACTERS = 256
"""After so many characters of arguments that are held back, an empty piece of them is written, so
that a client which waits for a long call sees that it continues."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,50}")
"""An answer's id without its prefix. The ids of its items are longer by up to 9 characters, and
OpenAI accepts 64 characters."""

_REFUSALS = (Stop.FILTER, Stop.REFUSAL)
"""Why an answer ended whose text is no summary of the conversation."""


@dataclass(slots=True)
class _HeldCall:
    """A call whose arguments are only written once they are complete, because they are changed."""

    convert: Callable[[str], str]
    text: StringIO = field(default_factory=StringIO)


class AnswerTranslator:
    """Translator of one answer.

    `request` is the request as the client sent it, `model` the model's name for the client,
    `created_s` the Unix time of the answer, and `provider` who gives it. All methods raise
    ForeignAnswerError if the upstream's answer is not one of `source`, or if `target` cannot
    express it.
    """

    def __init__(  # noqa: PLR0913
        self,
        source: UpstreamApi,
        target: Api,
        request: Request,
        *,
        model: str,
        created_s: int,
        needs_reason: bool = True,
        provider: str = "",
    ) -> None:
        """Without `needs_reason`, the last event completes an answer that gives no reason."""
        self._provider = provider
        self.source = source
        self.target = target
        self.record = TranslatedRecord()
        """What the events so far contain."""
        self._answer_id = ""
        self._drops_thinking = target.omits_unasked_thinking and not request.accepts_thinking
        self._messages = request.messages
        self._compacts = request.compacts is not None
        self._call_ids: set[str] = set()
        self._tools = written_tools(request)
        """The client's tools by the names that the upstream knows."""
        self._calls: set[int] = set()
        """Parts that are calls."""
        self._held: dict[int, _HeldCall] = {}
        self._invalid: list[int] = []
        """Held calls that have ended, but whose arguments are no object."""
        self._halves: dict[int, str] = {}
        """Parts whose text so far ends with the first half of a surrogate pair."""
        self._dropped: set[int] = set()
        """Parts that are not written."""
        self._characters = 0
        self._needs_reason = needs_reason
        self._reader = source.answer_reader(request)
        if not needs_reason:
            self._reader.default_stop = Stop.END
        self._writer = target.answer_writer(request, model=model, created_s=created_s)

    def whole(self, value: Json) -> bytes:
        """Return a whole answer in the target's format, as JSON."""
        try:
            return self._whole(value)
        except UnwritableError as exc:
            raise self._foreign(exc.problem) from exc

    def _whole(self, value: Json) -> bytes:
        answer = self._reader.whole(value)
        self._answer_id = self._translate_id(answer.id)
        parts: list[AnswerPart] = []
        for index, part in enumerate(answer.parts):
            match self._adapt(part, index):
                case ToolUse(arguments=text) as call:
                    held = self._held.get(index)
                    text = self._encodable(text, index)
                    text = held.convert(text) if held else text
                    parts.append(replace(call, arguments=text))
                case Text(text) | Thinking(text) as other:
                    parts.append(replace(other, text=fix_surrogates(text)))
                case None:
                    pass
        if self._compacts and (answer.stop in _REFUSALS or not summary_of(parts)):
            raise self._foreign("has no summary")
        written = self._writer.whole(replace(answer, id=self._answer_id, parts=tuple(parts)))
        return encode(written)

    def feed(self, event: Json) -> bytes:
        """Return the target's server-sent events for one upstream event; there may be none."""
        return self._write(lambda: self._reader.feed(event))

    def end(self, *, is_marked: bool = False) -> bytes:
        """Return the events after the upstream's last one.

        `is_marked` says whether the upstream has marked the end. Raise ForeignAnswerError if it has
        not completed its answer.
        """
        if not (is_marked or self._needs_reason):
            self._reader.default_stop = None
        return self._write(self._reader.end)

    def ping(self) -> bytes:
        """Return what keeps the client waiting."""
        return self.target.ping

    def error(self, error: AnswerError) -> bytes:
        """Return the events that report the error of a broken stream."""
        return self._writer.error(error)

    def _write(self, read: Callable[[], Sequence[Event]]) -> bytes:
        try:
            written = self._written(read())
        except UnwritableError as exc:
            raise self._foreign(exc.problem) from exc
        if self._compacts and self.record.has_stopped:
            kept = self.record.answer()
            if kept is not None and (kept.stop in _REFUSALS or not kept.text.strip()):
                raise self._foreign("has no summary")
        return written

    def _written(self, events: Sequence[Event]) -> bytes:
        written = []
        self.record.usage = self._reader.usage or self.record.usage
        for event in events:
            self.record.add(event)
            match event:
                case PartGrew(index, text):
                    if (now := self._grow(index, text)) is not None:
                        written.append(self._writer.write(PartGrew(index, now)))
                case PartStarted(index, part):
                    if (adapted := self._adapt(part, index)) is not None:
                        written.append(self._writer.write(PartStarted(index, adapted)))
                case PartProved(index):
                    if index not in self._dropped:
                        written.append(self._writer.write(event))
                case PartEnded(index):
                    if index in self._held and self._is_invalid(self._held[index]):
                        self._invalid.append(index)  # why the answer ended will say what to do
                    elif index not in self._dropped:
                        written += self._end_part(index)
                case Started(id):
                    self._answer_id = self._translate_id(id)
                    written.append(self._writer.write(replace(event, id=self._answer_id)))
                case Finished(stop):
                    written += self._end_invalid(stop)
                    written.append(self._writer.write(event))
        return b"".join(written)

    def _end_part(self, index: int) -> Iterator[bytes]:
        if last := self._complete(index):
            yield self._writer.write(PartGrew(index, last))
        yield self._writer.write(PartEnded(index))

    def _end_invalid(self, stop: Stop) -> Iterator[bytes]:
        for index in self._invalid:
            if stop is Stop.LENGTH:  # as Anthropic ends a call that was cut off
                self._held[index].convert = str
            yield from self._end_part(index)

    def _is_invalid(self, held: _HeldCall) -> bool:
        """Return whether arguments should be a JSON object but cannot be read as one."""
        text = held.text.getvalue()
        return held.convert is _to_object and to_input(text).get(INVALID_JSON) == text

    def _grow(self, index: int, text: str) -> str | None:
        """Return the text that can be written now; None if there is nothing to write."""
        self._count(len(text))
        if index in self._dropped:
            return None
        if (held := self._held.get(index)) is not None:
            before = held.text.tell()
            held.text.write(text)
            is_shown = held.text.tell() // PROGRESS_CHARACTERS > before // PROGRESS_CHARACTERS
            return "" if held.convert is _to_object and is_shown else None
        if self._halves or not text.isascii():
            text = self._halves.pop(index, "") + text
            if "\ud800" <= text[-1] <= "\udbff":
                self._halves[index] = text[-1]
                text = text[:-1]
            text = self._encodable(text, index)
        return text or None

    def _complete(self, index: int) -> str:
        """Return the text that waited for the end of a part."""
        held = self._held.pop(index, None)
        if held is not None:
            return held.convert(self._encodable(held.text.getvalue(), index))
        return self._encodable(self._halves.pop(index, ""), index)

    def _encodable(self, text: str, index: int) -> str:
        """Return a text of a part with its surrogate pairs joined.

        Lone halves become `?` in what people read. A call with one is refused, because it would get
        another value.
        """
        if index not in self._calls:
            return fix_surrogates(text)
        if has_surrogates(text):
            text = join_surrogates(text)
            if has_surrogates(text):
                raise self._foreign("has a call with a lone surrogate")
        return text

    def _adapt(self, part: AnswerPart, index: int) -> AnswerPart | None:
        """Return the part as the target can express it, or None if the client must not get it."""
        self._count(CALL_CHARACTERS)
        if isinstance(part, ToolUse):
            self._calls.add(index)
            self._encodable(part.id + part.name, index)
            tool = self._tools.get(part.name)
            name, is_custom = part.name if tool is None else tool.name, part.is_custom
            if self.target.takes_objects:
                self._held[index] = _HeldCall(_to_object)
                if is_custom:
                    self._held[index] = _HeldCall(wrap_custom)
                is_custom = False
            elif tool is not None and tool.is_custom and not is_custom:
                self._held[index] = _HeldCall(unwrap_custom)
                is_custom = True
            call = replace(part, id=self._call_id(part.id, index), provider=self._provider)
            self._count(len(part.attached))
            return ToolUse(carry_attached(call), name, part.arguments, is_custom)
        if isinstance(part, Thinking) and self._drops_thinking:
            self._dropped.add(index)
            return None
        return part

    def _call_id(self, call_id: str, index: int) -> str:
        """Return an id that the target accepts and that no other call of the conversation has.

        Some servers give none, or count from 0 in each answer, even if all answers have one id.
        """
        if not self._call_ids:
            self._call_ids.update(
                part.id
                for message in self._messages
                for part in message.parts
                if isinstance(part, ToolUse)
            )
        fitting = self.target.fit_call_id(call_id)
        while not fitting or fitting in self._call_ids:
            seed = f"{self._answer_id} {index} {call_id} {fitting}".encode()
            fitting = f"call_{hashlib.sha256(seed).hexdigest()[:24]}"
        self._call_ids.add(fitting)
        return fitting

    def _count(self, characters: int) -> None:
        self._characters += characters
        if self._characters > MAX_CHARACTERS:
            problem = f"is longer than {MAX_CHARACTERS} characters, which is too long"
            raise self._foreign(problem)

    def _translate_id(self, answer_id: str) -> str:
        """Return an id in the target's format, always the same for the same id.

        Answers without an id, such as Bedrock's, get a new one.
        """
        prefixes = (*(api.answer_id_prefix for api in APIS), "gen-")  # the last is OpenRouter's
        prefix = next(filter(answer_id.startswith, filter(None, prefixes)), "")
        suffix = answer_id.removeprefix(prefix)
        if not _ID.fullmatch(suffix):
            suffix = (
                hashlib.sha256(answer_id.encode()).hexdigest()[:32] if answer_id else uuid4().hex
            )
        return self.target.answer_id_prefix + suffix

    def _foreign(self, problem: str) -> ForeignAnswerError:
        return ForeignAnswerError(self.source.name, problem)


def _to_object(arguments: str) -> str:
    """Return arguments as an object: as they are, or as a whole answer would have them."""
    value = to_input(arguments)
    is_object = arguments.lstrip().startswith("{") and value.get(INVALID_JSON) != arguments
    return arguments if is_object else encode(value).decode()
