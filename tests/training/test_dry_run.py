"""`--dry-run`: all problems of a run at once, without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchcraft_training.cli import main
from switchcraft_training.config import PACKAGE, merge_settings
from tests.training.conftest import ARMS
from tests.training.runs import write_weather_run


def dry_run(config: Path, data: Path) -> int:
    """Make a dry run; nothing may be written."""
    out = config.parent / "out"
    status = main(["run", str(config), "--dry-run", "--data", str(data), "--out", str(out)])
    assert not out.exists()
    return status


@pytest.fixture
def broken(config: Path, tmp_path: Path) -> Mapping[str, Any]:
    """Return a configuration whose encoder and arm do not exist."""
    write_weather_run(tmp_path / "data", ARMS[:2])
    values: Mapping[str, Any] = yaml.safe_load(config.read_text())
    own = {
        "source": {"format": "labelled", "path": "rows.jsonl", "answers": "."},
        "encoder": {"source": "switchcraft-tests/no-such-encoder"},
        "checking": {"paraphrases": "package:no_such_package/model"},
        "pool": [*values["pool"], {**values["pool"][0], "arm": "gpt-9"}],
    }
    return merge_settings(values, own)


def test_all_problems_are_reported_at_once(
    broken: Mapping[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing arm and two missing encoders are three problems of one dry run."""
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(dict(broken)))
    assert dry_run(path, tmp_path / "data") == 1
    printed = capsys.readouterr().out
    problems = [line for line in printed.splitlines() if line.startswith("PROBLEM")]
    assert len(problems) == 3
    for name in ("gpt-9", "switchcraft-tests/no-such-encoder", "no_such_package"):
        assert any(name in problem for problem in problems), printed
    assert "the run cannot start: 3 problem(s)" in printed


def test_distillation_without_further_rows_is_found_before_training(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A student learns from rows that are not measured; without any, the run cannot start."""
    write_weather_run(tmp_path / "data", ARMS)
    values = merge_settings(
        yaml.safe_load(config.read_text()),
        {
            "source": {"format": "labelled", "path": "rows.jsonl", "answers": "."},
            "also": [],
            "encoder": {"distilled": {}},
        },
    )
    path = tmp_path / "distilled.yaml"
    path.write_text(yaml.safe_dump(values))
    assert dry_run(path, tmp_path / "data") == 1
    printed = capsys.readouterr().out
    assert "encoder.distilled: needs training-only rows" in printed
    assert "the run cannot start: 1 problem(s)" in printed


def test_template_for_own_data_can_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of the template runs on rows and answers that are where its comments say."""
    write_weather_run(tmp_path / "answers", ("large", "small"))
    (tmp_path / "answers" / "rows.jsonl").rename(tmp_path / "rows.jsonl")
    template = tmp_path / "own-data.yaml"
    template.write_bytes((PACKAGE / "configs" / template.name).read_bytes())
    assert dry_run(template, tmp_path) == 0, capsys.readouterr().out
    assert "own-data: 50 measured queries in 3 folds" in capsys.readouterr().out


def test_run_that_can_start_says_what_it_found(
    config: Path, benchmark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measured queries and the place of the encoder are facts, and there is no problem."""
    assert dry_run(config, benchmark) == 0
    printed = capsys.readouterr().out
    assert "80 measured queries in 3 folds" in printed
    assert ": on this machine" in printed
    assert "PROBLEM" not in printed
