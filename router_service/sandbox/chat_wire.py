"""An answer -> the bytes of OpenAI's Chat Completions API, whole or as server-sent events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json
from router_service.sandbox.answers import Answer, Call, Kind
from router_service.sandbox.events import DONE, event
from router_service.sandbox.logprobs import logprobs_of
from router_service.sandbox.schemas import mapping
from router_service.sandbox.usage import Usage

MAX_COPIES = 128
"""The greatest `n`, as with OpenAI."""

FRAGMENT_CHARACTERS = 16
"""How much of a text or of arguments one event carries; OpenAI sends about a token, 4 of them."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Everything that the bytes of an answer depend on; `created` is in Unix seconds."""

    completion_id: str
    created: int
    model: str
    answer: Answer
    copies: int
    usage: Usage | None
    include_usage: bool
    alternatives: int | None = None
    """How many alternatives of each token to tell; None tells no log probabilities."""

    def body(self) -> bytes:
        """Return the whole answer, a `chat.completion`."""
        choice = {
            "message": _message(self.answer),
            "logprobs": self._logprobs(fragments(self.answer.text or "")),
            "finish_reason": self.answer.finish_reason,
        }
        choices = [{"index": index, **choice} for index in range(self.copies)]
        head = self._head("chat.completion")
        usage = {} if self.usage is None else {"usage": self.usage.to_json()}
        return orjson.dumps({**head, "choices": choices, **usage})

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream of `chat.completion.chunk`, the last one `[DONE]`."""
        announces_usage = self.include_usage and self.usage is not None
        head = self._head("chat.completion.chunk")
        tail: dict[str, Json] = {"usage": None} if announces_usage else {}
        for index in range(self.copies):
            for delta, reason in _deltas(self.answer):
                text = delta.get("content")
                choice = {
                    "index": index,
                    "delta": delta,
                    "logprobs": self._logprobs([text]) if text else None,
                    "finish_reason": reason,
                }
                yield event({**head, "choices": [choice], **tail})
        if announces_usage and self.usage is not None:
            yield event({**head, "choices": [], "usage": self.usage.to_json()})
        yield DONE

    def _logprobs(self, tokens: Iterable[str]) -> Json:
        """Return the log probabilities of a text; a call has none."""
        if self.alternatives is None or self.answer.text is None:
            return None
        return {"content": logprobs_of(tokens, self.alternatives), "refusal": None}

    def _head(self, kind: str) -> dict[str, Json]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "sandbox",
        }


def read_copies(body: Mapping[str, Json]) -> int:
    """Return `n`, the number of choices asked for; raises InvalidRequestError."""
    copies = body.get("n")
    if copies is None:
        return 1
    if isinstance(copies, bool) or not isinstance(copies, int) or not 1 <= copies <= MAX_COPIES:
        raise InvalidRequestError(
            f"Invalid value for 'n': expected a whole number from 1 to {MAX_COPIES}.",
            param="n",
            code="invalid_value",
        )
    return copies


def read_include_usage(body: Mapping[str, Json]) -> bool:
    """Return whether a stream is to end with its usage."""
    return mapping(body.get("stream_options")).get("include_usage") is True


def _message(answer: Answer) -> dict[str, Json]:
    message: dict[str, Json] = {
        "role": "assistant",
        "content": answer.text,
        "refusal": None,
        "annotations": [],
    }
    if answer.finish_reason == "function_call":
        message["function_call"] = _inner(answer.calls[0], answer.calls[0].payload)
    elif answer.calls:
        message["tool_calls"] = [_entry(call, call.payload) for call in answer.calls]
    return message


def _deltas(answer: Answer) -> Iterator[tuple[Mapping[str, Json], str | None]]:
    """Yield what each event adds to a choice, and with the last one why the choice ended."""
    first = {"role": "assistant", "content": None if answer.calls else "", "refusal": None}
    yield first, None
    for fragment in fragments(answer.text or ""):
        yield {"content": fragment}, None
    for index, call in enumerate(answer.calls):
        for delta in _call_deltas(index, call):
            yield delta, None
    yield {}, answer.finish_reason


def _call_deltas(index: int, call: Call) -> Iterator[Mapping[str, Json]]:
    """Yield a call's head without its payload, and then the payload in fragments."""
    if call.kind is Kind.LEGACY:
        yield {"function_call": _inner(call, "")}
        for fragment in fragments(call.payload):
            yield {"function_call": {"arguments": fragment}}
        return
    yield {"tool_calls": [{"index": index, **_entry(call, "")}]}
    field = _payload_field(call)
    for fragment in fragments(call.payload):
        yield {"tool_calls": [{"index": index, call.kind.value: {field: fragment}}]}


def _entry(call: Call, payload: str) -> dict[str, Json]:
    return {"id": call.call_id, "type": call.kind, call.kind.value: _inner(call, payload)}


def _inner(call: Call, payload: str) -> dict[str, Json]:
    return {"name": call.name, _payload_field(call): payload}


def _payload_field(call: Call) -> str:
    return "input" if call.kind is Kind.CUSTOM else "arguments"


def fragments(text: str) -> Iterator[str]:
    """Yield a text in the pieces in which it is streamed."""
    for start in range(0, len(text), FRAGMENT_CHARACTERS):
        yield text[start : start + FRAGMENT_CHARACTERS]
