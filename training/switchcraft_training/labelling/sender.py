"""Senders of single requests, without retries: to endpoints, or through a given function."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple, Protocol, TypeAlias

import openai
from pydantic import BaseModel, Field, ValidationError

from router_service.apis.conversation import Json
from switchcraft_training.labelling.answers import (
    FailureCode,
    Remedy,
    Reply,
    RequestFailure,
    RequestResult,
)
from switchcraft_training.labelling.pool import Pool

DETAIL_CHARACTERS = 500
_NOT_SENT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})
"""Names of the exceptions that the client's transport raises before a request is sent. They are
compared by name, because releases of the client use different transports."""

_STATUSES: Final[Mapping[int, tuple[FailureCode, Remedy]]] = {
    401: (FailureCode.WRONG_KEY, Remedy.STOP_ARM),
    402: (FailureCode.NO_CREDIT, Remedy.STOP_ARM),
    403: (FailureCode.FORBIDDEN, Remedy.GIVE_UP),  # e.g. moderation refused this prompt
    404: (FailureCode.NOT_FOUND, Remedy.STOP_ARM),
    408: (FailureCode.TIMEOUT, Remedy.RETRY),
    409: (FailureCode.SERVER_ERROR, Remedy.RETRY),
    429: (FailureCode.RATE_LIMITED, Remedy.RETRY),
}
_NO_CREDIT: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_TOO_LONG: Final = ("context length", "context_length", "context window", "prompt is too long")


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


class _Error(BaseModel):
    message: str = ""
    code: str | None = None


class _ErrorBody(BaseModel):
    error: _Error


class Sender(Protocol):
    """What sends one request once, and returns its failure, or the reply without a cost."""

    async def send(
        self, endpoint: str, body: Mapping[str, Json], idempotency_key: str
    ) -> RequestResult:
        """Send a request to an endpoint of the pool."""
        ...


class Response(NamedTuple):
    """A response to a request: status, the header `Retry-After` or an empty text, and body."""

    status: int
    retry_after: str
    text: str


Post: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[Response]]
"""Function that sends the body of a Chat Completions request."""


@dataclass(frozen=True, slots=True)
class GivenSender:
    """Sender through a function; the body's model says where a request goes."""

    post: Post

    async def send(
        self, endpoint: str, body: Mapping[str, Json], idempotency_key: str
    ) -> RequestResult:
        """Send one request once; whoever gives the function sees to keys and time limits."""
        del endpoint, idempotency_key
        begun_s = time.perf_counter()
        response = await self.post(body)
        if response.status == 200:
            return parse_reply(response.text, time.perf_counter() - begun_s)
        try:
            error = _ErrorBody.model_validate_json(response.text).error
        except ValidationError:
            error = _Error(message=response.text)
        return _failure_of_status(response, error.code, error.message)


class EndpointClients:
    """Request sender in this process, with one client for each endpoint."""

    def __init__(self, pool: Pool, environ: Mapping[str, str]) -> None:
        """Create the clients; raises ConfigError if the variable of an API key is not set."""
        self._endpoints = {arm.endpoint: pool.endpoints[arm.endpoint] for arm in pool.pool}
        self._keys = {name: endpoint.key(environ) for name, endpoint in self._endpoints.items()}
        self._clients = {
            name: openai.AsyncOpenAI(
                api_key=self._keys[name],
                base_url=endpoint.base_url,
                timeout=openai.Timeout(endpoint.timeout_s, connect=endpoint.connect_timeout_s),
                # The client's retries would be neither recorded, nor rate limited, nor counted.
                max_retries=0,
                default_headers=endpoint.extra_headers,
            )
            for name, endpoint in self._endpoints.items()
        }

    async def send(
        self, endpoint: str, body: Mapping[str, Json], idempotency_key: str
    ) -> RequestResult:
        """Send one request once, and return its failure, or the reply without a cost."""
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._endpoints[endpoint].timeout_s):
                text = await self._clients[endpoint].post(
                    "/chat/completions",
                    body=dict(body),
                    cast_to=str,
                    options={"headers": {"Idempotency-Key": idempotency_key}},
                )
            return parse_reply(text, time.perf_counter() - begun_s)
        except TimeoutError:
            detail = "no complete answer within the endpoint's timeout_s"
            return RequestFailure(FailureCode.TIMEOUT, detail, Remedy.RETRY, may_be_paid=True)
        except openai.APIStatusError as exc:
            # Some endpoints repeat the API key in their errors; it must not be saved with them.
            detail = exc.message.removeprefix(f"Error code: {exc.status_code} - ")
            detail = detail.replace(self._keys[endpoint], "(the key)")
            retry_after = exc.response.headers.get("retry-after", "")
            response = Response(exc.status_code, retry_after, "")
            return _failure_of_status(response, exc.code, detail)
        except openai.APIConnectionError as exc:
            cause = type(exc.__cause__).__name__
            detail = f"{cause}: {exc.__cause__}"
            if cause in _NOT_SENT:
                return RequestFailure(FailureCode.UNREACHABLE, detail, Remedy.RETRY)
            is_timeout = isinstance(exc, openai.APITimeoutError)
            code = FailureCode.TIMEOUT if is_timeout else FailureCode.CONNECTION_LOST
            return RequestFailure(code, detail, Remedy.RETRY, may_be_paid=True)

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


def parse_reply(text: str, latency_s: float) -> RequestResult:
    """Parse a successful response; a body that is not a chat completion is a failure."""
    try:
        completion = _Completion.model_validate_json(text)
    except ValidationError as exc:
        first = exc.errors(include_input=False, include_url=False)[0]
        detail = f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
        code = FailureCode.MALFORMED_BODY
        return RequestFailure(code, detail, Remedy.RETRY, 200, may_be_paid=True)
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


def _failure_of_status(response: Response, error_code: str | None, detail: str) -> RequestFailure:
    """Return what an error status means, with the code and the message of the error."""
    status = response.status
    code, remedy = _STATUSES.get(status, (FailureCode.BAD_REQUEST, Remedy.GIVE_UP))
    if status >= 500:
        code, remedy = FailureCode.SERVER_ERROR, Remedy.RETRY
    elif error_code in _NO_CREDIT:
        code, remedy = FailureCode.NO_CREDIT, Remedy.STOP_ARM
    elif status in {400, 413, 422} and any(
        words in f"{error_code} {detail}".lower() for words in _TOO_LONG
    ):
        code = FailureCode.CONTEXT_LENGTH
    # `Retry-After` is a number of seconds or a date (RFC 9110, section 10.2.3).
    value = response.retry_after
    wait_s: float | None = None
    if value.isascii() and value.isdigit():
        wait_s = float(value)
    else:
        with suppress(ValueError):
            at = parsedate_to_datetime(value)
            at = at.replace(tzinfo=at.tzinfo or UTC)
            wait_s = max(0.0, (at - datetime.now(UTC)).total_seconds())
    return RequestFailure(code, detail[:DETAIL_CHARACTERS], remedy, status, retry_after_s=wait_s)
