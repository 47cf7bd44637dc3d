"""`switchcraft-train label`: ask a pool the queries of a file of rows, resumably."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def register(stages: Any) -> None:  # noqa: ANN401 - argparse names no type for it
    """Add the stage to the command line's."""
    label = stages.add_parser(
        "label",
        help="ask every arm of a pool every query; stopped or killed, it goes on when run again",
    )
    label.add_argument("pool", type=Path, help="endpoints, limits, arms and prices, as YAML")
    label.add_argument("rows", type=Path, help="the queries, as `import` writes them")
    label.add_argument("--out", type=Path, required=True, help="where the answers are kept")
    label.add_argument(
        "--attempts", type=_count, default=1, help="times each is asked (default: %(default)s)"
    )
    label.add_argument("--limit", type=_count, metavar="N", help="only the first N rows")
    label.add_argument(
        "--spending-cap-usd",
        type=_usd,
        metavar="USD",
        help="stop before all runs into OUT together have cost more (default: no cap)",
    )
    label.add_argument(
        "--export", action="store_true", help="ask nothing; write OUT/answers.jsonl anew"
    )
    _add_ray(label)
    label.set_defaults(stage=_label)


def _add_ray(label: argparse.ArgumentParser) -> None:
    label.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="send through Ray's workers: of a cluster (`auto`, HOST:PORT), else on this machine",
    )
    label.add_argument(
        "--ray-workers", type=_count, metavar="N", help="how many (default: one a machine)"
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _usd(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _label(arguments: argparse.Namespace) -> int:
    # Imported here: a command line with many stages loads what one of them needs.
    from switchcraft_training.labelling.stage import run_label  # noqa: PLC0415

    ending = run_label(arguments)
    if ending.summary:
        print(ending.summary)
    if ending.advice:
        print(ending.advice, file=sys.stderr)
    return ending.status
