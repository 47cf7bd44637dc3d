"""A labelling run on the console: progress bar, Ctrl-C, and what to do if questions are left."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Final

from switchcraft_training.labelling.run import LabellingRun, Plan, ProgressBar, SpendingBudget
from switchcraft_training.labelling.sender import Sender
from switchcraft_training.labelling.store import Store

COMPLETE, FAILED, CAPPED, INTERRUPTED = 0, 1, 3, 130
"""Exit statuses: all questions answered, some questions failed, spending cap reached, Ctrl-C."""

AGAIN: Final = "run the same command again to continue"


async def ask_all(
    plan: Plan, store: Store, sender: Sender, cap_usd: float | None, remedy: str = ""
) -> tuple[int, str]:
    """Ask all unanswered questions; return the exit status, and advice if questions are left.

    The first Ctrl-C waits for the requests in flight, the second abandons them. `remedy` says what
    else to do than to raise the cap.
    """
    for name in ("httpx", "httpx2", "openai"):
        # These libraries log a line for each request, which would break the progress bar.
        logging.getLogger(name).setLevel(logging.WARNING)
    answered, spending = store.answered(), store.spending()
    spent_usd = spending.answered_usd + spending.lost_usd
    unanswered = plan.count_unanswered(answered)
    total = len(plan.rows) * len(plan.pool.pool) * plan.attempts
    budget = SpendingBudget(cap_usd, spent_usd)
    loop = asyncio.get_running_loop()
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
            f" spent, and the next request may cost {budget.refused_usd:.4f} USD. Raise the cap"
            f"{remedy}; {AGAIN}."
        )
    if run.stopped:
        return FAILED, f"Stopped: {', '.join(run.stopped)}. Fix the errors above; {AGAIN}."
    if progress.failed:
        return FAILED, f"{progress.failed} questions have no answer; {AGAIN} and retry them."
    return COMPLETE, ""
