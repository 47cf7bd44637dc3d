"""`switchcraft-train review`: let a critic model judge the expected calls of rows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from router_service.command_line import Count
from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError
from switchcraft_training.errors import DataError

if TYPE_CHECKING:
    from cyclopts import Token


def _read_address(_type: type, tokens: Sequence[Token]) -> str:
    return check_http_address(tokens[0].value)


def review(
    rows: Path,
    /,
    *,
    out: Path,
    model: str,
    base_url: Annotated[
        str, Parameter(converter=_read_address, metavar="URL")
    ] = "https://api.openai.com/v1",
    api_key_env: Annotated[str, Parameter(metavar="NAME")] = "OPENAI_API_KEY",
    price: tuple[float, float] | None = None,
    concurrency: Count = 8,
) -> int:
    r"""Let a critic model judge the expected calls of rows, and suggest corrections.

    Every row gets a line of OUT with the critic's reason and suggestion. Set `accept` to true in
    the lines whose suggestion is right, which you can edit, and apply them by `import`. Rows that
    have a line are not asked about again. The exit status is 1 if requests failed.

    For example:

        switchcraft-train review rows.jsonl --out review.jsonl --model gpt-5
        # Decide in review.jsonl
        switchcraft-train import bfcl:data --out corrected.jsonl \\
          --corrections review.jsonl

    Args:
        rows: the rows to review, as `import` writes them
        out: file for the review, a JSON object per line
        model: the critic's name at its endpoint
        base_url: an OpenAI-compatible endpoint
        api_key_env: the environment variable with the API key
        price: USD per million input tokens and output tokens, to report the cost
        concurrency: concurrent requests
    """
    # Imported here because the HTTP client loads slowly.
    from router_service.policies.costs import Price
    from switchcraft_training.datasets.corrections import read_correction, row_sha256
    from switchcraft_training.datasets.rows import read_lines, read_rows
    from switchcraft_training.review.critic import Critic, open_review, review_rows

    key = os.environ.get(api_key_env)
    if not key:
        advice = "set it (to any text if the endpoint needs no key), or name another variable"
        raise ConfigError("review", "--api-key-env", f"${api_key_env} is empty; {advice}")
    listed = None
    if price is not None:
        try:
            listed = Price(input_usd_per_mtok=price[0], output_usd_per_mtok=price[1])
        except ValueError as exc:
            problem = "needs two numbers of at least 0, in USD per million tokens"
            raise ConfigError("review", "--price", problem) from exc
    judged = {each.example.id: each for each in read_rows(rows)}
    if len(judged) < sum(1 for _ in read_rows(rows)):
        raise DataError(rows, None, "has an id twice; give every row its own id")
    with open_review(out) as file:
        known = {(line.id, line.row_sha256) for line in read_lines(out, read_correction)}
        new = [row for name, row in judged.items() if (name, row_sha256(row)) not in known]
        critic = Critic(model, base_url, key, listed, concurrency)
        counts = asyncio.run(review_rows(new, file, critic))
    cost = f"{counts.cost_usd:.4f} USD" if listed else "cost unknown"
    print(f"{counts.reviewed} rows reviewed, {counts.flagged} flagged; {cost}")
    if counts.failed:
        print(f"{counts.failed} rows were not reviewed; run the same command again")
    return 1 if counts.failed else 0
