"""What a request body names that an upstream stores: files, vector stores, conversations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.core.errors import InvalidRequestError
from router_service.core.messages.body import Json
from router_service.core.messages.values import Reference

CONTINUED = ("previous_response_id", "conversation")
"""Fields that name the response or conversation to continue (Responses API)."""

MAX_REFERENCES = 2000
"""OpenAI takes as many files in a batch of a vector store."""

_NAMES = frozenset(
    (
        *CONTINUED, "file_id", "file_ids", "input_file_id", "training_file", "validation_file",
        "vector_store_id", "vector_store_ids", "container", "container_id", "assistant_id",
        "thread_id", "run_id", "batch_id", "upload_id", "part_ids", "eval_id", "response_id",
        "conversation_id", "video_id",
    )
)  # fmt: skip
"""Fields of OpenAI's API that hold ids of stored objects; an id may be in an object of its own."""

_MARKS = (b"e_id", b'"container', b"\\u00")
"""One of these is in a chat or responses body that names a stored object: `file_id` and
`vector_store_id` have the first, and the last begins a letter of an escaped name."""


def may_name_objects(body: bytes) -> bool:
    """Tell at once whether a chat or responses body may name more than what it continues."""
    lower = body.lower()
    return any(mark in lower for mark in _MARKS)


def references_of(body: Mapping[str, Json]) -> tuple[Reference, ...]:
    """Return what a body names, each id once; raises InvalidRequestError if that is too much."""
    found: dict[str, Reference] = {}
    for param, text in _named_in(body):
        if text in found:
            continue
        if len(found) == MAX_REFERENCES:
            raise InvalidRequestError(
                f"The request names more than {MAX_REFERENCES} stored objects. Send several.",
                param=param,
                code="too_many_objects",
            )
        found[text] = Reference(param, text)
    return tuple(found.values())


_CONTAINERS = (dict, list)


def _named_in(body: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield names of fields and the ids in them, without recursion: a body may be nested deep."""
    waiting: list[Json] = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            # An array of a million numbers takes 0.04 s so, and 0.4 s if each has its turn.
            waiting += [inner for inner in value if isinstance(inner, _CONTAINERS)]
        elif isinstance(value, dict):
            for name, inner in value.items():
                if (param := name.casefold()) in _NAMES:  # Go's servers ignore the case of names
                    yield from ((param, text.strip()) for text in _ids(inner))
                if isinstance(inner, _CONTAINERS):
                    waiting.append(inner)


def _ids(value: Json) -> Iterator[str]:
    candidates = value if isinstance(value, list) else (value,)
    for candidate in candidates:
        text = candidate.get("id") if isinstance(candidate, dict) else candidate
        if isinstance(text, str):
            yield text
