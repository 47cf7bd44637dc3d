"""Google Vertex AI: Gemini by Chat Completions, Claude by Messages, and google-auth's tokens."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import quote

from router_service.apis.chat.api import CHAT
from router_service.apis.messages.api import MESSAGES
from router_service.settings import Deployment
from router_service.settings.platforms import Vertex
from router_service.upstream.connection import HttpRequest, RawHeaders
from router_service.upstream.platforms.credentials import Credentials, CredentialSource
from router_service.upstream.platforms.platform import (
    PlatformClient,
    known_betas,
    messages_body,
    without_headers,
)

VERSION = "vertex-2023-10-16"
"""Version of the Messages API (Anthropic: "Claude on Vertex AI")."""

SCOPE = "https://www.googleapis.com/auth/cloud-platform"

BETAS = dict.fromkeys(
    "compact-2026-01-12 compact-2026-09-04 computer-use-2025-01-24 computer-use-2025-11-24 "
    "context-1m-2025-08-07 context-management-2025-06-27 interleaved-thinking-2025-05-14 "
    "thinking-display-updates-2026-08-18 tool-search-tool-2025-10-19 web-search-2025-03-05".split()
)
KNOWN_BETAS = {name: name for name in BETAS} | {
    "advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"
}
"""Betas of Messages that Vertex AI has, by Anthropic's names."""

REMEDY = (
    "Check vertex_credentials, or GOOGLE_APPLICATION_CREDENTIALS, or the identity of this machine,"
    " and that it has the role Vertex AI User"
)


class VertexClient(PlatformClient):
    """Requests to Vertex AI with the access tokens of one identity."""

    title = "Google Vertex AI"

    def __init__(self, platform: Vertex) -> None:
        given = platform.credentials
        self._given = None if given is None else given.get_secret_value()
        self.credentials: CredentialSource[RawHeaders] = CredentialSource(
            self.title, self._fetch, REMEDY, secrets=_private_texts(self._given)
        )

    def prepare(self, deployment: Deployment, request: HttpRequest) -> None:
        """Address a request to a publisher's model, or to the API that is compatible with OpenAI's.

        Vertex AI has no other endpoint in the form of OpenAI's API.
        """
        base, headers = deployment.base_url, request.headers
        if request.path == CHAT.path and CHAT in deployment.apis:
            request.url = f"{base}/endpoints/openapi{CHAT.path}"
        elif request.path in {MESSAGES.path, MESSAGES.counting_path} and (
            MESSAGES in deployment.apis
        ):
            models = f"{base}/publishers/anthropic/models"
            betas = known_betas(headers, KNOWN_BETAS)
            headers = without_headers(headers, b"anthropic-version", b"anthropic-beta")
            if betas:
                headers = [*headers, (b"anthropic-beta", ",".join(betas).encode())]
            if request.path == MESSAGES.path:
                request.body, is_streamed = messages_body(request, VERSION, keeps_stream=True)
                model = quote(deployment.upstream_model, safe="@")
                operation = "streamRawPredict" if is_streamed else "rawPredict"
                request.url = f"{models}/{model}:{operation}"
            else:
                request.url = f"{models}/count-tokens:rawPredict"
        else:
            raise self.lacks(request)
        found = self.credentials.current()
        request.headers = [*headers, *(found.value if found else [])]

    def _fetch(self) -> Credentials[RawHeaders]:
        from google import auth  # noqa: PLC0415 - an extra
        from google.auth.transport.requests import Request  # noqa: PLC0415 - an extra

        found = self._given or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        self.credentials.note_secrets(*_private_texts(found))
        credentials: Any
        if self._given is None:
            credentials, _ = auth.default(scopes=[SCOPE])
        else:
            credentials = _load(_info(self._given))
        credentials.refresh(Request())
        token = str(credentials.token)
        headers = [(b"authorization", b"Bearer " + token.encode())]
        project = getattr(credentials, "quota_project_id", None)
        if project:
            headers.append((b"x-goog-user-project", str(project).encode()))
        expires = credentials.expiry.replace(tzinfo=UTC).timestamp()
        return Credentials(headers, (token,), expires)


def _load(info: dict[str, Any]) -> Any:  # noqa: ANN401 - google-auth has no annotations
    if info.get("type") == "service_account":
        from google.oauth2 import service_account  # noqa: PLC0415 - an extra

        load: Any = service_account.Credentials.from_service_account_info
        return load(info, scopes=[SCOPE])
    # Deprecated, because it is dangerous for credentials from strangers. These are the operator's.
    from google.auth import load_credentials_from_dict  # noqa: PLC0415 - an extra

    load = load_credentials_from_dict
    return load(info, scopes=[SCOPE])[0]


def _info(given: str) -> dict[str, Any]:
    """Return the decoded credentials; the file is read again each time, because it may change."""
    if not given.lstrip().startswith("{"):
        with open(given, encoding="utf-8") as file:  # noqa: PTH123 - read in a thread
            given = file.read()
    info: dict[str, Any] = json.loads(given)
    return info


def _private_texts(given: str | None) -> tuple[str, ...]:
    """Return the secrets in credentials, and in the file with a token that they name.

    Return nothing if the credentials cannot be read; google-auth reports what is wrong with them.
    """
    if given is None:
        return ()
    texts: list[object] = []
    with suppress(OSError, ValueError, AttributeError):
        info = _info(given)
        texts += map(info.get, ("private_key", "refresh_token", "client_secret"))
        file = (info.get("credential_source") or {}).get("file")
        if file is not None:
            texts.append(Path(file).read_text(encoding="utf-8").strip())
    return tuple(text for text in texts if isinstance(text, str))
