"""`switchcraft-train review`: verify expected calls with a critic, and export a patch."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import App, Parameter

from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError, DataError
from switchcraft_training.options import DATA

if TYPE_CHECKING:
    from cyclopts import Token

    from switchcraft_training.records import Judged

FINDINGS: Final = "findings.jsonl"
DECISIONS: Final = "decisions.yaml"
PATCH: Final = "patch.jsonl"

_LOG = logging.getLogger(__name__)


def _read_address(_type: type, tokens: Sequence[Token]) -> str:
    return check_http_address(tokens[0].value)


Rows: TypeAlias = Annotated[
    Path, Parameter("ROWS", help="the rows to review, as `import` writes them")
]
Out: TypeAlias = Annotated[Path, Parameter("--out", help="directory of the review")]

review = App(
    "review",
    group=DATA,
    help="""Check the expected calls of rows with a critic model, and correct them.

A critic model judges every row, you decide about the rows that it flags by editing
OUT/decisions.yaml, and a patch file keeps the corrections.

For example:

    switchcraft-train review verify rows.jsonl --out review --model gpt-4o
    # Decide in review/decisions.yaml
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
    model: str,
    base_url: Annotated[
        str, Parameter(converter=_read_address, metavar="URL")
    ] = "https://api.openai.com/v1",
    api_key_env: Annotated[str, Parameter(metavar="NAME")] = "OPENAI_API_KEY",
    price: tuple[float, float] | None = None,
    concurrency: int = 8,
) -> int:
    """Ask a critic model about every row, and write the rows that it flags to OUT/decisions.yaml.

    Rows that have a finding are not asked about again. The exit status is 1 if requests failed.

    Args:
        model: the critic's name at its endpoint
        base_url: an OpenAI-compatible endpoint
        api_key_env: the environment variable with the API key
        price: USD per million input tokens and output tokens, to report the cost
        concurrency: concurrent requests
    """
    # Imported here, as below, because the HTTP client loads slowly.
    from router_service.policies.costs import Price
    from switchcraft_training.datasets.corrections import row_sha256
    from switchcraft_training.review.sheet import FlaggedRow, append_flagged, read_decisions
    from switchcraft_training.review.verify import Critic, open_findings, read_findings
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

    by_key = {(row.example.id, row_sha256(row)): row for row in _read_unique_rows(rows)}
    done = {(finding.id, finding.row_sha256) for finding in read_findings(out / FINDINGS)}
    open_rows = [row for row_key, row in by_key.items() if row_key not in done]
    with open_findings(out / FINDINGS) as file:
        counts = asyncio.run(ask_critic(open_rows, file, critic))

    sheet = out / DECISIONS
    listed_rows = read_decisions(sheet) if sheet.exists() else []
    in_sheet = {(row.id, row.row_sha256) for row in listed_rows}
    opinions = {(f.id, f.row_sha256): f.opinion for f in read_findings(out / FINDINGS)}
    flagged = [
        FlaggedRow.of(row, opinions[row_key])
        for row_key, row in by_key.items()
        if row_key in opinions and opinions[row_key].is_flagged and row_key not in in_sheet
    ]
    append_flagged(sheet, flagged)

    cost = f"{counts.cost_usd:.4f} USD" if critic.price else "cost unknown"
    _LOG.info("%d rows verified, %d flagged; %s", counts.verified, counts.flagged, cost)
    _LOG.info("%d rows are new in %s, to decide on", len(flagged), sheet)
    if counts.failed:
        _LOG.error("%d rows were not verified; run the same command again", counts.failed)
    return 1 if counts.failed else 0


@review.command
def export(rows: Rows, /, *, out: Out, reviewer: Annotated[str, Parameter(env_var="USER")]) -> None:
    """Write the accepted corrections to OUT/patch.jsonl, and print how many there are.

    Args:
        reviewer: your name, which is recorded with each correction
    """
    from switchcraft_training.review.sheet import corrections_of, read_decisions
    from switchcraft_training.storage import complete_file

    sheet = out / DECISIONS
    if not sheet.exists():
        raise ConfigError(str(out), "", "no rows are verified here; run `review verify` first")
    flagged = read_decisions(sheet)
    corrections = list(corrections_of(_read_unique_rows(rows), flagged, sheet, reviewer))
    path = out / PATCH
    lines = (correction.model_dump_json(exclude_none=True) + "\n" for correction in corrections)
    with complete_file(path) as unfinished:
        unfinished.write_text("".join(lines), encoding="utf-8")
    decided = Counter(row.decision for row in flagged)
    print(
        f"{len(flagged)} rows flagged: {decided['accept']} accepted, {decided['decline']} declined,"
        f" {decided[None]} open"
    )
    for category, count in Counter(c.category for c in corrections).most_common():
        print(f"  {category.display_name}: {count}")
    print(path)


def _read_unique_rows(path: Path) -> Iterator[Judged]:
    """Stream rows; raises DataError if an id is used twice, because findings are kept by id."""
    from switchcraft_training.datasets.rows import read_rows

    seen: set[str] = set()
    for judged in read_rows(path):
        if judged.example.id in seen:
            problem = f"the id {judged.example.id!r} is used twice; give every row its own id"
            raise DataError(path, None, problem)
        seen.add(judged.example.id)
        yield judged
