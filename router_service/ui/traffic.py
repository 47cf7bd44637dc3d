"""The page's views of traffic: who uses it, the account, and usage over time.

Every key may use them. Only the admin key sees the traffic of other keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request

from router_service import __version__
from router_service.access.accounts import Accounts
from router_service.access.specs import KeyView
from router_service.core.errors import (
    DatabaseError,
    UnknownAccountError,
    UsageDisabledError,
)
from router_service.core.reasons import Reason
from router_service.database.engine import Database
from router_service.http.auth import CLIENTS_UI_PREFIX
from router_service.http.request_lists import visible_key
from router_service.http.transfer import gateway_of, info_of
from router_service.http.usage import readable_usage
from router_service.policies.names import published_names
from router_service.telemetry.usage import DAY_S, HOUR_S, MINUTE_S, UsageSums
from router_service.telemetry.usage_reports import UsageFilter, read_biggest, read_sums

routes = APIRouter(prefix=CLIENTS_UI_PREFIX.rstrip("/"), include_in_schema=False)

MAX_NAME = 200
"""Longest name that a filter may have, in characters."""


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

    @property
    def bins(self) -> int:
        """Number of bins; the last one contains the present moment. Days begin at 0:00 UTC."""
        return {Period.HOUR: 60, Period.DAY: 24, Period.MONTH: 30}[self]


class Traffic(BaseModel):
    """Sums over requests, as in `UsageSums`."""

    requests: int
    errors: int
    unpriced: int
    cost_usd: float
    compared_usd: float
    baseline_usd: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    candidates: int
    unfamiliar: int
    p50_s: float | None
    """Median of the time to the end of the answer; None if no model was asked."""
    p95_s: float | None

    @classmethod
    def describe(cls, sums: UsageSums) -> dict[str, float | None]:
        """Return the fields for these sums."""
        names = (name for name in Traffic.model_fields if name not in {"p50_s", "p95_s"})
        values = {name: getattr(sums, name) for name in names}
        return values | {"p50_s": sums.percentile_s(0.5), "p95_s": sums.percentile_s(0.95)}


class TrafficPoint(Traffic):
    """Sums over the requests of one bin."""

    start: int
    """Unix time at which the bin starts."""


class NamedTraffic(Traffic):
    """Sums over the requests of one model, policy, key or team."""

    name: str


class Overview(BaseModel):
    """Traffic over time, in total and by model, policy, key and team."""

    step_s: int
    points: tuple[TrafficPoint, ...]
    """One for each bin, also without requests."""
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
    """The model that savings are measured against."""


class UnavailableOverview(BaseModel):
    """Why there is no usage to show."""

    unavailable: str


@routes.get("/session")
async def session(request: Request) -> Session:
    """Return who the caller is; refused with 401 without a valid key."""
    gateway = gateway_of(request)
    return Session(
        key=info_of(request).key,
        is_admin=visible_key(request) is None,
        is_sandbox=gateway.engine.settings.is_sandbox,
        model_name=gateway.engine.settings.router.model_name,
        policy_names=published_names(gateway.engine.manifest.named_rules),
    )


@routes.get("/account")
async def account(request: Request) -> KeyView | None:
    """Return the caller's own key with what is left of its budgets.

    The result is null for keys of the configuration file, which have no limits.
    """
    gateway, name = gateway_of(request), info_of(request).key
    if gateway.database.failure is not None:
        raise gateway.database.failure  # at once, instead of after the connection's timeout
    try:
        accounts = Accounts(gateway.database.database)
        return None if name is None else await asyncio.to_thread(accounts.get_key, name)
    except UnknownAccountError:
        return None


Filter = Annotated[str | None, Query(max_length=MAX_NAME)]


@routes.get("/overview")
async def overview(
    request: Request,
    period: Period = Period.HOUR,
    model: Filter = None,
    policy: Filter = None,
    key: Filter = None,
    team: Filter = None,
) -> Overview | UnavailableOverview:
    """Return the traffic of a period until now, of all workers and replicas.

    A client's key sees only its own traffic. With the filter `team`, the list of keys has those
    that are in the team now.
    """
    own_key = visible_key(request)
    gateway = gateway_of(request)
    baseline = gateway.engine.pool.baseline
    baseline_model = None if baseline is None else baseline.name
    wanted = UsageFilter(model, policy, own_key or key, None if own_key else team)
    try:
        database = readable_usage(gateway)
        return await asyncio.to_thread(
            read_overview,
            database,
            period,
            time.time(),
            wanted,
            baseline_model,
            sees_all=own_key is None,
        )
    except (UsageDisabledError, DatabaseError) as exc:
        text = why_unavailable("Usage is not available", exc, sees_all=own_key is None)
        return UnavailableOverview(unavailable=text)


def why_unavailable(
    problem: str, exc: UsageDisabledError | DatabaseError, *, sees_all: bool
) -> str:
    """Return what the page says instead of data; only the admin sees a path of this machine."""
    if isinstance(exc, UsageDisabledError):
        return str(exc)
    return f"{problem}: the gateway {exc}." if sees_all else f"{problem}. Ask the operator."


def read_overview(
    database: Database,
    period: Period,
    now_s: float,
    wanted: UsageFilter,
    baseline_model: str | None,
    *,
    sees_all: bool = True,
) -> Overview:
    """Read the overview; blocks, and raises DatabaseError.

    Unless `sees_all`, other keys and teams are not listed.
    """
    step_s = period.step_s
    last = int(now_s) // step_s * step_s
    starts = range(last - (period.bins - 1) * step_s, last + 1, step_s)
    with database.read() as connection:
        bins = read_sums(connection, step_s, starts[0], "start_s", wanted)
        every_model, every_policy = replace(wanted, model=None), replace(wanted, policy=None)
        models = read_sums(connection, step_s, starts[0], "model", every_model)
        policies = read_sums(connection, step_s, starts[0], "policy", every_policy)
        keys: dict[str, UsageSums] = {}
        teams: dict[str, UsageSums] = {}
        if sees_all:
            keys = read_biggest(connection, "key", step_s, starts[0], now_s, wanted)
            teams = read_biggest(connection, "team", step_s, starts[0], now_s, wanted)
    total = UsageSums()
    for sums in bins.values():
        total.add(sums)
    return Overview(
        step_s=step_s,
        points=tuple(
            TrafficPoint(start=start, **Traffic.describe(bins.get(start) or UsageSums()))
            for start in starts
        ),
        total=Traffic(**Traffic.describe(total)),
        models=_named(models),
        policies=_named(policies),
        keys=_named(keys),
        teams=_named(teams),
        baseline_model=baseline_model,
    )


def _named(found: Mapping[str, UsageSums]) -> tuple[NamedTraffic, ...]:
    """Return rows by name, the most expensive first."""
    rows = (NamedTraffic(name=name, **Traffic.describe(sums)) for name, sums in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.cost_usd, -row.requests)))
