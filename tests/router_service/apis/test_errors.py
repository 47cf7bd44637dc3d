"""Errors reach the vendors' SDKs as the exception that their own API would raise."""

from __future__ import annotations

from itertools import product
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import ErrorResponse

from router_service.apis.answer_errors import AnswerError
from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.parts import Request
from tests import apis
from tests.apis import APIS, PAIRS, Api, UpstreamApi
from tests.dialect_answers import CASES, Sdks, decode, events

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES

STATUSES = {
    400: (openai.BadRequestError, anthropic.BadRequestError, "invalid_request_error"),
    404: (openai.NotFoundError, anthropic.NotFoundError, "not_found_error"),
    413: (openai.APIStatusError, anthropic.RequestTooLargeError, "request_too_large"),
    429: (openai.RateLimitError, anthropic.RateLimitError, "rate_limit_error"),
    500: (openai.InternalServerError, anthropic.InternalServerError, "api_error"),
    529: (openai.InternalServerError, anthropic.OverloadedError, "overloaded_error"),
}


@pytest.fixture(scope="module")
def sdks() -> Sdks:
    """Return the vendors' clients."""
    return Sdks()


def body_of(source: UpstreamApi, kind: str, message: str) -> dict[str, Any]:
    """Return an error body as the source's provider writes it."""
    if source is MESSAGES:
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": "req_1"}
    if source is apis.CONVERSE:
        return {"message": message}
    return {"error": {"message": message, "type": kind, "param": "messages[0]", "code": None}}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize(("source", "target"), list(product(APIS.of_upstreams, APIS)))
def test_error_bodies(sdks: Sdks, source: UpstreamApi, target: Api, status: int) -> None:
    """The SDK raises the exception of the status, with the message and the type."""
    for_openai, for_anthropic, kind = STATUSES[status]
    error = source.read_error(body_of(source, kind, "No such thing."), status)
    written = target.write_error(error, request_id="req_9")
    sdks.status = status
    expected: Any = for_anthropic if target is MESSAGES else for_openai
    with pytest.raises(expected, match="No such thing") as caught:
        sdks.read(written, target, checks=False)
    sdks.status = 200
    if target is MESSAGES:
        if status != 413:  # the SDK's types leave out this documented type
            ErrorResponse.model_validate(written)
        assert caught.value.type == kind
        assert written["request_id"] == "req_9"
    else:
        assert set(written["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_errors_within_streams(sdks: Sdks, source: UpstreamApi, target: Api, length: int) -> None:
    """Wherever a stream breaks, the SDK raises an error with its message."""
    translator = AnswerTranslator(source, target, Request("m", ()), model="m", created_s=1)
    data = b"".join(map(translator.feed, events(CASES["text"], source)[:length]))
    data += translator.error(AnswerError(502, "The upstream broke off."))
    raised: Any = anthropic.APIError if target is MESSAGES else openai.APIError
    with pytest.raises(raised, match="broke off"):
        sdks.read_stream(data, target, checks=False)
    if target is RESPONSES and length:
        numbers = [event["sequence_number"] for event in decode(data)]
        assert numbers == list(range(len(numbers)))
        failed = decode(data)[-1]
        assert failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["message"] == "The upstream broke off."


READ = {
    "Mistral": ({"object": "error", "message": "No.", "type": "invalid_args"}, 422, 422, "No."),
    "Google": ([{"error": {"code": 429, "message": "Quota."}}], 429, 429, "Quota."),
    "OpenRouter within an answer": (
        {"error": {"code": 429, "message": "Slow."}},
        200,
        429,
        "Slow.",
    ),
    "a failed response": (
        {
            "type": "response.failed",
            "response": {"error": {"code": "server_error", "message": "x"}},
        },
        200,
        500,
        "x",
    ),
    "nothing": (None, 503, 503, "The upstream answered with status 503 and without a message."),
}


@pytest.mark.parametrize("name", READ)
def test_errors_of_other_servers(name: str) -> None:
    """Errors in similar formats are read, and errors within answers get a status."""
    value, status, expected, message = READ[name]
    error = CHAT.read_error(value, status)
    assert (error.status, error.message) == (expected, message)
