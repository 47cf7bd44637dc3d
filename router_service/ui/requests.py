"""The page's live traffic: recent requests with filters, the last hour's figures, and details.

Every key may use it. Only the admin key sees the requests of other keys.
"""

from __future__ import annotations

import hashlib
import time
from typing import Annotated

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router_service.core.decision_record import DecisionRecord
from router_service.core.errors import DatabaseError, InvalidRequestError, StoreError
from router_service.core.money import NANO
from router_service.core.reasons import Reason
from router_service.core.record import RequestOutcome
from router_service.core.refusals import RECORD_NOT_FOUND
from router_service.database.engine import Database
from router_service.database.schema import UsageSums
from router_service.http.auth import CLIENTS_UI_PREFIX
from router_service.http.request_lists import (
    readable_requests,
    visible_key,
    visible_part,
)
from router_service.http.transfer import gateway_of, json_answer, read_database
from router_service.policies.explanations import ExplainedDecision, explain_record
from router_service.settings import ServerSettings
from router_service.telemetry.metrics import NO_MODEL
from router_service.telemetry.recent_requests import (
    ListedRequest,
    RequestList,
    RequestNames,
    RequestQuery,
    find_request,
    read_conversation,
    read_names,
    read_page,
)
from router_service.telemetry.usage import HOUR_S, UsageFilter
from router_service.telemetry.usage_reports import read_sums
from router_service.ui.traffic import Period, Unavailable, why_unavailable

MAX_ID = 100
"""Longest id in a path that is looked for, in characters."""

routes = APIRouter(prefix=CLIENTS_UI_PREFIX.rstrip("/"), include_in_schema=False)


class LiveFigures(BaseModel):
    """Sums over the requests of the last hour, as the overview has them."""

    requests: int
    failed: int
    refused: int
    cost_usd: float
    p50_s: float | None
    """Median of the time to the end of the answer; None if no model was asked."""
    p95_s: float | None


class LiveTraffic(RequestList):
    """A page of the list, and the figures of the last hour."""

    figures: LiveFigures
    """For the filter's key, team, model and policy."""


class RequestDetails(BaseModel):
    """What is known of one request: its row in the list, and its decision."""

    request: ListedRequest | None
    """None if the request is not in the list."""
    decision: ExplainedDecision | None
    missing: str | None
    """Why there is no decision; None if there is one."""
    conversation: tuple[str, ...] = ()
    """Ids of the conversation's newest requests in the list, the oldest first; empty if no choice
    depends on the conversation."""


@routes.get("/requests", response_model=LiveTraffic | Unavailable)
async def live_traffic(
    request: Request, asked: Annotated[RequestQuery, Query()]
) -> Response | Unavailable:
    """Return a page of the list, or 304 if it is the one that the browser has (RFC 9110, 13.1.2).

    A client's key lists only its own requests.
    """
    query = visible_part(request, asked)

    def read(database: Database) -> bytes:
        page, figures = read_page(database, query), read_figures(database, query, time.time())
        return LiveTraffic(**dict(page), figures=figures).model_dump_json().encode()

    try:
        body = await read_database(request, read, readable_requests(gateway_of(request)))
    except (InvalidRequestError, DatabaseError) as exc:
        return why_unavailable(request, "Requests cannot be listed", exc)
    # A hash, so that the browser's cache never shows one key's list to another key.
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    answer = json_answer(request, body)
    answer.headers["etag"] = tag
    return answer


@routes.get("/requests/names", response_model=RequestNames | Unavailable)
async def names(request: Request) -> Response | Unavailable:
    """Return the names that filters may have."""
    own_key = visible_key(request)
    try:
        database = readable_requests(gateway_of(request))
        body = await read_database(request, lambda: orjson.dumps(read_names(database, own_key)))
        return json_answer(request, body)
    except (InvalidRequestError, DatabaseError) as exc:
        return why_unavailable(request, "Requests cannot be listed", exc)


@routes.get("/requests/{request_id}")
async def request_details(request: Request, request_id: str) -> RequestDetails:
    """Return a request's decision from the store, or what the list has if it is not there."""
    gateway, own_key = gateway_of(request), visible_key(request)
    request_id = request_id[:MAX_ID]
    record: DecisionRecord | None = None
    is_reachable = True
    try:
        record = await gateway.store.get(request_id)
    except StoreError:
        is_reachable = False
    listed: ListedRequest | None = None
    conversation: tuple[str, ...] = ()
    try:
        database = readable_requests(gateway)
        listed = await read_database(request, find_request, database, request_id)
        if listed is not None and listed.conversation is not None:
            name = listed.conversation
            conversation = await read_database(request, read_conversation, database, name)
    except (InvalidRequestError, DatabaseError):
        pass  # then the decision is all that is known
    known = record or listed
    if known is None or (own_key is not None and known.key != own_key):
        raise RECORD_NOT_FOUND.error(kind="request", identifier=request_id)
    if record is not None:
        decision = explain_record(record, gateway.engine.pool.labels)
        return RequestDetails(
            request=listed, decision=decision, missing=None, conversation=conversation
        )
    assert listed is not None  # noqa: S101 - for types; one of the two is known
    missing = why_missing(listed, gateway.server, is_reachable=is_reachable)
    return RequestDetails(request=listed, decision=None, missing=missing, conversation=conversation)


def why_missing(listed: ListedRequest, server: ServerSettings, *, is_reachable: bool) -> str:
    """Return why a listed request has no decision."""
    if listed.outcome is RequestOutcome.REFUSED or listed.model is None:
        return "The request ended before the gateway chose a model, so there is no decision."
    if listed.reason == Reason.PASSED:
        return "The gateway passed the request on without reading it, so there is no decision."
    if not is_reachable:
        return "The rest of the decision cannot be read, because its store does not answer."
    hours = server.decision_ttl_s / HOUR_S
    kept = f"{hours:g} {'hour' if hours == 1 else 'hours'} (server.decision_ttl_s)"
    if server.shared_store is not None:
        return f"The rest of the decision is no longer there: it is kept for {kept}."
    return (
        f"The rest of the decision is not there. It is kept for {kept}, in the memory of the "
        "gateway that answered, which a restart empties and other replicas cannot read without "
        "server.redis_url."
    )


def read_figures(database: Database, wanted: UsageFilter, now_s: float) -> LiveFigures:
    """Return the sums of the overview's last hour; raises DatabaseError."""
    period = Period.HOUR
    start_s = period.starts(now_s)[0]
    with database.read() as connection:
        models = read_sums(connection, period.step_s, start_s, "model", wanted)
    total = UsageSums()
    for sums in models.values():
        total.add(sums)
    refused = models[NO_MODEL].errors if NO_MODEL in models else 0
    return LiveFigures(
        requests=total.requests,
        failed=total.errors - refused,
        refused=refused,
        cost_usd=total.cost_nusd / NANO,
        p50_s=total.percentile_s(0.5),
        p95_s=total.percentile_s(0.95),
    )
