"""Scaling of the gateway with its workers: answers per second, and the ratio to one worker.

    python benchmarks/workers.py --out runs/workers.json

A variant such as `2 x 1` has two workers with one decision thread each. All variants run for the
whole time, and take turns in every round, as in `benchmarks/gateway.py`, whose modes these are. The
client and the upstream run on the same cores as the gateway. The ratio is the median of the rounds'
ratios, each to the first variant in the same round. The first round is a warm-up.

Memory is the proportional set size (PSS) of all processes, which counts shared pages once.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gateway import Bench, first_request
from benchmarks.load.contenders import Place, direct, with_workers
from benchmarks.load.figures import Rounds, Setting, as_json, markdown, spread
from benchmarks.load.processes import free_port, running
from benchmarks.stamp import write_figures


def main() -> None:
    """Print the tables; with `--out`, also write every round as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants", nargs="+", default=["1 x 2", "1 x 1", "2 x 1", "2 x 2"], help="see above"
    )
    parser.add_argument("--modes", nargs="+", default=["first sight", "repeated", "pass-through"])
    parser.add_argument("--connections", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--rounds", type=int, default=5, help="in addition to the warm-up round")
    parser.add_argument("--seconds", type=float, default=1.5, help="measured seconds of each load")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    settings = [Setting(mode, n) for mode in arguments.modes for n in arguments.connections]
    rounds, memory_mb = measure(settings, arguments)
    print("\n".join(tables(rounds, memory_mb)))
    row = {"settings": as_json(rounds), "memory_mb": memory_mb}
    write_figures(arguments.out, row, "uvloop", "onnxruntime")


def measure(
    settings: Sequence[Setting], arguments: argparse.Namespace
) -> tuple[Rounds, dict[str, float]]:
    """Return the figures of every round after the first, and each variant's memory in MB."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = Place(folder, folder, free_port())
        upstream = direct(place)
        stack.enter_context(running(upstream.program, first_request(upstream)))
        variants = (name.partition(" x ")[::2] for name in arguments.variants)
        contenders = {
            name: with_workers(place, int(workers), int(threads))
            for name, (workers, threads) in zip(arguments.variants, variants, strict=True)
        }
        programs = {
            name: stack.enter_context(running(it.program, first_request(it)))
            for name, it in contenders.items()
        }
        rounds = Bench(contenders, programs).rounds(settings, arguments.rounds, arguments.seconds)
        return rounds, {name: it.proportional_mb() for name, it in programs.items()}


def tables(rounds: Rounds, memory_mb: dict[str, float]) -> Iterator[str]:
    """Yield a Markdown table for each setting: medians over the rounds, followed by the range."""
    titles = ["answers/s", "ratio", "P50, ms", "P99, ms", "CPU, ms an answer"]
    for setting, by_name in rounds.items():
        (_, first), *_ = by_name.items()
        rows = {}
        for name, its in by_name.items():
            ratios = [it.rate_per_s / one.rate_per_s for it, one in zip(its, first, strict=True)]
            columns = (
                [it.rate_per_s for it in its],
                ratios,
                [it.p50_ms for it in its],
                [it.p99_ms for it in its],
                [it.cpu_ms for it in its],
            )
            rows[name] = [spread(values) for values in columns]
        yield from markdown(f"{setting.mode} at {setting.connections}", titles, rows)
    memory = {name: [spread([mb])] for name, mb in memory_mb.items()}
    yield from markdown("workers x threads", ["memory after the load, MB"], memory)


if __name__ == "__main__":
    main()
