"""An authority of Entra ID, over TLS as azure-identity demands, and Azure OpenAI."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import trustme
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from router_service.apis.parts import Text
from tests.apis import CHAT
from tests.providers.answers import Reply
from tests.serving import WAIT_S, ThreadServer

TENANT = "11111111-2222-3333-4444-555555555555"
CLIENT = "66666666-7777-8888-9999-000000000000"
SECRET = "entra-client-secret~0123456789"


@dataclass
class Azure:
    """An ASGI app with a tenant's token endpoint, and a deployment of Azure OpenAI."""

    tokens: list[str] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
        """Answer one request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, content = request.url.path, await request.body()
        if path.endswith("/.well-known/openid-configuration"):
            base = f"{request.url.scheme}://{request.url.netloc}/{TENANT}"
            return JSONResponse(
                {
                    "token_endpoint": f"{base}/oauth2/v2.0/token",
                    "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                    "issuer": f"{base}/v2.0",
                }
            )
        if path == f"/{TENANT}/oauth2/v2.0/token":
            return self._token({n: v[0] for n, v in parse_qs(content.decode()).items()})
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens or "api-key" in request.headers:
            error = {"code": "401", "message": "Unauthorized. Access token is invalid."}
            return JSONResponse({"error": error}, 401)
        body = json.loads(content)
        self.asked.append((f"{path}?{request.url.query}", body, dict(request.headers)))
        reply = Reply(CHAT, "gpt-5.2", [Text("Hello from Azure")], len(self.asked))
        if body.get("stream"):
            return StreamingResponse(iter(reply.events()), media_type="text/event-stream")
        return JSONResponse(reply.whole())

    def _token(self, form: dict[str, str]) -> Response:
        if form["client_secret"] != SECRET or form["client_id"] != CLIENT:
            text = "AADSTS7000215: Invalid client secret provided."
            return JSONResponse({"error": "invalid_client", "error_description": text}, 401)
        assert form["scope"] == "https://cognitiveservices.azure.com/.default"
        token = f"entra-access-token-{len(self.tokens):024d}"
        self.tokens.append(token)
        return JSONResponse({"token_type": "Bearer", "expires_in": 3600, "access_token": token})


@contextmanager
def served_over_tls(app: Azure, folder: Path) -> Iterator[tuple[str, Path]]:
    """Serve an app over TLS; yield its host and port, and the certificate to trust."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
        ssl_certfile=str(folder / "server.pem"),
    )
    server = ThreadServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert server.ready.wait(WAIT_S), "the server has not started"
        yield f"localhost:{listener.getsockname()[1]}", folder / "authority.pem"
    finally:
        server.stop()
        thread.join(WAIT_S)
