"""What another key notices of a key that reads lists, 200 at a time, and the gateway's memory.

    python -m benchmarks.lists

The list has 100,000 requests. The first key reads one path for `--seconds`; the second one asks a
model meanwhile, again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx

from benchmarks.load import bodies
from benchmarks.load.contenders import Place, direct, switchcraft
from benchmarks.load.processes import Running, free_port, running
from benchmarks.recent_requests import make
from router_service.access.accounts import Accounts
from router_service.access.specs import NewKey
from router_service.database.engine import Database
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.recent_requests import RecentRequests

ROWS = 100_000
PARALLEL = 200
PATHS = (
    "/v1/requests?limit=1000",
    "/ui/api/traffic/requests?limit=1000",
    "/ui/api/traffic/requests/names",
    "/ui/api/traffic/requests/dec_unknown",
    "/ui/api/traffic/overview?period=month",
    "/ui/api/traffic/account",
    "/ui/openapi.json",
)
TIMEOUT_S = 60.0


def fill(database: Database, key: str) -> None:
    """Write the list, whose requests are all of one key."""
    usage = UsageSettings(recent_requests=2 * ROWS)
    listed = RecentRequests(usage, DatabaseSettings(max_pending_rows=ROWS), turn_s=600)
    for _ in range(ROWS):
        listed.add([replace(make(), key=key)])
    listed.write(database)


def ask(port: int, secret: str, seconds: float) -> list[float]:
    """Ask a model again and again, and return how long each answer took."""
    body = {"model": bodies.MODEL, "messages": [{"role": "user", "content": "Hello"}]}
    url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {secret}"}
    waits_s: list[float] = []
    ends_s = time.monotonic() + seconds
    with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S) as client:
        while time.monotonic() < ends_s:
            started_s = time.perf_counter()
            client.post("/v1/chat/completions", json=body).raise_for_status()
            waits_s.append(time.perf_counter() - started_s)
            time.sleep(0.02)
    return waits_s


async def attack(program: Running, path: str, secret: str, seconds: float) -> str:
    """Read a path 200 at a time; return the answers, and the most memory in MB."""
    hostile = {"authorization": f"Bearer {secret}"}
    statuses: Counter[int] = Counter()
    most_mb = 0.0
    ends_s = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=PARALLEL + 10)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{program.port}", timeout=TIMEOUT_S, limits=limits
    ) as client:

        async def read() -> None:
            while time.monotonic() < ends_s:
                async with client.stream("GET", path, headers=hostile) as answer:
                    statuses[answer.status_code] += 1
                    async for _ in answer.aiter_raw():
                        pass

        async def watch() -> None:
            nonlocal most_mb
            while time.monotonic() < ends_s:
                most_mb = max(most_mb, program.resident_mb())
                await asyncio.sleep(0.1)

        await asyncio.gather(watch(), *(read() for _ in range(PARALLEL)))
    shown = ", ".join(f"{number} x {status}" for status, number in sorted(statuses.items()))
    return f"{shown} | {most_mb:.0f}"


def main() -> None:
    """Print a row for each path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'lists.db'}"
        database = Database(url)
        database.prepare()
        accounts = Accounts(database)
        accounts.create_key(NewKey(name="ops", is_admin=True))
        secrets = (
            accounts.create_key(NewKey(name="hostile")).secret,
            accounts.create_key(NewKey(name="other")).secret,
        )
        fill(database, "hostile")
        database.close()
        place = Place(folder, folder, free_port())
        upstream, gateway = direct(place), switchcraft(place, database={"url": url})
        headers = {"authorization": f"Bearer {secrets[1]}"}
        first = next(bodies.framed(iter([bodies.small()]), bodies.MODEL, headers))
        with running(upstream.program, first), running(gateway.program, first) as program:
            print(f"{program.resident_mb():.0f} MB at the start")
            print("| path | answers | resident MB | other key, ms: P50 | P95 | longest |")
            print("|---|---|--:|--:|--:|--:|")
            with ProcessPoolExecutor(1) as process:
                for path in PATHS:
                    asking = process.submit(ask, program.port, secrets[1], arguments.seconds)
                    found = asyncio.run(attack(program, path, secrets[0], arguments.seconds))
                    waits_ms = sorted(wait_s * 1e3 for wait_s in asking.result())
                    p95_ms = waits_ms[int(0.95 * len(waits_ms))]
                    waits = f"{median(waits_ms):.0f} | {p95_ms:.0f} | {waits_ms[-1]:.0f}"
                    print(f"| `{path}` | {found} | {waits} |", flush=True)


if __name__ == "__main__":
    main()
