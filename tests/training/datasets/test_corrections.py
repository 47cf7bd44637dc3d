"""Patch files: the changes that they make, and the errors that they cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import ExpectedCall
from router_service.core.errors import DataError
from switchcraft_training.datasets.corrections import (
    apply_patch,
    last_utterance,
    row_sha256,
)
from switchcraft_training.records import Example, Expected, Judged

CALL = ExpectedCall("pay", {"amount": (5, 5.0), "to": ({"name": OneOf(("Ann", "ann"))},)})


def row(identifier: str, *calls: ExpectedCall, dataset: str = "bank") -> Judged:
    """Return a row whose conversation ends with a tool result."""
    messages = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": f"Pay five to Ann, {identifier}."},
        {"role": "tool", "content": "done"},
    ]
    request = {"messages": messages, "tools": []}
    return Judged(Example(identifier, "simple", request, dataset, "c"), Expected(calls))


ROWS = [row("a", CALL), row("b", CALL), row("c")]


def correction(judged: Judged, **fields: object) -> dict[str, Any]:
    """Return a line of a patch file that corrects a row's expected calls."""
    return {
        "id": judged.example.id,
        "dataset": judged.example.dataset,
        "row_sha256": row_sha256(judged),
        "kind": "truth",
        "category": "wrong_function",
        "expected": [{"name": "pay_out", "arguments": {"amount": [7]}, "optional": ["amount"]}],
        "explanation": "It is a payment out.",
        "reviewer": "ann",
        "round": 1,
        **fields,
    }


def input_correction(judged: Judged, utterance: str) -> dict[str, Any]:
    """Return a line of a patch file that corrects a row's input."""
    line = correction(judged, kind="input", category="temporal_ambiguity", utterance=utterance)
    del line["expected"]
    return line


def patch(folder: Path, *lines: dict[str, Any]) -> Path:
    """Write a patch file."""
    path = folder / "patch.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_input_correction_replaces_only_last_user_message(tmp_path: Path) -> None:
    """Only the last user message changes, no other message and no expected call."""
    (corrected, *_) = apply_patch(
        ROWS, patch(tmp_path, input_correction(ROWS[0], "Pay 5 to Ann in May"))
    )
    assert last_utterance(corrected.example) == "Pay 5 to Ann in May"
    before, after = ROWS[0].example.request["messages"], corrected.example.request["messages"]
    assert [*before[:2], before[3]] == [*after[:2], after[3]]
    assert corrected.expected == ROWS[0].expected
    assert last_utterance(ROWS[0].example) == "Pay five to Ann, a."


def test_patch_cannot_be_applied_twice(tmp_path: Path) -> None:
    """A corrected row is not the row that was reviewed."""
    path = patch(tmp_path, correction(ROWS[0]))
    with pytest.raises(DataError, match=r"a is not the row that was reviewed"):
        list(apply_patch(list(apply_patch(ROWS, path)), path))


def test_missing_row_is_an_error_at_the_end(tmp_path: Path) -> None:
    """After all rows, the error names missing ids; an id of another dataset does not match."""
    missing = row("a", CALL, dataset="other")
    stream = apply_patch(ROWS, patch(tmp_path, correction(missing)))
    assert [next(stream), next(stream), next(stream)] == ROWS
    with pytest.raises(DataError, match=r"corrects 1 rows not in the data: a"):
        next(stream)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "input"}, "`utterance`"),
        ({"category": "temporal_ambiguity"}, "not a category of kind truth"),
        ({"category": "bad"}, "category: Input should be"),
        ({"expected": [{"name": "f", "arguments": {"a": []}}]}, r"expected\.0\.arguments\.a"),
        ({"expected": [{"name": "f", "arguments": {}, "optional": ["a"]}]}, "`optional` lists"),
        ({"verdict": "right"}, "verdict: Extra inputs"),
        ({"row_sha256": None}, "row_sha256"),
    ],
)
def test_invalid_line_is_reported_before_any_row(
    tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    """The error names file, line and reason."""
    path = patch(tmp_path, correction(ROWS[0]), correction(ROWS[1], **fields))
    with pytest.raises(DataError, match=rf"patch\.jsonl:2: .*{problem}"):
        apply_patch(ROWS, path)
