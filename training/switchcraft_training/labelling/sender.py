"""One request to an OpenAI-compatible endpoint, and what came of it; no retries here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

import openai
from pydantic import BaseModel, Field, ValidationError

from switchcraft_training.labelling.answers import Code, Outcome, Refusal, Remedy, Reply
from switchcraft_training.labelling.pool import Endpoint, Pool
from switchcraft_training.records import Json

DETAIL_CHARACTERS = 500
_UNSENT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""The client's transport raises these before a request has left; by name, because releases of the
client differ in the transport."""

_STATUSES: Final[Mapping[int, tuple[Code, Remedy]]] = {
    401: (Code.WRONG_KEY, Remedy.STOP_ARM),
    402: (Code.NO_CREDIT, Remedy.STOP_ARM),
    403: (Code.FORBIDDEN, Remedy.GIVE_UP),  # of some providers: this prompt is not moderate
    404: (Code.NOT_FOUND, Remedy.STOP_ARM),
    408: (Code.TIMEOUT, Remedy.RETRY),
    409: (Code.SERVER_ERROR, Remedy.RETRY),
    429: (Code.RATE_LIMITED, Remedy.RETRY),
}
_NO_CREDIT: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_TOO_LONG: Final = ("context length", "context_length", "context window", "prompt is too long")


@dataclass(frozen=True, slots=True)
class Order:
    """A request to send: its body in full, to which endpoint, and the name of its question."""

    endpoint: str
    body: Mapping[str, Json]
    idempotency_key: str


class Sender(Protocol):
    """Whatever sends a request; it never raises for what an endpoint does."""

    async def send(self, order: Order) -> Outcome:
        """Send one request once, and say what came of it."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


class _PromptDetails(BaseModel):
    cached_tokens: int | None = None


class _CompletionDetails(BaseModel):
    reasoning_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Choice(BaseModel):
    message: dict[str, Json]
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    model: str | None = None
    usage: _Usage | None = None


class Clients:
    """Sends requests from this process, by a client an endpoint."""

    def __init__(self, pool: Pool, environ: Mapping[str, str]) -> None:
        """Make the clients; raises ConfigError where a key's variable is not set."""
        self._endpoints = {arm.endpoint: pool.endpoints[arm.endpoint] for arm in pool.pool}
        self._keys = {name: endpoint.key(environ) for name, endpoint in self._endpoints.items()}
        self._clients = {
            name: _client(endpoint, self._keys[name]) for name, endpoint in self._endpoints.items()
        }

    async def send(self, order: Order) -> Outcome:
        """Send one request once; the reply has no cost yet."""
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._endpoints[order.endpoint].timeout_s):
                text = await self._clients[order.endpoint].post(
                    "/chat/completions",
                    body=dict(order.body),
                    cast_to=str,
                    options={"headers": {"Idempotency-Key": order.idempotency_key}},
                )
            return read_reply(text, time.perf_counter() - begun_s)
        except TimeoutError:
            return Refusal(Code.TIMEOUT, "no answer in time", Remedy.RETRY, may_be_paid=True)
        except openai.APIStatusError as exc:
            return self._without_key(order, _refusal_of_status(exc))
        except openai.APIConnectionError as exc:
            return _refusal_of_connection(exc)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()

    def _without_key(self, order: Order, refusal: Refusal) -> Refusal:
        """Mask the key, which some endpoints repeat in their errors: these are written down."""
        detail = refusal.detail.replace(self._keys[order.endpoint], "(the key)")
        return replace(refusal, detail=detail[:DETAIL_CHARACTERS])


def read_reply(text: str, latency_s: float) -> Outcome:
    """Read a success; a body that is no chat completion is a refusal, and may be paid."""
    try:
        completion = _Completion.model_validate_json(text)
    except ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]
        detail = f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
        return Refusal(Code.MALFORMED_BODY, detail, Remedy.RETRY, 200, may_be_paid=True)
    choice, usage = completion.choices[0], completion.usage
    prompt = usage and usage.prompt_tokens_details
    written = usage and usage.completion_tokens_details
    return Reply(
        message=choice.message,
        finish_reason=choice.finish_reason,
        served_model=completion.model,
        input_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else None,
        cached_tokens=prompt.cached_tokens if prompt else None,
        reasoning_tokens=written.reasoning_tokens if written else None,
        latency_s=latency_s,
    )


def _client(endpoint: Endpoint, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key=key,
        base_url=endpoint.base_url,
        timeout=openai.Timeout(endpoint.timeout_s, connect=endpoint.connect_timeout_s),
        max_retries=0,  # each try is journalled, paced and counted, which the client's would not be
        default_headers=endpoint.extra_headers,
    )


def _refusal_of_status(exc: openai.APIStatusError) -> Refusal:
    status = exc.status_code
    code, remedy = _STATUSES.get(status, (Code.BAD_REQUEST, Remedy.GIVE_UP))
    if status >= 500:
        code, remedy = Code.SERVER_ERROR, Remedy.RETRY
    elif exc.code in _NO_CREDIT:
        code, remedy = Code.NO_CREDIT, Remedy.STOP_ARM
    elif status in {400, 413, 422} and any(
        words in f"{exc.code} {exc.message}".lower() for words in _TOO_LONG
    ):
        code = Code.CONTEXT_LENGTH
    detail = exc.message.removeprefix(f"Error code: {status} - ")
    wait_s = _retry_after_s(exc.response.headers)
    return Refusal(code, detail, remedy, status, retry_after_s=wait_s)


def _refusal_of_connection(exc: openai.APIConnectionError) -> Refusal:
    cause = type(exc.__cause__).__name__
    if cause in _UNSENT:
        return Refusal(Code.UNREACHABLE, f"{cause}: {exc.__cause__}", Remedy.RETRY)
    is_late = isinstance(exc, openai.APITimeoutError)
    code = Code.TIMEOUT if is_late else Code.CONNECTION_LOST
    return Refusal(code, f"{cause}: {exc.__cause__}", Remedy.RETRY, may_be_paid=True)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read `Retry-After`, in seconds or as a date (RFC 9110, section 10.2.3)."""
    value = headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
