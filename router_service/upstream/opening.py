"""The start of an upstream's answer: good enough to be passed on, or a failure like any other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from router_service.core.errors import Failure, UpstreamError, UpstreamRefusedError
from router_service.core.messages import Json
from router_service.settings import Deployment, Model
from router_service.upstream.client import Answer, Headers
from router_service.upstream.relay import EventReader, decoded, is_error

KEEP_ALIVE_HOLD_S = 5.0
"""How long comments before an answer's first event are held back, so that another deployment may
still answer; a client behind it waits for a sign of life longer than that."""

_UPSTREAMS_FAULT = {401, 402, 403, 407, 408, 409, 429}
"""Statuses below 500 that another deployment or model may not answer with: the operator's key or
account, a limit."""

_UNFIT_STATUSES = {404, 413}
"""A model that is not there, something that the request refers to, or too much of it. Clients can
cause these, so that they must not open a breaker for everyone else."""

_UNFIT_CODES = {"context_length_exceeded", "request_too_large", "string_above_max_length"}


@dataclass(slots=True)
class Opened:
    """An answer whose start is good: the whole of it, or the events that go on."""

    model: Model
    deployment: Deployment
    status: int
    headers: Headers
    body: bytes
    """All of it, or what has come of a stream so far."""
    reader: EventReader | None = None
    """Reads the rest of a stream; None of a whole answer."""
    value: Json = None
    """The whole body, decoded; None where it is not JSON."""


async def read_whole(answer: Answer, opened: Opened, *, expects_json: bool) -> None:
    """Read an answer that is no stream; raises UpstreamError where another may do better."""
    opened.body = await answer.read()
    if answer.status >= 400:
        opened.body = _without_key(opened.body, opened.deployment)
        _check_refusal(answer, opened.body)
        return
    opened.value = decoded(opened.body)
    if not (isinstance(opened.value, dict) or expects_json):
        return
    if opened.value is None:
        raise UpstreamError(answer.model, "answered what cannot be read", Failure.MALFORMED)
    if is_error(opened.value):
        problem = "answered with an error, by a good status"
        raise UpstreamError(answer.model, problem, Failure.ERROR_BODY)


async def start_stream(answer: Answer, opened: Opened) -> None:
    """Read events until the first that is part of the answer; raises UpstreamError before it."""
    reader = opened.reader = EventReader(answer)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async for part in reader.events:
        opened.body += part
        if reader.has_output or loop.time() > began_s + KEEP_ALIVE_HOLD_S:
            return
        if reader.error:
            raise reader.error
    raise UpstreamError(answer.model, "ended its answer before it began", Failure.BROKEN)


def refuses_stream_options(opened: Opened) -> bool:
    """Whether an upstream says that it does not know the option of a stream's usage."""
    return opened.status in {400, 422} and b"stream_options" in opened.body


def _without_key(body: bytes, deployment: Deployment) -> bytes:
    """Return an error's body, or nothing of one that repeats the gateway's own key."""
    key = deployment.api_key.get_secret_value().strip() if deployment.api_key else ""
    return b"" if key and key.encode() in body else body


def _check_refusal(answer: Answer, body: bytes) -> None:
    """Raise UpstreamRefusedError where the refusal is not the client's fault everywhere."""
    if answer.status >= 500 or answer.status in _UPSTREAMS_FAULT:
        failure = Failure.STATUS
    elif answer.status in _UNFIT_STATUSES or _error_code(body) in _UNFIT_CODES:
        failure = Failure.UNFIT
    else:
        return
    raise UpstreamRefusedError(
        answer.model,
        answer.status,
        headers=answer.headers,
        body=body,
        failure=failure,
        retry_after_s=answer.retry_after_s,
    )


def _error_code(body: bytes) -> str | None:
    value = decoded(body)
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None
