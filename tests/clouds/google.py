"""Google's token endpoint and Vertex AI, which check the assertions of service accounts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from router_service.apis.parts import Text, ToolUse
from tests.apis import CHAT, MESSAGES, Api
from tests.providers.answers import Reply

EMAIL = "gateway@my-project.iam.gserviceaccount.com"
PROJECT = "my-project"


@cache
def _private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def service_account(token_uri: str) -> str:
    """Return the JSON of a service account's key, as Google's console writes it."""
    pem = _private_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return json.dumps(
        {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "0123456789",
            "private_key": pem.decode(),
            "client_email": EMAIL,
            "client_id": "1234567890",
            "token_uri": token_uri,
            "universe_domain": "googleapis.com",
        }
    )


@dataclass
class Google:
    """An ASGI app with a token endpoint at `/token`, and Vertex AI at `/v1/projects/`."""

    parts: Sequence[Text | ToolUse] = (Text("Hello from Vertex AI"),)
    failures: list[tuple[int, Any]] = field(default_factory=list)
    """Statuses and bodies of the next answers of Vertex AI."""
    tokens: list[str] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Path, body and headers of each request to Vertex AI."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
        """Answer one request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/token":
            return await self._token(request)
        return await self._predict(request, path)

    async def _predict(self, request: Request, path: str) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            return _error(401, "UNAUTHENTICATED", "Request had invalid credentials.")
        if self.failures:
            status, body = self.failures.pop(0)
            return JSONResponse(body, status)
        body = await request.json()
        self.asked.append((path, body, dict(request.headers)))
        base = f"/v1/projects/{PROJECT}/locations/"
        assert path.startswith(base), path
        place = path.removeprefix(base).partition("/")[2]
        if place == "publishers/anthropic/models/count-tokens:rawPredict":
            return JSONResponse({"input_tokens": 42})
        dialect: Api = CHAT
        if place == "endpoints/openapi/chat/completions":
            model, streams = body["model"], body.get("stream") is True
            is_valid = "/" in model
        else:
            model, _, method = place.removeprefix("publishers/anthropic/models/").partition(":")
            dialect, streams = MESSAGES, method == "streamRawPredict"
            is_valid = (
                "model" not in body
                and body.get("anthropic_version") == "vertex-2023-10-16"
                and streams == (body.get("stream") is True)
            )
        if not is_valid:
            return _error(400, "INVALID_ARGUMENT", "Request contains an invalid argument.")
        reply = Reply(dialect, model, self.parts, len(self.asked))
        events = StreamingResponse(iter(reply.events()), media_type="text/event-stream")
        return events if streams else JSONResponse(reply.whole())

    async def _token(self, request: Request) -> Response:
        """Give a token for a valid assertion of the service account (RFC 7523)."""
        form = dict(pair.split("=", 1) for pair in (await request.body()).decode().split("&"))
        claims = jwt.decode(
            form["assertion"],
            _private_key().public_key(),
            algorithms=["RS256"],
            audience="https://oauth2.googleapis.com/token",  # whatever the address is
        )
        assert claims["iss"] == EMAIL
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        token = f"ya29.access-token-of-the-gateway-{len(self.tokens):08d}"
        self.tokens.append(token)
        return JSONResponse({"access_token": token, "expires_in": 3600, "token_type": "Bearer"})


def _error(status: int, name: str, message: str) -> Response:
    return JSONResponse([{"error": {"code": status, "message": message, "status": name}}], status)
