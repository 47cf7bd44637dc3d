"""`POST /v1/feedback`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from starlette.requests import Request

from router_service.api.auth import caller_of
from router_service.api.body import read_body
from router_service.api.schemas import feedback_request
from router_service.api.state import gateway_of
from router_service.core.decision_log import Call
from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json, decode_object
from router_service.serving.feedback import Given, Verdict

MAX_EXPECTED_CALLS = 128

routes = APIRouter()


class _Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    decision_id: Annotated[str, Field(min_length=1, max_length=100)]


class _Judged(_Named):
    correct: StrictBool


class _Corrected(_Named):
    expected: Annotated[tuple[Call, ...], Field(max_length=MAX_EXPECTED_CALLS)]


class Taken(BaseModel):
    """Feedback as it was understood."""

    decision_id: str
    verdict: Verdict


@routes.post("/v1/feedback", openapi_extra=feedback_request(MAX_EXPECTED_CALLS))
async def give_feedback(request: Request) -> Taken:
    """Take what a client says of an answer: whether it was correct, or which calls were expected.

    It may be sent again, and changed; the last one counts for training.
    """
    gateway = gateway_of(request)
    given = _read(decode_object(await read_body(request, gateway.server)))
    verdict = await gateway.feedback.take(given, caller_of(request))
    return Taken(decision_id=given.decision_id, verdict=verdict)


def _read(body: Mapping[str, Json]) -> Given:
    """Return what a body says; raises InvalidRequestError."""
    said = {"correct", "expected"} & body.keys()
    if len(said) != 1:
        raise InvalidRequestError(
            "Send exactly one of 'correct', true or false, and 'expected', the calls that would "
            "have been right.",
            param="correct",
            code="missing_required_parameter" if not said else "invalid_value",
        )
    try:
        given = (_Judged if "correct" in said else _Corrected).model_validate(body)
    except ValidationError as exc:
        first = exc.errors()[0]
        param = ".".join(map(str, first["loc"]))
        message = f"Invalid '{param}': {first['msg']}."
        raise InvalidRequestError(message, param=param, code="invalid_value") from exc
    return Given(**dict(given))
