"""The stages of a review, from the files of one folder to the files of the same."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from router_service.core.cost import Price
from router_service.core.errors import ConfigError, DataError
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.records import Judged
from switchcraft_training.review.app import ReviewApp
from switchcraft_training.review.decisions import ROUNDS, Ledger, Step
from switchcraft_training.review.findings import Finding
from switchcraft_training.review.journal import Journal, read_entries
from switchcraft_training.review.patch import corrections, decision_table, totals, write_patch
from switchcraft_training.review.session import Session, entries
from switchcraft_training.review.verify import Verifier, unverified, verify

FINDINGS: Final = "findings.jsonl"
STEPS: Final = "decisions.jsonl"
PATCH: Final = "patch.jsonl"

_LOG = logging.getLogger(__name__)


def run_verify(arguments: argparse.Namespace) -> int:
    """Ask the verifier about the rows that it was not asked about; 1 where some failed."""
    verifier = Verifier(
        arguments.model,
        arguments.base_url,
        _api_key(arguments.api_key_env),
        _price(arguments.price),
        max(1, arguments.concurrency),
    )
    with Journal(arguments.out / FINDINGS, Finding) as journal:
        rows = unverified(_rows_of_round(arguments), journal.entries, arguments.round)
        progress = asyncio.run(verify(rows, journal, verifier, arguments.round))
    cost = f"{progress.cost_usd:.4f} USD" if verifier.price else "cost unknown"
    _LOG.info("%d rows verified, %d flagged; %s", progress.asked, progress.flagged, cost)
    if progress.failed:
        _LOG.error("%d rows were not verified; run the same command again", progress.failed)
    return 1 if progress.failed else 0


def run_decide(arguments: argparse.Namespace) -> int:
    """Open the terminal interface on what is flagged."""
    if not sys.stdin.isatty():
        raise ConfigError("review decide", "", "needs a terminal: run it in one, without pipes")
    findings = _findings(arguments.out)
    with Journal(arguments.out / STEPS, Step) as journal:
        ledger = Ledger(journal.entries)
        rows = _unique(arguments.rows)
        queue = tuple(entries(rows, arguments.rows, findings, ledger, arguments.round))
        if not queue:
            _LOG.info("there is nothing to decide in round %d", arguments.round)
            return 0
        app = ReviewApp(Session(queue, journal, arguments.reviewer, arguments.round))
        app.run()
        return app.return_code or 0


def run_export(arguments: argparse.Namespace) -> int:
    """Write the patch file and print what it holds."""
    findings = _findings(arguments.out)
    ledger = Ledger(read_entries(arguments.out / STEPS, Step))
    found = tuple(corrections(_unique(arguments.rows), arguments.rows, ledger))
    write_patch(found, arguments.out / PATCH)
    console = Console()
    console.print(decision_table(ledger, found))
    console.print(totals(findings, ledger, found), highlight=False)
    console.print(str(arguments.out / PATCH), highlight=False, soft_wrap=True)
    return 0


def _rows_of_round(arguments: argparse.Namespace) -> Iterator[Judged]:
    """Yield the rows to verify: all, or those of round 2 as round 1 left them."""
    ledger = Ledger(read_entries(arguments.out / STEPS, Step))
    for judged in _unique(arguments.rows):
        if arguments.round == ROUNDS[0]:
            yield judged
        elif ledger.is_reexamined(judged.example.id):
            yield ledger.revised(judged, ROUNDS[0])


def _findings(out: Path) -> Sequence[Finding]:
    findings = read_entries(out / FINDINGS, Finding)
    if not findings:
        raise ConfigError(str(out), "", "nothing was verified here; run `review verify` first")
    return findings


def _unique(path: Path) -> Iterator[Judged]:
    """Stream rows; raises DataError where an id comes twice, so that decisions have one place."""
    seen: set[str] = set()
    for judged in read_rows(path):
        if judged.example.id in seen:
            raise DataError(path, None, f"the id {judged.example.id!r} comes twice")
        seen.add(judged.example.id)
        yield judged


def _price(usd_per_mtok: list[float] | None) -> Price | None:
    if usd_per_mtok is None:
        return None
    try:
        return Price(input_usd_per_mtok=usd_per_mtok[0], output_usd_per_mtok=usd_per_mtok[1])
    except ValueError as exc:
        raise ConfigError("review verify", "--price", "needs two numbers from 0") from exc


def _api_key(variable: str) -> str:
    key = os.environ.get(variable)
    if not key:
        advice = "set it, to any word where the endpoint wants no key, or name another"
        raise ConfigError("review verify", "--api-key-env", f"${variable} is empty; {advice}")
    return key
