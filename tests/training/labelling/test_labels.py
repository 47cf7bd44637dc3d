"""Labels from exported answers: shares of correct attempts, and the definition of an answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from router_service.apis.conversation import Json
from switchcraft_training.data.outcomes import CheckedAnswers, tabulate_outcomes
from switchcraft_training.data.table import Table
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.labelling.answers import (
    FailureCode,
    LabelledRun,
    QuestionKey,
    Remedy,
    Reply,
    RequestFailure,
    parse_message,
)
from switchcraft_training.labelling.store import RunIdentity, Store
from tests.training.labelling.cases import judged


def called(guests: object) -> dict[str, Json]:
    """Return a message that books a table for this many guests."""
    function = {"name": "book", "arguments": f'{{"guests": {guests}}}'}
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}


def reply(
    message: dict[str, Json], output_tokens: int | None = 10, reasoning_tokens: int = 0
) -> Reply:
    """Return a reply with a message."""
    return Reply(
        message=message,
        finish_reason="stop",
        served_model=None,
        input_tokens=100,
        output_tokens=output_tokens,
        cached_tokens=0,
        reasoning_tokens=reasoning_tokens,
        latency_s=0.1,
    )


def labels_of(folder: Path, *numbers: int) -> Table:
    """Judge the rows with these numbers as a source of training does."""
    write_rows(map(judged, numbers), folder / "rows.jsonl")
    source = CheckedAnswers.of(LabelledRun(folder / "rows.jsonl", folder))
    return tabulate_outcomes(source.examples(), source.arms(), source.outcomes)


def test_labels_are_shares_of_correct_attempts(tmp_path: Path) -> None:
    """Three of four correct is 0.75; a failed request is not an attempt; no answer is unknown."""
    answers = [("q000", "a", n, called(2 if n else 3)) for n in range(4)]
    answers += [("q000", "b", 0, called(2)), ("q001", "a", 0, {"content": "Which day?"})]
    with Store(tmp_path, RunIdentity("rows", "pool")) as store:
        for example_id, arm, attempt, message in answers:
            key = QuestionKey(example_id, arm, attempt)
            store.save_answer(
                store.begin_request(key, 1.0),
                key,
                reply(message, 10 * (attempt + 1), 4 * attempt),
            )
        store.save_failure(
            QuestionKey("q000", "b", 1),
            RequestFailure(FailureCode.SERVER_ERROR, "down", Remedy.RETRY, 500),
        )
        assert store.export(tmp_path) == (6, 1)
    labels = labels_of(tmp_path, 0, 1)
    np.testing.assert_array_equal(labels.correct, [[0.75, 1.0], [0.0, np.nan]])
    np.testing.assert_array_equal(labels.attempts, [[4, 1], [1, 0]])
    np.testing.assert_array_equal(labels.input_tokens, [[100, 100], [100, np.nan]])
    np.testing.assert_array_equal(labels.output_tokens, [[25, 10], [10, np.nan]])
    np.testing.assert_allclose(labels.seconds, [[0.1, 0.1], [0.1, np.nan]])


@pytest.mark.parametrize(
    ("message", "calls", "problem"),
    [
        (called(2), 1, None),
        ({"content": "thinking aloud", **called(2)}, 1, None),
        ({"tool_calls": called(2)["tool_calls"] * 2}, 2, None),
        (called('"no'), None, "arguments_not_json"),
        ({"tool_calls": [{"function": {"name": "book"}}]}, 1, None),
        ({"tool_calls": [{"id": "1"}]}, None, "not_a_call"),
        ({"tool_calls": "book()"}, None, "not_a_call"),
        ({"content": "Which day?"}, None, "text"),
        ({"content": "book(guests=2)"}, None, "malformed_call"),
        ({"content": None, "refusal": "I cannot."}, None, "text"),
        ({"content": None, "tool_calls": None}, None, "no_answer"),
    ],
)
def test_only_native_tool_calls_count(
    message: dict[str, Json], calls: int | None, problem: str | None
) -> None:
    """Only the calls that a client would execute count; other messages get a problem code."""
    parsed = parse_message(message)
    assert (parsed.calls and len(parsed.calls), parsed.problem) == (calls, problem)
