"""Alerts about budgets: who sends them, how they are signed, and what happens if that fails."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import func, insert, select, update

from router_service.access.alerts import MAX_ATTEMPTS, BudgetAlerts
from router_service.access.budgets import BudgetBalance
from router_service.access.key import Budget, BudgetPeriod, Key, Limits, Team
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import alerts, keys, spending, teams
from router_service.settings import BudgetSettings
from tests.router_service.http.scripted import Upstream, whole
from tests.serving import wait_for

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
MONTH = Budget(100.0, BudgetPeriod.MONTH)
KEY = Key("worker", limits=Limits(budget=MONTH))


@dataclass
class State:
    """A budget in its period."""

    budget: Budget = MONTH
    subject: str = "key:worker"
    start_s: int = MONTH.period.bounds_s(time.time())[0]
    end_s: float = float(MONTH.period.bounds_s(time.time())[1] or 0)
    spent_usd: float = 0.0

    @property
    def balance(self) -> BudgetBalance:
        """The state as alerts read it."""
        return BudgetBalance(
            self.subject, self.budget, self.start_s, self.end_s, self.spent_usd, 0.0
        )


DELIVERED = whole(b"")


@dataclass
class Receiver:
    """A server that gets webhooks; it answers with 200, or as a test says."""

    upstream: Upstream

    @property
    def url(self) -> str:
        """Where webhooks are sent."""
        return f"{self.upstream.url}/hook/"

    @property
    def received(self) -> list[tuple[Message, str]]:
        """Headers and body of each webhook; no other path was asked for."""
        assert {place for place, _ in self.upstream.asked} <= {"hook"}
        heads = (sent.partition(b"\r\n\r\n") for _, sent in self.upstream.asked)
        return [
            (message_from_bytes(head.partition(b"\r\n")[2]), body.decode())
            for head, _, body in heads
        ]

    def verified(self, number: int) -> dict[str, Any]:
        """Return a webhook's body; fail unless it is signed as Standard Webhooks says."""
        headers, body = self.received[number]
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
        expected = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
        found: dict[str, object] = json.loads(body)
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a running receiver."""
    upstream = Upstream(answers={"hook": [DELIVERED]})
    with upstream.serve():
        yield Receiver(upstream)


def prepare(url: str) -> Database:
    """Create a key and a team with budgets of 100 USD a month, of which 85 USD are spent."""
    database = Database(url)
    database.prepare()
    now_s = time.time()
    limits = {"budget_nusd": 100 * NANO, "budget_period": "month", "metadata": {}}
    limits |= {"created_s": now_s, "revision": 1}
    spent = {"period": "month", "start_s": State().start_s, "spent_nusd": 85 * NANO}
    with database.write() as connection:
        connection.execute(insert(teams).values(name="crew", **limits))
        connection.execute(
            insert(keys).values(name="worker", digest="0" * 64, hint="x", is_admin=False, **limits)
        )
        for subject in ("key:worker", "team:crew"):
            row = {"subject": subject, "wanted_until_s": 0.0, **spent}
            connection.execute(insert(spending).values(**row))
    return database


@dataclass
class Gateway:
    """One process's alerts."""

    database: Database
    alerts: BudgetAlerts
    outcomes: list[str]

    def run(self, key: Key | None = KEY) -> None:
        """Run the job once, while a key is in use."""
        if key is not None:
            self.alerts.note(key)
        self.alerts.run(self.database)

    def run_until(self, condition: Callable[[], object], what: str) -> None:
        """Run the job until a condition holds."""

        def run_and_check() -> object:
            self.run()
            return condition()

        wait_for(run_and_check, what)


def gateway(database: Database, webhook: str | None, *states: State) -> Gateway:
    """Return alerts of a process that knows these states of budgets."""
    secrets = {} if webhook is None else {"webhook_secret": SECRET}
    settings = BudgetSettings.model_validate({"webhook_url": webhook, **secrets})
    outcomes: list[str] = []
    found = states or (State(spent_usd=85.0),)
    each = BudgetAlerts(
        lambda: settings, lambda _: [state.balance for state in found], outcomes.append, send_s=0.0
    )
    return Gateway(database, each, outcomes)


def hurry(database: Database) -> None:
    """Make the next attempt of all alerts due."""
    with database.write() as connection:
        connection.execute(update(alerts).values(next_attempt_s=0.0))


def attempts(database: Database) -> int:
    """Return the number of attempts of all alerts."""
    with database.read() as connection:
        return int(connection.execute(select(func.sum(alerts.c.attempts))).scalar_one())


def test_one_signed_webhook_for_each_share(
    database_url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """At 85%, the share of 80% is reached and that of 100% is not; repeated runs send no more."""
    database = prepare(database_url)
    each = gateway(database, receiver.url)
    with caplog.at_level(logging.WARNING):
        each.run_until(lambda: "delivered" in each.outcomes, "the webhook is delivered")
    for _ in range(5):
        each.run()
    assert each.outcomes == ["reached", "delivered"]
    (_,) = receiver.received
    body = receiver.verified(0)
    assert body["type"] == "budget.threshold_reached"
    data = body["data"]
    assert isinstance(data, dict)
    assert data["subject"] == {"kind": "key", "name": "worker"}
    amounts = (data["share"], data["budget_usd"], data["spent_usd"], data["period"])
    assert amounts == (0.8, 100.0, 85.0, "month")
    assert data["starts"].endswith("-01T00:00:00Z")
    assert data["resets"].endswith("-01T00:00:00Z")
    assert "a budget has reached a share: subject=key:worker share=80%" in caplog.text
    database.close()


def test_two_processes_send_one_webhook(database_url: str, receiver: Receiver) -> None:
    """Both notice the share at the same time; the database decides who stores and sends it."""
    database = prepare(database_url)
    script = (
        "import sys, threading, time\n"
        "from tests.router_service.access.test_alerts import *\n"
        "each = gateway(Database(sys.argv[1]), sys.argv[2],"
        " State(spent_usd=85.0), State(subject='team:crew', spent_usd=100.0))\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "waiting = threading.Thread(target=sys.stdin.read); waiting.start()\n"
        "while waiting.is_alive(): each.run(); time.sleep(0.01)\n"
        "print(' '.join(each.outcomes))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, database_url, receiver.url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    def all_are_sent() -> bool:
        with database.read() as connection:
            times = connection.execute(select(alerts.c.sent_s)).scalars().all()
        return len(times) == 3 and None not in times

    wait_for(all_are_sent, "all alerts are sent")
    outcomes = [word for process in processes for word in process.communicate()[0].split()]
    assert sorted(outcomes) == 3 * ["delivered"] + 3 * ["reached"]
    found = [receiver.verified(number)["data"] for number in range(3)]
    names = sorted((each["subject"]["name"], each["share"]) for each in found)
    assert names == [("crew", 0.8), ("crew", 1.0), ("worker", 0.8)]
    assert len(receiver.received) == 3
    database.close()


def test_failed_webhooks_are_retried_with_the_same_id(
    database_url: str, receiver: Receiver
) -> None:
    """After an error and a redirect, which is not followed, a restarted process tries again.

    The pauses double, and a receiver recognizes the repeated request by its id.
    """
    database = prepare(database_url)
    elsewhere = whole(b"", 307, b"location: /elsewhere/")
    receiver.upstream.answers["hook"] = [whole(b"", 500), elsewhere, DELIVERED]
    began_s = time.time()
    first = gateway(database, receiver.url)
    first.run_until(lambda: "failed" in first.outcomes, "the first attempt has failed")
    with database.read() as connection:
        row = connection.execute(select(alerts)).one()
    assert row.attempts == 1
    assert row.sent_s is None
    assert began_s + 5 <= row.next_attempt_s <= time.time() + 5
    first.alerts.close()

    restarted = gateway(Database(database_url), receiver.url)
    restarted.run()
    assert len(receiver.received) == 1  # it is not due
    hurry(database)
    began_s = time.time()
    restarted.run_until(lambda: "failed" in restarted.outcomes, "the second attempt has failed")
    with database.read() as connection:
        row = connection.execute(select(alerts)).one()
    assert began_s + 10 <= row.next_attempt_s <= time.time() + 10
    hurry(database)
    restarted.run_until(lambda: "delivered" in restarted.outcomes, "it is delivered")
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
    assert len(receiver.received) == 3
    assert restarted.outcomes == ["failed", "delivered"]
    database.close()


def test_trickling_receiver_fails_at_the_deadline(tmp_path: Path, receiver: Receiver) -> None:
    """Bytes that arrive now and then do not extend a delivery, so later alerts are sent.

    Neither the job nor a shutdown, which runs it for the last time, waits for it.
    """
    database = prepare(f"sqlite:///{tmp_path / 'test.db'}")
    is_over = threading.Event()

    def trickle() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nx-slow: "
        while not is_over.wait(0.2):
            yield b"x"

    receiver.upstream.answers["hook"] = [trickle, DELIVERED]
    each = gateway(database, receiver.url)
    each.run()
    assert each.outcomes == ["reached"]
    each.run_until(lambda: "failed" in each.outcomes, "the slow delivery has failed")
    is_over.set()
    hurry(database)
    again = gateway(database, receiver.url)
    again.run_until(lambda: "delivered" in again.outcomes, "the alert is delivered")
    database.close()


def test_a_refusal_counts_as_the_end_of_the_budget(tmp_path: Path) -> None:
    """A budget never reaches exactly 100%, because the last request must fit into it.

    Only the budget that is nearly spent counts, and not that of a key with money left.
    """
    database = prepare(f"sqlite:///{tmp_path / 'test.db'}")
    team = Team("crew", Limits(budget=MONTH))
    key = Key("worker", team=team, limits=KEY.limits)
    states = State(spent_usd=10.0), State(subject="team:crew", spent_usd=99.7)
    each = gateway(database, None, *states)
    each.run(key)
    each.alerts.refused(key)
    each.run(None)
    with database.read() as connection:
        rows = connection.execute(select(alerts.c.subject, alerts.c.share)).all()
    assert sorted(map(tuple, rows)) == [("team:crew", 0.8), ("team:crew", 1.0)]
    database.close()


@pytest.mark.parametrize("secret", ["whsec_", "whsec_c2hvcnQ=", "whsec_!!", "secret"])
def test_secrets_must_be_long_and_in_base64(secret: str) -> None:
    """The error does not quote the secret, and an address needs one."""
    with pytest.raises(ValidationError) as caught:
        BudgetSettings(webhook_url="https://example.com/hook", webhook_secret=SecretStr(secret))
    assert "24 to 64 bytes" in str(caught.value)
    with pytest.raises(ValidationError, match="needs webhook_secret"):
        BudgetSettings(webhook_url="https://example.com/hook")


def test_attempts_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the last attempt, the alert is given up with an error; nobody sends it any more."""
    database = prepare(f"sqlite:///{tmp_path / 'test.db'}")
    each = gateway(database, "http://127.0.0.1:9/hook")
    each.run_until(lambda: "failed" in each.outcomes, "nobody listens")
    with database.write() as connection:
        connection.execute(update(alerts).values(attempts=MAX_ATTEMPTS - 1, next_attempt_s=0.0))
    each.run_until(lambda: "given_up" in each.outcomes, "the last attempt has failed")
    assert "check budgets.webhook_url" in caplog.text
    hurry(database)
    each.run()
    assert attempts(database) == MAX_ATTEMPTS
    assert each.outcomes == ["reached", "failed", "given_up"]
    database.close()


def test_without_a_webhook_the_log_and_the_metric_say_it(tmp_path: Path) -> None:
    """A webhook that is configured later does not get what was reached before."""
    database = prepare(f"sqlite:///{tmp_path / 'test.db'}")
    silent = gateway(database, None)
    silent.run()
    silent.run()
    assert silent.outcomes == ["reached"]
    later = gateway(database, "http://127.0.0.1:9/hook")
    later.run()
    assert later.outcomes == []
    assert attempts(database) == 0
    database.close()
