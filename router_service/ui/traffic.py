"""The page's views of traffic: who uses it, the account, and usage over time.

Every key may use them. Only the admin key sees the traffic of other keys.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router_service import __version__
from router_service.access.accounts import Accounts
from router_service.access.specs import KeyView
from router_service.core.errors import DatabaseError, InvalidRequestError
from router_service.core.reasons import Reason
from router_service.core.refusals import USAGE_NOT_RECORDED
from router_service.database.engine import Database
from router_service.database.schema import LATENCY_BOUNDS_S, LATENCY_RATIO, UsageSums
from router_service.http.auth import CLIENTS_UI_PREFIX
from router_service.http.request_lists import readable_usage, visible_key, visible_part
from router_service.http.transfer import call_of, gateway_of, json_answer, read_database
from router_service.policies.registry import published_names
from router_service.policies.verified import VERIFIED, is_verified
from router_service.runtime.gateway import Gateway
from router_service.telemetry.recent_requests import RequestFilter, read_reasons
from router_service.telemetry.usage import DAY_S, HOUR_S, MINUTE_S, UsageFilter
from router_service.telemetry.usage_figures import UsageFigures, UsageSummary, explain_dearest
from router_service.telemetry.usage_reports import (
    read_biggest,
    read_models_and_policies,
    read_sums,
)

routes = APIRouter(prefix=CLIENTS_UI_PREFIX.rstrip("/"), include_in_schema=False)

MIN_POINTS = 12
"""Smallest number of points of a chart, so that a single one does not look like a plateau."""

MAX_LATENCY_ROWS = 14
"""Largest number of rows of the map of latencies."""


class Session(BaseModel):
    """Who uses the page."""

    key: str | None
    """Name of the key; None if the gateway has no keys."""
    is_admin: bool
    """Whether the whole page may be used, and not only the views of the key's own traffic."""
    is_sandbox: bool
    """Whether a sandbox answers for every model, because no models are configured."""
    reasons: Mapping[str, str] = {reason: reason.label for reason in Reason}
    """Why a model answered, in a few words, by the decision's reason."""
    keeps_content: bool
    """Whether the decision log has prompts and answers."""
    model_name: str
    """Model name that a client sends to have a request routed."""
    policy_names: Mapping[str, str]
    """The published name of a policy by its rule, such as `verified=0.0106`."""
    version: str = __version__


class Period(StrEnum):
    """A time until now, and how it is divided."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"

    @property
    def step_s(self) -> int:
        """Length of one bin."""
        return {Period.HOUR: MINUTE_S, Period.DAY: HOUR_S, Period.MONTH: DAY_S}[self]

    def starts(self, now_s: float) -> range:
        """Return when the bins start; the last one contains now. Days begin at 0:00 UTC."""
        bins = {Period.HOUR: 60, Period.DAY: 24, Period.MONTH: 30}[self]
        last = int(now_s) // self.step_s * self.step_s
        return range(last - (bins - 1) * self.step_s, last + 1, self.step_s)


class Traffic(UsageFigures):
    """Usage, with percentiles of the time to the end of the answer.

    They are None if no model was asked.
    """

    p50_s: float | None
    p95_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, sums: UsageSums, **others: object) -> Self:
        """Return the figures of these sums."""
        shares = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
        percentiles = {name: sums.percentile_s(share) for name, share in shares.items()}
        return super().of(sums, **percentiles, **others)


class TrafficPoint(Traffic):
    """Sums over the requests of one bin."""

    start: int
    """Unix time at which the bin starts."""


class NamedTraffic(Traffic):
    """Sums over the requests of one model, policy, key or team."""

    name: str


class LatencyMap(BaseModel):
    """How many requests took how long, over time."""

    bounds_s: tuple[float, ...]
    """The bounds of the rows, one more than there are rows; empty if no model was asked."""
    counts: tuple[tuple[int, ...], ...]
    """Numbers of requests: for each point, that of each row."""

    @classmethod
    def of(cls, bins: Sequence[UsageSums]) -> LatencyMap:
        """Return the map for the sums of points.

        Neighbouring bins of their histograms are merged, so that there are at most
        `MAX_LATENCY_ROWS` rows.
        """
        found = {index for sums in bins for index in sums.latencies}
        if not found:
            return cls(bounds_s=(), counts=tuple(() for _ in bins))
        first, last = min(found), max(found)
        merged = -(-(last - first + 1) // MAX_LATENCY_ROWS)
        rows = -(-(last - first + 1) // merged)
        counts = [[0] * rows for _ in bins]
        for row, sums in zip(counts, bins, strict=True):
            for index, requests in sums.latencies.items():
                row[(index - first) // merged] += requests
        edges = range(first - 1, first + rows * merged, merged)
        bounds_s = tuple(LATENCY_BOUNDS_S[0] * LATENCY_RATIO**edge for edge in edges)
        return cls(bounds_s=bounds_s, counts=tuple(map(tuple, counts)))


class Overview(BaseModel):
    """Traffic over time, in total and by model, policy, key and team."""

    summary: UsageSummary
    period: Period
    step_s: int
    points: tuple[TrafficPoint, ...]
    """One for each bin since the first request of the period, also without requests. There are at
    least `MIN_POINTS`."""
    latencies: LatencyMap
    total: Traffic
    models: tuple[NamedTraffic, ...]
    """The filter for the model does not apply here, so that another one can be chosen. The same
    holds for the filters of the next fields. The most expensive come first."""
    policies: tuple[NamedTraffic, ...]
    keys: tuple[NamedTraffic, ...]
    """The keys that have spent most. Empty unless the caller may see the traffic of all keys."""
    teams: tuple[NamedTraffic, ...]
    """The teams that have spent most, with all of their keys. Empty unless the caller may see the
    traffic of all keys."""
    baseline_model: str | None
    """The model that savings and accuracy are compared with."""


class Unavailable(BaseModel):
    """Why there is nothing to show."""

    unavailable: str


@routes.get("/session")
async def session(request: Request) -> Session:
    """Return who the caller is; refused with 401 without a valid key."""
    gateway = gateway_of(request)
    return Session(
        key=call_of(request).key.name,
        is_admin=visible_key(request) is None,
        is_sandbox=gateway.engine.settings.is_sandbox,
        keeps_content=gateway.background.keeps_content,
        model_name=gateway.engine.settings.router.model_name,
        policy_names=published_names(gateway.engine.manifest.named_rules),
    )


@routes.get("/account")
async def account(request: Request) -> KeyView | None:
    """Return the caller's own key with what is left of its budgets.

    The result is null for keys of the configuration file, which have no limits.
    """
    gateway, name = gateway_of(request), call_of(request).key.name
    if gateway.database.failure is not None:
        raise gateway.database.failure  # at once, instead of after the connection's timeout
    try:
        accounts = Accounts(gateway.database.database)
        return None if name is None else await read_database(request, accounts.get_key, name)
    except InvalidRequestError:  # there is no such key
        return None


class OverviewQuery(UsageFilter):
    """Which requests an overview has."""

    period: Period | None = None


@routes.get("/overview", response_model=Overview | Unavailable)
async def overview(
    request: Request, asked: Annotated[OverviewQuery, Query()]
) -> Response | Unavailable:
    """Return the traffic of a period until now, of all replicas.

    By default, it is the shortest period that has requests. A client's key sees only its own
    traffic. With the filter `team`, the list of keys has those that are in the team now.
    """
    sees_all, wanted = visible_key(request) is None, visible_part(request, asked)
    gateway = gateway_of(request)
    has_reasons = (asked.model, asked.policy) == (None, None) and gateway.recent_requests.limit
    dearest = _dearest(gateway) if has_reasons else None
    baseline = gateway.engine.pool.baseline
    baseline_model = None if baseline is None else baseline.name

    def read(database: Database) -> bytes:
        found = read_overview(
            database, asked.period, time.time(), wanted, baseline_model, sees_all=sees_all
        )
        if dearest is not None and found.period is Period.DAY:
            listed = RequestFilter(key=wanted.key, team=wanted.team)
            with database.read() as connection:
                reasons = read_reasons(connection, listed, time.time() - DAY_S)
            sentence = explain_dearest(*dearest, reasons)
            found.summary.details += () if sentence is None else (sentence,)
        return found.model_dump_json().encode()

    try:
        return json_answer(request, await read_database(request, read, readable_usage(gateway)))
    except (InvalidRequestError, DatabaseError) as exc:
        return why_unavailable(request, "Usage is not available", exc)


def _dearest(gateway: Gateway) -> tuple[str, float | None] | None:
    """Return the most expensive model that is routed, and how expensive verified answers are.

    They are a share of the model's expected cost; None if no verified policy was measured.
    """
    engine, points = gateway.engine, gateway.operating_points
    dearest = engine.releases.stable.dearest
    if dearest is None:
        return None
    arm, model = dearest
    default = str(engine.explainer.default_policy)
    point = points and points.find(default if is_verified(default) else VERIFIED)
    usd = engine.manifest.profile[arm].cost_usd()
    return model.name, point.cost_usd.value / usd if point and usd else None


def why_unavailable(
    request: Request, problem: str, exc: InvalidRequestError | DatabaseError
) -> Unavailable:
    """Return what the page says instead of data; only the admin sees a path of this machine.

    Raises an error of the client's own, such as an invalid cursor.
    """
    if isinstance(exc, InvalidRequestError):
        if exc.code != USAGE_NOT_RECORDED.code:
            raise exc
        return Unavailable(unavailable=str(exc))
    sees_all = visible_key(request) is None
    reason = f": the gateway {exc}." if sees_all else ". Ask the operator."
    return Unavailable(unavailable=problem + reason)


def read_overview(
    database: Database,
    asked: Period | None,
    now_s: float,
    wanted: UsageFilter,
    baseline_model: str | None,
    *,
    sees_all: bool = True,
) -> Overview:
    """Read the overview, of the shortest period that has requests if `asked` is None.

    Blocks, and raises DatabaseError. Unless `sees_all`, other keys and teams are not listed.
    """
    with database.read() as connection:
        for period in Period if asked is None else (asked,):
            step_s, starts = period.step_s, period.starts(now_s)
            bins = read_sums(connection, step_s, starts[0], "start_s", wanted)
            if bins:
                break
        models, policies = read_models_and_policies(connection, step_s, starts[0], wanted)
        keys: dict[str, UsageSums] = {}
        teams: dict[str, UsageSums] = {}
        if sees_all:
            keys = read_biggest(connection, "key", step_s, starts[0], now_s, wanted)
            teams = read_biggest(connection, "team", step_s, starts[0], now_s, wanted)
    total = UsageSums()
    for sums in bins.values():
        total.add(sums)
    first = min(min(bins, default=starts[0]), starts[-MIN_POINTS])
    shown = starts[starts.index(first) :]
    every = [bins.get(start) or UsageSums() for start in shown]
    figures = Traffic.of(total)
    return Overview(
        summary=UsageSummary.of(figures, baseline_model),
        period=period,
        step_s=step_s,
        points=tuple(
            TrafficPoint.of(sums, start=start) for start, sums in zip(shown, every, strict=True)
        ),
        latencies=LatencyMap.of(every),
        total=figures,
        models=_named(models),
        policies=_named(policies),
        keys=_named(keys),
        teams=_named(teams),
        baseline_model=baseline_model,
    )


def _named(found: Mapping[str, UsageSums]) -> tuple[NamedTraffic, ...]:
    """Return rows by name, the most expensive first."""
    rows = (NamedTraffic.of(sums, name=name) for name, sums in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.cost_usd, -row.requests)))
