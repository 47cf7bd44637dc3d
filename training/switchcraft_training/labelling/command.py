"""`switchcraft-train label`: ask a pool of models the queries in a file of rows."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from router_service.command_line import Count
from switchcraft_training.errors import DataError

LOWER_RESERVES = (
    ", or set a lower max_completion_tokens (in extra_body) or reserve_output_tokens for the pool's"
    " arms"
)
"""What else than a higher cap lets a run go on."""


def label(
    pool: Path,
    rows: Path,
    /,
    *,
    out: Path,
    attempts: Count = 1,
    limit: Count | None = None,
    spending_cap_usd: Annotated[
        float | None, Parameter(validator=Number(gte=0, lt=math.inf), metavar="USD")
    ] = None,
    export: bool = False,
) -> int:
    """Ask every model of a pool every query; can be interrupted and continued.

    Each answer is saved as soon as it arrives. A run that was interrupted, killed or capped
    continues if you run the same command again; answered questions are not asked again.

    For example:

        switchcraft-train label pool.yaml rows.jsonl --out answers --spending-cap-usd 20

    Args:
        pool: YAML file of endpoints, limits, models and prices
        rows: file of queries, as `import` writes it
        out: directory for the answers
        attempts: how often to ask each model each query
        limit: use only the first N rows
        spending_cap_usd: stop before all runs into OUT together cost more than this (default: no
            cap)
        export: send no requests; only write OUT/answers.jsonl again
    """
    # Imported here because other commands do not need an HTTP client.
    from switchcraft_training.datasets.rows import read_rows
    from switchcraft_training.labelling.answers import ANSWERS, FAILURES
    from switchcraft_training.labelling.pool import load_pool
    from switchcraft_training.labelling.run import AGAIN, COMPLETE, INTERRUPTED, Plan, ask_all
    from switchcraft_training.labelling.sender import EndpointClients
    from switchcraft_training.labelling.store import RunIdentity, Store

    asked = load_pool(pool)
    queries = list(islice(read_rows(rows), limit))
    if not queries:
        raise DataError(rows, None, "contains no rows; `switchcraft-train import` writes them")
    seen: set[str] = set()
    for number, (example, _) in enumerate(queries, start=1):
        if example.id in seen:
            problem = f"row {number} repeats the id {example.id!r}; give each row its own id"
            raise DataError(rows, None, problem)
        seen.add(example.id)
    with Store(out, RunIdentity.of(rows, asked)) as store:
        status, advice = COMPLETE, ""
        if not export:
            plan = Plan(queries, asked, attempts)

            async def ask() -> tuple[int, str]:
                async with aclosing(EndpointClients(asked, os.environ)) as sender:
                    return await ask_all(plan, store, sender, spending_cap_usd, LOWER_RESERVES)

            try:
                status, advice = asyncio.run(ask())
            except KeyboardInterrupt:
                # The second Ctrl-C. Answers in flight are lost; their requests count as possibly
                # paid.
                print(f"Interrupted; {AGAIN}.", file=sys.stderr)
                return INTERRUPTED
        answers, failures = store.export(out)
        spending = store.spending()
    print(f"{answers:,} answers in {out / ANSWERS}, {spending.answered_usd:.4f} USD at list price")
    if failures:
        print(f"{failures:,} failures in {out / FAILURES}")
    if spending.lost:
        print(
            f"{spending.lost:,} requests were sent and their answers lost; they may have cost up to"
            f" {spending.lost_usd:.4f} USD, which the spending cap counts"
        )
    if advice:
        print(advice, file=sys.stderr)
    return status
