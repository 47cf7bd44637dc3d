"""Amazon Bedrock: its addresses, signatures (SigV4), event streams and errors."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import ReadOnlyCredentials
from botocore.eventstream import EventStreamBuffer
from botocore.session import Session

from router_service.apis.converse.answer_reader import STATUSES
from router_service.apis.converse.api import CONVERSE
from router_service.apis.messages.api import MESSAGES
from router_service.settings import Deployment
from router_service.settings.platforms import Bedrock, secret_texts
from router_service.upstream.bodies import decode_json
from router_service.upstream.connection import (
    ConnectionFault,
    HttpRequest,
    HttpResponse,
    RawHeaders,
)
from router_service.upstream.platforms.credentials import (
    Credentials,
    CredentialSource,
    secrets_of_environment,
)
from router_service.upstream.platforms.platform import (
    AdaptedResponse,
    PlatformClient,
    known_betas,
    messages_body,
    without_fields,
    without_headers,
)

VERSION = "bedrock-2023-05-31"
"""Version of the Messages API (AWS: "Anthropic Claude Messages API")."""

SERVICE = "bedrock"
"""Name of the service in signatures."""

EVENT_STREAM = b"application/vnd.amazon.eventstream"

KNOWN_BETAS = {
    name: name
    for name in (
        "compact-2026-01-12 computer-use-2025-01-24 computer-use-2025-11-24 context-1m-2025-08-07 "
        "context-management-2025-06-27 effort-2025-11-24 fine-grained-tool-streaming-2025-05-14 "
        "interleaved-thinking-2025-05-14 thinking-display-updates-2026-08-18 "
        "tool-examples-2025-10-29 tool-search-tool-2025-10-19"
    ).split()
} | {"advanced-tool-use-2025-11-20": "tool-search-tool-2025-10-19"}
"""Betas of Messages that Bedrock has, by Anthropic's names."""

ERROR_TYPES = {
    400: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's types for errors within a stream; others are an `api_error`."""

MAX_EVENT_BYTES = 1024 * 1024
"""Longest message of an event stream; botocore's own limit is 24 MB."""

_SPACES = bytes.maketrans(b"\r\n", b"  ")
"""Ends of lines as spaces, because they would end the data of a server-sent event."""

MAX_ERROR_BYTES = 256 * 1024

RENEW_S = 600.0
"""How often credentials without an end are looked up again, because programs replace them in
files."""

SECRET_VARIABLES = (
    "AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_WEB_IDENTITY_TOKEN_FILE "
    "AWS_CONTAINER_AUTHORIZATION_TOKEN AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
).split()
"""Secrets that botocore reads from the environment, and from the files that it names."""

STS_CONFIG = {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 2}}

REMEDY = (
    "Check the settings that begin with aws_, or what AWS's chain of credentials finds on this"
    " machine: environment, profile, container or instance role"
)


class BedrockClient(PlatformClient):
    """Requests to Bedrock in one region, signed with the credentials of one account."""

    title = "Amazon Bedrock"

    def __init__(self, platform: Bedrock) -> None:
        self._platform = platform
        self.credentials: CredentialSource[ReadOnlyCredentials] | None = None
        if not platform.has_key:
            self.credentials = CredentialSource(
                self.title, self._fetch, REMEDY, secrets=secret_texts(platform)
            )

    def prepare(self, deployment: Deployment, request: HttpRequest) -> None:
        """Sign a request to invoke a model, or to converse with it.

        The signature of a small body takes 0.1 ms, and of 1 MB 0.9 ms.
        """
        if request.path == MESSAGES.path:
            betas = known_betas(request.headers, KNOWN_BETAS)
            request.headers = without_headers(
                request.headers, b"anthropic-version", b"anthropic-beta"
            )
            request.body, is_streamed = messages_body(
                request, VERSION, keeps_stream=False, betas=betas
            )
            operation = "invoke-with-response-stream" if is_streamed else "invoke"
        elif request.path == CONVERSE.path:
            request.body, is_streamed = without_fields(request, "model", "stream")
            operation = "converse-stream" if is_streamed else "converse"
        else:
            raise self.lacks(request)
        model = quote(deployment.upstream_model, safe="")
        request.url = f"{deployment.base_url}/model/{model}/{operation}"
        if self.credentials is not None and (found := self.credentials.current()) is not None:
            signed = {"content-type": "application/json"}
            aws_request = AWSRequest(request.method, request.url, signed, request.body)
            SigV4Auth(found.value, SERVICE, self._platform.region).add_auth(aws_request)
            request.headers = [
                *without_headers(request.headers, b"content-type"),
                *(
                    (name.lower().encode(), value.encode())
                    for name, value in aws_request.headers.items()
                ),
            ]

    def read(self, response: HttpResponse, request: HttpRequest) -> HttpResponse:
        """Return a response with server-sent events, and errors with the status that they mean."""
        headers = dict(response.headers)
        if response.status >= 400:
            kind = headers.get(b"x-amzn-errortype", b"").decode("latin-1").partition(":")[0]
            status = STATUSES.get(kind.lower(), response.status)
            if status in {401, 403}:
                self.note_refusal()
                status = 401
            rest = without_headers(response.headers, b"content-length")
            return ErrorResponse(status, rest, response, kind)
        if headers.get(b"content-type", b"").lower().startswith(EVENT_STREAM):
            return EventStreamResponse(response, request)
        return response

    def _fetch(self) -> Credentials[ReadOnlyCredentials]:
        platform, identity = self._platform, None
        if platform.web_identity_token is not None:
            identity = _web_identity(platform.web_identity_token.get_secret_value())
        if self.credentials is not None:
            ambient = secrets_of_environment(*SECRET_VARIABLES)
            self.credentials.note_secrets(*ambient, identity or "")
        session = Session(profile=platform.profile)
        if platform.access_key_id is not None and platform.secret_access_key is not None:
            token = platform.session_token
            session.set_credentials(
                platform.access_key_id,
                platform.secret_access_key.get_secret_value(),
                None if token is None else token.get_secret_value(),
            )
        if platform.role is not None and not _is_own_role(platform.role):
            return _assume_role(session, platform, platform.role, identity)
        found = session.get_credentials()
        if found is None:
            raise LookupError("AWS's chain of credentials has none")
        frozen = found.get_frozen_credentials()
        expires: datetime | None = getattr(found, "_expiry_time", None)
        return _credentials(frozen.access_key, frozen.secret_key, frozen.token, expires)


def _is_own_role(role: str) -> bool:
    """Return whether a role is the one of this pod (EKS), which the chain assumes by itself."""
    return role == os.environ.get("AWS_ROLE_ARN") and "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ


def _assume_role(
    session: Session, platform: Bedrock, role: str, identity: str | None
) -> Credentials[ReadOnlyCredentials]:
    """Ask AWS's Security Token Service for the credentials of a role.

    The web identity token `identity` authenticates, or else the session's credentials.
    """
    wanted: dict[str, Any] = {"RoleArn": role, "RoleSessionName": platform.session_name}
    config = Config(**STS_CONFIG)
    if identity is not None:
        config = config.merge(Config(signature_version=UNSIGNED))
    sts = session.create_client(
        "sts", region_name=platform.region, endpoint_url=platform.sts_endpoint, config=config
    )
    if identity is not None:
        wanted["WebIdentityToken"] = identity
        given = sts.assume_role_with_web_identity(**wanted)["Credentials"]
    else:
        if platform.external_id is not None:
            wanted["ExternalId"] = platform.external_id
        given = sts.assume_role(**wanted)["Credentials"]
    return _credentials(
        given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], given["Expiration"]
    )


def _credentials(
    access_key: str, secret_key: str, token: str | None, expires: datetime | None
) -> Credentials[ReadOnlyCredentials]:
    value = ReadOnlyCredentials(access_key, secret_key, token)
    secrets = (secret_key, token) if token else (secret_key,)
    now_s = datetime.now().astimezone().timestamp()
    if expires is None:
        return Credentials(value, secrets, renew_s=now_s + RENEW_S)
    return Credentials(value, secrets, expires.timestamp())


def _web_identity(reference: str) -> str:
    """Return the token that a setting names; files are read again, because they are renewed."""
    kind, _, name = reference.removeprefix("oidc/").partition("/")
    if reference.startswith("oidc/") and kind == "env":
        return os.environ[name]
    if reference.startswith("oidc/") and kind == "env_path":
        return Path(os.environ[name]).read_text(encoding="utf-8").strip()
    if reference.startswith("oidc/file/"):
        return Path(reference.removeprefix("oidc/file/")).read_text(encoding="utf-8").strip()
    if reference.startswith("/"):
        return Path(reference).read_text(encoding="utf-8").strip()
    return reference


class ErrorResponse(AdaptedResponse):
    """An error of AWS, with its name in the body instead of in a header."""

    def __init__(self, status: int, headers: RawHeaders, response: HttpResponse, kind: str) -> None:
        super().__init__(status, headers, response)
        self._kind = kind
        self._is_read = False

    async def read(self) -> bytes:
        """Return the whole body at once, and then no bytes."""
        if self._is_read:
            return b""
        self._is_read = True
        body = bytearray()
        while len(body) <= MAX_ERROR_BYTES and (part := await self.response.read()):
            body += part
        value = decode_json(bytes(body))
        if not isinstance(value, dict):
            return bytes(body)
        message = value.get("message", value.get("Message"))
        error = {"message": message, "type": self._kind or value.get("__type")}
        return orjson.dumps({"error": error})


class EventStreamResponse(AdaptedResponse):
    """A binary event stream of AWS as server-sent events."""

    def __init__(self, response: HttpResponse, request: HttpRequest) -> None:
        kept = without_headers(response.headers, b"content-type", b"content-length")
        if any(name == b"content-length" for name, _ in response.headers):
            # Whoever reads the events must know that they have an end.
            kept.append((b"transfer-encoding", b"chunked"))
        super().__init__(
            response.status, [*kept, (b"content-type", b"text/event-stream")], response
        )
        self._model, self._is_messages = request.model, request.path == MESSAGES.path
        self._buffer = EventStreamBuffer()
        self._held_bytes = 0
        """Bytes of a message that has not arrived completely."""

    async def read(self) -> bytes:
        """Return the next events, or no bytes after the last one."""
        while True:
            part = await self.response.read()
            if not part:
                if self._held_bytes:
                    raise ConnectionFault.PROTOCOL.error(
                        self._model, "the stream ended within an event"
                    )
                return b""
            events = self._events(part)
            if self._held_bytes > MAX_EVENT_BYTES:
                problem = f"an event has more than {MAX_EVENT_BYTES} bytes"
                raise ConnectionFault.PROTOCOL.error(self._model, problem)
            if events:
                return events

    def _events(self, part: bytes) -> bytes:
        self._buffer.add_data(part)
        self._held_bytes += len(part)
        written: list[bytes] = []
        try:
            for message in self._buffer:
                self._held_bytes -= message.prelude.total_length
                written.append(
                    _write_event(message.headers, message.payload, is_messages=self._is_messages)
                )
        except Exception as exc:  # whatever the upstream sends, reading it is its failure
            raise ConnectionFault.PROTOCOL.error(
                self._model, f"an event cannot be read: {exc}"
            ) from exc
        return b"".join(written)


def _write_event(headers: Mapping[str, Any], payload: bytes, *, is_messages: bool) -> bytes:
    """Return a message of an event stream as a server-sent event.

    An InvokeModel stream has Anthropic's events in chunks. The events of a ConverseStream have
    their names in a header; here they become objects with the name as their only key. So do its
    exceptions, and those of an InvokeModel stream become Anthropic's errors.
    """
    kind = headers.get(":message-type")
    if kind == "event" and is_messages:
        if headers[":event-type"] != "chunk":
            return b""
        data = base64.b64decode(orjson.loads(payload)["bytes"])
        return _event(orjson.loads(data)["type"], data)
    if kind == "event":
        return _event("", b"{%b:%b}" % (orjson.dumps(headers[":event-type"]), payload))
    name = str(headers[":exception-type" if kind == "exception" else ":error-code"])
    said = headers.get(":error-message")
    if kind == "exception":
        said = orjson.loads(payload).get("message")
    message = said if isinstance(said, str) and said else name
    if not is_messages:
        return _event("", orjson.dumps({name: {"message": message}}))
    error = {"type": ERROR_TYPES.get(STATUSES.get(name.lower(), 500), "api_error")}
    return _event("error", orjson.dumps({"type": "error", "error": {**error, "message": message}}))


def _event(name: str, data: bytes) -> bytes:
    if not name.isprintable():
        raise ValueError("an event has an unusual type")
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + data.translate(_SPACES) + b"\n\n"
