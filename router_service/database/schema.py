"""Tables of the database.

Money is stored as a whole number of nanodollars (`core.money`). Times are Unix seconds. A change of
the tables needs a migration in `migrations/versions`, and a new `REVISION`; a test compares both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

PPM = 1_000_000
"""Millionths in one."""

LATENCY_RATIO = 2**0.25
"""Ratio of two bounds of the latency histogram. A percentile is off by 19% at most."""
LATENCY_BOUNDS_S = tuple(0.001 * LATENCY_RATIO**step for step in range(81))
"""Upper bounds of the latency histogram's bins, from 1 ms to 17 minutes; the last bin is open."""


@dataclass(slots=True)
class UsageSums:
    """Sums over requests, in whole numbers, so that they are exact whichever way they are added.

    Money is in nanodollars, and probabilities are in millionths. `telemetry.usage_figures` explains
    those of routed requests and of feedback.
    """

    requests: int = 0
    errors: int = 0
    unpriced: int = 0
    cost_nusd: int = 0
    compared_nusd: int = 0
    baseline_nusd: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    candidates: int = 0
    unfamiliar: int = 0
    estimated: int = 0
    correct_ppm: int = 0
    baseline_correct_ppm: int = 0
    variance_ppm: int = 0
    """Sum of the variances of the differences in correctness (`Expectation.variance`)."""
    error_ppm: int = 0
    """Sum of the standard errors of the expected differences (`Expectation.error`)."""
    feedback_correct: int = 0
    feedback_wrong: int = 0
    invalid_calls: int = 0
    tool_errors: int = 0
    repeated_calls: int = 0
    latencies: dict[int, int] = field(default_factory=dict)
    """Histogram of the time from a request's arrival to the end of its answer: the number of
    requests by bin. Requests that were refused before a model was asked are not in it."""

    def add(self, other: UsageSums) -> None:
        """Add the sums over other requests."""
        for name in USAGE_SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for index, count in other.latencies.items():
            self.latencies[index] = self.latencies.get(index, 0) + count

    def columns(self) -> dict[str, int]:
        """Return the sums by name, without the latencies."""
        return {name: getattr(self, name) for name in USAGE_SUMS}

    def percentile_s(self, share: float) -> float | None:
        """Return a percentile of the latencies by interpolation; None without any."""
        wanted = share * sum(self.latencies.values())
        below = 0
        for index, count in sorted(self.latencies.items()):
            if count and below + count >= wanted:
                upper_s = LATENCY_BOUNDS_S[min(index, len(LATENCY_BOUNDS_S) - 1)]
                return upper_s * math.pow(LATENCY_RATIO, (wanted - below) / count - 1)
            below += count
        return None


USAGE_SUMS = tuple(each.name for each in fields(UsageSums) if each.name != "latencies")
"""Names of the sums, which are columns of the table `usage`."""


REVISION = "0004"
"""The newest migration; a new database starts with it."""

MAX_NAME = 200
"""Longest name of a key, a team, a model or a policy, in characters."""

# A migration can only drop a constraint that has a name.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
    }
)


def _name(length: int = MAX_NAME) -> String:
    """Return the type of names, which PostgreSQL sorts by code points, as SQLite and Python do.

    By default, it sorts them by the rules of a language, which ignore some punctuation. Then the
    scopes of keys would not all be between `key:` and `key;`.
    """
    by_code_points = String(length, collation="C")
    return String(length).with_variant(by_code_points, "postgresql")


def _limits() -> tuple[Column[object], ...]:
    """Return the columns that keys and teams share; NULL means no limit."""
    return (
        Column("owner", String(MAX_NAME)),
        # Name and owner, case-folded. A search reads one column of each row, which is three times
        # as fast as folding two.
        Column("search", Text, nullable=False, default=""),
        Column("requests_per_minute", Integer),
        Column("tokens_per_minute", Integer),
        Column("parallel_requests", Integer),
        Column("budget_nusd", BigInteger),
        Column("budget_period", String(10)),
        Column("metadata", JSON, nullable=False),
        Column("created_s", Float, nullable=False),
        # The value of `state.revision` when the row was last changed.
        Column("revision", BigInteger, nullable=False, index=True),
    )


teams = Table(
    "teams",
    metadata,
    Column("name", _name(), primary_key=True),
    *_limits(),
    Column("deleted_s", Float),
)
"""A team's name is never used again, because usage and stored objects refer to it. The same holds
for keys."""

keys = Table(
    "keys",
    metadata,
    Column("name", _name(), primary_key=True),
    # SHA-256 of the secret, in hexadecimal digits.
    Column("digest", String(64), nullable=False, unique=True),
    # The end of the secret, by which people recognize it.
    Column("hint", String(8), nullable=False),
    # The secret before a rotation, which stays valid for a while.
    Column("previous_digest", String(64), unique=True),
    Column("previous_until_s", Float),
    Column("team", _name(), ForeignKey("teams.name"), index=True),
    Column("is_admin", Boolean, nullable=False),
    Column("expires_s", Float),
    Column("revoked_s", Float),
    # Names that requests may use; NULL means all.
    Column("models", JSON(none_as_null=True)),
    Column("policies", JSON(none_as_null=True)),
    *_limits(),
)

state = Table(
    "state",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""Numbers of the whole database; `revision` counts the changes of keys and teams."""

USAGE_DAY, USAGE_MONTH = "usage-day", "usage-month"
"""Periods of `spending` for what all keys and teams spend, with or without a budget."""

spending = Table(
    "spending",
    metadata,
    # The key or the team, as key:NAME or team:NAME.
    Column("subject", _name(MAX_NAME + 5), primary_key=True),
    # That of a budget, or `USAGE_DAY` or `USAGE_MONTH`.
    Column("period", String(12), primary_key=True),
    Column("start_s", BigInteger, primary_key=True),
    Column("spent_nusd", BigInteger, nullable=False),
    # Until when a gateway waits for money that others have leased and do not use.
    Column("wanted_until_s", Float, nullable=False),
    Index("spending_by_amount", "period", "start_s", "spent_nusd"),
)
"""What keys and teams have spent in each calendar period. A row is never set back, so a clock that
jumps cannot reset a budget twice."""

leases = Table(
    "leases",
    metadata,
    Column("subject", String(MAX_NAME + 5), primary_key=True),
    Column("period", String(10), primary_key=True),
    Column("start_s", BigInteger, primary_key=True),
    # The process that may spend the amount.
    Column("holder", String(40), primary_key=True),
    Column("amount_nusd", BigInteger, nullable=False),
    # The part of the amount that requests in flight have reserved, or that others wait for.
    Column("reserved_nusd", BigInteger, nullable=False),
    Column("expires_s", Float, nullable=False),
    # Number of the holder's last write. If its connection broke during a commit, the holder finds
    # out whether the write was made.
    Column("number", BigInteger, nullable=False),
)
"""Parts of budgets that processes hold, so that requests need not ask the database."""


def _group() -> tuple[Column[object], ...]:
    return (
        # Empty for all requests, or key:NAME or team:NAME.
        Column("scope", _name(MAX_NAME + 5), primary_key=True),
        Column("step_s", Integer, primary_key=True),
        Column("start_s", BigInteger, primary_key=True),
        Column("model", _name(), primary_key=True),
        Column("policy", _name(), primary_key=True),
    )


_FIRST_LATER = USAGE_SUMS.index("estimated")
"""The first sum that the first version of the table lacks. The others have a default, because
gateways of older versions do not write them."""

usage = Table(
    "usage",
    metadata,
    *_group(),
    *(Column(name, BigInteger, nullable=False) for name in USAGE_SUMS[:_FIRST_LATER]),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for name in USAGE_SUMS[_FIRST_LATER:]
    ),
    # By which old rows are found.
    Index("usage_by_time", "step_s", "start_s"),
    sqlite_with_rowid=False,
)
"""Sums over requests by minute, hour and day. Each request is counted in the rows of its key, of
its team and of all requests, so that no view has to add up the rows of all keys. `candidates` is
the number of answers that models were asked for, and tokens and costs are those of all of them."""

latencies = Table(
    "latencies",
    metadata,
    *_group(),
    Column("bin", Integer, primary_key=True, autoincrement=False),
    Column("requests", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Histograms of latencies, for the same groups as `usage`; only bins that have a request."""

recent_requests = Table(
    "recent_requests",
    metadata,
    # When the answer ended, in microseconds.
    Column("ended_us", BigInteger, primary_key=True, autoincrement=False),
    # That of the decision, if there is one.
    Column("id", _name(40), primary_key=True),
    # The id that the client has sent; NULL if it has sent none.
    Column("request_id", String(MAX_NAME)),
    Column("key", _name()),
    Column("team", _name()),
    Column("path", String(MAX_NAME), nullable=False),
    # NULL if the request was refused before a model was chosen.
    Column("model", _name()),
    Column("deployment", String(MAX_NAME)),
    Column("arm", String(MAX_NAME)),
    # NULL if the request was not routed.
    Column("policy", _name()),
    Column("reason", String(20)),
    Column("outcome", String(10), nullable=False),
    Column("status", Integer, nullable=False),
    Column("ending", String(12), nullable=False),
    # The error's code if the gateway refused the request, or the kind of an upstream's failure.
    Column("error", String(60)),
    Column("attempts", Integer, nullable=False),
    Column("latency_s", Float, nullable=False),
    Column("first_byte_s", Float),
    Column("cost_nusd", BigInteger),
    Column("prompt_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    # Number of candidate answers; NULL if the policy is not `verified`.
    Column("candidates", Integer),
    Column("unverified", String(30)),
    # Equal for all requests of a conversation; NULL if no choice depends on the conversation.
    Column("conversation", String(MAX_NAME)),
    # By which the list of one key is read. An index of the ids would double the time for a row, and
    # only the details of a request look for an id.
    Index("recent_requests_by_key", "key", "ended_us", "id"),
    sqlite_with_rowid=False,
)
"""The latest requests, without their content. Rows are kept in the order of time, so that the
newest ones are read, and the oldest ones deleted, together."""

comparisons = Table(
    "comparisons",
    metadata,
    # The id of the delivered answer's decision.
    Column("id", _name(40), primary_key=True),
    Column("ended_s", Float, nullable=False, index=True),
    Column("key", _name()),
    # NULL if neither answer calls a tool.
    Column("tool", _name()),
    Column("model", _name(), nullable=False),
    # The model that answered in the background.
    Column("other", _name(), nullable=False),
    # Whether both answers make the same calls; NULL if the other model gave none.
    Column("is_same", Boolean),
    Column("cost_nusd", BigInteger),
    Column("other_nusd", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("other_seconds", Float, nullable=False),
)
"""Delivered answers beside those of a second model (`router.compare`), without their content."""
