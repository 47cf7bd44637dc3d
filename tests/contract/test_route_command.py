"""`switchcraft route`: request bodies in, a decision a line out, and it always goes on."""

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
    """Run the command on these lines; every line of its output is one JSON object."""
    result = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "route", *options],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        check=True,
        timeout=240,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def own_requests(n: int) -> list[bytes]:
    """Return `n` different requests, made of the canaries' own with other numbers in them."""
    rng = random.Random(0)
    bodies = [json.loads(line)["request"] for line in (SHIPPED / CANARIES).read_text().splitlines()]
    lines = []
    for i in range(n):
        body = json.loads(json.dumps(bodies[i % len(bodies)]))
        body["messages"].append({"role": "user", "content": f"Do that for {rng.random()} as well."})
        lines.append(json.dumps(body).encode())
    return lines


def test_thousands_of_requests_with_bad_lines_among_them() -> None:
    """2,000 lines in, 2,000 lines out, in order: decisions for good ones, OpenAI errors for bad."""
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
def test_a_policy_is_obeyed(option: str, policy: str) -> None:
    """With `--policy` the decision is the one that its rule makes of the probabilities shown."""
    for row in route(own_requests(40), "--policy", option):
        assert row["policy"] == policy
        likeliest = max(row["probabilities"].values())
        if row["reason"] in {"argmax", "drift"}:
            assert row["probabilities"][row["arm"]] == likeliest
        else:
            assert row["reason"] == "threshold"
            passing = [arm for arm, p in row["probabilities"].items() if p >= 0.9]
            assert row["arm"] == min(passing, key=row["cost_usd"].__getitem__)


def test_the_policies_of_the_artifact_have_names() -> None:
    """Every policy of the manifest is known by its name on the command line."""
    for name, rule in Artifact.load(SHIPPED).manifest.policies.items():
        assert route(own_requests(1), "--policy", name)[0]["policy"] == rule


def test_a_request_read_in_part_is_routed_to_the_likeliest_arm() -> None:
    """A turn that makes no sense does not stop the decision: what could be read is routed."""
    body = {"messages": [{"role": "user", "content": "Book a table"}, 7], "tools": [7]}
    row = route([json.dumps(body).encode()])[0]
    assert row["reason"] == "unread"
    assert row["probabilities"][row["arm"]] == max(row["probabilities"].values())


@pytest.mark.parametrize(
    "options", [("--policy", "cheap"), ("--artifact", "no/such/folder")], ids=["policy", "artifact"]
)
def test_a_wrong_option_is_explained(options: tuple[str, str], tmp_path: Path) -> None:
    """The command ends with 1 and one line that names what was wrong; nothing goes to stdout."""
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
