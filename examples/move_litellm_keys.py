"""Copy the teams and virtual keys of a LiteLLM proxy: print the commands that create them here.

    LITELLM_MASTER_KEY=... python examples/move_litellm_keys.py http://litellm:4000 > move.sh

Read the commands, change what you like, and run them with `sh move.sh`. Clients keep their keys,
because LiteLLM stores a key as the SHA-256 of its text, and so do we. A comment says what has no
equivalent. What was spent so far is not copied: budgets begin anew.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

Row = dict[str, Any]
PERIODS = {
    **dict.fromkeys(("24h", "1d", "daily"), "day"),
    **dict.fromkeys(("7d", "1w", "weekly"), "week"),
    **dict.fromkeys(("30d", "31d", "1mo", "monthly"), "month"),
}
"""Our periods of budgets, by LiteLLM's `budget_duration`. Without one, a budget never resets."""


def get(address: str, path: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what LiteLLM's API answers."""
    headers = {"authorization": f"Bearer {os.environ['LITELLM_MASTER_KEY']}"}
    with urlopen(Request(f"{address}{path}", headers=headers)) as answer:  # noqa: S310 - the user's address
        return json.load(answer)


def all_keys(address: str) -> Iterator[Row]:
    """Yield the proxy's keys, page by page."""
    page, pages = 1, 1
    while page <= pages:
        listed = get(address, f"/key/list?return_full_object=true&size=100&page={page}")
        yield from listed["keys"]
        page, pages = page + 1, listed["total_pages"]


def limits(row: Row) -> list[str]:
    """Return the options of a key's or a team's limits."""
    options: list[str] = []
    if row.get("max_budget") is not None:
        duration = row.get("budget_duration")
        period = PERIODS.get(duration, "month") if duration else "total"
        options += ["--budget", f"{row['max_budget']}/{period}"]
    for option, field in (
        ("--requests-per-minute", "rpm_limit"),
        ("--tokens-per-minute", "tpm_limit"),
        ("--parallel-requests", "max_parallel_requests"),
    ):
        if row.get(field):
            options += [option, str(row[field])]
    return options


def remarks(row: Row) -> Iterator[str]:
    """Yield what the options of a key or a team do not say."""
    duration = row.get("budget_duration")
    if row.get("max_budget") is not None and duration and duration not in PERIODS:
        yield f"its budget is for {duration}, not for a month"
    for field in ("model_max_budget", "aliases", "guardrails", "permissions"):
        if row.get(field):
            yield f"its {field} are not copied"


def team_command(team: Row, name: str) -> Iterator[str]:
    """Yield the command for a team, and remarks."""
    notes = list(remarks(team))
    if team.get("models"):
        notes.append(f"its models are limits of keys here: {' '.join(team['models'])}")
    yield from (f"# {name}: {note}" for note in notes)
    yield shlex.join(["switchcraft", "teams", "create", name, *limits(team)])


def key_command(key: Row, teams: dict[str, str]) -> Iterator[str]:
    """Yield the command for a key, and remarks."""
    name = key.get("key_alias") or f"litellm-{key['token'][:8]}"
    if key.get("blocked"):
        yield f"# {name}: is blocked, and not copied"
        return
    yield from (f"# {name}: {note}" for note in remarks(key))
    options = limits(key)
    if key.get("team_id"):
        options += ["--team", teams.get(key["team_id"], key["team_id"])]
    if key.get("user_id"):
        options += ["--owner", key["user_id"]]
    if key.get("expires"):
        options += ["--expires", str(key["expires"])]
    models = [model for model in key.get("models") or () if not model.startswith("all-")]
    if models:
        # Without the router's name, the key could name these models only.
        options += ["--models", "switchcraft", *models]
    hashed = ["--hash", f"sha256:{key['token']}"]
    yield shlex.join(["switchcraft", "keys", "create", name, *hashed, *options])


def main() -> None:
    """Print the commands."""
    address = sys.argv[1].rstrip("/")
    teams = {team["team_id"]: team for team in get(address, "/team/list")}
    names = {team_id: team.get("team_alias") or team_id for team_id, team in teams.items()}
    for team_id, team in teams.items():
        print(*team_command(team, names[team_id]), sep="\n")
    for key in all_keys(address):
        print(*key_command(key, names), sep="\n")


if __name__ == "__main__":
    main()
