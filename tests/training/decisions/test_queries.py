"""Conversion of a log: verdicts belong to the arm that answered, and are merged by query."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from router_service.core.decision_record import (
    AnswerContent,
    CandidateRecord,
    Content,
    LoggedCall,
)
from switchcraft_training.decisions.log import read_log
from switchcraft_training.decisions.queries import (
    DecisionUse,
    Query,
    iterate_queries,
    summarize,
)
from tests.training.decisions.cases import (
    BOOK,
    Line,
    call,
    content,
    decision,
    expects,
    right,
    write_log,
    wrong,
)


class Queries(NamedTuple):
    """The queries of a log, and the number of decisions for each use."""

    queries: list[Query]
    uses: Counter[DecisionUse]


def read(folder: Path, *lines: Line, weak_evidence: bool = False) -> Queries:
    """Write a log and read its queries."""
    uses: Counter[DecisionUse] = Counter()
    log = read_log(write_log(folder, lines))
    return Queries([*iterate_queries(log, uses, weak_evidence=weak_evidence)], uses)


def labels(found: Queries) -> list[tuple[str, str, float]]:
    """Return each outcome as query, arm and label."""
    return [(o.example_id, o.arm, o.correct) for query in found.queries for o in query.outcomes]


def test_equal_queries_are_merged_and_keep_every_answer(tmp_path: Path) -> None:
    """Case and spacing of a query do not matter; an arm that was asked twice has two attempts."""
    found = read(
        tmp_path,
        decision("a", "large", content=content("Book Oslo", (call("Oslo"),))),
        decision("b", "large", content=content("book  oslo"), prompt_tokens=7),
        decision("c", "small", content=content("Book Oslo")),
        decision("d", "small", content=content("Book Rome")),
        *(right("a"), wrong("b"), wrong("c"), right("d")),
    )
    assert labels(found) == [
        ("a", "large", 1),
        ("a", "large", 0),
        ("a", "small", 0),
        ("d", "small", 1),
    ]
    query = found.queries[0]
    assert [(o.attempt, o.input_tokens, o.seconds) for o in query.outcomes] == [
        (0, 90, 2.0),
        (1, 7, 2.0),
        (0, 90, 2.0),
    ]
    assert (query.calls, query.expected) == (1, None)
    assert query.example.conversation == "a"
    assert found.uses == {DecisionUse.JUDGED: 4}


def test_expected_calls_are_checked_against_every_answer(tmp_path: Path) -> None:
    """The checker also judges the other arm's answer; a client's verdict takes precedence."""
    oslo, rome = (call("Oslo"),), (call("Rome"),)
    found = read(
        tmp_path,
        decision("a", "large", content=content("Book", oslo)),
        decision("b", "small", content=content("Book", rome)),
        decision("c", "small", content=content("Book", rome)),
        decision("d", "small", content=content("Book", None)),
        *(expects("a", call("oslo")), right("c")),
    )
    assert [label for _, _, label in labels(found)] == [1, 0, 1, 0]
    assert found.uses == {DecisionUse.CHECKED: 3, DecisionUse.JUDGED: 1}
    query = found.queries[0]
    assert query.expected is not None
    assert [each.arguments for each in query.expected.calls] == [{"city": ("oslo",)}]
    assert query.calls == 1


def candidate(arm: str, city: str, *, is_accepted: bool = False) -> CandidateRecord:
    """Return a candidate that books a city."""
    answer = AnswerContent(calls=(call(city),))
    return CandidateRecord(
        arm=arm, model=arm, step=1, is_accepted=is_accepted, seconds=1.0, content=answer
    )


def test_expected_calls_label_all_candidates_of_a_verified_answer(tmp_path: Path) -> None:
    """Without them, only the accepted answer has a label. Failed candidates have none."""
    failed = CandidateRecord(
        arm="medium",
        model="medium",
        step=1,
        is_accepted=False,
        seconds=9.0,
        failure="timeout",
        content=AnswerContent(),
    )
    candidates = (candidate("small", "Rome"), failed, candidate("large", "Oslo", is_accepted=True))
    verified = {"candidates": candidates, "propensity": None, "reason": "verified"}
    found = read(
        tmp_path,
        decision("a", "large", content=content("Book Oslo", (call("Oslo"),)), **verified),
        decision("b", "large", content=content("Book it", (call("Oslo"),)), **verified),
        *(expects("a", call("Oslo")), right("b")),
    )
    assert labels(found) == [("a", "large", 1), ("a", "small", 0), ("b", "large", 1)]
    assert [outcome.seconds for outcome in found.queries[0].outcomes] == [1.0, 1.0]
    assert found.uses == {DecisionUse.CHECKED: 1, DecisionUse.JUDGED: 1}


HOSTED = {"type": "web_search"}
NO_MESSAGES = Content(request={"messages": [], "tools": [BOOK]}, calls=())
NO_FUNCTION = Content(request={"messages": [{"role": "user", "content": "x"}], "tools": [HOSTED]})
BROKEN: dict[str, Any] = {
    "type": "function",
    "function": {"name": "book", "parameters": {"$ref": "#/none"}},
}
BROKEN_TOOL = Content(
    request={"messages": [{"role": "user", "content": "x"}], "tools": [BROKEN]}, calls=(call("x"),)
)


@pytest.mark.parametrize(
    ("facts", "feedback", "use"),
    [
        ({}, right("a"), DecisionUse.NO_CONTENT),
        ({"content": NO_MESSAGES}, right("a"), DecisionUse.UNREADABLE),
        ({"content": NO_FUNCTION}, right("a"), DecisionUse.UNREADABLE),
        (
            {"content": content("x"), "ending": "broken"},
            right("a"),
            DecisionUse.UNFINISHED,
        ),
        ({"content": content("x"), "status": 400}, wrong("a"), DecisionUse.UNFINISHED),
        ({"content": content("x")}, right("z"), DecisionUse.UNJUDGED),
        (
            {"content": content("x")},
            expects("a", LoggedCall(name="fly", arguments={})),
            DecisionUse.UNCHECKABLE,
        ),
        ({"content": BROKEN_TOOL}, expects("a", call("x")), DecisionUse.UNCHECKABLE),
        (
            {"content": content("x", None, None)},
            expects("a", call("x")),
            DecisionUse.UNCHECKABLE,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, DecisionUse) else "",
)
def test_unusable_decisions_are_counted_by_reason(
    tmp_path: Path, facts: dict[str, Any], feedback: Line, use: DecisionUse
) -> None:
    """No request stops the import; each decision has one use, which the summary counts."""
    found = read(
        tmp_path,
        decision("a", **facts),
        feedback,
        decision("b", content=content("good")),
        right("b"),
    )
    assert found.uses == {use: 1, DecisionUse.JUDGED: 1}
    assert [query.example.id for query in found.queries] == ["b"]
    summary = summarize(found.uses, len(found.queries))
    assert summary == f"1 of 2 decisions give labels for 1 queries; left out: 1 {use}"
