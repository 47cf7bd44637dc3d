"""Writer of answers of Messages, whole and in events."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from router_service.apis.answer_errors import TOO_LONG, AnswerError
from router_service.apis.conversation import Json
from router_service.apis.encoding import encode
from router_service.apis.foreign import seal, to_input
from router_service.apis.messages import NAME
from router_service.apis.messages.answer_reader import DELTAS
from router_service.apis.parts import (
    Answer,
    AnswerBuilder,
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
    Thinking,
    ToolUse,
)
from router_service.apis.usage import NO_USAGE, Usage

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Type of an error by its status (API reference, "Errors"). 503 is OpenAI's status for an
overloaded engine."""

TOO_LONG_MESSAGE = "prompt is too long"
"""Start of Anthropic's message for a prompt that exceeds the context window. Claude Code compacts
the conversation if it reads this."""


def write_error(error: AnswerError, *, request_id: str | None = None) -> dict[str, Json]:
    """Return the body of an error, whose type the status names."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, fallback)
    message = error.message
    if error.code == TOO_LONG and not message.startswith(TOO_LONG_MESSAGE):
        message = f"{TOO_LONG_MESSAGE}: {message}"
    body: dict[str, Json] = {"type": "error", "error": {"type": kind, "message": message}}
    return body if request_id is None else {**body, "request_id": request_id}


_REASONS = {
    Stop.END: "end_turn",
    Stop.SEQUENCE: "stop_sequence",
    Stop.CALLS: "tool_use",
    Stop.LENGTH: "max_tokens",
    Stop.FILTER: "refusal",
    Stop.REFUSAL: "refusal",
}


class MessagesWriter:
    """Writer of one answer. Its blocks follow each other, so the events of later parts wait."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._blocks = 0
        """How many blocks have ended."""
        self._current: int | None = None
        """The part that is being written."""
        self._part: AnswerPart = Text("")
        # The first part of a plain dict is found in time that grows with the parts removed before.
        self._waiting = AnswerBuilder(parts=OrderedDict())
        """The parts that began before the current one ended."""

    def whole(self, answer: Answer) -> dict[str, Json]:
        """Return a whole answer."""
        content = [_write_block(part) for part in answer.parts]
        message = _message(answer.id, self._model, content, answer.usage)
        return message | _write_stop(answer.stop, answer.stop_text)

    def write(self, event: Event) -> bytes:
        """Return the server-sent events for one event."""
        written = b""
        match event:
            case PartGrew() | PartProved() | PartEnded() if event.index != self._current:
                self._waiting.add(event)
            case PartStarted() if self._current is not None:
                self._waiting.add(event)
            case PartGrew(_, text):
                kind, name = DELTAS[type(self._part)]
                delta = {"type": kind, name: text}
                written = _event("content_block_delta", index=self._blocks, delta=delta)
            case PartStarted(index, part):
                self._current, self._part = index, part
                block = _write_block(part)
                if block["type"] == "thinking":
                    block["signature"] = ""  # a delta before the end of the block has it
                written = _event("content_block_start", index=self._blocks, content_block=block)
            case PartProved(_, proof):
                if isinstance(self._part, Thinking):
                    self._part = replace(self._part, proof=proof)
            case PartEnded():
                written = self._end_block() + self._write_waiting()
            case Started(id, _, usage):
                written = _event("message_start", message=_message(id, self._model, [], usage))
            case Finished(stop, stop_text, usage):
                reason, counts = _write_stop(stop, stop_text), _write_usage(usage)
                last = _event("message_delta", delta=reason, usage=counts)
                written = last + _event("message_stop")
        return written

    def error(self, error: AnswerError) -> bytes:
        """Return the event that reports an error."""
        return _event(**write_error(error))

    def _end_block(self) -> bytes:
        written, place = b"", self._blocks
        if isinstance(self._part, Thinking) and not self._part.is_hidden:
            delta = {"type": "signature_delta", "signature": seal(self._part, NAME)}
            written = _event("content_block_delta", index=place, delta=delta)
        written += _event("content_block_stop", index=place)
        self._blocks, self._current = place + 1, None
        return written

    def _write_waiting(self) -> bytes:
        """Write the parts that waited, up to the first one that has not ended."""
        written = []
        while self._current is None and self._waiting.parts:
            index = next(iter(self._waiting.parts))
            partial = self._waiting.parts.pop(index)
            written.append(self.write(PartStarted(index, partial.start)))
            if text := partial.text.getvalue():
                written.append(self.write(PartGrew(index, text)))
            if partial.proof:
                self.write(PartProved(index, partial.proof))
            if partial.has_ended:
                written.append(self._end_block())
        return b"".join(written)


def _write_block(part: AnswerPart) -> dict[str, Json]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case ToolUse(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": to_input(arguments)}
        case Thinking(is_hidden=True):
            return {"type": "redacted_thinking", "data": seal(part, NAME)}
        case Thinking(text):
            signature = seal(part, NAME)
            return {"type": "thinking", "thinking": text, "signature": signature}


def _message(id: str, model: str, content: list[Json], usage: Usage | None) -> dict[str, Json]:  # noqa: A002
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _write_usage(usage),
    }


def _write_stop(stop: Stop, stop_text: str | None) -> dict[str, Json]:
    return {"stop_reason": _REASONS[stop], "stop_sequence": stop_text}


def _write_usage(usage: Usage | None) -> dict[str, Json]:
    """Return token counts, which are required; unlike OpenAI's, `input_tokens` excludes caches."""
    counts = usage or NO_USAGE
    written: dict[str, Json] = {
        "input_tokens": counts.uncached_tokens,
        "cache_creation_input_tokens": counts.cache_write_tokens,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
    }
    if counts.reasoning_tokens:
        written["output_tokens_details"] = {"thinking_tokens": counts.reasoning_tokens}
    return written


def _event(type: str, **fields: Json) -> bytes:  # noqa: A002
    data = encode({"type": type, **fields})
    return b"event: %b\ndata: %b\n\n" % (type.encode(), data)
