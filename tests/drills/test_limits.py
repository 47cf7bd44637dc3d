"""Limits hold for all processes of a gateway, and for all gateways that share a Redis."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from router_service.core.keys import new_key
from router_service.database.engine import Database
from tests.bodies import ASK, CHAT
from tests.drills.processes import (
    ARMS,
    START_TIMEOUT_S,
    GatewayProcess,
    gateway,
    write_config,
)
from tests.drills.test_workers import two_workers, workers
from tests.keyed_gateways import open_stream
from tests.serving import Sandbox, wait_for
from tests.stored_keys import add_key, bearer

BODY = {"model": ARMS[0], "messages": ASK}
REQUESTS = 60


@contextmanager
def limited_gateways(
    folder: Path, upstream: Sandbox, number: int, **server: object
) -> Iterator[tuple[Database, list[GatewayProcess]]]:
    """Run gateways with one SQLite file, and yield the database and the gateways."""
    admin, url = new_key(), f"sqlite:///{folder}/switchcraft.db"
    config = write_config(
        folder / "config.yaml",
        upstream.base_url,
        server=server,
        database={"url": url},
        keys={"admin": admin},
    )
    with ExitStack() as stack:
        served = [stack.enter_context(gateway(config, folder, key=admin)) for _ in range(number)]
        database = Database(url)
        stack.callback(database.close)
        yield database, served


def wait_for_key(urls: list[str], secret: str) -> None:
    """Wait until gateways know a key; each answer may come from another worker."""

    def is_known() -> bool:
        answers = [httpx.get(f"{url}/v1/models", headers=bearer(secret)) for url in urls * 8]
        return all(answer.status_code == 200 for answer in answers)

    wait_for(is_known, "the key is known")


def send(urls: list[str], secrets: list[str]) -> list[int]:
    """Send requests to the gateways in turn, many at a time, and return the statuses."""

    def ask(number: int) -> int:
        secret = secrets[number % len(secrets)]
        url = urls[number % len(urls)] + CHAT
        return httpx.post(url, json=BODY, headers=bearer(secret), timeout=30).status_code

    with ThreadPoolExecutor(12) as pool:
        return list(pool.map(ask, range(REQUESTS)))


def check_parallel(urls: list[str], secret: str, limit: int) -> None:
    """Check that all gateways together allow so many streams, and free their slots."""
    with ExitStack() as stack:
        for number in range(limit):
            url = urls[number % len(urls)]
            stack.enter_context(open_stream(url, secret, CHAT, BODY))
        for url in urls:
            answer = httpx.post(url + CHAT, json=BODY, headers=bearer(secret))
            assert answer.status_code == 429
            assert f"may have {limit} requests at the same time" in answer.text

    def is_free() -> bool:
        answers = [httpx.post(url + CHAT, json=BODY, headers=bearer(secret)) for url in urls]
        return all(answer.status_code == 200 for answer in answers)

    wait_for(is_free, "the slots are free")


def test_two_workers_share_limits_and_a_killed_one_frees_its_slots(
    tmp_path: Path, upstream: Sandbox
) -> None:
    """The workers' parent counts for both; slots of killed workers are free again."""
    with limited_gateways(tmp_path, upstream, 1, workers=2) as (database, (served,)):
        before = two_workers(served)
        secret = add_key(database, "ten", requests_per_minute=10)
        streams = add_key(database, "streams", parallel_requests=2)
        wait_for_key([served.url], streams)
        wait_for_key([served.url], secret)
        statuses = Counter(send([served.url], [secret]))
        assert statuses.keys() == {200, 429}
        assert 10 <= statuses[200] <= 11, "one may be refilled meanwhile"
        check_parallel([served.url], streams, 2)
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(open_stream(served.url, streams, CHAT, BODY))
            for pid in before:
                os.kill(pid, signal.SIGKILL)

            def is_free() -> bool:
                try:
                    answer = httpx.post(served.url + CHAT, json=BODY, headers=bearer(streams))
                except httpx.TransportError:
                    return False
                return answer.status_code == 200

            wait_for(is_free, "new workers serve, and the slots are free", START_TIMEOUT_S)
            assert workers(served).isdisjoint(before)
