"""Which requests may be sent again after an upstream may have acted on them."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from router_service.core.messages import Json
from router_service.core.messages.body import items_of
from router_service.upstream.splice import BodyTemplate

REPEATABLE_PATHS = frozenset(
    (
        "/chat/completions",
        "/responses",
        "/completions",
        "/embeddings",
        "/moderations",
        "/rerank",
        "/audio/speech",
    )
)
"""Endpoints that compute an answer and change nothing: a request that is sent twice costs twice.
Everything else under `/v1/` may create something, such as a job, a batch, a file or a video."""

_MARKS = (b'"background"', b'"conversation"', b'"mcp"', b"\\u00")
"""One of these is in a body that has an effect; the last begins a letter of an escaped name."""


def is_repeatable(path: str, body: BodyTemplate) -> bool:
    """Tell whether sending a request twice does no more than sending it once, except for its price.

    Three things make a completion more than that: `background` starts a job that nobody could
    find or cancel, `conversation` adds to a stored conversation, and a tool of the type `mcp` lets
    the provider call other people's servers. A response that is merely stored (`store`, which is
    OpenAI's default) counts as repeatable: nothing refers to the lost one, and it expires.
    """
    if path not in REPEATABLE_PATHS:
        return False
    if not any(mark in part for part in body.parts for mark in _MARKS):
        return True
    fields: Mapping[str, Json] = orjson.loads(body.with_model(""))
    if fields.get("background") or fields.get("conversation") is not None:
        return False
    tools = [tool for tool in items_of(fields.get("tools")) if isinstance(tool, dict)]
    return all(tool.get("type") != "mcp" for tool in tools)
