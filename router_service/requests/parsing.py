"""Parse a request body, for each endpoint that answers with a model of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import orjson

from router_service.core.capabilities import Requirements, read_requirements
from router_service.core.messages import (
    ChatRequest,
    Conversation,
    Json,
    decode_object,
    parse_chat_request,
    read_model,
    read_stream,
)
from router_service.core.resources import Cache
from router_service.core.responses import parse_responses_request
from router_service.upstream.bodies import BodyTemplate


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of the API; `path` is relative to `/v1` and to an upstream's base URL."""

    path: str
    parse: Callable[[Mapping[str, Json]], ChatRequest]
    """Parses a decoded body; raises InvalidRequestError."""
    is_routed: bool = True
    """Whether the router's model names are accepted; other endpoints need a model of the pool."""
    is_json: bool = True
    """Whether a successful answer is a JSON object or a stream of them; speech, for one, is not."""
    has_named_events: bool = False
    """Whether the events of a stream, errors included, have names and types."""

    def error_event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream, from the body of an error response.

        `number` is the event's sequence number, which Vercel's client requires.
        """
        if not self.has_named_events:
            return b"data: " + body + b"\n\n"
        # Some clients read the error's fields at the top level, others below `error`, as in chat.
        error = orjson.loads(body)
        event = {**error["error"], **error, "type": "error", "sequence_number": number}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


CHAT = Endpoint("/chat/completions", parse_chat_request)
RESPONSES = Endpoint("/responses", parse_responses_request, has_named_events=True)

_JSON_PATHS = {"/embeddings", "/completions"}


def parse_unrouted_request(body: Mapping[str, Json]) -> ChatRequest:
    """Parse only `model` and `stream`; raises InvalidRequestError."""
    return ChatRequest(read_model(body), read_stream(body), Conversation(turns=()))


def unrouted(path: str) -> Endpoint:
    """Return an endpoint whose requests must name a model of the pool."""
    return Endpoint(path, parse_unrouted_request, is_routed=False, is_json=path in _JSON_PATHS)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request body, parsed once for every release and log that reads it."""

    endpoint: Endpoint
    chat: ChatRequest
    requirements: Requirements
    body: BodyTemplate
    """The body with a placeholder for the model's name."""
    _raw: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """Hash of the body as the client sent it; computed on each call, because only logs ask."""
        return sha256(self._raw).hexdigest()

    @property
    def conversation_id(self) -> str:
        """Hash of the conversation's opening, equal for all its turns: 32 hexadecimal digits."""
        opening = "\0".join(self.chat.conversation.opening).encode(errors="surrogatepass")
        return sha256(opening).hexdigest()[:32]


_PARSED_BYTES = 2_000
"""Approximate memory of a parsed request without its body and texts. Tools are shared."""
_parsed: Cache[tuple[Endpoint, bytes], ParsedRequest] = Cache(max_bytes=12 * 2**20)
"""The same body comes again if a client samples answers or retries; parsing takes 0.15 ms."""


def parse_request(endpoint: Endpoint, body: bytes) -> ParsedRequest:
    """Return the parsed body, from the cache if there is one; raises InvalidRequestError."""
    request = _parsed.get((endpoint, body))
    if request is None:
        decoded = decode_object(body)
        chat = endpoint.parse(decoded)
        requirements = read_requirements(decoded, chat.conversation, endpoint.path)
        request = ParsedRequest(endpoint, chat, requirements, BodyTemplate.of(body), body)
        _parsed.put((endpoint, body), request, _PARSED_BYTES + 2 * len(body))
    return request
