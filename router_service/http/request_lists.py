"""The list of recent requests: `GET /v1/requests`, and what the page's list shares with it."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from router_service.core.refusals import REQUESTS_NOT_LISTED, USAGE_NOT_RECORDED
from router_service.database.engine import Database
from router_service.http.schemas import DECISIONS, ERRORS
from router_service.http.transfer import call_of, gateway_of, json_answer, read_database
from router_service.runtime.gateway import Gateway
from router_service.telemetry.recent_requests import RequestList, RequestQuery, read_page
from router_service.telemetry.usage import UsageFilter

routes = APIRouter(responses=ERRORS)

F = TypeVar("F", bound=UsageFilter)


@routes.get(
    "/v1/requests", tags=[DECISIONS], summary="List recent requests", response_model=RequestList
)
async def list_requests(request: Request, asked: Annotated[RequestQuery, Query()]) -> Response:
    """List requests of all replicas, also those that were refused, newest first.

    An API key lists only its own requests; the admin key lists all. A request appears about a
    second after its end.
    """
    database, query = readable_requests(gateway_of(request)), visible_part(request, asked)

    def read() -> bytes:
        return read_page(database, query).model_dump_json().encode()

    return json_answer(request, await read_database(request, read))


def visible_key(request: Request) -> str | None:
    """Return the name of the key whose traffic the caller may see; None means all traffic."""
    key = call_of(request).key
    return None if key.is_admin else key.name


def visible_part(request: Request, asked: F) -> F:
    """Return the filter for what the caller may see; a client's key selects its own requests."""
    own_key = visible_key(request)
    return asked if own_key is None else asked.model_copy(update={"key": own_key, "team": None})


def readable_requests(gateway: Gateway) -> Database:
    """Return the database, unless it lists no requests.

    Raises InvalidRequestError or DatabaseError.
    """
    if gateway.usage.is_enabled and gateway.recent_requests.limit == 0:
        raise REQUESTS_NOT_LISTED.error()
    return readable_usage(gateway)


def readable_usage(gateway: Gateway) -> Database:
    """Return the database, unless it has no usage; raises InvalidRequestError or DatabaseError."""
    if not gateway.usage.is_enabled:
        raise USAGE_NOT_RECORDED.error()
    failure = gateway.database.failure
    if failure is not None:  # a new attempt would take seconds
        raise failure
    gateway.recorder.flush()
    return gateway.database.database
