"""The sandbox's endpoints that no router decides about: older completions and embeddings."""

from __future__ import annotations

import base64
import random
import secrets
import time
import zlib
from array import array
from collections.abc import Mapping

import orjson

from router_service.apis.conversation import Json, read_model, read_stream, wrong_type
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.answers import count_tokens, echo, fragments

DIMENSIONS = 1536
MAX_DIMENSIONS = 3072
MAX_INPUTS = 2048


def completions(body: Mapping[str, Json]) -> bytes | list[bytes]:
    """Answer `POST /v1/completions`: each text repeats the beginning of its prompt."""
    prompts = _read_inputs(body, "prompt")
    texts = [
        f" This is the sandbox: no model was asked. The prompt begins: {echo(prompt.decode())}."
        for prompt in prompts
    ]
    read, written = (
        sum(count_tokens(each) for each in every)
        for every in (prompts, [text.encode() for text in texts])
    )
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }
    head: dict[str, Json] = {
        "id": f"cmpl-sandbox-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": read_model(body),
    }

    def choice(index: int, text: str, reason: str | None) -> Json:
        return {"text": text, "index": index, "logprobs": None, "finish_reason": reason}

    if not read_stream(body):
        choices = [choice(index, text, "stop") for index, text in enumerate(texts)]
        return orjson.dumps({**head, "choices": choices, "usage": usage})
    events = [
        {**head, "choices": [part]}
        for index, text in enumerate(texts)
        for part in (
            *(choice(index, fragment, None) for fragment in fragments(text)),
            choice(index, "", "stop"),
        )
    ]
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        events.append({**head, "choices": [], "usage": usage})
    return [*(b"data: %b\n\n" % orjson.dumps(each) for each in events), b"data: [DONE]\n\n"]


def embeddings(body: Mapping[str, Json]) -> bytes:
    """Answer `POST /v1/embeddings`: a unit vector for each input, the same for the same text."""
    inputs = _read_inputs(body, "input")
    dimensions = body.get("dimensions")
    if dimensions is None:
        dimensions = DIMENSIONS
    if type(dimensions) is not int or not 1 <= dimensions <= MAX_DIMENSIONS:
        wanted = f"a whole number from 1 to {MAX_DIMENSIONS}"
        raise wrong_type("dimensions", wanted, dimensions)
    data = []
    for index, each in enumerate(inputs):
        source = random.Random(zlib.crc32(each))  # noqa: S311 - not a secret
        values = [source.gauss(0, 1) for _ in range(dimensions)]
        norm = sum(value * value for value in values) ** 0.5
        vector = array("f", (value / norm for value in values))
        shown: Json = vector.tolist()
        if body.get("encoding_format") == "base64":
            shown = base64.b64encode(vector.tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": shown})
    read = sum(count_tokens(each) for each in inputs)
    usage = {"prompt_tokens": read, "total_tokens": read}
    answer = {"object": "list", "data": data, "model": read_model(body), "usage": usage}
    return orjson.dumps(answer)


def _read_inputs(body: Mapping[str, Json], field: str) -> list[bytes]:
    """Return the inputs in a field, each as bytes; raises InvalidRequestError.

    The field has one input or an array of inputs. An input is a text or an array of tokens.
    """

    def is_tokens(value: Json) -> bool:
        return isinstance(value, list) and all(type(token) is int for token in value)

    given = body.get(field)
    if isinstance(given, str) or (given and is_tokens(given)):
        given = [given]
    if (
        not isinstance(given, list)
        or not 0 < len(given) <= MAX_INPUTS
        or not all(isinstance(each, str) or is_tokens(each) for each in given)
    ):
        raise InvalidRequestError(
            f"'{field}' is neither a text nor an array of 1 to {MAX_INPUTS} texts.",
            param=field,
            code="invalid_value",
        )
    return [each.encode() if isinstance(each, str) else orjson.dumps(each) for each in given]
