"""Providers whose answers a test scripts, in all APIs that the gateway asks in, with faults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from router_service.apis.parts import Thinking
from tests import apis
from tests.apis import APIS, UpstreamApi
from tests.providers.answers import Reply, Written, event
from tests.providers.requests import ProviderRequest, RejectedError, read

EVENTS_BEFORE_FAULT = 5
"""How many events of the output precede a fault in the middle of an answer."""

ERROR_MESSAGE = "The scripted provider fails."


class Fault(StrEnum):
    """How an answer fails."""

    RATE_LIMIT = "a rate limit"
    SERVER_ERROR = "a server error"
    OVERLOADED = "an overloaded provider"
    ERROR_EVENT = "an error event"
    FAILURE_EVENT = "an event that says that the answer failed"
    BROKEN_CONNECTION = "a broken connection"
    EARLY_END = "an end without the last events"
    HALF_EVENT = "an end in the middle of an event"
    CUT_EVENT = "an event that is cut off, with others after it"
    NO_OBJECT = "an event that is not an object"
    FOREIGN_EVENT = "an event of another API"
    ERROR_BODY = "an error as JSON instead of a stream"

    @property
    def status(self) -> int | None:
        """The status of an answer that is an error as a whole."""
        statuses = {Fault.RATE_LIMIT: 429, Fault.SERVER_ERROR: 500, Fault.OVERLOADED: 529}
        return statuses.get(self)


@dataclass(frozen=True)
class Play:
    """What the model of a provider answers to one request."""

    parts: Sequence[Written]
    fault: Fault | None = None
    before_output: bool = True
    """Whether the fault comes before the first output, or in the middle of the answer."""


class Provider:
    """A provider: an ASGI app with all APIs. `asked` keeps the requests that it has accepted.

    A signature or encrypted content is valid only for the text and the provider's name for which it
    was made. `is_lenient` says whether chat messages may have a `reasoning_content`, and ids of any
    length, as at DeepSeek and vLLM and unlike at OpenAI, Groq and Mistral.
    """

    def __init__(
        self,
        play: Callable[[ProviderRequest], Play],
        name: str = "provider",
        *,
        is_lenient: bool = True,
    ) -> None:
        self._play = play
        self._name = name
        self._is_lenient = is_lenient
        self.asked: list[ProviderRequest] = []
        self.rejected: list[str] = []

    def prove(self, text: str) -> str:
        """Return the proof of a text of reasoning."""
        digest = hashlib.sha256(f"{self._name}\0{text}".encode()).hexdigest()
        return f"Ep{self._name}+{digest}/=="

    def _is_proof(self, text: str, proof: str) -> bool:
        return proof == self.prove(text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        content = await Request(scope, receive).body()
        path = scope["path"]
        dialect = next(each for each in APIS.of_upstreams if path.endswith(each.path))
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        connection = _Connection(send)
        try:
            asked = read(dialect, headers, json.loads(content), self._is_proof, self._is_lenient)
        except RejectedError as exc:
            self.rejected.append(str(exc))
            error = error_body(dialect, 400, str(exc))
            await connection.send(400, "application/json", [json.dumps(error).encode()])
            return
        self.asked.append(asked)
        played = self._play(asked)
        parts = [
            replace(part, proof=part.proof or self.prove(part.text))
            if isinstance(part, Thinking)
            else part
            for part in played.parts
        ]
        reply = Reply(dialect, asked.body["model"], parts, len(self.asked))
        await _send(connection, asked, reply, replace(played, parts=parts))


async def _send(connection: _Connection, asked: ProviderRequest, reply: Reply, play: Play) -> None:
    """Send a reply with the fault that the script has for it."""
    dialect, fault = asked.dialect, play.fault
    if fault is Fault.ERROR_BODY or (fault is not None and fault.status is not None):
        status = fault.status or 500
        if status == 529 and dialect is not apis.MESSAGES:
            status = 503
        error = json.dumps(error_body(dialect, status, ERROR_MESSAGE)).encode()
        sent_status = 200 if fault is Fault.ERROR_BODY else status
        await connection.send(sent_status, "application/json", [error])
        return
    if not asked.is_streamed:
        content = json.dumps(reply.whole()).encode()
        parts = [content] if fault is None else [content[: len(content) // 2]]
        ends = fault is not Fault.BROKEN_CONNECTION
        await connection.send(200, "application/json", parts, ends=ends)
        return
    events = reply.events()
    if not asked.body.get("stream_options", {}).get("include_usage"):
        events = [each for each in events if b'"choices": [], "usage"' not in each]
    if fault is None:
        await connection.send(200, "text/event-stream", events)
        return
    await _send_broken(connection, reply, events, play)


async def _send_broken(
    connection: _Connection, reply: Reply, events: Sequence[bytes], play: Play
) -> None:
    """Send a stream that has a fault, in the middle after some pieces of the output."""
    dialect, fault = reply.dialect, play.fault
    begun = events[: reply.output_at + (0 if play.before_output else EVENTS_BEFORE_FAULT)]
    following = events[len(begun)]
    last: list[bytes] = []
    match fault:
        case Fault.ERROR_EVENT:
            last = [_error_event(dialect, len(begun))]
        case Fault.FAILURE_EVENT:
            last = [_failure_event(reply, len(begun))]
        case Fault.HALF_EVENT:
            last = [following[: len(following) // 2]]
        case Fault.CUT_EVENT:
            last = [following[: len(following) // 2] + b"\n\n", *events[len(begun) + 1 :]]
        case Fault.NO_OBJECT:
            name, mark, _ = following.partition(b"data: ")
            last = [name + mark + b'["text"]\n\n', *events[len(begun) + 1 :]]
        case Fault.FOREIGN_EVENT:
            other = apis.CHAT if dialect is apis.MESSAGES else apis.MESSAGES
            last = Reply(other, reply.model, reply.parts).events()
    ends = fault is not Fault.BROKEN_CONNECTION
    await connection.send(200, "text/event-stream", [*begun, *last], ends=ends)


class _Connection:
    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(
        self,
        status: int,
        content_type: str,
        parts: Sequence[bytes],
        *,
        ends: bool = True,
    ) -> None:
        """Send an answer. If it does not end, the server breaks the connection."""
        headers = [(b"content-type", content_type.encode()), (b"request-id", b"req_upstream")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        if ends:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def error_body(dialect: UpstreamApi, status: int, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    if dialect is apis.MESSAGES:
        error = {"type": ANTHROPIC_TYPES[status], "message": message}
        return {"type": "error", "error": error, "request_id": "req_upstream"}
    if dialect is apis.CONVERSE:
        return {"message": message}
    kind = "invalid_request_error" if status == 400 else "server_error"
    code = None
    if status == 429:
        kind, code = "requests", "rate_limit_exceeded"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _error_event(dialect: UpstreamApi, number: int) -> bytes:
    if dialect is apis.MESSAGES:
        return event(error_body(dialect, 529, ERROR_MESSAGE), "error")
    if dialect is apis.CHAT:
        return event(error_body(dialect, 500, ERROR_MESSAGE))
    if dialect is apis.CONVERSE:
        return event({"serviceUnavailableException": {"message": ERROR_MESSAGE}})
    error = {"code": "server_error", "message": ERROR_MESSAGE, "param": None}
    return event({"type": "error", "sequence_number": number, **error}, "error")


def _failure_event(reply: Reply, number: int) -> bytes:
    """Return the event with which a provider says that the answer has failed.

    Responses and Converse have an event for it, OpenRouter and Mistral have a `finish_reason`, and
    Messages has only the error event.
    """
    if reply.dialect is apis.CONVERSE:
        return event({"modelStreamErrorException": {"message": ERROR_MESSAGE}})
    if reply.dialect is apis.MESSAGES:
        return event(error_body(reply.dialect, 500, ERROR_MESSAGE), "error")
    if reply.dialect is apis.CHAT:
        choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
        head = {"id": f"chatcmpl-{reply.number}", "object": "chat.completion.chunk"}
        error = error_body(reply.dialect, 500, ERROR_MESSAGE)
        return event({**head, "created": 1, "model": reply.model, "choices": [choice], **error})
    error = {"code": "server_error", "message": ERROR_MESSAGE}
    response = reply.whole() | {"status": "failed", "error": error, "output": []}
    name = "response.failed"
    return event({"type": name, "sequence_number": number, "response": response}, name)
