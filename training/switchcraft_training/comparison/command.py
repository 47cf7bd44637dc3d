"""`switchcraft-train compare`: the checkers' table, and their disagreements to be read."""

from __future__ import annotations

import argparse
from pathlib import Path


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `compare` stage."""
    compare = stages.add_parser(
        "compare", help="our verdicts beside the leaderboard's, over folders of recorded answers"
    )
    compare.add_argument("recordings", type=Path, nargs="+", help="folders as BFCL records them")
    compare.add_argument("--out", type=Path, required=True, help="where table and lists go")
    compare.add_argument("--sample", type=int, default=200, help="disagreements drawn to be read")
    compare.add_argument("--seed", type=int, default=1)
    compare.add_argument(
        "--peer", action="store_true", help="judge with the checker of the installed bfcl-eval too"
    )
    compare.set_defaults(stage=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from switchcraft_training.comparison.stage import compare_all  # noqa: PLC0415 - needs the training extra

    print(
        compare_all(
            arguments.recordings,
            arguments.out,
            with_peer=arguments.peer,
            sample_size=arguments.sample,
            seed=arguments.seed,
        )
    )
    return 0
