"""One budget that several processes spend: nothing is overspent, refused or counted wrongly."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from router_service.access.accounts import Accounts
from router_service.access.key import Budget, BudgetPeriod
from router_service.access.specs import NewKey
from router_service.core.keys import new_key
from router_service.core.money import NANO, to_nusd
from router_service.database.engine import Database
from router_service.database.schema import leases, spending, usage
from router_service.settings import KeySettings
from router_service.telemetry.usage import DAY_S
from tests.bodies import CHAT, TOOLS
from tests.drills.processes import GatewayProcess, RedisServer, gateway, write_config
from tests.postgresql import PostgreSQLServer
from tests.serving import Sandbox, wait_for

REQUESTS = 400
STREAMS = 100
BODIES = 40
ADMIN = new_key()
POLICIES = ("theta=0.2", "theta=0.6", "theta=0.97", "economy", "quality")
LOAD, OTHER = "load", "calibration"
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Replicas:
    """Gateways that share a database, and what each request of a key cost by their log."""

    gateways: Sequence[GatewayProcess]
    database: Database
    log: Path
    accounts: Accounts

    def logged_usd(self, name: str) -> dict[str, float]:
        """Return the cost of each request of a key in the decision log, by its id."""
        lines = [
            json.loads(line)
            for file in self.log.glob("**/*.jsonl")
            for line in file.read_text().splitlines()
        ]
        return {
            line["id"]: line["cost_usd"]
            for line in lines
            if line["type"] == "decision" and line["key"] == name
        }

    def counted_usd(self) -> float:
        """Return the sum of all costs in the metrics."""
        texts = [each.http.get("/metrics").text for each in self.gateways]
        return sum(
            float(line.rpartition(" ")[2])
            for text in texts
            for line in text.splitlines()
            if line.startswith("switchcraft_cost_usd_total{")
        )

    def sum_of(self, column: Any, *conditions: Any) -> int:  # noqa: ANN401 - of SQLAlchemy
        """Return the sum of a column of the database."""
        with self.database.read() as connection:
            query = select(func.coalesce(func.sum(column), 0)).where(*conditions)
            return int(connection.execute(query).scalar_one())


@contextmanager
def replicas(
    folder: Path,
    upstream: Sandbox,
    url: str,
    redis_url: str | None = None,
) -> Iterator[Replicas]:
    """Run two gateways with one database."""
    server = {} if redis_url is None else {"redis_url": redis_url}
    config = write_config(
        folder / "config.yaml",
        upstream.base_url,
        keys={"admin": ADMIN},
        database={"url": url},
        server=server,
        budgets={"cheaper_first": False},  # so that the budget ends halfway
        decision_log={"path": str(folder / "log"), "max_queued": 10_000},
    )
    database = Database(url)
    database.prepare()
    accounts = Accounts(database, KeySettings.model_validate({"admin": ADMIN}))
    with ExitStack() as stack:
        served = [stack.enter_context(gateway(config, folder, key=ADMIN)) for _ in range(2)]
        yield Replicas(served, database, folder / "log", accounts)
    database.close()


async def send_all(
    urls: Sequence[str], secret: str, bodies: Sequence[dict[str, Any]]
) -> tuple[set[str], Counter[str]]:
    """Send all bodies in turn, over many connections; return what was answered and refused.

    These are the ids of the answers, and the number of refusals by their code.
    """
    left, answered, refused = iter(bodies), set[str](), Counter[str]()
    headers = {"authorization": f"Bearer {secret}", "x-sandbox": "chunk_delay_s=0.01"}
    limits = httpx.Limits(max_connections=STREAMS)
    async with httpx.AsyncClient(limits=limits, headers=headers, timeout=TIMEOUT_S) as http:

        async def ask(url: str, body: dict[str, Any]) -> None:
            policy = {"x-switchcraft-policy": POLICIES[len(body["messages"][0]["content"]) % 5]}
            while True:
                response = await http.post(url + CHAT, json=body, headers=policy)
                if response.status_code == 200:
                    assert response.text.endswith("data: [DONE]\n\n")
                    answered.add(response.headers["x-switchcraft-decision-id"])
                    return
                assert response.status_code == 429, response.text
                code = response.json()["error"]["code"]
                refused[code] += 1
                if code == "insufficient_quota":
                    assert response.headers["x-should-retry"] == "false"
                    return
                assert code == "rate_limit_exceeded"
                assert int(response.headers["retry-after"]) > 0

        async def send(url: str) -> None:
            for body in left:
                await ask(url, body)

        await asyncio.gather(*(send(urls[n % len(urls)]) for n in range(STREAMS)))
    return answered, refused


def bodies(count: int) -> list[dict[str, Any]]:
    """Return streamed requests with prompts of very different lengths."""
    drawn = random.Random(7)
    sizes = [drawn.choice((40, 200, 1000, 4000)) + drawn.randrange(40) for _ in range(BODIES)]
    texts = [f"What is the weather in Oslo? {'It may rain. ' * (size // 13)}" for size in sizes]
    return [
        {
            "model": "switchcraft",
            "stream": True,
            "messages": [{"role": "user", "content": text}],
            "tools": TOOLS,
        }
        for text in itertools.islice(itertools.cycle(texts), count)
    ]


def check(found: Replicas) -> None:
    """Spend a budget that ends halfway, and assert that it has held, and that all sums agree."""
    secret = found.accounts.create_key(NewKey(name=OTHER)).secret
    urls = [each.url for each in found.gateways]
    wait_until_valid(found, secret)
    asyncio.run(send_all(urls, secret, bodies(BODIES)))
    wait_for(lambda: len(found.logged_usd(OTHER)) == BODIES, "the costs are logged")
    mean_usd = sum(found.logged_usd(OTHER).values()) / BODIES

    limit_usd = mean_usd * REQUESTS / 2
    # The key has its budget from the start: `wait_until_valid` waits for the key, not for a change.
    budget = Budget(usd=limit_usd, period=BudgetPeriod.MONTH)
    secret = found.accounts.create_key(NewKey(name=LOAD, budget=budget)).secret
    wait_until_valid(found, secret)
    answered, refused = asyncio.run(send_all(urls, secret, bodies(REQUESTS)))
    wait_for(lambda: len(found.logged_usd(LOAD)) == len(answered), "the costs are logged")
    costs = {name: to_nusd(usd) for name, usd in found.logged_usd(LOAD).items()}
    assert costs.keys() == answered

    # All sums are equal.
    spent = sum(costs.values())
    scope = usage.c.scope == f"key:{LOAD}", usage.c.step_s == DAY_S
    periods = [period.value for period in BudgetPeriod]
    subject = spending.c.subject == f"key:{LOAD}", spending.c.period.in_(periods)
    wait_for(lambda: found.sum_of(spending.c.spent_nusd, *subject) == spent, "it is written")
    wait_for(lambda: found.sum_of(usage.c.cost_nusd, *scope) == spent, "usage is written")
    total_usd = sum(found.logged_usd(OTHER).values()) + spent / NANO
    assert found.counted_usd() == pytest.approx(total_usd, abs=1e-6)

    # The overspend is at most one request for each process, and hardly anything is left.
    limit = to_nusd(limit_usd)
    assert spent - limit <= len(found.gateways) * max(costs.values())
    assert limit - spent < max(costs.values())
    assert refused["insufficient_quota"] > REQUESTS / 4


def wait_until_valid(found: Replicas, secret: str) -> None:
    """Wait until every gateway knows a key."""
    for each in found.gateways:
        wait_for(
            lambda each=each: (
                httpx.get(
                    f"{each.url}/v1/models", headers={"authorization": f"Bearer {secret}"}
                ).is_success
            ),
            "the key is valid",
        )


def check_shutdown(database_url: str, spent: int) -> None:
    """Assert that the gateways gave everything back, and wrote everything."""
    database = Database(database_url)
    with database.read() as connection:
        query = select(func.coalesce(func.sum(leases.c.amount_nusd), 0))
        assert connection.execute(query).scalar_one() == 0
        query = select(func.sum(spending.c.spent_nusd)).where(
            spending.c.subject == f"key:{LOAD}",
            spending.c.period == BudgetPeriod.MONTH,
        )
        assert connection.execute(query).scalar_one() == spent
    database.close()


def test_two_gateways_with_redis_and_sqlite(
    tmp_path: Path, upstream: Sandbox, redis_server: RedisServer
) -> None:
    """A budget holds for two gateways with one Redis and one SQLite file."""
    url = f"sqlite:///{tmp_path / 'switchcraft.db'}"
    with replicas(tmp_path, upstream, url, redis_url=redis_server.url) as found:
        check(found)
        spent = found.sum_of(
            spending.c.spent_nusd,
            spending.c.subject == f"key:{LOAD}",
            spending.c.period == BudgetPeriod.MONTH,
        )
    check_shutdown(url, spent)


@pytest.mark.slow
def test_two_gateways_with_postgresql(
    tmp_path: Path, upstream: Sandbox, postgresql: PostgreSQLServer
) -> None:
    """A budget holds for two gateways with one PostgreSQL server."""
    with replicas(tmp_path, upstream, postgresql.create()) as found:
        check(found)
