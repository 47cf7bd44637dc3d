"""Amazon Bedrock and AWS's Security Token Service, which check signatures with botocore itself."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from router_service.apis.parts import Text, ToolUse
from tests.apis import CONVERSE, MESSAGES
from tests.bedrock import problems_of_request
from tests.providers.answers import Reply, data_of

REGION = "us-west-2"
KEY = ("AKIDEXAMPLE0000000001", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY01")
"""Id and secret of a key that does not expire."""

MESSAGES_FIELDS = frozenset(
    "anthropic_beta anthropic_version context_management max_tokens messages metadata "
    "output_config stop_sequences system temperature thinking tool_choice tools top_k top_p".split()
)
"""Fields of a Messages request that Bedrock knows; it refuses others."""


def event_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a message of a binary event stream (AWS: "Event stream encoding")."""
    head = b""
    for name, value in headers.items():
        head += bytes([len(name)]) + name.encode()
        head += b"\x07" + struct.pack(">H", len(value.encode())) + value.encode()
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return message + struct.pack(">I", zlib.crc32(message))


def chunk(data: Mapping[str, Any]) -> bytes:
    """Return one event of Anthropic's in an InvokeModel stream."""
    encoded = base64.b64encode(json.dumps(data).encode()).decode()
    payload = json.dumps({"bytes": encoded, "p": "abcdefghij"}).encode()
    return event_message(
        {
            ":event-type": "chunk",
            ":content-type": "application/json",
            ":message-type": "event",
        },
        payload,
    )


def converse_event(name: str, value: Mapping[str, Any]) -> bytes:
    """Return one event of a ConverseStream, or the exception that ends it."""
    kind = "exception" if name.endswith("Exception") else "event"
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return event_message(headers, json.dumps(value).encode())


@dataclass
class Asked:
    """A request that Bedrock has accepted."""

    model: str
    operation: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    key_id: str


class AwsError(Exception):
    """An error that AWS answers with."""

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.name, self.message = status, name, message


Answer = Sequence[Text | ToolUse]


@dataclass
class Aws:
    """An ASGI app with Bedrock at `/model/`, and STS at `/`.

    Only signatures by `keys` are accepted: secrets and session tokens by the keys' ids.
    """

    parts: Answer = (Text("Hello from Bedrock"),)
    """What the model answers."""
    failures: list[AwsError] = field(default_factory=list)
    """Answers of the next requests, instead of the model's."""
    events: Callable[[list[bytes]], Iterable[bytes]] = lambda events: events
    """What becomes of the messages of a stream."""
    lifetime_s: float = 3600.0
    """How long the credentials that STS gives live."""
    keys: dict[str, tuple[str, str | None]] = field(
        default_factory=lambda: {KEY[0]: (KEY[1], None)}
    )
    asked: list[Asked] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    sts_calls: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI
        """Answer one request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except AwsError as exc:
            self.refused.append(f"{exc.name}: {exc.message}")
            response = JSONResponse(
                {"message": exc.message},
                exc.status,
                {"x-amzn-errortype": f"{exc.name}:http://internal.amazon.com/coral/"},
            )
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        path = request.scope["raw_path"].decode()
        if path == "/":
            return self._security_token(request, body)
        _, _, model, operation = path.split("/")
        key_id = self._check(request, body, "bedrock")
        asked = Asked(unquote(model), operation, json.loads(body), request.headers, key_id)
        if self.failures:
            raise self.failures.pop(0)
        self._validate(asked)
        self.asked.append(asked)
        parts = self.parts
        if operation.startswith("converse"):
            return self._converse(asked, parts)
        reply = Reply(MESSAGES, asked.model, parts, len(self.asked))
        if operation == "invoke":
            return JSONResponse(reply.whole())
        return self._stream([chunk(data_of(event)) for event in reply.events()])

    def _stream(self, messages: list[bytes]) -> Response:
        media_type = "application/vnd.amazon.eventstream"
        return StreamingResponse(_parts(self.events(messages)), media_type=media_type)

    def _converse(self, asked: Asked, parts: Answer) -> Response:
        reply = Reply(CONVERSE, asked.model, parts, len(self.asked))
        if asked.operation == "converse":
            return JSONResponse(reply.whole())
        events = (data_of(event).items() for event in reply.events())
        return self._stream([converse_event(name, value) for ((name, value),) in events])

    def _validate(self, asked: Asked) -> None:
        """Check a request as Bedrock's service model, or Anthropic's models there, do."""
        if asked.operation.startswith("converse"):
            streams = asked.operation == "converse-stream"
            problems = problems_of_request({**asked.body, "model": asked.model, "stream": streams})
            if problems:
                raise AwsError(400, "ValidationException", str(problems))
            return
        unknown = asked.body.keys() - MESSAGES_FIELDS
        if unknown:
            text = f"{min(unknown)}: Extra inputs are not permitted"
            raise AwsError(400, "ValidationException", text)
        if asked.body.get("anthropic_version") != "bedrock-2023-05-31":
            raise AwsError(400, "ValidationException", "anthropic_version: Field required")

    def _check(self, request: Request, body: bytes, service: str) -> str:
        """Return the id of the key that signed a request, which is computed again by botocore."""
        authorization = request.headers.get("authorization", "")
        if not authorization.startswith("AWS4-HMAC-SHA256 "):
            raise AwsError(403, "MissingAuthenticationTokenException", "Missing authentication")
        fields = dict(
            each.strip().split("=", 1)
            for each in authorization.removeprefix("AWS4-HMAC-SHA256 ").split(",")
        )
        key_id, _, region, signed_service, _ = fields["Credential"].split("/")
        if key_id not in self.keys:
            raise AwsError(403, "UnrecognizedClientException", "The security token is invalid.")
        secret, token = self.keys[key_id]
        if request.headers.get("x-amz-security-token") != token:
            raise AwsError(403, "UnrecognizedClientException", "The security token is invalid.")
        query = request.scope["query_string"].decode()
        url = f"http://{request.headers['host']}{request.scope['raw_path'].decode()}"
        names = fields["SignedHeaders"].split(";")
        again = AWSRequest(
            request.method,
            url + (f"?{query}" if query else ""),
            {name: request.headers[name] for name in names},
            body,
        )
        again.context["timestamp"] = request.headers["x-amz-date"]
        auth = SigV4Auth(ReadOnlyCredentials(key_id, secret, token), service, REGION)
        text = auth.string_to_sign(again, auth.canonical_request(again))
        expected = auth.signature(text, again)
        if (region, signed_service) != (REGION, service) or fields["Signature"] != expected:
            raise AwsError(403, "InvalidSignatureException", "The signature does not match.")
        return key_id

    def _new_key(self) -> tuple[str, str, str, str]:
        """Return a temporary key's id, secret, session token and end."""
        number = len(self.keys)
        key_id = f"ASIAROLE{number:010d}"
        secret = f"temporary-secret-{number:016d}"
        token = f"session-token-{number:032d}"
        self.keys[key_id] = (secret, token)
        end = datetime.now(UTC) + timedelta(seconds=self.lifetime_s)
        return key_id, secret, token, end.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _security_token(self, request: Request, body: bytes) -> Response:
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        action = asked["Action"]
        if action == "AssumeRole":
            asked["key_id"] = self._check(request, body, "sts")
        elif (token := asked["WebIdentityToken"]) != "a-web-identity-token":
            raise AwsError(400, "InvalidIdentityToken", f"The token {token} is not valid.")
        self.sts_calls.append(asked)
        key_id, secret, token, end = self._new_key()
        text = (
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<{action}Result><Credentials><AccessKeyId>{key_id}</AccessKeyId>"
            f"<SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>"
            f"<Expiration>{end}</Expiration></Credentials></{action}Result></{action}Response>"
        )
        return Response(text, media_type="text/xml")


def _parts(messages: Iterable[bytes]) -> Iterator[bytes]:
    for message in messages:
        # Cut in the middle, so that messages arrive in parts.
        yield message[:40]
        yield message[40:]
