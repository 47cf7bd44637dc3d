"""`switchcraft-train score` prints one verdict per pair, and continues after invalid lines."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from switchcraft_training.checking.score import EXAMPLE_LINE

TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {"guests": {"type": "integer"}, "day": {"type": "string"}},
        },
    },
}


def pair(identifier: str, calls: object, **fields: object) -> bytes:
    """Return a line with a pair that expects one booking."""
    expected = [{"name": "book", "arguments": {"guests": [4], "day": ["Friday", "Fri"]}}]
    values = {"id": identifier, "tools": [TOOL], "expected": expected, "calls": calls, **fields}
    return json.dumps(values).encode()


def score(*lines: bytes) -> list[dict[str, Any]]:
    """Run the command with these lines."""
    result = subprocess.run(
        [sys.executable, "-m", "switchcraft_training.cli", "score"],
        input=b"\n".join(lines) + b"\n",
        capture_output=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_line_gets_a_verdict_or_an_error_in_order() -> None:
    """Each line gets a verdict, an invalid line gets an error, and the command continues."""
    right = [{"name": "book", "arguments": {"guests": 4, "day": "friday"}}]
    wrong = [{"name": "book", "arguments": {"guests": 40, "day": "Fri"}}]
    rows = score(
        pair("right", right),
        b"{",
        pair("wrong", wrong),
        pair("no tools", right, tools="none"),
        pair("odd tool", right, tools=[{"function": {}}]),
        pair("unparsed", None),
        pair("none expected", [], expected=[]),
        EXAMPLE_LINE.encode(),
    )
    assert rows[0] == {"id": "right", "correct": True, "score": 1.0, "errors": []}
    assert rows[1]["error"]["code"] == "invalid_json"
    assert rows[1]["error"]["detail"].endswith(EXAMPLE_LINE)
    assert (rows[2]["id"], rows[2]["correct"]) == ("wrong", False)
    assert rows[2]["score"] < 0.75
    assert [(e["code"], e["path"]) for e in rows[2]["errors"]] == [
        ("wrong_value", "calls[0].arguments.guests")
    ]
    assert rows[3]["error"]["path"] == "tools"
    assert rows[3]["error"]["detail"].endswith(EXAMPLE_LINE)
    assert rows[4]["error"]["path"] == "tools[0]"
    assert rows[5]["errors"][0]["code"] == "not_parsed"
    assert rows[6]["correct"]
    assert rows[7] == {"id": "1", "correct": True, "score": 1.0, "errors": []}
    assert len(rows) == 8
