"""The list of recent requests: `GET /v1/requests`, and what the page's list shares with it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from router_service.core.errors import InvalidRequestError, UsageDisabledError
from router_service.core.record import RequestOutcome
from router_service.database.engine import Database
from router_service.database.schema import MAX_NAME
from router_service.http.schemas import DECISIONS, ERRORS
from router_service.http.transfer import call_of, gateway_of, json_answer, read_database
from router_service.runtime.gateway import Gateway
from router_service.telemetry.recent_requests import ListedRequest
from router_service.telemetry.request_lists import (
    ListPage,
    RequestFilter,
    RequestPosition,
    read_page,
)

MAX_LISTED = 1_000
"""Largest number of requests in one answer."""
MAX_SEARCH = 200
MAX_POSITION = 80

routes = APIRouter(responses=ERRORS)


class RequestList(BaseModel):
    """Requests that follow each other, newest first."""

    requests: tuple[ListedRequest, ...]
    newer: str | None
    """Pass this as `after` to get newer requests; null if the page has the newest."""
    older: str | None
    """Pass this as `before` to get older requests; null if the page has the oldest."""

    @classmethod
    def of(cls, page: ListPage) -> RequestList:
        """Return a page as the API writes it."""
        return cls(
            requests=page.requests,
            newer=None if page.newer is None else str(page.newer),
            older=None if page.older is None else str(page.older),
        )


class RequestParameters(BaseModel):
    """Which requests are listed."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    key: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests with this key; empty for those without a key."""
    team: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests of this team, to which the key belonged at that time."""
    model: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests that this model answered, or `none` for refused ones."""
    policy: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests with this policy, or `none` for those that were not routed."""
    reason: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests that were answered for this reason, such as `drift` or `fallback`."""
    outcome: RequestOutcome | None = None
    """Only requests that ended in this way."""
    conversation: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests of this conversation."""
    search: Annotated[str | None, Field(max_length=MAX_SEARCH)] = None
    """Only requests whose id, or whose header `x-request-id`, contains this text."""
    before: Annotated[str | None, Field(max_length=MAX_POSITION)] = None
    """`older` of another answer, for the requests that are older."""
    after: Annotated[str | None, Field(max_length=MAX_POSITION)] = None
    """`newer` of another answer, for the requests that are newer. If fewer than `limit` are, the
    newest ones follow."""
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 100
    """Largest number of requests in the answer."""

    def wanted(self, own_key: str | None) -> RequestFilter:
        """Return the filter; a client's key selects its own requests."""
        return RequestFilter(
            key=self.key if own_key is None else own_key,
            team=self.team if own_key is None else None,
            model=self.model,
            policy=self.policy,
            reason=self.reason,
            outcome=self.outcome,
            conversation=self.conversation,
            search=self.search,
        )

    def read(self, database: Database, own_key: str | None) -> ListPage:
        """Return the page of requests; raises InvalidRequestError and DatabaseError."""
        if self.before is not None and self.after is not None:
            raise InvalidRequestError(
                "Send only one of 'before' and 'after'.", param="after", code="invalid_value"
            )
        return read_page(
            database,
            self.wanted(own_key),
            self.limit,
            before=_position("before", self.before),
            after=_position("after", self.after),
        )


@routes.get(
    "/v1/requests", tags=[DECISIONS], summary="List recent requests", response_model=RequestList
)
async def list_requests(request: Request, asked: Annotated[RequestParameters, Query()]) -> Response:
    """List requests of all workers and replicas, also those that were refused, newest first.

    An API key lists only its own requests; the admin key lists all. A request appears about a
    second after its end.
    """
    database, own_key = readable_requests(gateway_of(request)), visible_key(request)

    def read() -> bytes:
        return RequestList.of(asked.read(database, own_key)).model_dump_json().encode()

    return json_answer(request, await read_database(request, read))


def visible_key(request: Request) -> str | None:
    """Return the name of the key whose traffic the caller may see; None means all traffic."""
    key = call_of(request).key
    return None if key.is_admin else key.name


def readable_requests(gateway: Gateway) -> Database:
    """Return the database, unless it lists no requests.

    Raises UsageDisabledError or DatabaseError.
    """
    if gateway.recent_requests.limit == 0:
        is_enabled = gateway.engine.settings.usage.enabled
        raise UsageDisabledError("usage.recent_requests" if is_enabled else "usage.enabled")
    failure = gateway.database.failure
    if failure is not None:  # a new attempt would take seconds
        raise failure
    gateway.recorder.flush()
    return gateway.database.database


def _position(param: str, text: str | None) -> RequestPosition | None:
    if text is None:
        return None
    try:
        return RequestPosition.parse(text)
    except ValueError:
        remedy = "send 'older' or 'newer' of an answer of this endpoint"
        raise InvalidRequestError(
            f"Invalid '{param}': {remedy}.", param=param, code="invalid_value"
        ) from None
