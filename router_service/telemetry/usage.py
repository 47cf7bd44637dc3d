"""Usage: sums over requests by time, model, policy, key and team.

Records of requests are added to sums in memory, in batches. The database's thread writes these sums
every second, for minutes, hours and days, so that all replicas share them. They contain
no part of any request. `usage_reports` reads them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, delete, func, select

from router_service.access.key import BudgetPeriod
from router_service.core.decision_record import DecisionRecord
from router_service.core.money import NANO, to_nusd
from router_service.core.record import Record, RecordKind
from router_service.database.engine import Database, add_to_sums
from router_service.database.schema import (
    LATENCY_BOUNDS_S,
    MAX_NAME,
    PPM,
    USAGE_DAY,
    USAGE_MONTH,
    USAGE_SUMS,
    UsageSums,
    latencies,
    spending,
    state,
    usage,
)
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.metrics import NO_MODEL
from router_service.telemetry.sinks import TIDY_ROWS, TURN_S, DatabaseSink, clean, delete_rows

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 24 * 3600
STEPS_S = (MINUTE_S, HOUR_S, DAY_S)
"""Lengths of the times that sums are kept for."""
MINUTES_KEPT_S = 2 * HOUR_S
HOURS_KEPT_S = 2 * DAY_S

SPENDING_PERIODS = {BudgetPeriod.DAY: USAGE_DAY, BudgetPeriod.MONTH: USAGE_MONTH}
"""Names of the periods in the table `spending` that have the spending of every key and team. They
are not those of budgets, which have a ledger of their own."""
SPENDING_KEPT_S = {USAGE_DAY: 3 * DAY_S, USAGE_MONTH: 95 * DAY_S}
"""How long they are kept: they only say which keys and teams have spent most."""

ALL = ""
"""The scope of all requests."""

NO_POLICY = "none"
"""Policy of requests that were not routed."""

MAX_POLICIES = 32
"""Number of different policies that are recorded with their number, such as `drift=0.05`. Clients
choose the number freely, so further ones are recorded by their rule, such as `drift`."""

BATCH_ROWS = 200
"""Largest number of sums that one transaction writes, each to at most nine rows of `usage`."""
TIDY_EVERY_S = 600.0

_log = logging.getLogger("switchcraft.usage")


class UsageEntry(NamedTuple):
    """What requests have in common whose usage is added up."""

    minute: int
    """The Unix time at which the minute of the requests' end starts."""
    key: str | None
    team: str | None
    model: str
    policy: str
    """The policy as people read it, see `label_policy`."""

    @classmethod
    def of(cls, record: DecisionRecord | Record) -> UsageEntry:
        """Return the entry of a request that has ended."""
        policy = record.policy_label or NO_POLICY
        minute = int(record.created) // MINUTE_S * MINUTE_S
        return cls(minute, record.key, record.team, record.model or NO_MODEL, policy)


Name: TypeAlias = Annotated[str | None, Field(max_length=MAX_NAME)]


class UsageFilter(BaseModel):
    """Which requests are added up or listed; None selects all.

    With a key and a team, the team's sums count for the list of teams, and the key's for the rest.
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    key: Name = None
    """Only requests with this key; empty for those without a key."""
    team: Name = None
    """Only requests of this team, to which the key belonged at that time."""
    model: Name = None
    """Only requests that this model answered, or `none` for refused ones."""
    policy: Name = None
    """Only requests with this policy, or `none` for those that were not routed."""

    @property
    def scope(self) -> str:
        """The scope of the rows that have the sums."""
        if self.key is not None:
            return f"key:{clean(self.key)}"
        return ALL if self.team is None else f"team:{clean(self.team)}"


LaterSum = Literal[
    "feedback_correct", "feedback_wrong", "invalid_calls", "tool_errors", "repeated_calls"
]
"""Sums that are counted after a request has ended."""

Group = tuple[str, int, int, str, str]
"""The primary key of a row of `usage`."""
_GROUP = tuple(column.name for column in usage.primary_key)
_SPENT = tuple(column.name for column in spending.columns)


class UsageHistory(DatabaseSink):
    """Adds up the usage of this process's requests, and writes it to the database."""

    def __init__(
        self,
        settings: UsageSettings,
        database: DatabaseSettings,
        clock: Callable[[], float] = time.time,
        turn_s: float = TURN_S,
    ) -> None:
        """Write nothing yet; for `clock` and `turn_s`, see `DatabaseSink`."""
        super().__init__(TIDY_EVERY_S, clock, turn_s)
        self.is_enabled = settings.enabled
        self._max_rows = settings.max_rows
        self._kept_s = {
            MINUTE_S: MINUTES_KEPT_S,
            HOUR_S: HOURS_KEPT_S,
            DAY_S: settings.retention_days * DAY_S,
        }
        self._max_pending = database.max_pending_rows
        self._pending: dict[UsageEntry, UsageSums] = {}
        self._lock = threading.Lock()
        """Protects the pending sums, to which the event loop and the thread of feedback add."""
        self._dropped = 0
        self._policies: set[str] = set()
        self._writer = f"usage {secrets.token_hex(8)}"
        """The row of `state` that says which batch this process has written last."""
        self._batch: list[tuple[UsageEntry, UsageSums]] = []
        """What is being written, or could not be written yet."""
        self._batch_id = 0
        self._may_be_written = False
        """Whether an attempt to write the batch has failed, perhaps after it had succeeded."""

    def add(self, records: Iterable[Record]) -> None:
        """Count requests that have ended."""
        with self._lock:
            for record in records:
                sums = None
                if record.kind is not RecordKind.OWN:
                    sums = self._sums_of(UsageEntry.of(record))
                if sums is not None:
                    _add_record(sums, record)

    def add_later(self, entry: UsageEntry, name: LaterSum, number: int = 1) -> None:
        """Add what is learned of an answer afterwards to the sums of its request; thread-safe."""
        with self._lock:
            sums = self._sums_of(entry)
            if sums is not None:
                setattr(sums, name, getattr(sums, name) + number)

    def _sums_of(self, entry: UsageEntry) -> UsageSums | None:
        """Return the pending sums of an entry; None if there are too many, which is counted.

        If too many different policies are recorded already, the entry's is recorded without its
        number.
        """
        if entry.policy not in self._policies:
            if len(self._policies) < MAX_POLICIES:
                self._policies.add(entry.policy)
            else:
                name, _, _ = entry.policy.partition(" (")
                entry = entry._replace(policy=name.partition("=")[0])
        sums = self._pending.get(entry)
        if sums is None:
            if len(self._pending) >= self._max_pending or not self.is_enabled:
                self._dropped += 1
                return None
            sums = self._pending[entry] = UsageSums()
        return sums

    def _write(self, database: Database) -> Iterator[object]:
        while self._take_batch():
            with database.write() as connection:
                if not (self._may_be_written and self._was_written(connection)):
                    self._may_be_written = True
                    self._write_batch(connection)
            self._batch, self._may_be_written = [], False
            yield
        if self._is_closing:
            with database.write() as connection:
                connection.execute(delete(state).where(state.c.name == self._writer))

    def _take_batch(self) -> bool:
        """Move sums from the pending ones to the batch, if it is empty; return if it has any."""
        if not self._batch:
            with self._lock:
                entries = list(self._pending)[:BATCH_ROWS]
                self._batch = [(entry, self._pending.pop(entry)) for entry in entries]
                dropped, self._dropped = self._dropped, 0
            # The time shows which rows were left behind by a process that was killed.
            self._batch_id = max(int(self._clock() * NANO), self._batch_id + 1)
            if dropped and self.is_enabled:
                _log.warning(
                    "usage of some requests was not recorded, because too much was waiting to be "
                    "written: requests=%d limit=database.max_pending_rows", dropped,
                )  # fmt: skip
        return bool(self._batch)

    def _was_written(self, connection: Connection) -> bool:
        """Return whether the batch was written, although the answer to the commit was lost."""
        query = select(state.c.value).where(state.c.name == self._writer)
        return connection.execute(query).scalar_one_or_none() == self._batch_id

    def _write_batch(self, connection: Connection) -> None:
        groups: defaultdict[Group, UsageSums] = defaultdict(UsageSums)
        spent: Counter[tuple[str, str, int]] = Counter()
        for entry, sums in self._batch:
            # Requests without a key count for an empty one, so that all keys together have all.
            subjects = [f"key:{clean(entry.key or '')}"]
            if entry.team is not None:
                subjects.append(f"team:{clean(entry.team)}")
            names = clean(entry.model), clean(entry.policy)
            for scope, step_s in product((ALL, *subjects), STEPS_S):
                groups[scope, step_s, entry.minute // step_s * step_s, *names].add(sums)
            for subject, (period, name) in product(subjects, SPENDING_PERIODS.items()):
                spent[subject, name, period.bounds_s(entry.minute)[0]] += sums.cost_nusd
        # Every writer locks the rows in the same order, so that two cannot wait for each other. The
        # rows of all requests, which every writer needs, come last.
        ordered = [
            (dict(zip(_GROUP, group, strict=True)), sums)
            for group, sums in sorted(groups.items(), reverse=True)
        ]
        bins = [
            row | {"bin": index, "requests": count}
            for row, sums in ordered
            for index, count in sorted(sums.latencies.items())
        ]
        paid = [
            dict(zip(_SPENT, (*row, amount, 0.0), strict=True))
            for row, amount in sorted(spent.items())
        ]
        for table, added, rows in (
            (usage, USAGE_SUMS, [row | sums.columns() for row, sums in ordered]),
            (latencies, ("requests",), bins),
            (spending, ("spent_nusd",), paid),
        ):
            if rows:
                connection.execute(add_to_sums(connection, table, added), rows)
        connection.execute(delete(state).where(state.c.name == self._writer))
        connection.execute(state.insert().values(name=self._writer, value=self._batch_id))

    def _tidy(self, database: Database) -> Iterator[object]:
        now_s = self._clock()
        for step_s, kept_s in self._kept_s.items():
            is_old = (usage.c.step_s == step_s) & (usage.c.start_s < now_s - kept_s)
            yield from delete_rows(database, usage, is_old)
        for period, kept_s in SPENDING_KEPT_S.items():
            is_old = (spending.c.period == period) & (spending.c.start_s < now_s - kept_s)
            yield from delete_rows(database, spending, is_old)
        # Rows of processes that were killed.
        is_old = state.c.name.like("usage %") & (state.c.value < int((now_s - DAY_S) * NANO))
        yield from delete_rows(database, state, is_old)
        excess = -self._max_rows
        for table in (usage, latencies):
            with database.read() as connection:
                excess += connection.execute(select(func.count()).select_from(table)).scalar_one()
            yield
        for step_s in STEPS_S:
            present = int(now_s) // step_s * step_s  # which is never deleted
            is_past = (usage.c.step_s == step_s) & (usage.c.start_s < present)
            while excess > 0:
                # A row has about three rows of `latencies`.
                most = max(1, min(excess // 4, TIDY_ROWS))
                deleted = sum(delete_rows(database, usage, is_past, usage.c.start_s, most))
                yield
                if not deleted:
                    break
                excess -= deleted


def _add_record(sums: UsageSums, record: Record) -> None:
    """Add a request to the sums of its entry."""
    sums.requests += 1
    sums.errors += record.is_error
    if record.kind is not RecordKind.PLANNED:
        return
    index = bisect_left(LATENCY_BOUNDS_S, record.latency_s)
    sums.latencies[index] = sums.latencies.get(index, 0) + 1
    sums.unfamiliar += record.is_unfamiliar
    sums.candidates += len(record.answers)
    if record.actual_cost_usd is not None:
        cost_nusd = to_nusd(record.actual_cost_usd)
        sums.cost_nusd += cost_nusd
        if record.baseline_usd is not None:
            sums.compared_nusd += cost_nusd
            sums.baseline_nusd += to_nusd(record.baseline_usd)
    elif not record.is_error:
        sums.unpriced += 1
    expectation = record.expectation
    if expectation is not None:
        sums.estimated += 1
        sums.correct_ppm += round(expectation.correct * PPM)
        sums.baseline_correct_ppm += round(expectation.baseline_correct * PPM)
        sums.variance_ppm += round(expectation.variance * PPM)
        sums.error_ppm += round(expectation.error * PPM)
    for answer in record.answers:
        sums.prompt_tokens += answer.prompt_tokens or 0
        sums.completion_tokens += answer.completion_tokens or 0
        sums.cached_tokens += answer.cached_tokens
        sums.reasoning_tokens += answer.reasoning_tokens
