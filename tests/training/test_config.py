"""Run configurations: the shipped ones are valid, and errors name the wrong field."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from router_service.core.errors import ConfigError
from switchcraft_training.config import PACKAGE, RunConfig, dump_config, load_config

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
