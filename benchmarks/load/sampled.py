"""Run a gateway whose stack is sampled after every few milliseconds of its processor time.

    python -P benchmarks/load/sampled.py SAMPLES serve --config CONFIG

It imports nothing of the benchmarks, because the gateway may be another version. SIGUSR1 forgets
the samples so far. At the end, SAMPLES gets one line for each stack: its count, and then its frames
with the innermost one first, as `FILE:FUNCTION`, with tabs between them.

The kernel counts processor time in ticks, usually of 4 ms. A function in C that runs at a tick
counts as its caller. Other threads count as whatever the event loop does at that moment.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

INTERVAL_S = 0.001
SAMPLES: Counter[tuple[str, ...]] = Counter()


def sample(_: int, frame: FrameType | None) -> None:
    """Count the stack of the main thread."""
    stack = []
    while frame is not None:
        stack.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    SAMPLES[tuple(stack)] += 1


def main() -> None:
    """Serve until the gateway is stopped, and write the samples."""
    path = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda *_: SAMPLES.clear())
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        runpy.run_module("router_service.cli", run_name="__main__")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines = ("\t".join((str(count), *stack)) + "\n" for stack, count in SAMPLES.items())
        path.write_text("".join(lines))


if __name__ == "__main__":
    main()
