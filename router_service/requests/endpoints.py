"""What the endpoints that answer for a model have in common, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from router_service.core.messages import (
    ChatRequest,
    Conversation,
    Json,
    parse_chat_request,
    parse_responses_request,
    read_model,
    read_stream,
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint; `path` is below `/v1` here, and below the upstream's base URL."""

    path: str
    parse: Callable[[Mapping[str, Json]], ChatRequest]
    """Reads a decoded body; raises InvalidRequestError."""
    is_routed: bool = True
    """Whether the router's names may be asked for; elsewhere a request names its model."""
    is_json: bool = True
    """Whether each good answer is one JSON object, or events of them: speech, for one, is not."""
    has_named_events: bool = False
    """Whether the events of a stream have names and types, an error among them."""

    def error_event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream, from the body of an error.

        `number` is the event's own, where events have numbers: Vercel's client asks for one.
        """
        if not self.has_named_events:
            return b"data: " + body + b"\n\n"
        # Some clients read the error at the top, others in `error`, where chat has it.
        error = orjson.loads(body)
        event = {**error["error"], **error, "type": "error", "sequence_number": number}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


CHAT = Endpoint("/chat/completions", parse_chat_request)
RESPONSES = Endpoint("/responses", parse_responses_request, has_named_events=True)


_JSON_PATHS = {"/embeddings", "/completions"}


def unrouted(path: str) -> Endpoint:
    """Return an endpoint of which nothing is read but the model and whether to stream."""
    return Endpoint(path, _read_named, is_routed=False, is_json=path in _JSON_PATHS)


def _read_named(body: Mapping[str, Json]) -> ChatRequest:
    return ChatRequest(read_model(body), read_stream(body), Conversation(turns=()))
