"""`switchcraft-train label`: ask a pool of models the queries in a file of rows."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import aclosing
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router_service.core.errors import DataError

if TYPE_CHECKING:
    from switchcraft_training.labelling.run import Plan
    from switchcraft_training.labelling.sender import RequestSender
    from switchcraft_training.labelling.store import Store

COMPLETE, FAILED, CAPPED, INTERRUPTED = 0, 1, 3, 130
"""Exit statuses: all questions answered, some questions failed, spending cap reached, Ctrl-C."""

AGAIN = "run the same command again to continue"

_EXAMPLE = """\
example:
  switchcraft-train label pool.yaml rows.jsonl --out answers --spending-cap-usd 20

Each answer is saved as soon as it arrives. A run that was interrupted, killed or capped continues
if you run the same command again; answered questions are not asked again.
"""


def register(stages: Any) -> None:  # noqa: ANN401 - argparse has no public type for it
    """Add the `label` command."""
    label = stages.add_parser(
        "label",
        help="ask every model of a pool every query; can be interrupted and continued",
        description="Ask every model of a pool every query, and record the answers.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    label.add_argument("pool", type=Path, help="YAML file of endpoints, limits, models and prices")
    label.add_argument("rows", type=Path, help="file of queries, as `import` writes it")
    label.add_argument("--out", type=Path, required=True, help="directory for the answers")
    label.add_argument(
        "--attempts",
        type=_parse_count,
        default=1,
        help="how often to ask each model each query (default: %(default)s)",
    )
    label.add_argument("--limit", type=_parse_count, metavar="N", help="use only the first N rows")
    label.add_argument(
        "--spending-cap-usd",
        type=_parse_usd,
        metavar="USD",
        help="stop before all runs into OUT together cost more than this (default: no cap)",
    )
    label.add_argument(
        "--export", action="store_true", help="send no requests; only write OUT/answers.jsonl again"
    )
    label.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="send requests from Ray workers, in the cluster at ADDRESS (`auto` or HOST:PORT) or,"
        " without an ADDRESS, on this machine",
    )
    label.add_argument(
        "--ray-workers",
        type=_parse_count,
        metavar="N",
        help="number of workers (default: one for each machine)",
    )
    label.set_defaults(stage=run_label)


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _parse_usd(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def run_label(arguments: argparse.Namespace) -> int:
    """Ask all unanswered questions, export all answers, and return the exit status.

    Raises ConfigError if the pool is invalid, and DataError if a file cannot be read or written.
    """
    # Imported here because other commands do not need an HTTP client.
    from switchcraft_training.datasets.rows import read_rows  # noqa: PLC0415
    from switchcraft_training.labelling.answers import ANSWERS, FAILURES  # noqa: PLC0415
    from switchcraft_training.labelling.pool import load_pool  # noqa: PLC0415
    from switchcraft_training.labelling.run import Plan  # noqa: PLC0415
    from switchcraft_training.labelling.store import RunIdentity, Store  # noqa: PLC0415

    pool, path, out = load_pool(arguments.pool), arguments.rows, arguments.out
    rows = list(islice(read_rows(path), arguments.limit))
    if not rows:
        raise DataError(path, None, "contains no rows; `switchcraft-train import` writes them")
    seen: set[str] = set()
    for number, (example, _) in enumerate(rows, start=1):
        if example.id in seen:
            problem = f"row {number} repeats the id {example.id!r}; give each row its own id"
            raise DataError(path, None, problem)
        seen.add(example.id)
    with path.open("rb") as file:
        rows_sha256 = file_digest(file, "sha256").hexdigest()
    with Store(out, RunIdentity(rows_sha256, pool.identity())) as store:
        status, advice = COMPLETE, ""
        if not arguments.export:
            plan = Plan(rows, pool, arguments.attempts)
            try:
                status, advice = asyncio.run(_ask_all(plan, store, arguments))
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


async def _ask_all(plan: Plan, store: Store, arguments: argparse.Namespace) -> tuple[int, str]:
    """Ask all unanswered questions; return the exit status, and advice if questions are left.

    The first Ctrl-C waits for the requests in flight, the second abandons them.
    """
    from switchcraft_training.labelling.run import (  # noqa: PLC0415
        LabellingRun,
        ProgressBar,
        SpendingBudget,
    )

    for name in ("httpx", "httpx2", "openai"):
        # These libraries log a line for each request, which would break the progress bar.
        logging.getLogger(name).setLevel(logging.WARNING)
    answered, spending = store.answered(), store.spending()
    spent_usd = spending.answered_usd + spending.lost_usd
    unanswered = plan.count_unanswered(answered)
    total = len(plan.rows) * len(plan.pool.pool) * plan.attempts
    cap_usd = arguments.spending_cap_usd
    budget = SpendingBudget(cap_usd, spent_usd)
    loop = asyncio.get_running_loop()
    sender: RequestSender
    if arguments.ray is None:
        from switchcraft_training.labelling.sender import EndpointClients  # noqa: PLC0415

        sender = EndpointClients(plan.pool, os.environ)
    else:
        from switchcraft_training.cluster import require_ray  # noqa: PLC0415

        require_ray()
        from switchcraft_training.labelling.distributed import RayWorkers  # noqa: PLC0415

        sender = RayWorkers(plan.pool, arguments.ray, arguments.ray_workers)
    async with aclosing(sender):
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
