"""`POST /v1/feedback`."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from router_service.core.decision_log import Call
from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json, decode_object
from router_service.http.auth import caller_of
from router_service.http.body import read_body, read_by
from router_service.http.schemas import feedback_request
from router_service.http.state import gateway_of
from router_service.requests.feedback import Given, Verdict

MAX_BODY_BYTES = 1024 * 1024
MAX_EXPECTED_CALLS = 128
MAX_ID_CHARACTERS = 100

_FIELDS = frozenset({"decision_id", "correct", "expected"})
_CALL_FIELDS = frozenset({"name", "arguments"})

routes = APIRouter()


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
    body = await read_body(request, gateway.server, MAX_BODY_BYTES)
    given = await read_by(_read, request, body)
    verdict = await gateway.feedback.take(given, caller_of(request))
    return Taken(decision_id=given.decision_id, verdict=verdict)


def _read(body: bytes) -> Given:
    """Return what a body says; raises InvalidRequestError at the first thing that is wrong.

    Not by pydantic: it collects the errors of all items, 3 us and 1 KB each.
    """
    said = decode_object(body)
    kinds = {"correct", "expected"} & said.keys()
    if len(kinds) != 1:
        raise InvalidRequestError(
            "Send exactly one of 'correct', true or false, and 'expected', the calls that would "
            "have been right.",
            param="correct",
            code="missing_required_parameter" if not kinds else "invalid_value",
        )
    unknown = said.keys() - _FIELDS
    if unknown:
        raise _invalid(min(unknown)[:MAX_ID_CHARACTERS], "there is no such field. Leave it out")
    decision_id, correct = said.get("decision_id"), said.get("correct")
    if not isinstance(decision_id, str) or not 0 < len(decision_id) <= MAX_ID_CHARACTERS:
        raise _invalid("decision_id", f"send a text of 1 to {MAX_ID_CHARACTERS} characters")
    if "expected" in said:
        return Given(decision_id, expected=_read_calls(said["expected"]))
    if not isinstance(correct, bool):
        raise _invalid("correct", "send true or false")
    return Given(decision_id, correct=correct)


def _read_calls(calls: Json) -> tuple[Call, ...]:
    if not isinstance(calls, list) or len(calls) > MAX_EXPECTED_CALLS:
        raise _invalid("expected", f"send an array of at most {MAX_EXPECTED_CALLS} calls")
    for index, call in enumerate(calls):
        path = f"expected.{index}"
        if not isinstance(call, dict) or call.keys() - _CALL_FIELDS:
            raise _invalid(path, "send an object with 'name' and 'arguments' only")
        if not isinstance(call.get("name"), str):
            raise _invalid(f"{path}.name", "send the name of a tool")
        if not isinstance(call.get("arguments"), dict):
            raise _invalid(f"{path}.arguments", "send the arguments as an object, not as text")
    return tuple(Call(name=call["name"], arguments=call["arguments"]) for call in calls)


def _invalid(param: str, cure: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{param}': {cure}.", param=param, code="invalid_value")
