"""`switchcraft route` prints one decision per line of input, and continues after invalid lines."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router_service.core.artifact import CANARIES, SHIPPED, Artifact

FIELDS = {"arm", "probabilities", "cost_usd", "policy", "reason", "packed_tokens"}

BAD_LINES = {
    b"": "invalid_json",
    b"{": "invalid_json",
    b"\xff\xfe": "invalid_json",
    b"[1, 2]": "invalid_type",
    b'{"model": "m"}': "missing_required_parameter",
    b'{"messages": []}': "empty_array",
    b'{"messages": "hi"}': "invalid_type",
    b'{"messages": [{"role": "user", "content": "x"}], "tools": {}}': "invalid_type",
    b'{"a": ' * 2000 + b"1" + b"}" * 2000: "invalid_json",
}


def route(lines: Sequence[bytes], *options: str) -> list[dict[str, Any]]:
    """Run the command with these lines; every line of its output is one JSON object."""
    result = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "route", *options],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        check=True,
        timeout=240,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def own_requests(n: int) -> list[bytes]:
    """Return `n` different requests: the canary requests with an extra message each."""
    rng = random.Random(0)
    bodies = [json.loads(line)["request"] for line in (SHIPPED / CANARIES).read_text().splitlines()]
    lines = []
    for i in range(n):
        body = json.loads(json.dumps(bodies[i % len(bodies)]))
        body["messages"].append({"role": "user", "content": f"Do that for {rng.random()} as well."})
        lines.append(json.dumps(body).encode())
    return lines


def test_invalid_lines_get_errors_among_thousands_of_decisions() -> None:
    """2,000 lines give 2,000 rows in order: decisions, and OpenAI errors for invalid lines."""
    bad = list(BAD_LINES)
    lines = own_requests(2000)
    expected_errors = {}
    for position in range(0, 2000, 50):
        lines[position] = bad[position // 50 % len(bad)]
        expected_errors[position] = BAD_LINES[lines[position]]
    rows = route(lines)
    assert len(rows) == len(lines)
    errors = {i: row["error"] for i, row in enumerate(rows) if "error" in row}
    assert {i: error["code"] for i, error in errors.items()} == expected_errors
    assert all(set(error) == {"message", "type", "param", "code"} for error in errors.values())
    arms = set(Artifact.load(SHIPPED).manifest.arms)
    for row in (row for row in rows if "error" not in row):
        assert set(row) == FIELDS
        assert set(row["probabilities"]) == set(row["cost_usd"]) == arms
        assert row["arm"] in arms
        assert all(0 <= p <= 1 for p in row["probabilities"].values())


@pytest.mark.parametrize(("option", "policy"), [("theta=0.9", "theta=0.9"), ("drift=0", "drift=0")])
def test_policy_option_determines_the_decision(option: str, policy: str) -> None:
    """With `--policy`, the decision follows from its rule and the shown probabilities."""
    for row in route(own_requests(40), "--policy", option):
        assert row["policy"] == policy
        likeliest = max(row["probabilities"].values())
        if row["reason"] in {"argmax", "drift"}:
            assert row["probabilities"][row["arm"]] == likeliest
        else:
            assert row["reason"] == "threshold"
            passing = [arm for arm, p in row["probabilities"].items() if p >= 0.9]
            assert row["arm"] == min(passing, key=row["cost_usd"].__getitem__)


def test_policy_option_accepts_the_artifacts_policy_names() -> None:
    """The command line accepts the name of every policy in the manifest."""
    for name, rule in Artifact.load(SHIPPED).manifest.policies.items():
        assert route(own_requests(1), "--policy", name)[0]["policy"] == rule


def test_partly_readable_request_goes_to_the_most_probable_arm() -> None:
    """An invalid turn does not prevent the decision; the readable part is routed."""
    body = {"messages": [{"role": "user", "content": "Book a table"}, 7], "tools": [7]}
    row = route([json.dumps(body).encode()])[0]
    assert row["reason"] == "unread"
    assert row["probabilities"][row["arm"]] == max(row["probabilities"].values())


@pytest.mark.parametrize(
    "options", [("--policy", "cheap"), ("--artifact", "no/such/folder")], ids=["policy", "artifact"]
)
def test_invalid_option_is_explained(options: tuple[str, str], tmp_path: Path) -> None:
    """The command exits with status 1 and one line that names the option; stdout stays empty."""
    result = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "route", *options],
        cwd=tmp_path,
        input=b"",
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stdout) == (1, b"")
    assert options[1] in result.stderr.decode()
    assert result.stderr.count(b"\n") == 1
