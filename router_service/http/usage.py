"""The admin API's report of usage, as JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from itertools import chain, islice
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from router_service.core.errors import InvalidRequestError
from router_service.database.schema import MAX_NAME
from router_service.http.request_lists import readable_usage
from router_service.http.schemas import ERRORS, OPERATIONS
from router_service.http.transfer import gateway_of, json_answer, read_database
from router_service.telemetry.usage_figures import UsageFigures
from router_service.telemetry.usage_reports import (
    UsageGroup,
    UsageQuery,
    UsageRow,
    read_rows,
    write_csv,
)

MAX_REPORT_ROWS = 10_000
"""Largest number of rows in a JSON answer."""
MAX_CSV_ROWS = 1_000_000
"""Largest number of rows in a CSV file; the connection of a longer one is closed before its end."""

CSV = "text/csv"

routes = APIRouter(responses=ERRORS)


def _iso_day(text: object) -> object:
    """Return a date as it is written in ISO 8601; pydantic also reads numbers as Unix times."""
    if isinstance(text, str) and text.count("-") != 2:
        raise ValueError("write the day as YYYY-MM-DD")
    return text


Day = Annotated[date, BeforeValidator(_iso_day)]


class ReportedGroup(BaseModel):
    """What a row is for; what the report is not grouped by is absent."""

    day: date | None = None
    model: str | None = None
    """`none` for requests that were refused before a model was chosen."""
    policy: str | None = None
    """`none` for requests that were not routed."""
    key: str | None = None
    """Null for requests without a key."""
    team: str | None = None
    """Null for keys without a team."""


class ReportedUsage(UsageFigures, ReportedGroup):
    """Usage of one day, model, policy, key or team."""


class UsageReport(BaseModel):
    """Some rows of a report, in the order of their keys or teams, and then of the other groups."""

    rows: tuple[ReportedUsage, ...]
    next: int | None
    """Value of `after` for the next page; null on the last page."""


class ReportParameters(BaseModel):
    """Which rows a report has."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    first: Day | None = Field(None, alias="from")
    """First day (UTC); by default, the first of this month."""
    last: Day | None = Field(None, alias="to")
    """Last day (UTC); by default, today."""
    by: Annotated[list[UsageGroup], Field(min_length=1, max_length=5)] = [UsageGroup.DAY]
    """What a row is for; repeat it to group by several."""
    key: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests with this key."""
    team: Annotated[str | None, Field(max_length=MAX_NAME)] = None
    """Only requests of this team; by key, those of the keys that are in it now."""
    format: Literal["json", "csv"] | None = None
    """By default, as the header `accept` says: `text/csv`, or JSON."""
    limit: Annotated[int, Field(ge=1, le=MAX_REPORT_ROWS)] = 1000
    """Largest number of rows of a JSON answer."""
    after: Annotated[int, Field(ge=0, le=MAX_CSV_ROWS)] = 0
    """Number of rows that are left out at the beginning: `next` of the JSON answer before. What is
    counted in between may move rows, so read reports of today as CSV."""


@routes.get(
    "/admin/usage",
    tags=[OPERATIONS],
    summary="Usage by day, model, policy, key or team",
    response_model=UsageReport,
    responses={
        200: {
            "description": "The rows, as JSON or CSV",
            "content": {CSV: {"schema": {"type": "string"}}},
        }
    },
)
async def report_usage(request: Request, asked: Annotated[ReportParameters, Query()]) -> Response:
    """Report requests, tokens, costs, savings, expected accuracy and feedback.

    The numbers are complete up to about a second ago. Days end at 0:00 UTC. Cells of CSV that begin
    like a formula get an apostrophe in front of them.
    """
    database = readable_usage(gateway_of(request))
    query = UsageQuery.of(asked.first, asked.last, asked.by, asked.key, asked.team)
    rows = islice(read_rows(database, query), asked.after, None)
    accepts_csv = CSV in request.headers.get("accept", "")
    if asked.format == "csv" or (asked.format is None and accepts_csv):
        lines = write_csv(_limited(rows), query.by)
        # Read here, so that an unreachable database gets a status.
        start = await read_database(request, lambda: list(islice(lines, 2)))
        name = f"usage-{query.first}-{query.last}.csv"
        return StreamingResponse(
            chain(start, lines),
            media_type=f"{CSV}; charset=utf-8; header=present",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    def read() -> bytes:
        found = list(islice(rows, asked.limit + 1))
        has_more = len(found) > asked.limit
        report = UsageReport(
            rows=tuple(
                ReportedUsage.of(row.sums, **{str(by): name for by, name in row.groups.items()})
                for row in found[: asked.limit]
            ),
            next=asked.after + asked.limit if has_more else None,
        )
        return report.model_dump_json(exclude_unset=True).encode()

    return json_answer(request, await read_database(request, read))


def _limited(rows: Iterator[UsageRow]) -> Iterator[UsageRow]:
    yield from islice(rows, MAX_CSV_ROWS)
    if next(rows, None) is not None:
        raise InvalidRequestError(
            f"The report has more than {MAX_CSV_ROWS} rows. Send fewer days, or group by less.",
            param="from",
            code="invalid_value",
        )
