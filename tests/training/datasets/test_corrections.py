"""Corrections: the changes that they make, and the errors that they cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.corrections import (
    apply_corrections,
    last_utterance,
    row_sha256,
)
from switchcraft_training.errors import DataError
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
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "pay_out", "parameters": schema}}
    request = {"messages": messages, "tools": [tool]}
    return Judged(Example(identifier, "simple", request, dataset, "c"), Expected(calls))


ROWS = [row("a", CALL), row("b", CALL), row("c")]


def correction(judged: Judged, **fields: object) -> dict[str, Any]:
    """Return a line of a review that corrects a row's expected calls."""
    return {
        "id": judged.example.id,
        "dataset": judged.example.dataset,
        "row_sha256": row_sha256(judged),
        "accept": True,
        "expected": [{"name": "pay_out", "arguments": {"amount": [7]}, "optional": ["amount"]}],
        "explanation": "It is a payment out.",
        **fields,
    }


def input_correction(judged: Judged, utterance: str) -> dict[str, Any]:
    """Return a line of a review that corrects a row's input."""
    line = correction(judged, utterance=utterance)
    del line["expected"]
    return line


def patch(folder: Path, *lines: dict[str, Any]) -> Path:
    """Write a review."""
    path = folder / "patch.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_input_correction_replaces_only_last_user_message(tmp_path: Path) -> None:
    """Only the last user message changes, no other message and no expected call."""
    (corrected, *_) = apply_corrections(
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
        list(apply_corrections(list(apply_corrections(ROWS, path)), path))


def test_missing_row_is_an_error_at_the_end(tmp_path: Path) -> None:
    """After all rows, the error names missing ids; an id of another dataset does not match."""
    missing = row("a", CALL, dataset="other")
    stream = apply_corrections(ROWS, patch(tmp_path, correction(missing)))
    assert [next(stream), next(stream), next(stream)] == ROWS
    with pytest.raises(DataError, match=r"corrects 1 rows not in the data: a"):
        next(stream)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"utterance": "Hi."}, "either `expected` or `utterance`"),
        ({"expected": "["}, "expected: Input should be"),
        ({"row_sha256": None}, "row_sha256"),
    ],
)
def test_invalid_line_is_reported_before_any_row(
    tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    """The error names file, line and reason."""
    path = patch(tmp_path, correction(ROWS[0]), correction(ROWS[1], **fields))
    with pytest.raises(DataError, match=rf"patch\.jsonl:2: .*{problem}"):
        apply_corrections(ROWS, path)


def test_correction_that_a_row_cannot_have_is_refused(tmp_path: Path) -> None:
    """A function that the row does not offer is an error; a line that is not accepted is not."""
    unknown = [{"name": "fly", "arguments": {}}]
    path = patch(tmp_path, correction(ROWS[0], expected=unknown))
    with pytest.raises(DataError, match="a: the expected answer calls 'fly'"):
        list(apply_corrections(ROWS, path))
    path = patch(tmp_path, correction(ROWS[0], expected=unknown, accept=False))
    assert list(apply_corrections(ROWS, path)) == ROWS
