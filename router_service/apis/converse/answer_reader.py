"""Reader of answers of Converse, whole and in events, and of errors.

A refused request has the body `{"message": "..."}`, and the error's type is only in a header. A
stream reports an error by an event with the exception's name (Amazon Bedrock API reference:
"Converse", "ConverseStream").
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from router_service.apis import answer_errors
from router_service.apis.answer_errors import TOO_LONG, AnswerError, ForeignAnswerError
from router_service.apis.answers import MAX_PARTS, ParsedAnswer, TranslatedRecord
from router_service.apis.conversation import Json, as_dict, as_list, as_text
from router_service.apis.converse import NAME
from router_service.apis.encoding import UnwritableError
from router_service.apis.foreign import from_input, read_text
from router_service.apis.parts import AnswerPart, Stop, Text, Thinking, ToolUse
from router_service.apis.reading import AnswerReader, OpenPart
from router_service.apis.usage import Usage, read_count

_STOPS = {
    "end_turn": Stop.END,
    "tool_use": Stop.CALLS,
    "max_tokens": Stop.LENGTH,
    "model_context_window_exceeded": Stop.LENGTH,
    "stop_sequence": Stop.SEQUENCE,
    "guardrail_intervened": Stop.FILTER,
    "content_filtered": Stop.FILTER,
    "refusal": Stop.REFUSAL,
}

_BROKEN = frozenset({"malformed_model_output", "malformed_tool_use"})
"""Reasons of answers that nobody can use; another deployment may answer better."""

MAX_HIDDEN_CHARACTERS = 4 * 1024 * 1024
"""Most characters of encrypted reasoning, which is kept until its block ends."""

_TEXT = Text("")
_THINKING = Thinking("", origin=NAME)

_EVENTS = frozenset(
    "messageStart contentBlockStart contentBlockDelta contentBlockStop messageStop metadata".split()
)

_SKIPPED = frozenset({"cachePoint", "toolResult", "searchResult"})
"""Blocks that are not for the client: the last two belong to tools that the provider runs."""

STATUSES = {
    "validationexception": 400,
    "accessdeniedexception": 403,
    "resourcenotfoundexception": 404,
    "modelerrorexception": 500,  # its own status is 424
    "modelstreamerrorexception": 500,  # 424
    "modeltimeoutexception": 504,  # 408, with which servers refuse slow clients
    "servicequotaexceededexception": 429,  # 400
    "modelnotreadyexception": 503,  # 429, but no limit is exceeded
    "throttlingexception": 429,
    "internalserverexception": 500,
    "serviceunavailableexception": 503,
}
"""The status that each exception stands for, by its name in lower case (Amazon Bedrock API
reference: "ConverseStream", errors)."""

_FIELDS = frozenset(
    ("message", "Message", "originalMessage", "originalStatusCode", "resourceName", "__type")
)
"""Fields of an exception."""

_TOO_LONG = re.compile("(input|prompt) is too long|too many input tokens|maximum context length")


def recognizes(value: Mapping[str, Json]) -> bool:
    """Return whether a value is an answer, or an event with a type of this API."""
    output = value.get("output")
    if "stopReason" in value and isinstance(output, dict):
        return "message" in output
    name = _event_of(value)
    return name is not None and (
        name != "metadata" or bool(value[name].keys() & {"usage", "metrics"})
    )


def _event_of(value: Json) -> str | None:
    """Return the type of an event, or None if this API has no such event."""
    if isinstance(value, dict) and len(value) == 1:
        name: str = next(iter(value))
        if name in _EVENTS and isinstance(value[name], dict):
            return name
    return None


def is_beginning(event: Mapping[str, Json]) -> bool:
    """Return whether an event contains nothing of the answer."""
    return "messageStart" in event


def read_usage(
    value: Mapping[str, Json],
    before: Usage | None = None,  # noqa: ARG001 - the interface's
) -> Usage | None:
    """Return the usage of an answer or of the event `metadata`.

    `inputTokens` excludes what is read from a cache and written to it.
    """
    metadata = value.get("metadata")
    usage = (metadata if isinstance(metadata, dict) else value).get("usage")
    prompt, completion = read_count(usage, "inputTokens"), read_count(usage, "outputTokens")
    if prompt is None or completion is None:
        return None
    cached = read_count(usage, "cacheReadInputTokens") or 0
    written = read_count(usage, "cacheWriteInputTokens") or 0
    return Usage(prompt + cached + written, completion, cached, written)


def find_proofs(value: Mapping[str, Json]) -> Iterator[str]:
    """Yield the proofs of reasoning in a whole answer."""
    for block in as_list(_content_of(value)):
        reasoning = as_dict(as_dict(block).get("reasoningContent"))
        shown = as_dict(reasoning.get("reasoningText")).get("signature")
        for proof in (shown, reasoning.get("redactedContent")):
            if isinstance(proof, str) and proof:
                yield proof


def parse_answer(value: Mapping[str, Json]) -> ParsedAnswer | None:
    """Return the calls and the text of a whole answer.

    Return None if it is too long to be kept, or malformed.
    """
    if len(as_list(_content_of(value))) > MAX_PARTS:
        return None
    record = TranslatedRecord()
    try:
        for event in ConverseReader().events_of(value):
            record.add(event)
    except (ForeignAnswerError, UnwritableError):
        return None
    return record.answer()


def _content_of(value: Json) -> Json:
    """Return the blocks of a whole answer, which are a list unless the answer is malformed."""
    return as_dict(as_dict(as_dict(value).get("output")).get("message")).get("content")


@dataclass(slots=True)
class _Block:
    """A block that has not ended."""

    part: AnswerPart | None = None
    """None before the first delta, which shows what the block contains."""
    opened: OpenPart | None = None
    """None before the part has begun, or if it is left out."""
    hidden: list[str] = field(default_factory=list)
    """Encrypted reasoning so far. Each piece is base64."""


class ConverseReader(AnswerReader):
    """Reader of one answer."""

    api = NAME

    def __init__(self, *, is_parallel: bool = True) -> None:
        """Read all calls, or without `is_parallel` only the first one.

        Converse has no field for the limit. The model repeats the other calls when it gets the
        first one's result, as far as they are still needed.
        """
        super().__init__()
        self._is_parallel = is_parallel
        self._blocks: dict[int, _Block] = {}
        self._hidden_characters = 0
        self._has_stopped = False
        """Whether the event that gives the reason has arrived."""

    def read_whole(self, value: Json) -> None:
        """Read a whole answer."""
        content = _content_of(value)
        if not isinstance(content, list):
            raise self.foreign("has no message with a list of content")
        self.begin({})
        for number, block in enumerate(content):
            self._blocks[number] = _Block()
            self._read_block(self._blocks[number], as_dict(block))
            self._end_block(number)
        self._read_stop(value)
        self.usage = read_usage(value)

    def read(self, event: Json) -> None:
        """Read one event."""
        name = _event_of(event)
        fields = {} if name is None else event[name]
        match name:
            case "contentBlockDelta":
                self._read_delta(self._place(fields), fields.get("delta"))
            case "contentBlockStart":
                self._start_block(self._place(fields), fields.get("start"))
            case "contentBlockStop":
                self._end_block(self._place(fields))
            case "messageStart":
                if self._has_started:
                    raise self.foreign("starts twice")
                self.begin({})
            case "messageStop":
                self._read_stop(fields)
            case "metadata":
                self.usage = read_usage(event) or self.usage
                if self._has_stopped:  # the usage comes last
                    self.finish()
            case _:
                # AWS may add types of events, which clients must ignore.
                kind = next(iter(event), None) if isinstance(event, dict) else None
                is_new = kind is not None and len(event) == 1 and kind not in _EVENTS
                if not (self._has_started and is_new) or is_error(event):
                    raise self.foreign(f"has an unexpected event of the type {kind!r:.50}")

    def finish(self) -> None:
        """Complete the answer, if its end has arrived."""
        if not self._has_stopped:
            raise self.foreign("ended before it was complete")
        super().finish()

    def end_parts(self) -> None:
        """End the blocks."""
        for number in [*self._blocks]:
            self._end_block(number)

    def _read_block(self, block: _Block, fields: dict[str, Json]) -> None:
        """Read a block of a whole answer."""
        match fields:
            case {"text": str(text)}:
                self._grow(block, _TEXT, read_text(text))
            case {"toolUse": dict(call)}:
                text = from_input(as_dict(call.get("input")))
                self._start_call(block, call)
                self._grow_call(block, text)
            case {"reasoningContent": dict(reasoning)}:
                shown = reasoning.get("reasoningText")
                self._read_reasoning(block, shown if isinstance(shown, dict) else reasoning)
            case {"citationsContent": dict(cited)}:
                for each in as_list(cited.get("content")):
                    self._grow(block, _TEXT, read_text(as_dict(each).get("text")))
            case _:
                kind = next(iter(fields), None)
                if kind not in _SKIPPED:
                    problem = f"has a block of the type {kind!r:.50}, which cannot be translated"
                    raise self.foreign(problem)

    def _place(self, fields: Mapping[str, Json]) -> int:
        """Return the number of a block."""
        number = fields.get("contentBlockIndex")
        if type(number) is not int or number < 0:
            raise self.foreign("has an event without the place of its block")
        return number

    def _start_block(self, number: int, start: Json) -> None:
        if not self._has_started or number in self._blocks:
            raise self.foreign("starts a block at an invalid place")
        self._blocks[number] = _Block()
        match start:
            case {"toolUse": dict(call)}:
                self._start_call(self._blocks[number], call)
            case {"image": _}:
                raise self.foreign("has an image, which cannot be translated")
            case _:
                pass  # a text or reasoning begins with its first delta

    def _start_call(self, block: _Block, call: dict[str, Json]) -> None:
        part = ToolUse(as_text(call.get("toolUseId")), as_text(call.get("name")), "")
        block.part = part
        is_kept = self._is_parallel or not self._has_calls
        # Only the client's tools are offered, so a call by the provider's server is not its own.
        if is_kept and call.get("type") != "server_tool_use":
            if not part.name:
                raise self.foreign("has a call without a name")
            block.opened = self.start(part)

    def _grow_call(self, block: _Block, text: str) -> None:
        if block.opened is not None:
            self.grow(block.opened, text)

    def _read_delta(self, number: int, delta: Json) -> None:
        if not self._has_started or not isinstance(delta, dict):
            raise self.foreign("has a delta at an invalid place")
        block = self._blocks.setdefault(number, _Block())
        match delta:
            case {"text": str(text)}:
                self._grow(block, _TEXT, text)
            case {"toolUse": {"input": str(text)}} if isinstance(block.part, ToolUse):
                self._grow_call(block, text)
            case {"reasoningContent": dict(reasoning)}:
                self._read_reasoning(block, reasoning)
            case {"citation": _} | {"toolResult": _}:
                pass  # the text is complete without them
            case {"toolUse": _} if isinstance(block.part, ToolUse):
                raise self.foreign("has a call without a text of arguments")
            case _:
                kind = next(iter(delta), None)
                raise self.foreign(f"has an unexpected delta of the type {kind!r:.50}")

    def _read_reasoning(self, block: _Block, fields: Mapping[str, Json]) -> None:
        text, signature = fields.get("text"), fields.get("signature")
        hidden = fields.get("redactedContent")
        if isinstance(hidden, str) and hidden:
            self._hidden_characters += len(hidden)
            if self._hidden_characters > MAX_HIDDEN_CHARACTERS:
                raise self.foreign("has too much encrypted reasoning")
            block.hidden.append(hidden)
        if isinstance(text, str):
            self._grow(block, _THINKING, text)
        if isinstance(signature, str) and signature:
            self.prove(self._begun(block, _THINKING), signature)

    def _grow(self, block: _Block, start: Text | Thinking, text: str) -> None:
        """Add a text to a block, whose part begins with `start`."""
        if text:
            self.grow(self._begun(block, start), text)

    def _begun(self, block: _Block, start: Text | Thinking) -> OpenPart:
        if block.part is None:
            block.part, block.opened = start, self.start(start)
        if block.part is not start or block.opened is None:
            raise self.foreign("has a block with different contents")
        return block.opened

    def _end_block(self, number: int) -> None:
        block = self._blocks.pop(number, None)
        if block is None:  # an empty text has neither a start nor a delta
            return
        if block.opened is not None:
            self.close(block.opened)
        if block.hidden:
            proof = block.hidden[0]
            if len(block.hidden) > 1:
                try:
                    data = b"".join(b64decode(piece, validate=True) for piece in block.hidden)
                except ValueError as exc:
                    raise self.foreign("has encrypted reasoning that is not base64") from exc
                proof = b64encode(data).decode()
            self.close(self.start(Thinking("", read_text(proof), is_hidden=True, origin=NAME)))

    def _read_stop(self, fields: Mapping[str, Json]) -> None:
        self._has_stopped, reason = True, fields.get("stopReason")
        if not isinstance(reason, str) or not reason:
            return
        if reason in _BROKEN:
            raise self.foreign(f"ended with the reason {reason!r}")
        self._stop = _STOPS.get(reason, Stop.END)
        stop_text = as_dict(fields.get("additionalModelResponseFields")).get("stop_sequence")
        if isinstance(stop_text, str) and self._stop is Stop.SEQUENCE:
            self._stop_text = read_text(stop_text)


def is_error(value: Mapping[str, Json]) -> bool:
    """Return whether a body or an event is an error, even if the status was a success."""
    return is_error_body(value) or answer_errors.is_error(value)


def is_error_body(value: Json) -> bool:
    """Return whether a decoded body is an error of AWS, which has only a message."""
    return _has_message(value) or _exception_in(value) is not None


def error_fields(value: Json) -> Json:
    """Return the message of an error, with its status as the code."""
    name = _exception_in(value)
    if name is None:
        return answer_errors.error_fields(value)
    return {"message": value[name].get("message"), "code": _status_of(name)}


def read_error(value: Json, status: int) -> AnswerError:
    """Return what an error says. A status below 400 is replaced by the exception's."""
    name = _exception_in(value)
    fields = value if name is None else value[name]
    if name is not None and status < 400:
        status = _status_of(name)
    if isinstance(fields, dict) and "message" not in fields and "Message" in fields:
        fields = {**fields, "message": fields["Message"]}
    error = answer_errors.read_error(fields, status)
    is_too_long = error.status in {400, 413} and _TOO_LONG.search(error.message.lower())
    code = TOO_LONG if is_too_long else error.code
    return AnswerError(error.status, error.message, name or error.kind, code, error.param)


def _exception_in(value: Json) -> str | None:
    """Return the name of the exception that an event of a stream reports, if it reports one."""
    if isinstance(value, dict) and len(value) == 1:
        name: str = next(iter(value))
        is_known = name.lower() in STATUSES and isinstance(value[name], dict)
        if is_known or _has_message(value[name]):
            return name
    return None


def _has_message(value: Json) -> bool:
    is_exception = isinstance(value, dict) and value.keys() <= _FIELDS
    return is_exception and isinstance(value.get("message", value.get("Message")), str)


def _status_of(name: str) -> int:
    return STATUSES.get(name.lower(), 500)
