"""`switchcraft-train review`: from a critic's findings to corrected rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchcraft_training.cli import main
from switchcraft_training.datasets.corrections import (
    ErrorCategory,
    TruthCall,
    apply_patch,
    last_utterance,
)
from switchcraft_training.datasets.rows import read_rows, write_rows
from switchcraft_training.review.sheet import FlaggedRow, append_flagged, read_decisions
from switchcraft_training.review.verify import read_findings
from tests.training.review.cases import (
    CHRISTMAS,
    FLAGGED,
    ROWS,
    UTTERANCE,
    FakeCritic,
    verifying,
    written,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["no", "2024-01-02", "1e5", "12:30", "012", "0x1f", "~", "1_000", "<<", "="]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture
def critic(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCritic]:
    """Serve a critic, and set its API key."""
    monkeypatch.setenv("REVIEW_KEY", "secret")
    with verifying() as running:
        yield running


def verify(critic: FakeCritic, folder: Path) -> int:
    """Run the command that asks the critic; return its exit status."""
    where = [str(folder / "rows.jsonl"), "--out", str(folder / "review")]
    endpoint = ["--model", "judge", "--base-url", critic.url, "--api-key-env", "REVIEW_KEY"]
    return main(["review", "verify", *where, *endpoint, "--price", "2", "10", "--concurrency", "1"])


def export(folder: Path) -> int:
    """Run the command that writes the patch; return its exit status."""
    out = str(folder / "review")
    return main(["review", "export", str(folder / "rows.jsonl"), "--out", out, "--reviewer", "ann"])


def edit(folder: Path, identifier: str, **fields: object) -> None:
    """Change fields of a row in the file of decisions; JSON is YAML too."""
    path = folder / "review" / "decisions.yaml"
    rows = [row.model_dump(mode="json", exclude_none=True) for row in read_decisions(path)]
    rows = [row | fields if row["id"] == identifier else row for row in rows]
    path.write_text("".join(f"---\n{json.dumps(row)}\n" for row in rows))


def test_decisions_become_a_patch_that_corrects_the_rows(
    critic: FakeCritic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accepted and edited suggestions are applied; declined and open ones are only counted."""
    rows = written(tmp_path)
    assert verify(critic, tmp_path) == 0
    edit(tmp_path, "savings", decision="accept", category="logical_or_state_tracking_error")
    edit(tmp_path, "christmas", decision="accept")
    edit(tmp_path, "unknown", decision="accept", expected=[])
    edit(tmp_path, "garbled", decision="decline")
    assert export(tmp_path) == 0
    patch = tmp_path / "review" / "patch.jsonl"
    corrected = {judged.example.id: judged for judged in apply_patch(read_rows(rows), patch)}
    assert corrected["savings"].expected.calls[0].arguments == {"account": ("S-204",)}
    assert last_utterance(corrected["christmas"].example) == UTTERANCE
    assert corrected["christmas"].expected == CHRISTMAS.expected
    assert corrected["unknown"].expected.calls == ()
    same = {"right", "spelling", "garbled"}
    assert {j.example.id for j in ROWS if corrected[j.example.id] == j} == same
    lines = [json.loads(line) for line in patch.read_text().splitlines()]
    assert [(x["id"], x["kind"], x["category"], x["reviewer"]) for x in lines] == [
        ("savings", "truth", "logical_or_state_tracking_error", "ann"),
        ("christmas", "input", "temporal_ambiguity", "ann"),
        ("unknown", "truth", "wrong_function", "ann"),
    ]
    assert "4 rows flagged: 3 accepted, 1 declined, 0 open" in capsys.readouterr().out


def test_every_row_is_verified_once(
    critic: FakeCritic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only rows that failed, are new or have changed are asked about; decisions stay."""
    path = written(tmp_path)
    critic.refused = {"savings"}
    with caplog.at_level(logging.WARNING):
        assert verify(critic, tmp_path) == 1
    assert "savings was not verified" in caplog.text
    edit(tmp_path, "garbled", decision="decline")
    critic.refused, critic.requested = set(), []
    findings = tmp_path / "review" / "findings.jsonl"
    with findings.open("a") as file:
        file.write('{"id": "sav')  # of a run that was killed
    assert verify(critic, tmp_path) == 0
    assert critic.requested == ["savings"]
    assert verify(critic, tmp_path) == 0
    assert critic.requested == ["savings"]
    kept = {finding.id: finding for finding in read_findings(findings)}
    assert kept.keys() == {row.example.id for row in ROWS}
    assert kept["right"].cost_usd == pytest.approx(0.003)
    decisions = {
        row.id: row.decision for row in read_decisions(findings.with_name("decisions.yaml"))
    }
    assert decisions == {**dict.fromkeys(FLAGGED), "garbled": "decline"}
    assert export(tmp_path) == 0
    assert findings.with_name("patch.jsonl").read_text() == "", "open rows are not corrected"
    path.write_text(path.read_text().replace('"C-881"', '"C-882"'))
    assert verify(critic, tmp_path) == 0
    assert critic.requested == ["savings", "savings", "right", "spelling"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"decision": "maybe"}, "savings: decision: Input should be 'accept' or 'decline'"),
        ({"decision": "accept", "utterance": "Hi."}, "savings: kind `truth` requires only"),
        (
            {"decision": "accept", "expected": [{"name": "fly", "arguments": {}}]},
            "savings: no tool 'fly' is offered",
        ),
        ({"decision": "accept", "row_sha256": "0"}, "1 accepted rows are not in the file of rows"),
        ({"decision": "accept", "expected": "["}, "expected: Input should be a valid tuple"),
    ],
)
def test_invalid_decisions_are_refused(
    fields: dict[str, object],
    problem: str,
    critic: FakeCritic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error names the row, and no patch is written."""
    written(tmp_path)
    assert verify(critic, tmp_path) == 0
    edit(tmp_path, "savings", **fields)
    assert export(tmp_path) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "review" / "patch.jsonl").exists()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("key", "model 'judge' refused the request"),
        ("page", "answered without a chat completion; is --base-url correct?"),
        ("no key", "$REVIEW_KEY is empty"),
        ("twice", "the id 'savings' is used twice"),
    ],
)
def test_what_every_request_would_get_stops_immediately(
    fault: str,
    problem: str,
    critic: FakeCritic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message says what to change, without the key."""
    rows = written(tmp_path)
    if fault == "key":
        critic.refused, critic.status = {row.example.id for row in ROWS}, 401
    elif fault == "page":
        critic.url = critic.url.replace("/v1", "/home")
    elif fault == "no key":
        monkeypatch.delenv("REVIEW_KEY")
    else:
        write_rows([ROWS[0], ROWS[0]], rows)
    assert verify(critic, tmp_path) == 1
    assert len(critic.requested) <= 1
    message = capsys.readouterr().err
    assert problem in message
    assert "secret" not in message


@given(arguments=st.dictionaries(st.text(), st.lists(JSON, min_size=1), max_size=3))
def test_expected_calls_survive_the_file_of_decisions(
    arguments: dict[str, list[object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every value that a call can have is the same when the file is read."""
    path = tmp_path_factory.mktemp("sheet") / "decisions.yaml"
    row = FlaggedRow(
        id="a",
        row_sha256="0",
        category=ErrorCategory.FORMAT,
        explanation="It is\nwrong: a\u2028b.",
        expected=(TruthCall(name="f", arguments=arguments, after=(1,)),),
    )
    append_flagged(path, [row])
    assert repr(read_decisions(path)) == repr([row])
