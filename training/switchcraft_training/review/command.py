"""`switchcraft-train review`: verify expected calls, decide on corrections, export a patch."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from switchcraft_training.records import Judged
    from switchcraft_training.review.verify import Finding

Stage: TypeAlias = Callable[[argparse.Namespace], int]

FINDINGS: Final = "findings.jsonl"
STEPS: Final = "decisions.jsonl"
PATCH: Final = "patch.jsonl"

_LOG = logging.getLogger(__name__)

_EXAMPLE = """\
example:
  switchcraft-train review verify rows.jsonl --out review --model gpt-4o
  switchcraft-train review decide rows.jsonl --out review
  switchcraft-train review export rows.jsonl --out review
  switchcraft-train import bfcl:data --out corrected.jsonl --corrections review/patch.jsonl
"""


def register(stages: Any) -> None:  # noqa: ANN401 - argparse has no public type for it
    """Add the `review` command with its three steps."""
    review = stages.add_parser(
        "review",
        help="check the expected calls of rows with a critic model, and correct them",
        description="Find wrong expected calls: a critic model judges every row, you decide about"
        " the rows\nthat it flags, and a patch file keeps the corrections.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = review.add_subparsers(required=True, metavar="STEP")

    def add(name: str, stage: Stage, text: str, *, has_round: bool) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = parts.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        parser.add_argument("rows", type=Path, help="the rows to review, as `import` writes them")
        parser.add_argument("--out", type=Path, required=True, help="directory of the review")
        if has_round:
            parser.add_argument(
                "--round",
                type=int,
                choices=(1, 2),
                default=1,
                help="1: every row; 2: rows skipped or edited in round 1 (default: %(default)s)",
            )
        parser.set_defaults(stage=stage)
        return parser

    verify = add("verify", run_verify, "ask a critic model about every row", has_round=True)
    verify.add_argument("--model", required=True, help="the critic's name at its endpoint")
    verify.add_argument(
        "--base-url",
        type=_parse_address,
        default="https://api.openai.com/v1",
        help="an OpenAI-compatible endpoint (default: %(default)s)",
    )
    verify.add_argument(
        "--api-key-env",
        default="OPENAI_API_KEY",
        metavar="NAME",
        help="the environment variable with the API key (default: %(default)s)",
    )
    verify.add_argument(
        "--price",
        type=float,
        nargs=2,
        metavar=("INPUT", "OUTPUT"),
        help="USD per million tokens, to report the cost",
    )
    verify.add_argument(
        "--concurrency", type=int, default=8, help="concurrent requests (default: %(default)s)"
    )
    decide = add("decide", run_decide, "decide on flagged rows in the terminal", has_round=True)
    decide.add_argument(
        "--reviewer",
        default=os.environ.get("USER"),
        required="USER" not in os.environ,
        help="your name, which is recorded with each decision (default: $USER)",
    )
    add("export", run_export, "write OUT/patch.jsonl and print a summary", has_round=False)


def _parse_address(text: str) -> str:
    try:
        return check_http_address(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def run_verify(arguments: argparse.Namespace) -> int:
    """Ask the critic about rows without a finding; return 1 if some requests failed."""
    # Imported here, as below, because the HTTP client and the terminal interface load slowly.
    from router_service.policies.costs import Price  # noqa: PLC0415
    from switchcraft_training.review.journal import (  # noqa: PLC0415
        ROUNDS,
        Journal,
        Ledger,
        Step,
        read_entries,
    )
    from switchcraft_training.review.verify import (  # noqa: PLC0415
        Critic,
        Finding,
        unverified,
        verify,
    )

    variable = arguments.api_key_env
    key = os.environ.get(variable)
    if not key:
        advice = "set it (to any text if the endpoint needs no key), or name another variable"
        raise ConfigError("review verify", "--api-key-env", f"${variable} is empty; {advice}")
    price = None
    if arguments.price is not None:
        try:
            price = Price(
                input_usd_per_mtok=arguments.price[0], output_usd_per_mtok=arguments.price[1]
            )
        except ValueError as exc:
            problem = "needs two numbers of at least 0, in USD per million tokens"
            raise ConfigError("review verify", "--price", problem) from exc
    concurrency = max(1, arguments.concurrency)
    critic = Critic(arguments.model, arguments.base_url, key, price, concurrency)

    def rows_of_round() -> Iterator[Judged]:
        ledger = Ledger(read_entries(arguments.out / STEPS, Step))
        for judged in _read_unique_rows(arguments.rows):
            if arguments.round == ROUNDS[0]:
                yield judged
            elif ledger.is_reexamined(judged.example.id):
                yield ledger.revised(judged, ROUNDS[0])

    with Journal(arguments.out / FINDINGS, Finding) as journal:
        rows = unverified(rows_of_round(), journal.entries, arguments.round)
        counts = asyncio.run(verify(rows, journal, critic, arguments.round))
    cost = f"{counts.cost_usd:.4f} USD" if critic.price else "cost unknown"
    _LOG.info("%d rows verified, %d flagged; %s", counts.verified, counts.flagged, cost)
    if counts.failed:
        _LOG.error("%d rows were not verified; run the same command again", counts.failed)
    return 1 if counts.failed else 0


def run_decide(arguments: argparse.Namespace) -> int:
    """Open the terminal interface with the flagged rows."""
    from switchcraft_training.review.app import ReviewApp  # noqa: PLC0415
    from switchcraft_training.review.journal import Journal, Ledger, Step  # noqa: PLC0415
    from switchcraft_training.review.session import Session, entries_of_round  # noqa: PLC0415

    if not sys.stdin.isatty():
        raise ConfigError("review decide", "", "needs a terminal; run it without pipes")
    findings = _read_findings(arguments.out)
    with Journal(arguments.out / STEPS, Step) as journal:
        ledger = Ledger(journal.entries)
        rows = _read_unique_rows(arguments.rows)
        queue = tuple(entries_of_round(rows, arguments.rows, findings, ledger, arguments.round))
        if not queue:
            _LOG.info("there is nothing to decide in round %d", arguments.round)
            return 0
        app = ReviewApp(Session(queue, journal, arguments.reviewer, arguments.round))
        app.run()
        return app.return_code or 0


def run_export(arguments: argparse.Namespace) -> int:
    """Write the patch file and print a summary."""
    from rich.console import Console  # noqa: PLC0415

    from switchcraft_training.review.journal import Ledger, Step, read_entries  # noqa: PLC0415
    from switchcraft_training.review.session import (  # noqa: PLC0415
        decided_corrections,
        decision_table,
        summary,
        write_patch,
    )

    findings = _read_findings(arguments.out)
    ledger = Ledger(read_entries(arguments.out / STEPS, Step))
    rows = _read_unique_rows(arguments.rows)
    corrections = tuple(decided_corrections(rows, arguments.rows, ledger))
    path = arguments.out / PATCH
    write_patch(corrections, path)
    console = Console()
    console.print(decision_table(ledger, corrections))
    console.print(summary(findings, ledger, corrections), highlight=False)
    console.print(str(path), highlight=False, soft_wrap=True)
    return 0


def _read_findings(out: Path) -> Sequence[Finding]:
    from switchcraft_training.review.journal import read_entries  # noqa: PLC0415
    from switchcraft_training.review.verify import Finding  # noqa: PLC0415

    findings = read_entries(out / FINDINGS, Finding)
    if not findings:
        raise ConfigError(str(out), "", "no rows are verified here; run `review verify` first")
    return findings


def _read_unique_rows(path: Path) -> Iterator[Judged]:
    """Stream rows; raises DataError if an id is used twice, because decisions are kept by id."""
    from switchcraft_training.datasets.rows import read_rows  # noqa: PLC0415

    seen: set[str] = set()
    for judged in read_rows(path):
        if judged.example.id in seen:
            problem = f"the id {judged.example.id!r} is used twice; give every row its own id"
            raise DataError(path, None, problem)
        seen.add(judged.example.id)
        yield judged
