"""What the routed endpoints of the API have in common, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from router_service.core.messages import ChatRequest, Json, parse_chat_request


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One routed endpoint; `path` is below `/v1` here, and below the upstream's base URL."""

    path: str
    parse: Callable[[Mapping[str, Json]], ChatRequest]
    """Reads a decoded body; raises InvalidRequestError."""


CHAT = Endpoint("/chat/completions", parse_chat_request)
