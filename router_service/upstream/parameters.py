"""Request parameters that the configuration sets for a deployment, such as `reasoning_effort`."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from router_service.apis.conversation import Json
from router_service.core.errors import InvalidRequestError
from router_service.upstream.bodies import key_pattern, top_level

CHAT = "/chat/completions"
RESPONSES = "/responses"
MESSAGES = "/messages"

RESPONSES_NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""Names in the Responses API of parameters with other names in Chat Completions. A dot
separates the names of an object and of its field."""

CHAT_ONLY = frozenset(
    "frequency_penalty logit_bias logprobs modalities prediction presence_penalty response_format "
    "seed stop".split()
)
"""Parameters that the Responses API does not have. OpenAI refuses requests with unknown ones."""

MESSAGES_NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
}
"""Names in the Messages API of parameters with other names in Chat Completions."""

NOT_IN_MESSAGES = CHAT_ONLY - {"stop"} | frozenset(
    "parallel_tool_calls prompt_cache_key prompt_cache_retention reasoning safety_identifier"
    " tool_choice top_logprobs user verbosity".split()
)
"""Parameters that the Messages API does not have, or has in another form. Anthropic refuses
requests with unknown ones."""

OTHER_NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_completion_tokens",
    "reasoning": "reasoning_effort",
    "reasoning_effort": "reasoning",
}
"""Pairs of names in the Chat Completions API that exclude each other, in both directions."""


def add_parameters(body: bytes, parameters: Mapping[str, Json], path: str) -> bytes:
    """Return a body, a valid JSON object, with those of the parameters that it does not set.

    The names are those of the Chat Completions API. A field counts as set even if its value is
    null. `path` is the endpoint; the other endpoints' bodies stay unchanged. All other bytes of a
    body stay unchanged too.
    """
    if path not in {CHAT, RESPONSES, MESSAGES}:
        return body
    names, missing = RESPONSES_NAMES, CHAT_ONLY
    if path == MESSAGES:
        names, missing = MESSAGES_NAMES, NOT_IN_MESSAGES
    added: dict[str, Json] = {}
    for name, value in parameters.items():
        if path == CHAT:
            if not (_find(name, body) or _find(OTHER_NAMES.get(name, name), body)):
                added[name] = value
        elif name not in missing:
            outer, _, inner = names.get(name, name).partition(".")
            if outer == "stop_sequences" and isinstance(value, str):
                value = [value]  # noqa: PLW2901
            found = _find(outer, body)
            if found is None:
                added[outer] = {inner: value} if inner else value
            elif inner:
                start, end = found
                body = body[:start] + _with_field(body[start:end], inner, value) + body[end:]
    return _with_fields(body, added)


def _find(name: str, body: bytes) -> tuple[int, int] | None:
    """Return the start and the end of a top-level field's value, or None if it is missing."""
    try:
        found = next(top_level(key_pattern(name), body), None)
    except InvalidRequestError:  # too many fields of this name, at all levels together, to search
        return 0, 0
    return found and (found[1], found[2])


def _with_field(value: bytes, name: str, inner: Json) -> bytes:
    """Return a JSON value with one more field if it is an object that lacks it."""
    if not value.startswith(b"{") or _find(name, value):
        return value
    return _with_fields(value, {name: inner})


def _with_fields(body: bytes, added: Mapping[str, Json]) -> bytes:
    """Return an object with further fields at its beginning."""
    if not added:
        return body
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return body[:start] + orjson.dumps(added)[1:-1] + comma + body[start:]
