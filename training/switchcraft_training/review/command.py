"""`switchcraft-train review`: verify expected calls, decide on corrections, export a patch."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from cyclopts import App, Parameter

from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError, DataError
from switchcraft_training.options import DATA

if TYPE_CHECKING:
    from cyclopts import Token

    from switchcraft_training.records import Judged
    from switchcraft_training.review.verify import Finding

FINDINGS: Final = "findings.jsonl"
STEPS: Final = "decisions.jsonl"
PATCH: Final = "patch.jsonl"

_LOG = logging.getLogger(__name__)


def _read_address(_type: type, tokens: Sequence[Token]) -> str:
    return check_http_address(tokens[0].value)


Rows: TypeAlias = Annotated[
    Path, Parameter("ROWS", help="the rows to review, as `import` writes them")
]
Out: TypeAlias = Annotated[Path, Parameter("--out", help="directory of the review")]
Round: TypeAlias = Annotated[
    Literal[1, 2],
    Parameter("--round", help="1: every row; 2: rows skipped or edited in round 1"),
]

review = App(
    "review",
    group=DATA,
    help="""Check the expected calls of rows with a critic model, and correct them.

A critic model judges every row, you decide about the rows that it flags, and a patch file keeps the
corrections.

For example:

    switchcraft-train review verify rows.jsonl --out review --model gpt-4o
    switchcraft-train review decide rows.jsonl --out review
    switchcraft-train review export rows.jsonl --out review
    switchcraft-train import bfcl:data --out corrected.jsonl \\
      --corrections review/patch.jsonl
""",
)


@review.command
def verify(
    rows: Rows,
    /,
    *,
    out: Out,
    round_: Round = 1,
    model: str,
    base_url: Annotated[
        str, Parameter(converter=_read_address, metavar="URL")
    ] = "https://api.openai.com/v1",
    api_key_env: Annotated[str, Parameter(metavar="NAME")] = "OPENAI_API_KEY",
    price: tuple[float, float] | None = None,
    concurrency: int = 8,
) -> int:
    """Ask a critic model about every row.

    Rows that have a finding are not asked about again. The exit status is 1 if requests failed.

    Args:
        model: the critic's name at its endpoint
        base_url: an OpenAI-compatible endpoint
        api_key_env: the environment variable with the API key
        price: USD per million input tokens and output tokens, to report the cost
        concurrency: concurrent requests
    """
    # Imported here, as below, because the HTTP client and the terminal interface load slowly.
    from router_service.policies.costs import Price
    from switchcraft_training.review.journal import ROUNDS, Journal, Ledger, Step, read_entries
    from switchcraft_training.review.verify import Critic, Finding, unverified
    from switchcraft_training.review.verify import verify as ask_critic

    key = os.environ.get(api_key_env)
    if not key:
        advice = "set it (to any text if the endpoint needs no key), or name another variable"
        raise ConfigError("review verify", "--api-key-env", f"${api_key_env} is empty; {advice}")
    listed = None
    if price is not None:
        try:
            listed = Price(input_usd_per_mtok=price[0], output_usd_per_mtok=price[1])
        except ValueError as exc:
            problem = "needs two numbers of at least 0, in USD per million tokens"
            raise ConfigError("review verify", "--price", problem) from exc
    critic = Critic(model, base_url, key, listed, max(1, concurrency))

    def rows_of_round() -> Iterator[Judged]:
        ledger = Ledger(read_entries(out / STEPS, Step))
        for judged in _read_unique_rows(rows):
            if round_ == ROUNDS[0]:
                yield judged
            elif ledger.is_reexamined(judged.example.id):
                yield ledger.revised(judged, ROUNDS[0])

    with Journal(out / FINDINGS, Finding) as journal:
        asked = unverified(rows_of_round(), journal.entries, round_)
        counts = asyncio.run(ask_critic(asked, journal, critic, round_))
    cost = f"{counts.cost_usd:.4f} USD" if critic.price else "cost unknown"
    _LOG.info("%d rows verified, %d flagged; %s", counts.verified, counts.flagged, cost)
    if counts.failed:
        _LOG.error("%d rows were not verified; run the same command again", counts.failed)
    return 1 if counts.failed else 0


@review.command
def decide(
    rows: Rows,
    /,
    *,
    out: Out,
    round_: Round = 1,
    reviewer: Annotated[str, Parameter(env_var="USER")],
) -> int:
    """Decide on flagged rows in the terminal.

    Args:
        reviewer: your name, which is recorded with each decision
    """
    from switchcraft_training.review.app import ReviewApp
    from switchcraft_training.review.journal import Journal, Ledger, Step
    from switchcraft_training.review.session import Session, entries_of_round

    if not sys.stdin.isatty():
        raise ConfigError("review decide", "", "needs a terminal; run it without pipes")
    findings = _read_findings(out)
    with Journal(out / STEPS, Step) as journal:
        ledger = Ledger(journal.entries)
        queue = tuple(entries_of_round(_read_unique_rows(rows), rows, findings, ledger, round_))
        if not queue:
            _LOG.info("there is nothing to decide in round %d", round_)
            return 0
        app = ReviewApp(Session(queue, journal, reviewer, round_))
        app.run()
        return app.return_code or 0


@review.command
def export(rows: Rows, /, *, out: Out) -> None:
    """Write OUT/patch.jsonl and print a summary."""
    from rich.console import Console

    from switchcraft_training.review.journal import Ledger, Step, read_entries
    from switchcraft_training.review.session import (
        decided_corrections,
        decision_table,
        summary,
        write_patch,
    )

    findings = _read_findings(out)
    ledger = Ledger(read_entries(out / STEPS, Step))
    corrections = tuple(decided_corrections(_read_unique_rows(rows), rows, ledger))
    path = out / PATCH
    write_patch(corrections, path)
    console = Console()
    console.print(decision_table(ledger, corrections))
    console.print(summary(findings, ledger, corrections), highlight=False)
    console.print(str(path), highlight=False, soft_wrap=True)


def _read_findings(out: Path) -> Sequence[Finding]:
    from switchcraft_training.review.journal import read_entries
    from switchcraft_training.review.verify import Finding

    findings = read_entries(out / FINDINGS, Finding)
    if not findings:
        raise ConfigError(str(out), "", "no rows are verified here; run `review verify` first")
    return findings


def _read_unique_rows(path: Path) -> Iterator[Judged]:
    """Stream rows; raises DataError if an id is used twice, because decisions are kept by id."""
    from switchcraft_training.datasets.rows import read_rows

    seen: set[str] = set()
    for judged in read_rows(path):
        if judged.example.id in seen:
            problem = f"the id {judged.example.id!r} is used twice; give every row its own id"
            raise DataError(path, None, problem)
        seen.add(judged.example.id)
        yield judged
