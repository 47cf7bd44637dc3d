"""Responses of endpoints: replies, and failures with their remedies."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from switchcraft_training.labelling.answers import (
    FailureCode,
    Remedy,
    RequestFailure,
    RequestResult,
)
from switchcraft_training.labelling.pool import Pool
from switchcraft_training.labelling.sender import EndpointClients
from tests.serving import served

MESSAGE = {"role": "assistant", "content": "hello", "reasoning_content": "hm"}


def send(status: int, error: object, headers: dict[str, str] | None = None) -> RequestResult:
    """Send a request to an endpoint with this response, and return the result."""

    async def answer(_: Request) -> JSONResponse:
        return JSONResponse(error, status, headers)

    async def ask(url: str) -> RequestResult:
        arm = {
            "arm": "a",
            "endpoint": "it",
            "model": "m",
            "price": {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0},
        }
        pool = Pool.model_validate({"endpoints": {"it": {"base_url": url}}, "pool": [arm]})
        async with aclosing(EndpointClients(pool, {})) as clients:
            return await clients.send("it", {"model": "m"}, "key")

    route = Route("/chat/completions", answer, methods=["POST"])
    with served(Starlette(routes=[route])) as url:
        return asyncio.run(ask(url))


@pytest.mark.parametrize(
    ("status", "error", "code", "remedy"),
    [
        (401, {"code": "invalid_api_key"}, FailureCode.WRONG_KEY, Remedy.STOP_ARM),
        (402, {"code": None}, FailureCode.NO_CREDIT, Remedy.STOP_ARM),
        (403, {"code": None}, FailureCode.FORBIDDEN, Remedy.GIVE_UP),
        (404, {"code": "model_not_found"}, FailureCode.NOT_FOUND, Remedy.STOP_ARM),
        (400, {"code": "context_length_exceeded"}, FailureCode.CONTEXT_LENGTH, Remedy.GIVE_UP),
        (
            400,
            {"message": "This model's maximum context length is 8192 tokens."},
            *(FailureCode.CONTEXT_LENGTH, Remedy.GIVE_UP),
        ),
        (400, {"message": "Invalid schema for function"}, FailureCode.BAD_REQUEST, Remedy.GIVE_UP),
        (429, {"code": "rate_limit_exceeded"}, FailureCode.RATE_LIMITED, Remedy.RETRY),
        (429, {"code": "insufficient_quota"}, FailureCode.NO_CREDIT, Remedy.STOP_ARM),
        (529, {"message": "overloaded"}, FailureCode.SERVER_ERROR, Remedy.RETRY),
    ],
)
def test_each_failure_has_a_remedy(
    status: int, error: dict[str, str], code: FailureCode, remedy: Remedy
) -> None:
    """Temporary failures are retried, invalid requests given up, others stop the arm."""
    refusal = send(status, {"error": {"message": "no", **error}})
    assert isinstance(refusal, RequestFailure)
    assert (refusal.code, refusal.remedy, refusal.status) == (code, remedy, status)
    assert not refusal.may_be_paid
