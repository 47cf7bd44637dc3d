"""Cost of checking keys, limits and budgets: added latency and processor time of a request.

    python -m benchmarks.key_limits --rounds 30

One gateway answers small requests that name a model, over one connection. In every round, each key
in turn sends them for a second, so that keys are compared in the same process. All keys are in the
database: one without limits, one with a budget, one with a budget and all rate limits, and one
whose team has these too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import repeat
from pathlib import Path
from statistics import median, quantiles

from benchmarks.load import bodies
from benchmarks.load.client import Load, play
from benchmarks.load.contenders import Place, direct, switchcraft
from benchmarks.load.figures import Figures, figures_of
from benchmarks.load.processes import free_port, running
from router_service.access.accounts import Accounts
from router_service.access.key import Budget
from router_service.access.specs import NewKey, NewTeam
from router_service.database.engine import Database

LIMITS = {
    "requests_per_minute": 10_000_000,
    "tokens_per_minute": 2_000_000_000,
    "parallel_requests": 10_000,
    "budget": Budget(usd=1_000_000),
}
"""Limits that are never reached."""


def create_keys(database: Database) -> dict[str, str]:
    """Return the secret of each new key."""
    accounts = Accounts(database)
    accounts.create_team(NewTeam(name="team", **LIMITS))
    specs = {
        "no limits": NewKey(name="free", is_admin=True),
        "budget": NewKey(name="budget", budget=LIMITS["budget"]),
        "budget and rates": NewKey(name="limited", **LIMITS),
        "the same, and of the team": NewKey(name="member", team="team", **LIMITS),
    }
    return {name: accounts.create_key(spec).secret for name, spec in specs.items()}


def main() -> None:
    """Print a row for each key."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'keys.db'}"
        database = Database(url)
        database.prepare()
        secrets = create_keys(database)
        database.close()
        place = Place(folder, folder, free_port())
        upstream, gateway = direct(place), switchcraft(place, database={"url": url})
        requests = {
            each: next(
                bodies.framed(
                    iter([bodies.small()]), bodies.MODEL, {"authorization": f"Bearer {secret}"}
                )
            )
            for each, secret in secrets.items()
        }
        first = next(iter(requests.values()))
        figures: dict[str, list[Figures]] = {each: [] for each in requests}
        with running(upstream.program, first), running(gateway.program, first) as program:
            for number in range(arguments.rounds + 1):
                print(f"round {number} of {arguments.rounds}", file=sys.stderr)
                start = number % len(requests)  # another key begins
                for each in [*requests][start:] + [*requests][:start]:
                    load = Load(program.port, repeat(requests[each]), 1, arguments.seconds)
                    found = figures_of(play(load, program.cpu_s))
                    if number:
                        figures[each].append(found)
    print("| key | P50, ms | CPU, ms an answer | more than without limits: P50, CPU in ms |")
    print("|---|--:|--:|--:|")
    base = figures["no limits"]
    for each, rounds in figures.items():
        p50s, cpus = [it.p50_ms for it in rounds], [it.cpu_ms for it in rounds]
        more = [
            median(
                getattr(it, field) - getattr(other, field)
                for it, other in zip(rounds, base, strict=True)
            )
            for field in ("p50_ms", "cpu_ms")
        ]
        print(
            f"| {each} | {_with_quartiles(p50s)} | {_with_quartiles(cpus)} "
            f"| {more[0]:+.3f}, {more[1]:+.3f} |"
        )


def _with_quartiles(values: list[float]) -> str:
    low, middle, high = quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
