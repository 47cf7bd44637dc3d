"""`switchcraft-train review`: verify, decide, export."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from router_service.core.addresses import check_http_address


def register(stages: Any) -> None:  # noqa: ANN401 - argparse names no type for it
    """Add `review` and its stages to the command line."""
    review = stages.add_parser("review", help="review expected calls: verify, decide, export")
    parts = review.add_subparsers(required=True, metavar="stage")
    _add_verify(parts.add_parser("verify", help="ask a verifier model about every row"))
    decide = parts.add_parser("decide", help="decide on what was flagged, in the terminal")
    _add_common(decide, _decide)
    _add_round(decide)
    decide.add_argument(
        "--reviewer",
        default=os.environ.get("USER"),
        required="USER" not in os.environ,
        help="who decides (default: $USER)",
    )
    export = parts.add_parser("export", help="write OUT/patch.jsonl and print what it holds")
    _add_common(export, _export)


def _add_common(parser: argparse.ArgumentParser, stage: Any) -> None:  # noqa: ANN401
    parser.add_argument("rows", type=Path, help="the rows to review, as `import` writes them")
    parser.add_argument("--out", type=Path, required=True, help="where the review is kept")
    parser.set_defaults(stage=stage)


def _add_round(parser: argparse.ArgumentParser) -> None:
    help_ = "1: every row; 2: what was skipped or edited in round 1 (default: %(default)s)"
    parser.add_argument("--round", type=int, choices=(1, 2), default=1, help=help_)


def _address(text: str) -> str:
    try:
        return check_http_address(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, _verify)
    _add_round(parser)
    parser.add_argument("--model", required=True, help="the verifier's name at its endpoint")
    parser.add_argument(
        "--base-url",
        type=_address,
        default="https://api.openai.com/v1",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="the environment variable that holds the key (default: %(default)s)",
    )
    parser.add_argument(
        "--price",
        type=float,
        nargs=2,
        metavar=("INPUT", "OUTPUT"),
        help="USD per million tokens, to count the cost by",
    )
    parser.add_argument("--concurrency", type=int, default=8, help="default: %(default)s")


def _verify(arguments: argparse.Namespace) -> int:
    from switchcraft_training.review.stages import run_verify  # noqa: PLC0415 - slow to import

    return run_verify(arguments)


def _decide(arguments: argparse.Namespace) -> int:
    from switchcraft_training.review.stages import run_decide  # noqa: PLC0415

    return run_decide(arguments)


def _export(arguments: argparse.Namespace) -> int:
    from switchcraft_training.review.stages import run_export  # noqa: PLC0415

    return run_export(arguments)
