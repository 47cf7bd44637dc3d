"""`switchcraft-train compare`: compare our checker with the leaderboard's."""

from __future__ import annotations

import argparse
from pathlib import Path

_EXAMPLE = """\
example:
  switchcraft-train compare data/bfcl-2024-08 --out comparison --peer
"""


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `compare` command."""
    compare = stages.add_parser(
        "compare",
        help="compare our checker's verdicts with the leaderboard's on recorded answers",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("recordings", type=Path, nargs="+", help="directories of BFCL results")
    compare.add_argument(
        "--out", type=Path, required=True, help="directory for the table and the disagreements"
    )
    compare.add_argument(
        "--sample",
        type=int,
        default=200,
        help="number of disagreements in sample.jsonl (default: %(default)s)",
    )
    compare.add_argument(
        "--seed", type=int, default=1, help="seed of the sample (default: %(default)s)"
    )
    compare.add_argument(
        "--peer", action="store_true", help="also run the checker of the installed bfcl-eval"
    )
    compare.set_defaults(stage=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare the checkers, print the table, and return the exit status 0."""
    # Imported here because it needs the `train` extra.
    from switchcraft_training.comparison.compare import compare_recordings  # noqa: PLC0415

    table = compare_recordings(
        arguments.recordings,
        arguments.out,
        with_peer=arguments.peer,
        sample_size=arguments.sample,
        seed=arguments.seed,
    )
    print(table)
    return 0
