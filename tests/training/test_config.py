"""Run configurations: the shipped ones are valid, and errors name the wrong field."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from router_service.core.errors import ConfigError
from router_service.core.features import FEATURES
from switchcraft_training.config import PACKAGE, RunConfig, dump_config, find_config, load_config

REFERENCE = Path("configs/reference-pool.yaml")
SHIPPED = sorted(
    path for path in (PACKAGE / "configs").rglob("*.yaml") if "pools" not in path.parts
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    """A shipped configuration is valid, and is unchanged after writing and reading it."""
    config = load_config(path)
    assert RunConfig.model_validate(yaml.safe_load(dump_config(config))) == config


def test_the_reference_pool_uses_every_structural_count() -> None:
    """The shipped router uses every structural feature."""
    assert set(load_config(REFERENCE).packing.features) == set(FEATURES)


@pytest.mark.parametrize(
    ("name", "source", "rate", "batches", "budgets"),
    [
        ("distilbert", "distilbert-base-uncased", 5e-5, (16, 16), (512, 100)),
        ("deberta-v3", "microsoft/deberta-v3-base", 2e-5, (32, 64), (512, 100)),
        ("modernbert", "answerdotai/ModernBERT-base", 2e-5, (8, 8), (8192, 1600)),
    ],
)
def test_the_paper_s_runs_have_the_paper_s_numbers(
    name: str, source: str, rate: float, batches: tuple[int, int], budgets: tuple[int, int]
) -> None:
    """The configurations match the rows of the paper's tables (appendix on training)."""
    config = load_config(Path(f"configs/paper/{name}.yaml"))
    training, packing = config.training, config.packing
    assert (config.encoder.source, config.encoder.pooling) == (source, "cls")
    assert config.encoder.frozen_layers is None
    assert (packing.budget_tokens, packing.tool_budget_tokens) == budgets
    assert packing.features == ()
    assert training.learning_rate == rate
    assert training.head_learning_rate is None
    assert (training.batch_size, training.evaluation_batch_size) == batches
    assert (training.warmup_ratio, training.weight_decay) == (0.1, 0.01)
    assert (training.max_epochs, training.patience_epochs) == (30, 3)
    assert (training.select_on, training.dropout, training.precision) == ("macro_f1", 0.0, None)
    assert (config.auxiliary_arms, config.policies) == ("none", {"default": "theta=0.5"})
    assert config.pool == load_config(REFERENCE).pool


def test_a_shipped_configuration_is_found_by_its_short_name(tmp_path: Path) -> None:
    """`configs/NAME.yaml` is the packaged configuration if the path does not exist."""
    assert find_config(REFERENCE) == PACKAGE / REFERENCE
    own = tmp_path / "own.yaml"
    own.touch()
    assert find_config(own) == own


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"pool": []}, "pool"),
        ({"policies": {"economy": "theta=0.5"}}, "policies"),
        ({"policies": {"default": "theta=2"}}, "policies"),
        ({"training": {"batch_size": 0}}, "training.batch_size"),
        ({"training": {"shares": {"guess": 1}}}, "training.shares.guess.[key]"),
        ({"training": {"shares": {"forest": 0}}}, "training.shares.forest"),
        ({"evaluation": {"folds": 2}}, "evaluation.folds"),  # no fold would be left for training
        ({"packing": {"tool_budget_tokens": 400}}, "packing"),
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
