"""What people write and read about keys and teams: the admin API's and the CLI's JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from router_service.access.key import Budget, BudgetPeriod
from router_service.core.errors import InvalidRequestError
from router_service.core.keys import begins_like_key
from router_service.database.schema import MAX_NAME

MAX_METADATA = 20
"""Largest number of members of a key's or a team's metadata."""
MAX_METADATA_CHARACTERS = 500
MAX_NAMES = 200
"""Largest number of models or policies that a key may list."""


KeyStatus: TypeAlias = Literal["active", "expired", "revoked"]


def _check_text(text: str) -> str:
    if any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in text):
        raise ValueError("must not contain control characters or line breaks")
    if text != text.strip():
        raise ValueError("must not begin or end with a space")
    return text


def _check_name(name: str) -> str:
    if begins_like_key(name):
        raise ValueError("looks like a key, and names appear in logs; choose another name")
    # Clients and proxies remove such segments from the path of an address, encoded or not.
    if name in {".", ".."}:
        raise ValueError("cannot be part of an address; choose another name")
    return name


def _check_time(time: datetime) -> datetime:
    if not 1970 < time.year < 9999:  # in every time zone
        raise ValueError("must be a year from 1971 to 9998")
    return time


Text = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_check_text)]
AccountName = Annotated[Text, AfterValidator(_check_name)]
"""A name that appears in logs, metrics and records, and is never used again."""
Owner = Annotated[str, Field(max_length=MAX_NAME), AfterValidator(_check_text)]
Time = Annotated[AwareDatetime, AfterValidator(_check_time)]
Limit = Annotated[int, Field(ge=1, le=2**31 - 1)]
MetadataText = Annotated[str, Field(max_length=MAX_METADATA_CHARACTERS)]
Metadata = Annotated[Mapping[MetadataText, MetadataText], Field(max_length=MAX_METADATA)]
Names = Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_NAMES)]


def describe_mistake(exc: ValidationError) -> InvalidRequestError:
    """Return the error about the first mistake in what people wrote, which names the field."""
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ".".join(str(part) for part in first["loc"])[:MAX_NAME]
    problem = first["msg"].removeprefix("Value error, ")
    is_missing = first["type"] == "missing"
    return InvalidRequestError(
        f"Invalid '{param}': {problem}.",
        param=param,
        code="missing_required_parameter" if is_missing else "invalid_value",
    )


def to_time(seconds: float | None) -> datetime | None:
    """Return Unix seconds as a time in UTC; None is never."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _LimitFields(_Spec):
    owner: Owner | None = None
    """The responsible person or group, for example an e-mail address."""
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    """Tokens of requests and answers together."""
    parallel_requests: Limit | None = None
    budget: Budget | None = None
    metadata: Metadata = Field(default_factory=dict)


class TeamChange(_LimitFields):
    """Changes of a team; a field that is absent stays, and null removes a limit."""


class NewTeam(TeamChange):
    """A new team. Its limits and its budget hold for all of its keys together."""

    name: AccountName


class KeyChange(_LimitFields):
    """Changes of a key; a field that is absent stays, and null removes a limit."""

    team: AccountName | None = None
    is_admin: bool = False
    """Whether the key may also use the admin API and the whole page."""
    expires: Time | None = None
    """Time after which the key is not valid, with its time zone."""
    models: Names | None = None
    """Models that requests may name and that the router may choose; null allows all."""
    policies: Names | None = None
    """Policies that requests may use, of which the first one is the default; null allows all."""


class NewKey(KeyChange):
    """A new key."""

    name: AccountName


class BudgetView(_Spec):
    """A budget, and what is left of it."""

    usd: float
    period: BudgetPeriod
    spent_usd: float
    """Spent in the present period, up to the last second."""
    starts: datetime
    resets: datetime | None
    """When the next period begins; null for `total`."""
    ends_by: datetime | None
    """When the budget is expected to be spent, at the pace of this period; null if it lasts."""

    @classmethod
    def of(cls, budget: Budget, spent_usd: float, created_s: float, now_s: float) -> Self:
        """Return a budget that was created at a time, in its present period."""
        starts_s, resets_s = budget.period.bounds_s(now_s)
        began_s = float(starts_s or created_s)
        ends_by_s = budget.ends_by_s(spent_usd, began_s, resets_s, now_s)
        return cls(
            usd=budget.usd,
            period=budget.period,
            spent_usd=spent_usd,
            starts=datetime.fromtimestamp(began_s, UTC),
            resets=to_time(resets_s),
            ends_by=to_time(ends_by_s),
        )


class TeamView(_LimitFields):
    """A team."""

    name: str
    created: datetime
    keys: int
    """Number of keys that are not revoked."""
    spent_month_usd: float
    """Spent in this calendar month (UTC)."""
    budget_state: BudgetView | None


class KeyView(_LimitFields):
    """A key, without its secret."""

    name: str
    hint: str
    """The last characters of the secret, by which people recognize it."""
    status: KeyStatus
    team: str | None
    is_admin: bool
    expires: datetime | None
    revoked: datetime | None
    created: datetime
    previous_until: datetime | None
    """Until when the secret before the last rotation is valid."""
    models: tuple[str, ...] | None
    policies: tuple[str, ...] | None
    spent_month_usd: float
    budget_state: BudgetView | None
    team_budget_state: BudgetView | None
    """The budget of the key's team, which its requests count towards too."""


class CreatedKey(_Spec):
    """A key with its secret, which is shown only once."""

    secret: str
    key: KeyView


class Rotation(_Spec):
    """How a key is rotated."""

    overlap_s: Annotated[float, Field(ge=0, le=90 * 24 * 3600)] = 24 * 3600.0
    """Time in seconds that the old secret stays valid."""


class KeyPage(_Spec):
    """Some keys, in the order of their names."""

    keys: tuple[KeyView, ...]
    total: int
    """Number of all keys that match."""
    next: str | None
    """Value of `after` for the next page; null on the last one."""


class TeamPage(_Spec):
    """Some teams, in the order of their names."""

    teams: tuple[TeamView, ...]
    total: int
    """Number of all teams that match."""
    next: str | None
    """Value of `after` for the next page; null on the last one."""
