"""Ids of stored objects, such as files and responses, that requests of any endpoint name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router_service.apis.conversation import Reference
from router_service.core.errors import InvalidRequestError

CONTINUATION_FIELDS = ("previous_response_id", "conversation")
"""Fields that name the response or conversation to continue (Responses API)."""

MAX_REFERENCES = 2000
"""Limit on the stored objects that a request may name: OpenAI accepts as many files in one batch of
a vector store."""

_REFERENCE_FIELDS = frozenset(
    (
        *CONTINUATION_FIELDS, "file_id", "file_ids", "input_file_id", "training_file",
        "validation_file", "vector_store_id", "vector_store_ids", "container", "container_id",
        "assistant_id", "thread_id", "run_id", "batch_id", "upload_id", "part_ids", "eval_id",
        "response_id", "conversation_id", "video_id",
    )
)  # fmt: skip
"""Fields of OpenAI's API that hold the id of a stored object, or an object with that id."""

_MARKS = (b"e_id", b'"container', b"\\u00")
"""Every chat or Responses body that names a stored object contains one of these. `file_id` and
`vector_store_id` contain the first. The last starts an escaped letter in a field name."""
_CONTAINERS = (dict, list)


def may_contain_references(body: bytes) -> bool:
    """Return whether a chat or Responses body may name stored objects; fast, without decoding."""
    lower = body.lower()
    return any(mark in lower for mark in _MARKS)


def find_references(body: Mapping[str, Any]) -> tuple[Reference, ...]:
    """Return the stored objects that a body names, each id once.

    Raises InvalidRequestError if there are more than `MAX_REFERENCES`.
    """
    found: dict[str, Reference] = {}
    waiting: list[Any] = [body]  # no recursion, because a body may be nested deeply
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            # An array of a million numbers takes 0.04 s. Queueing every number takes 0.4 s.
            waiting += [inner for inner in value if isinstance(inner, _CONTAINERS)]
            continue
        for name, inner in value.items():
            if (param := name.casefold()) in _REFERENCE_FIELDS:  # servers in Go ignore the case
                for candidate in inner if isinstance(inner, list) else (inner,):
                    text = candidate.get("id") if isinstance(candidate, dict) else candidate
                    if not isinstance(text, str) or (identifier := text.strip()) in found:
                        continue
                    if len(found) == MAX_REFERENCES:
                        raise InvalidRequestError(
                            f"The request names more than {MAX_REFERENCES} stored objects. Split"
                            " it into several requests.",
                            param=param,
                            code="too_many_objects",
                        )
                    found[identifier] = Reference(param, identifier)
            if isinstance(inner, _CONTAINERS):
                waiting.append(inner)
    return tuple(found.values())
