"""Logs of decisions: how they are read, converted to queries, and imported or trained from."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from router_service.core.decision_record import (
    AnswerContent,
    CandidateRecord,
    Content,
    LoggedCall,
)
from switchcraft_training.cli import main
from switchcraft_training.config import RunConfig
from switchcraft_training.dataset import load_dataset, require_measured_rows
from switchcraft_training.datasets.rows import Quarantine
from switchcraft_training.decisions.log import read_log
from switchcraft_training.decisions.queries import (
    DecisionUse,
    Query,
    iterate_queries,
    summarize,
)
from switchcraft_training.errors import DataError
from tests.training.decisions.cases import (
    BOOK,
    Line,
    call,
    content,
    decision,
    expects,
    negative_evidence,
    right,
    write_log,
    wrong,
)


def test_feedback_applies_to_decisions_in_other_files(tmp_path: Path) -> None:
    """Files of several writers form one log; the last feedback of a decision counts."""
    write_log(tmp_path, [wrong("a", created=9), negative_evidence("b")], "decisions-1.jsonl")
    write_log(tmp_path, [decision("a"), right("a", created=3)], "decisions-2.jsonl")
    plain = write_log(tmp_path / "old", [decision("b"), decision("a")])
    packed = gzip.compress((plain / "decisions-1.jsonl").read_bytes())
    (tmp_path / "decisions-0.jsonl.gz").write_bytes(packed)
    (tmp_path / "notes.txt").write_text("no lines of the log")

    log = read_log(tmp_path)

    assert {each.id for each in log.decisions} == {"a", "b"}
    assert log.feedback["a"].correct is False
    assert log.evidence == {"b"}


def test_broken_line_is_an_error_or_quarantined(tmp_path: Path) -> None:
    """An invalid line is an error with file and line; with a quarantine, reading continues."""
    folder = write_log(tmp_path / "log", [decision("a"), decision("b")])
    file = folder / "decisions-1.jsonl"
    first, second = file.read_text().splitlines()
    bad = first.replace('"propensity":1.0', '"propensity":0.0')
    file.write_text(f'{{"type": "other"}}\n{bad}\n{second}\n')
    with pytest.raises(DataError, match=r"decisions-1\.jsonl:1: ValueError"):
        read_log(folder)
    quarantine = Quarantine(tmp_path / "bad.jsonl")
    assert [each.id for each in read_log(folder, quarantine.add).decisions] == ["b"]
    quarantine.close()
    assert "decision.propensity: Input should be greater than 0" in quarantine.path.read_text()
    assert quarantine.count == 2


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


LINES: tuple[Line, ...] = (
    decision("a", "large", content=content("Oslo", (call("Oslo"),))),
    decision("b", "small", content=content("Oslo", (call("Rome"),))),
    decision("c", "large", content=content("Rome", (call("Rome"),)), completion_tokens=None),
    decision("d", "large", content=content("Bern")),
    decision("e", "large"),
    *(expects("a", call("Oslo")), right("c"), negative_evidence("d")),
)
PRICE = {"input_usd_per_mtok": 10, "output_usd_per_mtok": 20}


def config_of(**source: object) -> RunConfig:
    """Return a run with two arms and this source."""
    pool = [{"arm": arm, "price": PRICE} for arm in ("large", "small")]
    return RunConfig.model_validate({"name": "own", "source": source, "pool": pool})


def test_import_reports_the_use_of_every_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed and written counts match the log, for both spellings of the command."""
    folder, report = write_log(tmp_path / "log", LINES), tmp_path / "report.json"
    out = tmp_path / "rows.jsonl"
    options = ["--out", str(out), "--report", str(report)]
    assert main(["import", f"decisions:{folder}", *options]) == 0
    first, rows = capsys.readouterr().out, out.read_bytes()
    assert main(["import", "decisions", str(folder), *options]) == 0
    assert (capsys.readouterr().out, out.read_bytes()) == (first, rows)
    assert json.loads(report.read_bytes()) == {
        "source": "decisions",
        "path": str(folder),
        "decisions": 5,
        "fates": {
            "checked against the expected calls": 2,
            "judged by feedback": 1,
            "without a verdict": 1,
            "without content": 1,
        },
        "queries": 2,
        "quarantined": 0,
        "arms": {
            "large": {"answers": 2, "correct": 1.0},
            "small": {"answers": 1, "correct": 0.0},
        },
    }
    assert "5 decisions, 2 queries" in first
    assert "without content" in first


@pytest.mark.parametrize("weak_evidence", [False, True])
def test_log_and_imported_rows_give_the_same_training_data(
    tmp_path: Path, weak_evidence: bool
) -> None:
    """Both sources give equal labels, usage, calls and measured rows."""
    folder, out = write_log(tmp_path / "log", LINES), tmp_path / "rows.jsonl"
    flag = ["--weak-evidence"] if weak_evidence else []
    assert main(["import", f"decisions:{folder}", "--out", str(out), *flag]) == 0
    log = load_dataset(
        config_of(format="decisions", path="log", weak_evidence=weak_evidence), tmp_path
    )
    rows = load_dataset(config_of(format="outcomes", path="rows.jsonl"), tmp_path)
    assert log.examples == rows.examples
    assert [example.query for example in log.examples] == ["Oslo", "Rome", "Bern"][: 2 + len(flag)]
    nan = np.nan
    wanted = [[1, 0], [1, nan], [0.25, nan]][: 2 + len(flag)]
    for dataset in (log, rows):
        np.testing.assert_array_equal(dataset.correct, wanted)
        np.testing.assert_array_equal(dataset.expected_calls, [1, 1, nan][: len(wanted)])
        assert dataset.measured_rows == (0,)
        np.testing.assert_allclose(dataset.measured(["large", "small"]).cost_usd, [[1.3e-3] * 2])
    for name in ("input_tokens", "output_tokens", "seconds"):
        np.testing.assert_array_equal(getattr(log, name), getattr(rows, name))


def test_log_without_measurable_queries_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """Without queries that every arm answered, the error suggests exploration and `also`."""
    write_log(tmp_path / "log", LINES)
    config = config_of(format="decisions", path="log")
    with pytest.raises(DataError, match=r"1 queries that every arm.*exploration_share.*also"):
        require_measured_rows(load_dataset(config, tmp_path), config, tmp_path)
