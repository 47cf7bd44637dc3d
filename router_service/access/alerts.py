"""Alerts when budgets reach shares of what they are: a log line, a metric, and a signed webhook.

The database decides which process sends an alert, so that all gateways together send it once. It
also has the time of the next attempt, so that retries survive a restart. The requests are signed as
Standard Webhooks (standardwebhooks.com); a receiver can tell a repeated one by its `webhook-id`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx
import orjson
from sqlalchemy import Connection, and_, delete, select, update

from router_service.access.budgets import BudgetBalance
from router_service.access.key import Budget, BudgetPeriod, Key
from router_service.access.specs import BudgetView
from router_service.core.money import NANO
from router_service.database.engine import Database, insert_into
from router_service.database.schema import alerts, keys, spending, teams
from router_service.settings import BudgetSettings

CHECK_S = 1.0
"""Interval at which the budgets in use are compared with the shares."""
SEND_S = 2.0
"""Interval at which alerts to be sent are looked for."""
ACTIVE_S = 30.0
"""Time after its last request that a key's budgets are compared."""
EXHAUSTED_FROM = 0.9
"""A budget of which this share is spent counts as spent if it refuses a request: what is left does
not pay for the cheapest model."""

TIMEOUT_S = 5.0
"""Longest time of a webhook's request, from its connection to the status of the answer."""
FIRST_RETRY_S, MAX_RETRY_S = 5.0, 2 * 3600.0
"""The pause after the first failed attempt; it doubles with each one, up to the longest pause."""
MAX_ATTEMPTS = 22
"""Number of attempts, which take 25 hours."""
SENT_AT_ONCE = 10
KEPT_S = 70 * 24 * 3600.0
"""Time after its period's begin that an alert is kept; those of budgets without an end stay."""
CLEAN_S = 3600.0

EVENT = "budget.threshold_reached"

_log = logging.getLogger("switchcraft.budgets")


class AlertId(NamedTuple):
    """A share that a budget has reached in one of its periods: the key of a row of `alerts`."""

    subject: str
    """The key or the team, as `key:NAME` or `team:NAME`."""
    period: str
    start_s: int
    share: float

    @property
    def message_id(self) -> str:
        """The same id for every attempt, by which a receiver recognizes a repeated request."""
        facts = f"{self.subject}\0{self.period}\0{self.start_s}\0{self.share!r}"
        return f"msg_{hashlib.sha256(facts.encode()).hexdigest()[:32]}"


class BudgetAlerts:
    """Notices that budgets reach shares, and sends the alerts.

    `note` and `refused` are called on the event loop. All other work is that of `run`, which is a
    job of the database's thread, and of a thread that sends. The end of the process does not wait
    for that thread.
    """

    def __init__(
        self,
        settings: Callable[[], BudgetSettings],
        states: Callable[[Key], Sequence[BudgetBalance]],
        on_outcome: Callable[[str], None] = lambda _: None,
        send_s: float = SEND_S,
    ) -> None:
        """Know no budget yet, and look for alerts to be sent every `send_s` seconds.

        `states` returns the budgets of a key and its team; it is called in the database's thread.
        `on_outcome` gets `reached`, `delivered`, `failed` or `given_up`.
        """
        self._settings = settings
        self._states = states
        self._on_outcome = on_outcome
        self._send_every_s = send_s
        self._active: dict[str | None, tuple[Key, float]] = {}
        self._refused: set[str | None] = set()
        self._known: set[AlertId] = set()
        self._sender: threading.Thread | None = None
        """Sends the alerts that were claimed last."""
        self._is_closed = False
        self._done: deque[tuple[AlertId, int, str | None]] = deque()
        """Attempts that have ended: their number, and why they failed."""
        self._send_s = self._clean_s = 0.0

    def note(self, key: Key) -> None:
        """Compare the budgets of a key that is in use."""
        if key.limited:
            self._active[key.name] = key, time.monotonic()

    def refused(self, key: Key) -> None:
        """Note that a budget of the key has refused a request."""
        self.note(key)
        self._refused.add(key.name)

    def run(self, database: Database) -> None:
        """Store what was reached, and send what is due; raises DatabaseError."""
        settings, now = self._settings(), time.monotonic()
        reached = self._find_reached(settings, now)
        if reached:
            with database.write() as connection:
                now_s = database.now_s(connection)
                is_sent = settings.webhook_url is None
                new = [each for each in reached if _insert(connection, each, now_s, is_sent)]
            self._known.update(reached)
            for each in new:
                self._on_outcome("reached")
                _log.warning(
                    "a budget has reached a share: subject=%s share=%.0f%% spent_usd=%.2f "
                    "budget_usd=%.2f", each.subject, each.share * 100, reached[each].spent_usd,
                    reached[each].budget.usd,
                )  # fmt: skip
        if self._done:
            self._store_results(database)
        is_sending = self._is_closed or (self._sender is not None and self._sender.is_alive())
        if settings.webhook_url is not None and now >= self._send_s and not is_sending:
            self._send_s = now + self._send_every_s
            self._send_due(database, settings)
        if now >= self._clean_s:
            self._clean_s = now + CLEAN_S
            with database.write() as connection:
                oldest_s = database.now_s(connection) - KEPT_S
                is_old = and_(alerts.c.period != BudgetPeriod.TOTAL, alerts.c.start_s < oldest_s)
                connection.execute(delete(alerts).where(is_old))
            self._known.clear()

    def close(self) -> None:
        """Send nothing more; what was not sent is sent after a restart."""
        self._is_closed = True

    def _find_reached(self, settings: BudgetSettings, now: float) -> dict[AlertId, BudgetBalance]:
        found: dict[AlertId, BudgetBalance] = {}
        refused, self._refused = self._refused, set()
        for name, (key, seen) in list(self._active.items()):
            if now - seen > ACTIVE_S:
                self._active.pop(name, None)
            states = sorted(self._states(key), key=lambda state: state.share)
            for state in states:
                share = state.share
                if name in refused and state is states[-1] and share >= EXHAUSTED_FROM:
                    share = max(1.0, share)
                for limit in settings.alert_at:
                    period = str(state.budget.period)
                    each = AlertId(state.subject, period, int(state.start_s), limit)
                    if share >= limit and each not in self._known:
                        found[each] = state
        return found

    def _send_due(self, database: Database, settings: BudgetSettings) -> None:
        """Claim the alerts that are due, and give them to the thread that sends."""
        claimed: list[tuple[AlertId, int, bytes]] = []
        with database.read() as connection:
            now_s = database.now_s(connection)
            query = (
                select(alerts)
                .where(and_(alerts.c.sent_s.is_(None), alerts.c.next_attempt_s <= now_s))
                .order_by(alerts.c.next_attempt_s)
                .limit(SENT_AT_ONCE)
            )
            due = list(connection.execute(query))
        if not due:
            return
        with database.write() as connection:
            for row in due:
                each, number = (
                    AlertId(row.subject, row.period, row.start_s, row.share),
                    row.attempts + 1,
                )
                pause_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0**row.attempts)
                body = _payload(connection, each, now_s)
                is_last = body is None or number > MAX_ATTEMPTS
                # Of several gateways, the one whose update finds the old number sends.
                values: dict[str, Any] = {"attempts": number, "next_attempt_s": now_s + pause_s}
                if is_last:
                    values["sent_s"] = now_s
                mine = _where(each).where(alerts.c.attempts == row.attempts).values(**values)
                if connection.execute(mine).rowcount == 1 and not is_last and body is not None:
                    claimed.append((each, number, body))
        url, secret = settings.webhook_url, settings.webhook_secret
        if url is None or secret is None or not claimed:
            return

        async def send(client: httpx.AsyncClient, each: AlertId, number: int, body: bytes) -> None:
            headers = sign_webhook(
                secret.get_secret_value(), each.message_id, int(time.time()), body
            )
            problem: str | None = None
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    # The answer's body is not read, and redirects are not followed.
                    async with client.stream("POST", url, content=body, headers=headers) as answer:
                        status = answer.status_code
                if not 200 <= status < 300:
                    problem = f"status {status}"
            except TimeoutError:
                problem = f"no answer within {TIMEOUT_S:.0f} s"
            except httpx.HTTPError as exc:
                problem = type(exc).__name__
            except Exception as exc:  # noqa: BLE001 - no defect may end the thread
                _log.exception("an alert could not be sent")
                problem = type(exc).__name__
            self._done.append((each, number, problem))

        async def send_all() -> None:
            # The deadline of each request limits all of its steps; httpx would limit each step.
            async with httpx.AsyncClient(timeout=None) as client:  # noqa: S113
                await asyncio.gather(*(send(client, *each) for each in claimed))

        # A daemon, because the process must end although a receiver is slow.
        self._sender = threading.Thread(
            target=lambda: asyncio.run(send_all()), name="alerts", daemon=True
        )
        self._sender.start()

    def _store_results(self, database: Database) -> None:
        results = [self._done.popleft() for _ in range(len(self._done))]
        try:
            with database.write() as connection:
                now_s = database.now_s(connection)
                for each, number, problem in results:
                    if problem is None or number >= MAX_ATTEMPTS:
                        connection.execute(_where(each).values(sent_s=now_s))
        except Exception:
            self._done.extendleft(reversed(results))
            raise
        for each, number, problem in results:
            if problem is None:
                self._on_outcome("delivered")
            elif number < MAX_ATTEMPTS:
                self._on_outcome("failed")
                _log.warning(
                    "a budget's alert could not be sent and will be tried again: subject=%s "
                    "share=%.0f%% attempt=%d cause=%r", each.subject, each.share * 100, number,
                    problem,
                )  # fmt: skip
            else:
                self._on_outcome("given_up")
                _log.error(
                    "a budget's alert could not be sent; check budgets.webhook_url: subject=%s "
                    "share=%.0f%% attempts=%d cause=%r", each.subject, each.share * 100, number,
                    problem,
                )  # fmt: skip


def sign_webhook(secret: str, message_id: str, time_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a Standard Webhook; the secret is `whsec_` and base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((message_id.encode(), str(time_s).encode(), body))
    signature = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    return {
        "content-type": "application/json",
        "user-agent": "switchcraft",
        "webhook-id": message_id,
        "webhook-timestamp": str(time_s),
        "webhook-signature": f"v1,{signature}",
    }


def _insert(connection: Connection, each: AlertId, now_s: float, is_sent: bool) -> bool:
    """Insert an alert, and return whether no gateway has inserted it before."""
    statement = insert_into(connection, alerts).values(
        **each._asdict(), attempts=0, next_attempt_s=now_s, sent_s=now_s if is_sent else None
    )
    inserted = statement.on_conflict_do_nothing().returning(alerts.c.subject)
    return connection.execute(inserted).first() is not None


def _where(each: AlertId) -> Any:  # noqa: ANN401 - the library's update statement
    columns = (alerts.c[name] == value for name, value in each._asdict().items())
    return update(alerts).where(and_(*columns))


def _payload(connection: Connection, each: AlertId, now_s: float) -> bytes | None:
    """Return the body of an alert; None if the budget no longer exists."""
    kind, _, name = each.subject.partition(":")
    table = keys if kind == "key" else teams
    row = connection.execute(select(table).where(table.c.name == name)).one_or_none()
    if row is None or row.budget_nusd is None or row.budget_period != each.period:
        return None
    same = and_(
        spending.c.subject == each.subject,
        spending.c.period == each.period,
        spending.c.start_s == each.start_s,
    )
    spent = connection.execute(select(spending.c.spent_nusd).where(same)).scalar_one_or_none() or 0
    budget = Budget(row.budget_nusd / NANO, BudgetPeriod(each.period))
    view = BudgetView.of(budget, spent / NANO, row.created_s, now_s, each.start_s)
    data = {
        "subject": {"kind": kind, "name": name},
        "share": each.share,
        "budget_usd": view.usd,
        "period": each.period,
        "spent_usd": view.spent_usd,
        "starts": _time(view.starts),
        "resets": _time(view.resets),
        "ends_by": _time(view.ends_by),
    }
    told = datetime.fromtimestamp(now_s, UTC)
    return orjson.dumps({"type": EVENT, "timestamp": _time(told), "data": data})


def _time(time: datetime | None) -> str | None:
    """Return a time in UTC as ISO 8601, in whole seconds."""
    return None if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"
