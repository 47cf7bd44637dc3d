"""The sandbox's Chat Completions API, and the older completions and embeddings."""

from __future__ import annotations

import base64
import random
import secrets
import time
import zlib
from array import array
from collections.abc import Mapping

import orjson

from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json, read_model, read_stream
from router_service.apis.parts import Answer, Request, Stop
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.event_writing import write_answer
from router_service.sandbox.filling import mapping
from router_service.sandbox.replies import (
    SandboxAnswer,
    SandboxUsage,
    count_tokens,
    count_usage,
    encode_prompt,
    fragments,
    make_answer,
    read_request,
)
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
    written = Answer(
        id=f"chatcmpl-sandbox-{secrets.token_hex(12)}",
        model=request.model,
        parts=tuple(answer.parts()),
        stop=Stop.CALLS if answer.calls else Stop.END,
        usage=None if faults.no_usage else usage.to_usage(),
    )
    wants = Request(request.model, (), wants_usage=wants_usage(body) and not faults.no_usage)
    reply = write_answer(CHAT, written, stream=request.stream, request=wants)
    is_legacy = answer.finish_reason == "function_call"
    if copies == 1 and not is_legacy:
        return reply

    def adapt(value: dict[str, Json], copy: int) -> dict[str, Json]:
        """Return an answer or an event as one choice of several."""
        [choice] = value["choices"]
        message = choice.get("delta", choice.get("message"))
        if is_legacy and "tool_calls" in message:
            message["function_call"] = message.pop("tool_calls")[0]["function"]
        if choice["finish_reason"] is not None:
            choice["finish_reason"] = answer.finish_reason
        return {**value, "choices": [{**choice, "index": copy}]}

    if reply.events is None:
        adapted = [adapt(orjson.loads(reply.body), copy) for copy in range(copies)]
        choices = [choice for each in adapted for choice in each["choices"]]
        return Reply(body=orjson.dumps({**adapted[0], "choices": choices}), api=CHAT)
    parts = [part for part in reply.events if b'"choices":[{' in part]
    events = [
        event(adapt(orjson.loads(part.removeprefix(b"data: ")), copy))
        for copy in range(copies)
        for part in parts
    ]
    return Reply(events=[*events, *reply.events[len(parts) :]], api=CHAT)


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
