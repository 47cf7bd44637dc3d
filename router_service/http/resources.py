"""Routes for clients beside the model APIs: models, decisions and feedback."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from router_service.core.decision_log import DecisionRecord, LoggedCall
from router_service.core.errors import InvalidRequestError, ModelNotFoundError
from router_service.core.messages import Json, decode_object
from router_service.http.auth import caller_of
from router_service.http.incoming import gateway_of, read_body, read_by
from router_service.http.schemas import feedback_request
from router_service.requests.feedback import ClientFeedback, Verdict

MAX_FEEDBACK_BYTES = 1024 * 1024
MAX_EXPECTED_CALLS = 128
MAX_ID_CHARACTERS = 100

_FIELDS = frozenset({"decision_id", "correct", "expected"})
_CALL_FIELDS = frozenset({"name", "arguments"})

routes = APIRouter()


class ModelCard(BaseModel):
    """A model in OpenAI's format; its creation time is unknown, so `created` is 0."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "switchcraft"


class ModelList(BaseModel):
    """A list of models in OpenAI's format."""

    object: str = "list"
    data: list[ModelCard]


class FeedbackReceipt(BaseModel):
    """Answer to feedback: the decision and the verdict that was recorded."""

    decision_id: str
    verdict: Verdict


@routes.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List every name that a request's `model` may have."""
    names = gateway_of(request).engine.releases.names
    return ModelList(data=[ModelCard(id=name) for name in names])


@routes.get("/v1/models/{model:path}")
async def get_model(request: Request, model: str) -> ModelCard:
    """Return one model; its name may contain slashes."""
    names = gateway_of(request).engine.releases.names
    if model not in names:
        raise ModelNotFoundError(model[:200], names)
    return ModelCard(id=model)


@routes.get("/v1/decisions/{decision_id}")
async def get_decision(request: Request, decision_id: str) -> DecisionRecord:
    """Return the decision record of a request that has ended.

    A key can read the decisions only of requests that it sent; the admin key can read all.
    """
    return await gateway_of(request).feedback.decision(decision_id[:100], caller_of(request))


@routes.post("/v1/feedback", openapi_extra=feedback_request(MAX_EXPECTED_CALLS))
async def give_feedback(request: Request) -> FeedbackReceipt:
    """Record whether an answer was correct, or which calls were expected.

    Feedback may be sent again with another verdict; training uses the last one.
    """
    gateway = gateway_of(request)
    body = await read_body(request, gateway.server, MAX_FEEDBACK_BYTES)
    given = await read_by(_parse_feedback, request, body)
    verdict = await gateway.feedback.take(given, caller_of(request))
    return FeedbackReceipt(decision_id=given.decision_id, verdict=verdict)


def _parse_feedback(body: bytes) -> ClientFeedback:
    """Parse a feedback body; raises InvalidRequestError at the first invalid field.

    Not by pydantic, which collects the errors of all items: 3 us and 1 KB for each.
    """
    fields = decode_object(body)
    kinds = {"correct", "expected"} & fields.keys()
    if len(kinds) != 1:
        raise InvalidRequestError(
            "Send exactly one of 'correct' (true or false) and 'expected' (the calls that would "
            "have been correct).",
            param="correct",
            code="missing_required_parameter" if not kinds else "invalid_value",
        )
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise _invalid(min(unknown)[:MAX_ID_CHARACTERS], "there is no such field. Remove it")
    decision_id, correct = fields.get("decision_id"), fields.get("correct")
    if not isinstance(decision_id, str) or not 0 < len(decision_id) <= MAX_ID_CHARACTERS:
        raise _invalid("decision_id", f"send a string of 1 to {MAX_ID_CHARACTERS} characters")
    if "expected" in fields:
        return ClientFeedback(decision_id, expected=_parse_expected_calls(fields["expected"]))
    if not isinstance(correct, bool):
        raise _invalid("correct", "send true or false")
    return ClientFeedback(decision_id, correct=correct)


def _parse_expected_calls(calls: Json) -> tuple[LoggedCall, ...]:
    if not isinstance(calls, list) or len(calls) > MAX_EXPECTED_CALLS:
        raise _invalid("expected", f"send an array of at most {MAX_EXPECTED_CALLS} calls")
    for index, call in enumerate(calls):
        path = f"expected.{index}"
        if not isinstance(call, dict) or call.keys() - _CALL_FIELDS:
            raise _invalid(path, "send an object with only 'name' and 'arguments'")
        if not isinstance(call.get("name"), str):
            raise _invalid(f"{path}.name", "send the name of a tool")
        if not isinstance(call.get("arguments"), dict):
            raise _invalid(f"{path}.arguments", "send the arguments as an object, not as a string")
    return tuple(LoggedCall(name=call["name"], arguments=call["arguments"]) for call in calls)


def _invalid(param: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{param}': {remedy}.", param=param, code="invalid_value")
