"""Run configurations: errors name the wrong field, and a dry run finds all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from router_service.core.errors import ConfigError
from switchcraft_training.cli import main
from switchcraft_training.config import PACKAGE, RunConfig, dump_config, load_config, merge_settings
from tests.training.conftest import ARMS
from tests.training.runs import write_weather_run

REFERENCE = Path("configs/reference-pool.yaml")
SHIPPED = sorted(
    path
    for path in (PACKAGE / "configs").rglob("*.yaml")
    if "pools" not in path.parts and path.stem != "small"  # own-data.yaml extends it
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    """A shipped configuration is valid, and is unchanged after writing and reading it."""
    config = load_config(path)
    assert RunConfig.model_validate(yaml.safe_load(dump_config(config))) == config


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"pool": []}, "pool"),
        ({"policies": {"default": "theta=2"}}, "policies"),
        ({"policies": {"default": "verified"}}, "policies"),  # nothing chooses once
        ({"policies": {"default": "verified", "fast": "drift=0.1"}, "verifier": False}, ""),
        ({"policies": {"default": "within=0.5"}}, "policies"),
        ({"policies": {"default": "within=0.5", "fast": "drift=0.1"}, "verifier": False}, ""),
        ({"training": {"batch_size": 0}}, "training.batch_size"),
        ({"training": {"shares": {"guess": 1}}}, "training.shares.guess.[key]"),
        ({"evaluation": {"folds": 2}}, "evaluation.folds"),  # no fold would be left for training
        ({"packing": {"tool_budget_tokens": 400}}, "packing"),
        ({"evaluation": {"known_tools": True}}, "evaluation"),
        (
            {"source": {"format": "bfcl", "path": "p", "arms": {"a": "same", "b": "same"}}},
            "source",
        ),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], where: str, tmp_path: Path) -> None:
    """The error contains the file and the dotted path of the field."""
    values = yaml.safe_load((PACKAGE / REFERENCE).read_text()) | change
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.where == where
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", [None, "a: [", "just words"])
def test_a_file_that_is_no_configuration_is_named(text: str | None, tmp_path: Path) -> None:
    """A missing file, broken YAML and a plain string are errors that name the file."""
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        load_config(path)


def test_configuration_extends_another_one(tmp_path: Path) -> None:
    """Mappings are merged at every level, other values replaced, and null takes a setting away.

    Paths are relative to the file.
    """
    (tmp_path / "base").mkdir()
    base = {**yaml.safe_load((PACKAGE / REFERENCE).read_text()), "name": "base"}
    (tmp_path / "base" / "a.yaml").write_text(yaml.safe_dump(base))
    own = tmp_path / "own.yaml"
    own.write_text("extends: base/a.yaml\nname: own\ntraining: {max_epochs: 3}\n")
    loaded, whole = load_config(own), load_config(tmp_path / "base" / "a.yaml")
    assert (loaded.name, loaded.training.max_epochs) == ("own", 3)
    assert loaded.training.shares == whole.training.shares
    assert loaded.pool == whole.pool
    own.write_text("extends: base/a.yaml\nverifier: null\nsource: {arms: null}\n")
    assert (whole.verifier, load_config(own).verifier) == (True, False)
    assert load_config(own).source.path == whole.source.path
    own.write_text("extends: own.yaml\nname: own\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load_config(own)
    own.write_text("extends: missing.yaml\n")
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        load_config(own)


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
