"""Writer of answers of Chat Completions, whole and in events."""

from __future__ import annotations

from dataclasses import replace

from router_service.apis.answer_errors import (
    AnswerError,
    write_openai_error,
)
from router_service.apis.chat import NAME
from router_service.apis.conversation import Json
from router_service.apis.encoding import encode
from router_service.apis.foreign import seal
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
    Thinking,
    ToolUse,
)
from router_service.apis.usage import Usage

_REASONS = {
    Stop.END: "stop",
    Stop.SEQUENCE: "stop",
    Stop.CALLS: "tool_calls",
    Stop.LENGTH: "length",
    Stop.FILTER: "content_filter",
    Stop.REFUSAL: "content_filter",
}


class ChatWriter:
    """Writer of one answer."""

    def __init__(self, model: str, created_s: int, *, wants_usage: bool) -> None:
        self._model = model
        self._created_s = created_s
        self._wants_usage = wants_usage
        self._id = ""
        self._fields: dict[int, str | int] = {}
        """The field of the message to which each part adds, or the place of a call."""
        self._customs: set[int] = set()
        self._thinking: dict[int, Thinking] = {}
        self._calls = 0
        self._proofs = 0
        self._has_refused = False

    def whole(self, answer: Answer) -> dict[str, Json]:
        """Return a whole answer."""
        texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
        calls: list[Json] = []
        details: list[Json] = []
        for part in answer.parts:
            match part:
                case ToolUse():
                    calls.append(_write_call(part))
                case Thinking(text):
                    texts["reasoning_content"].append(text)
                    if part.proof:
                        details.append(_write_proof(part, len(details)))
                case Text(text, is_refusal):
                    texts["refusal" if is_refusal else "content"].append(text)
        joined = {name: "".join(pieces) or None for name, pieces in texts.items()}
        reasoning = joined.pop("reasoning_content")
        message: dict[str, Json] = {"role": "assistant", **joined}
        if not calls and message["content"] is None and message["refusal"] is None:
            message["content"] = ""
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if details:
            message["reasoning_details"] = details
        if calls:
            message["tool_calls"] = calls
        has_refused = message["refusal"] is not None
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _write_stop(answer.stop, has_refused=has_refused),
        }
        whole: dict[str, Json] = {
            "id": answer.id,
            "object": "chat.completion",
            "created": self._created_s,
            "model": self._model,
            "choices": [choice],
        }
        return whole if answer.usage is None else {**whole, "usage": _write_usage(answer.usage)}

    def write(self, event: Event) -> bytes:
        """Return the server-sent events for one event."""
        delta: dict[str, Json] = {}
        match event:
            case PartGrew(index, text):
                field = self._fields[index]
                if isinstance(field, str):
                    delta = {field: text}
                else:
                    inner = {"function": {"arguments": text}}
                    if index in self._customs:
                        inner = {"custom": {"input": text}}
                    delta = {"tool_calls": [{"index": field, **inner}]}
            case PartStarted(index, part):
                delta = self._start_part(index, part)
            case PartProved(index, proof):
                self._thinking[index] = replace(self._thinking[index], proof=proof)
            case PartEnded(index):
                thinking = self._thinking.pop(index, None)
                if thinking is not None and thinking.proof:
                    delta = {"reasoning_details": [_write_proof(thinking, self._proofs)]}
                    self._proofs += 1
            case Started(id):
                self._id = id
                delta = {"role": "assistant", "content": None}
            case Finished(stop, _, usage):
                reason = _write_stop(stop, has_refused=self._has_refused)
                last = self._chunk({}, reason)
                if self._wants_usage and usage is not None:
                    last += self._event([], usage=_write_usage(usage))
                return last + b"data: [DONE]\n\n"
        return self._chunk(delta) if delta else b""

    def error(self, error: AnswerError) -> bytes:
        """Return the event that reports an error."""
        return b"data: %b\n\n" % encode(write_openai_error(error))

    def _start_part(self, index: int, part: AnswerPart) -> dict[str, Json]:
        match part:
            case ToolUse():
                self._fields[index] = place = self._calls
                self._calls += 1
                if part.is_custom:
                    self._customs.add(index)
                return {"tool_calls": [{"index": place, **_write_call(part)}]}
            case Thinking():
                self._fields[index] = "reasoning_content"
                self._thinking[index] = part
            case Text(_, is_refusal):
                self._fields[index] = "refusal" if is_refusal else "content"
                self._has_refused = self._has_refused or is_refusal
        return {}

    def _chunk(self, delta: dict[str, Json], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._event([choice])

    def _event(self, choices: list[Json], usage: Json = None) -> bytes:
        event = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created_s,
            "model": self._model,
            "choices": choices,
        }
        if self._wants_usage:
            event["usage"] = usage
        return b"data: %b\n\n" % encode(event)


def _write_call(call: ToolUse) -> dict[str, Json]:
    if call.is_custom:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _write_proof(thinking: Thinking, place: int) -> Json:
    """Return an entry of OpenRouter's `reasoning_details`, in which clients send a proof back."""
    proof = seal(thinking, NAME)
    if thinking.is_hidden:
        return {"type": "reasoning.encrypted", "data": proof, "index": place}
    return {"type": "reasoning.text", "signature": proof, "index": place}


def _write_stop(stop: Stop, *, has_refused: bool) -> str:
    """Return the reason. OpenAI's refusals with a text end with `stop`, as every other text."""
    return "stop" if stop is Stop.REFUSAL and has_refused else _REASONS[stop]


def _write_usage(usage: Usage) -> dict[str, Json]:
    prompt = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
