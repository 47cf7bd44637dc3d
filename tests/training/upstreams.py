"""Upstreams whose models answer as a test says, and a gateway that follows its publication."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_service.apis.conversation import Json
from router_service.runtime.engine import EngineBuilder
from router_service.runtime.reloading import ReloadSource
from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests.serving import served

Answer = Callable[[dict[str, Any]], Mapping[str, Json] | None]
"""Returns the message that answers a request's body, or None if there is no such model."""


def calling(name: str, arguments: str) -> dict[str, Json]:
    """Return a message with one call."""
    call = {"id": "call_9", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


class ModelUpstream:
    """A provider with any models. After `limit` requests, it answers no further ones."""

    def __init__(
        self, answer: Answer, *, prompt_tokens: int = 90, completion_tokens: int = 20
    ) -> None:
        self.asked: Counter[str] = Counter()
        self.limit = 1_000_000
        self._answer = answer
        self._usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        route = Route("/v1/chat/completions", self._respond, methods=["POST"])
        self.app = Starlette(routes=[route])

    async def _respond(self, request: Request) -> JSONResponse:
        body = await request.json()
        model = body["model"]
        message = self._answer(body)
        if message is None:
            error = {"message": "no such model", "code": "model_not_found"}
            return JSONResponse({"error": error}, 404)
        self.asked[model] += 1
        while self.asked.total() > self.limit:  # noqa: ASYNC110 - a test raises the limit
            await asyncio.sleep(0.02)
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": model}
        return JSONResponse({**head, "choices": [choice], "usage": self._usage})


def gateway(config: Path) -> AbstractContextManager[str]:
    """Return a context that serves a configuration, as `serve` does, and yields its address."""
    settings, builder = read_settings(config), EngineBuilder()
    router, publication = builder.first_router(settings)
    source = ReloadSource(lambda: read_settings(config), builder, publication)
    return served(create_app(settings, router, source))


def published(http: httpx.Client) -> dict[str, Any]:
    """Return the publication that a gateway serves."""
    found: dict[str, Any] = http.get("/admin/status").json()["publication"]
    return found
