"""The stage behind the command line: open, ask, export, and say how to go on."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from router_service.core.errors import DataError
from switchcraft_training.cluster import require_ray
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.labelling.budget import Budget
from switchcraft_training.labelling.export import ANSWERS, FAILURES, export
from switchcraft_training.labelling.pool import Pool, load_pool
from switchcraft_training.labelling.progress import Progress
from switchcraft_training.labelling.run import Labelling, Plan
from switchcraft_training.labelling.sender import Clients, Sender
from switchcraft_training.labelling.store import Identity, Store
from switchcraft_training.records import Judged

COMPLETE, FAILED, CAPPED, INTERRUPTED = 0, 1, 3, 130
"""Exit statuses: all is answered; some is not; the cap was reached; Ctrl-C."""


AGAIN = "run the same command again to go on"


class Ending(NamedTuple):
    """How a run ended: a status, what there is now, and how to go on where something is left."""

    status: int
    summary: str
    advice: str


def run_label(arguments: argparse.Namespace) -> Ending:
    """Ask what has no answer yet, and export all answers.

    Raises ConfigError, DataError.
    """
    pool = load_pool(arguments.pool)
    rows = _rows(arguments.rows, arguments.limit)
    identity = Identity(_sha256(arguments.rows), pool.identity())
    with Store(arguments.out, identity) as store:
        status, advice = COMPLETE, ""
        if not arguments.export:
            plan = Plan(rows, pool, arguments.attempts)
            try:
                status, advice = asyncio.run(_ask(plan, store, arguments))
            except KeyboardInterrupt:  # the second: what was in flight is lost, and so counted
                return Ending(INTERRUPTED, "", f"Interrupted; {AGAIN}.")
        return Ending(status, _summary(store, arguments.out), advice)


async def _ask(plan: Plan, store: Store, arguments: argparse.Namespace) -> tuple[int, str]:
    _quieten()
    answered, spent = store.answered(), store.spent()
    spent_usd = spent.answered_usd + spent.lost_usd
    left = plan.left(answered)
    total = len(plan.rows) * len(plan.pool.pool) * plan.attempts
    budget = Budget(arguments.spending_cap_usd, spent_usd)
    async with aclosing(_sender(plan.pool, arguments)) as sender:
        with Progress(left, total - left.total(), spent_usd) as progress:
            labelling = Labelling(plan, store, sender, budget, progress)
            with _ending_at_interrupt(labelling, progress):
                await labelling.run(answered)
    return _ending(labelling, budget, progress, arguments.spending_cap_usd)


def _sender(pool: Pool, arguments: argparse.Namespace) -> Sender:
    if arguments.ray is None:
        return Clients(pool, os.environ)
    require_ray()
    from switchcraft_training.labelling.distributed import Workers  # noqa: PLC0415 - optional

    return Workers(pool, arguments.ray, arguments.ray_workers)


def _ending(
    labelling: Labelling, budget: Budget, progress: Progress, cap_usd: float | None
) -> tuple[int, str]:
    if labelling.is_ending:
        return INTERRUPTED, f"Interrupted; {AGAIN}."
    if budget.refused_usd is not None:
        return CAPPED, (
            f"Stopped below the spending cap of {cap_usd} USD: {budget.spent_usd:.4f} are spent,"
            f" and the next request may cost {budget.refused_usd:.4f}. Raise the cap, or limit"
            f" answers by max_completion_tokens in the pool's extra_body or by its"
            f" reserve_output_tokens; {AGAIN}."
        )
    if labelling.stopped:
        arms = ", ".join(labelling.stopped)
        return FAILED, f"Stopped: {arms}. Mend what was reported above; {AGAIN}."
    if progress.failed:
        return FAILED, f"{progress.failed} have no answer; {AGAIN}, and they are asked anew."
    return COMPLETE, ""


def _summary(store: Store, out: Path) -> str:
    answers, failures = export(store, out)
    spent = store.spent()
    lines = [f"{answers:,} answers in {out / ANSWERS}, {spent.answered_usd:.4f} USD at list price"]
    if failures:
        lines.append(f"{failures:,} failures in {out / FAILURES}")
    if spent.lost:
        lines.append(
            f"{spent.lost:,} requests were sent and their answers lost; they may have cost up to"
            f" {spent.lost_usd:.4f} USD, which the spending cap counts"
        )
    return "\n".join(lines)


@contextmanager
def _ending_at_interrupt(labelling: Labelling, progress: Progress) -> Iterator[None]:
    """At the first Ctrl-C await what is in flight, at the second leave it."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        labelling.end()
        progress.note("Waiting for the answers in flight; Ctrl-C again to leave them.")

    loop.add_signal_handler(signal.SIGINT, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _rows(path: Path, limit: int | None) -> list[Judged]:
    rows = list(islice(read_rows(path), limit))
    seen: set[str] = set()
    for number, (example, _) in enumerate(rows, start=1):
        if example.id in seen:
            raise DataError(path, None, f"row {number}: the id {example.id!r} is there twice")
        seen.add(example.id)
    if not rows:
        raise DataError(path, None, "holds no rows; `switchcraft-train import` writes them")
    return rows


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _quieten() -> None:
    """Keep the client's line a request out of the progress bar."""
    for name in ("httpx", "httpx2", "openai"):
        logging.getLogger(name).setLevel(logging.WARNING)
