"""The sandbox's Chat Completions API, and the older completions and embeddings."""

from __future__ import annotations

import base64
import random
import secrets
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson

from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json, read_model, read_stream
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.answers import (
    Kind,
    SandboxAnswer,
    SandboxCall,
    SandboxUsage,
    count_tokens,
    count_usage,
    encode_prompt,
    fragments,
    logprobs_of,
    make_answer,
    read_alternatives,
    read_request,
)
from router_service.sandbox.filling import mapping
from router_service.sandbox.sending import DONE, Faults, Reply, event

MAX_COPIES = 128
"""Largest `n`, the same as OpenAI's."""

DIMENSIONS = 1536
MAX_DIMENSIONS = 3072
MAX_INPUTS = 2048
_ECHO_CHARACTERS = 80


def chat(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer `POST /v1/chat/completions`; raise InvalidRequestError."""
    request = read_request(body)
    copies = read_copies(body)
    prompt = encode_prompt(body)
    answer = make_answer(body, request, prompt)
    usage = count_usage(prompt, answer, copies=copies, effort=body.get("reasoning_effort"))
    completion = ChatAnswer(
        completion_id=f"chatcmpl-sandbox-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=request.model,
        answer=answer,
        copies=copies,
        usage=None if faults.no_usage else usage,
        include_usage=wants_usage(body),
        alternatives=read_alternatives(body, wants_logprobs=body.get("logprobs") is True),
    )
    if request.stream:
        return Reply(events=list(completion.events()), api=CHAT)
    return Reply(body=completion.body(), api=CHAT)


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The contents of a chat completion; `created` is in Unix seconds."""

    completion_id: str
    created: int
    model: str
    answer: SandboxAnswer
    copies: int
    usage: SandboxUsage | None
    include_usage: bool
    alternatives: int | None = None
    """Number of alternatives for each token, or None for no log probabilities."""

    def body(self) -> bytes:
        """Return the whole answer, a `chat.completion`."""
        answer = self.answer
        message: dict[str, Json] = {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
            "annotations": [],
        }
        if answer.finish_reason == "function_call":
            message["function_call"] = _function(answer.calls[0], answer.calls[0].payload)
        elif answer.calls:
            message["tool_calls"] = [_tool_call(call, call.payload) for call in answer.calls]
        choice = {
            "message": message,
            "logprobs": self._logprobs(fragments(answer.text or "")),
            "finish_reason": answer.finish_reason,
        }
        choices = [{"index": index, **choice} for index in range(self.copies)]
        usage = {} if self.usage is None else {"usage": self.usage.to_json()}
        return orjson.dumps({**self._head("chat.completion"), "choices": choices, **usage})

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream: `chat.completion.chunk` objects, then `[DONE]`."""
        announces_usage = self.include_usage and self.usage is not None
        head = self._head("chat.completion.chunk")
        tail: dict[str, Json] = {"usage": None} if announces_usage else {}
        answer = self.answer
        first = {"role": "assistant", "content": None if answer.calls else "", "refusal": None}
        # The delta of each event, with None or, in the last event, the finish reason.
        deltas: list[tuple[dict[str, Json], str | None]] = [(first, None)]
        deltas += [({"content": fragment}, None) for fragment in fragments(answer.text or "")]
        for index, call in enumerate(answer.calls):
            parts = fragments(call.payload)
            if call.kind is Kind.LEGACY:
                deltas.append(({"function_call": _function(call, "")}, None))
                deltas += [({"function_call": {"arguments": part}}, None) for part in parts]
                continue
            deltas.append(({"tool_calls": [{"index": index, **_tool_call(call, "")}]}, None))
            for part in parts:
                added = {call.kind.value: {_payload_field(call): part}}
                deltas.append(({"tool_calls": [{"index": index, **added}]}, None))
        deltas.append(({}, answer.finish_reason))
        for index in range(self.copies):
            for delta, reason in deltas:
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
        """Return the log probabilities of these tokens; None if the answer is calls."""
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


def _tool_call(call: SandboxCall, payload: str) -> dict[str, Json]:
    return {"id": call.call_id, "type": call.kind, call.kind.value: _function(call, payload)}


def _function(call: SandboxCall, payload: str) -> dict[str, Json]:
    return {"name": call.name, _payload_field(call): payload}


def _payload_field(call: SandboxCall) -> str:
    return "input" if call.kind is Kind.CUSTOM else "arguments"


def read_copies(body: Mapping[str, Json]) -> int:
    """Return `n`, the requested number of choices; raise InvalidRequestError."""
    copies = body.get("n")
    if copies is None:
        return 1
    if isinstance(copies, bool) or not isinstance(copies, int) or not 1 <= copies <= MAX_COPIES:
        raise _invalid("n", f"expected a whole number from 1 to {MAX_COPIES}")
    return copies


def wants_usage(body: Mapping[str, Json]) -> bool:
    """Return whether a stream must end with its usage."""
    return mapping(body.get("stream_options")).get("include_usage") is True


def completions(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer `POST /v1/completions`: each text repeats the beginning of its prompt."""
    prompts = _read_inputs(body, "prompt")
    texts: list[str] = []
    for prompt in prompts:
        echo = " ".join(prompt.decode().split())[:_ECHO_CHARACTERS]
        text = f" This is the sandbox: no model was asked. The prompt begins: {echo!r}."
        texts += [text] * read_copies(body)
    written = sum(count_usage(b"", SandboxAnswer(text=text)).completion_tokens for text in texts)
    usage = SandboxUsage(sum(count_tokens(len(prompt)) for prompt in prompts), written)
    head = {
        "id": f"cmpl-sandbox-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": read_model(body),
    }
    shown = {} if faults.no_usage else {"usage": usage.to_json()}

    def choice(index: int, text: str, reason: str | None) -> Json:
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

    if not read_stream(body):
        choices = [choice(index, text, "stop") for index, text in enumerate(texts)]
        return Reply(body=orjson.dumps({**head, "choices": choices, **shown}))
    events: list[bytes] = []
    for index, text in enumerate(texts):
        parts = [
            *(choice(index, part, None) for part in fragments(text)),
            choice(index, "", "stop"),
        ]
        events += [event({**head, "choices": [part]}) for part in parts]
    if shown and wants_usage(body):
        events.append(event({**head, "choices": [], **shown}))
    return Reply(events=[*events, DONE])


def embeddings(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer `POST /v1/embeddings`: a unit vector for each input, the same for the same text."""
    inputs = _read_inputs(body, "input")
    dimensions = body.get("dimensions")
    if dimensions is None:
        dimensions = DIMENSIONS
    if type(dimensions) is not int or not 1 <= dimensions <= MAX_DIMENSIONS:
        raise _invalid("dimensions", f"expected a whole number from 1 to {MAX_DIMENSIONS}")
    is_base64 = body.get("encoding_format") == "base64"
    data = []
    for index, each in enumerate(inputs):
        source = random.Random(zlib.crc32(each))  # noqa: S311 - not a secret
        values = [source.gauss(0, 1) for _ in range(dimensions)]
        norm = sum(value * value for value in values) ** 0.5
        vector = array("f", (value / norm for value in values))
        shown = base64.b64encode(vector.tobytes()).decode() if is_base64 else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    prompt_tokens = sum(count_tokens(len(each)) for each in inputs)
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    answer = {"object": "list", "data": data, "model": read_model(body)}
    return Reply(body=orjson.dumps(answer | ({} if faults.no_usage else {"usage": usage})))


def _read_inputs(body: Mapping[str, Json], field: str) -> list[bytes]:
    """Return the inputs in a field, each as bytes; raise InvalidRequestError.

    The field has one input or an array of inputs. An input is a text or an array of tokens.
    """

    def is_tokens(value: Json) -> bool:
        return isinstance(value, list) and all(type(token) is int for token in value)

    given = body.get(field)
    if isinstance(given, str) or (given and is_tokens(given)):
        given = [given]
    if not isinstance(given, list) or not 0 < len(given) <= MAX_INPUTS:
        raise _invalid(field, f"expected a text, or an array of 1 to {MAX_INPUTS} texts")
    if not all(isinstance(each, str) or is_tokens(each) for each in given):
        raise _invalid(field, "expected texts, or arrays of tokens")
    return [each.encode() if isinstance(each, str) else orjson.dumps(each) for each in given]


def _invalid(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Invalid value for '{param}': {problem}.", param=param, code="invalid_value"
    )
