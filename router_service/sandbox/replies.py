"""Request bodies -> good answers, one function an endpoint whose answers depend on nothing else.

Each takes a body and the faults that bear on the answer itself, and raises InvalidRequestError.
"""

from __future__ import annotations

import base64
import random
import secrets
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json, read_model, read_stream
from router_service.sandbox.answers import Answer, encode_prompt, make_answer, read_request
from router_service.sandbox.chat_wire import (
    Completion,
    fragments,
    read_copies,
    read_include_usage,
)
from router_service.sandbox.events import DONE, event
from router_service.sandbox.faults import Faults
from router_service.sandbox.logprobs import read_alternatives
from router_service.sandbox.playing import Reply
from router_service.sandbox.usage import Usage, count_tokens, count_usage

DIMENSIONS = 1536
MAX_DIMENSIONS = 3072
MAX_INPUTS = 2048
_ECHO_CHARACTERS = 80


def chat(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer as `POST /v1/chat/completions` does."""
    request = read_request(body)
    copies = read_copies(body)
    prompt = encode_prompt(body)
    answer = make_answer(body, request, prompt)
    usage = count_usage(prompt, answer, copies=copies, effort=body.get("reasoning_effort"))
    completion = Completion(
        completion_id=f"chatcmpl-sandbox-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=request.model,
        answer=answer,
        copies=copies,
        usage=None if faults.no_usage else usage,
        include_usage=read_include_usage(body),
        alternatives=read_alternatives(body, asked=body.get("logprobs") is True),
    )
    if request.stream:
        return Reply(events=list(completion.events()))
    return Reply(body=completion.body())


def completions(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer as `POST /v1/completions` does: each prompt by a text that echoes its beginning."""
    prompts = _inputs(body, "prompt")
    copies = read_copies(body)
    texts = [_completed(prompt) for prompt in prompts for _ in range(copies)]
    usage = _usage_of(prompts, texts)
    head = {
        "id": f"cmpl-sandbox-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": read_model(body),
    }
    told = {} if faults.no_usage else {"usage": usage.to_json()}
    if not read_stream(body):
        choices = [_choice(index, text, "stop") for index, text in enumerate(texts)]
        return Reply(body=orjson.dumps({**head, "choices": choices, **told}))
    events = [event({**head, "choices": [choice]}) for choice in _streamed(texts)]
    if told and read_include_usage(body):
        events.append(event({**head, "choices": [], **told}))
    return Reply(events=[*events, DONE])


def embeddings(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer as `POST /v1/embeddings` does: a unit vector for each input, the same for the same."""
    inputs = _inputs(body, "input")
    dimensions = _dimensions(body)
    as_base64 = body.get("encoding_format") == "base64"
    data = []
    for index, each in enumerate(inputs):
        vector = _vector(each, dimensions)
        shown = base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    prompt_tokens = sum(count_tokens(len(each)) for each in inputs)
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    told = {} if faults.no_usage else {"usage": usage}
    answer = {"object": "list", "data": data, "model": read_model(body), **told}
    return Reply(body=orjson.dumps(answer))


def _inputs(body: Mapping[str, Json], field: str) -> list[bytes]:
    """Return the texts of a field that holds a text, tokens, or an array of either."""
    given = body.get(field)
    if isinstance(given, str) or (isinstance(given, list) and given and _is_tokens(given)):
        return [_encoded(given)]
    if not isinstance(given, list) or not 0 < len(given) <= MAX_INPUTS:
        raise _invalid(field, f"expected a text, or an array of 1 to {MAX_INPUTS} texts")
    if not all(isinstance(each, str) or _is_tokens(each) for each in given):
        raise _invalid(field, "expected texts, or arrays of tokens")
    return [_encoded(each) for each in given]


def _is_tokens(value: Json) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _encoded(given: str | list[int]) -> bytes:
    return given.encode() if isinstance(given, str) else orjson.dumps(given)


def _completed(prompt: bytes) -> str:
    echo = " ".join(prompt.decode().split())[:_ECHO_CHARACTERS]
    return f" This is the sandbox: no model was asked. The prompt begins: {echo!r}."


def _streamed(texts: list[str]) -> Iterator[Json]:
    for index, text in enumerate(texts):
        for fragment in fragments(text):
            yield _choice(index, fragment, None)
        yield _choice(index, "", "stop")


def _choice(index: int, text: str, reason: str | None) -> Json:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}


def _usage_of(prompts: list[bytes], texts: list[str]) -> Usage:
    each = [count_usage(b"", Answer(text=text)).completion_tokens for text in texts]
    return Usage(sum(count_tokens(len(prompt)) for prompt in prompts), sum(each))


def _dimensions(body: Mapping[str, Json]) -> int:
    given = body.get("dimensions")
    if given is None:
        return DIMENSIONS
    if type(given) is not int or not 1 <= given <= MAX_DIMENSIONS:
        raise _invalid("dimensions", f"expected a whole number from 1 to {MAX_DIMENSIONS}")
    return given


def _vector(text: bytes, dimensions: int) -> array[float]:
    source = random.Random(zlib.crc32(text))  # noqa: S311 - not a secret
    values = [source.gauss(0, 1) for _ in range(dimensions)]
    norm = sum(value * value for value in values) ** 0.5
    return array("f", (value / norm for value in values))


def _invalid(param: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Invalid value for '{param}': {problem}.", param=param, code="invalid_value"
    )
