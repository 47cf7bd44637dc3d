"""`switchcraft-train label`: ask a pool of models the queries in a file of rows."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
from contextlib import aclosing
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from router_service.command_line import Count
from router_service.core.errors import DataError

if TYPE_CHECKING:
    from switchcraft_training.labelling.run import Plan
    from switchcraft_training.labelling.store import Store

COMPLETE, FAILED, CAPPED, INTERRUPTED = 0, 1, 3, 130
"""Exit statuses: all questions answered, some questions failed, spending cap reached, Ctrl-C."""

AGAIN = "run the same command again to continue"


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
    from switchcraft_training.labelling.run import Plan
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
    with rows.open("rb") as file:
        rows_sha256 = file_digest(file, "sha256").hexdigest()
    with Store(out, RunIdentity(rows_sha256, asked.identity())) as store:
        status, advice = COMPLETE, ""
        if not export:
            plan = Plan(queries, asked, attempts)
            asking = _ask_all(plan, store, spending_cap_usd)
            try:
                status, advice = asyncio.run(asking)
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


async def _ask_all(plan: Plan, store: Store, cap_usd: float | None) -> tuple[int, str]:
    """Ask all unanswered questions; return the exit status, and advice if questions are left.

    The first Ctrl-C waits for the requests in flight, the second abandons them.
    """
    from switchcraft_training.labelling.run import LabellingRun, ProgressBar, SpendingBudget
    from switchcraft_training.labelling.sender import EndpointClients

    for name in ("httpx", "httpx2", "openai"):
        # These libraries log a line for each request, which would break the progress bar.
        logging.getLogger(name).setLevel(logging.WARNING)
    answered, spending = store.answered(), store.spending()
    spent_usd = spending.answered_usd + spending.lost_usd
    unanswered = plan.count_unanswered(answered)
    total = len(plan.rows) * len(plan.pool.pool) * plan.attempts
    budget = SpendingBudget(cap_usd, spent_usd)
    loop = asyncio.get_running_loop()
    async with aclosing(EndpointClients(plan.pool, os.environ)) as sender:
        with ProgressBar(unanswered, total - unanswered.total(), spent_usd) as progress:
            run = LabellingRun(plan, store, sender, budget, progress)

            def end_run() -> None:
                loop.remove_signal_handler(signal.SIGINT)
                run.end()
                progress.print_line("Waiting for requests in flight; press Ctrl-C to abandon them.")

            loop.add_signal_handler(signal.SIGINT, end_run)
            try:
                await run.run(answered)
            finally:
                loop.remove_signal_handler(signal.SIGINT)
    if run.is_ending:
        return INTERRUPTED, f"Interrupted; {AGAIN}."
    if budget.refused_usd is not None:
        return CAPPED, (
            f"Stopped below the spending cap of {cap_usd} USD: {budget.spent_usd:.4f} USD are"
            f" spent, and the next request may cost {budget.refused_usd:.4f} USD. Raise the cap, or"
            " set a lower max_completion_tokens (in extra_body) or reserve_output_tokens for the"
            f" pool's arms; {AGAIN}."
        )
    if run.stopped:
        return FAILED, f"Stopped: {', '.join(run.stopped)}. Fix the errors above; {AGAIN}."
    if progress.failed:
        return FAILED, f"{progress.failed} questions have no answer; {AGAIN} and retry them."
    return COMPLETE, ""
