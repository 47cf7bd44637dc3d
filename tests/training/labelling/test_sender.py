"""The pool file of a labelling run, and the responses of its endpoints with their remedies."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_service.core.errors import ConfigError
from switchcraft_training.labelling.answers import (
    FailureCode,
    Remedy,
    RequestFailure,
    RequestResult,
)
from switchcraft_training.labelling.pool import Pool, load_pool
from switchcraft_training.labelling.sender import EndpointClients
from tests.serving import served

ENDPOINT = {"base_url": "https://api.example.test/v1", "api_key_env": "A_KEY"}
ARM = {
    "arm": "small",
    "endpoint": "it",
    "model": "small-1",
    "price": {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 10.0},
}


def write(folder: Path, endpoint: dict[str, Any], *arms: dict[str, Any]) -> Path:
    """Write a pool file."""
    path = folder / "pool.yaml"
    tree = {"endpoints": {"it": {**ENDPOINT, **endpoint}}, "pool": [{**ARM, **arm} for arm in arms]}
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.parametrize(
    ("endpoint", "arms", "problem"),
    [
        ({"api_key": "sk-secret"}, [{}], "endpoints.it.api_key: Extra inputs"),
        ({"extra_headers": {"Authorization": "sk-secret"}}, [{}], "its name in api_key_env"),
        ({"base_url": "https://me:sk-secret@api.example.test/v1"}, [{}], "contains credentials"),
        ({"base_url": "api.example.test"}, [{}], "must start with http:// or https://"),
        ({"max_concurrency": 0}, [{}], "endpoints.it.max_concurrency"),
        ({}, [{"endpoint": "other"}], "the arm 'small' names the unknown endpoint 'other'"),
        ({}, [{}, {}], "two arms are called 'small'"),
        ({}, [{"price": {"usd_per_hour": 1}}], "a price by the hour cannot be capped"),
        ({}, [{"extra_body": {"stream": True}}], "stream cannot be set here"),
        ({}, [], "pool"),
    ],
)
def test_invalid_settings_are_refused(
    tmp_path: Path, endpoint: dict[str, Any], arms: list[dict[str, Any]], problem: str
) -> None:
    """The error names file, place and problem, and repeats no value."""
    with pytest.raises(ConfigError) as refused:
        load_pool(write(tmp_path, endpoint, *arms))
    assert problem in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "sk-secret" not in str(refused.value)


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
