"""`import decisions:PATH`, and runs that train from a log or from its imported rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from switchcraft_training.cli import main
from switchcraft_training.config import RunConfig
from switchcraft_training.dataset import load_dataset, require_measured_rows
from switchcraft_training.errors import DataError
from tests.training.decisions.cases import (
    Line,
    call,
    content,
    decision,
    expects,
    negative_evidence,
    right,
    write_log,
)

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
