"""The configurations of the paper's experiments, compared with the numbers in the paper.

The values below are copied from the paper, with the table or appendix that has them. Where a
configuration differs on purpose, docs/paper.md lists the deviation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from switchcraft_training.config import PACKAGE, RunConfig, load_config
from switchcraft_training.labelling.pool import load_pool

FOLDER = PACKAGE / "configs" / "paper"
NAMES: Final = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))

SEEDS = (
    *(9999, 1, 2, 3, 4, 5, 6, 7, 8, 9, 997, 420, 1234, 2025, 2024, 666),
    *(247, 42, 31415, 27182),
)
"""Appendix "Router fine-tuning configuration", paragraph "Seeds"."""

MAIN_POOL = {  # Table "main-results": USD per million input and output tokens
    "gpt-5.3-chat": (1.75, 14.00),
    "gpt-5.4": (2.50, 15.00),
    "gpt-5.4-mini": (0.75, 4.50),
    "gpt-5-nano": (0.05, 0.40),
    "gpt-5.4-nano": (0.20, 1.25),
    "gpt-5-mini": (0.25, 2.00),
    "qwen-3.5-9b": (0.05, 0.15),
    "kimi-k2.5": (0.60, 3.00),
}
EARLIER_POOL = {  # Table "old-models"
    "gpt-5": (1.25, 10.00),
    "gpt-5-chat": (1.25, 10.00),
    "gpt-4.1": (2.00, 8.00),
    "o4-mini": (1.10, 4.40),
    "gpt-5-mini": (0.25, 2.00),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-5-nano": (0.05, 0.40),
    "gpt-4.1-nano": (0.10, 0.40),
}


def prices(config: RunConfig) -> dict[str, tuple[float | None, float | None]]:
    """Return the prices of a configuration's arms in USD per million tokens."""
    return {
        arm: (price.input_usd_per_mtok, price.output_usd_per_mtok)
        for arm, price in config.prices.items()
    }


def paper(name: str) -> RunConfig:
    """Load an experiment's configuration by its short name, as a user does."""
    return load_config(Path(f"configs/paper/{name}.yaml"))


def all_runs() -> list[tuple[str, RunConfig]]:
    """Return every configuration and every variant of it, with a name."""
    runs = []
    for name in NAMES:
        config = paper(name)
        runs.append((name, config))
        runs += [(f"{name}/{variant}", each) for variant, each in config.variants().items()]
    return runs


@pytest.mark.parametrize(("name", "config"), all_runs(), ids=[name for name, _ in all_runs()])
def test_every_experiment_has_the_shared_settings(name: str, config: RunConfig) -> None:
    """Settings that the paper shares between all experiments are the same everywhere."""
    training = config.training
    # Table "shared-hparams"; the optimizer and the schedule are not configurable.
    assert (training.warmup_ratio, training.weight_decay) == (0.1, 0.01)
    assert (training.max_epochs, training.patience_epochs) == (30, 3)
    assert training.select_on == "macro_f1"
    assert training.precision is None  # fp16 on a GPU, otherwise none
    # "Classification head": one linear layer with the encoder's learning rate, no added dropout.
    assert training.dropout == 0.0
    assert training.branch_shares == {"encoder": 1.0}
    assert (config.encoder.frozen_layers, config.encoder.distilled) == (None, None)
    # "Input representation": names of functions and parameters, and no structural features.
    assert (config.packing.signature, config.packing.features) == ("names", ())
    # "Inference-time selection": probabilities as predicted, theta = 0.5.
    assert (config.calibration, config.policies) == ("none", {"default": "theta=0.5"})
    # "AST scoring": paraphrases are compared by DistilBERT.
    assert config.checking.paraphrases == "distilbert-base-uncased"
    # "Stratified 80/10/10 splits", rows independent; one fine-tuning for each seed.
    assert config.evaluation.protocol == "split"
    assert config.evaluation.distinct_within == "category"
    assert config.evaluation.grouped is name.startswith("held-out-datasets")
    assert config.evaluation.truncated is (name == "packing")
    assert (config.auxiliary_arms, config.also, config.verifier) == ("none", (), False)
    # "Router inference latency": the router runs on a GPU.
    assert config.cuda_graph is True


def test_experiments_use_the_paper_s_pools_and_seeds() -> None:
    """Pools, prices and seeds are those of the paper, also in the pools of `label`."""
    is_earlier = {"earlier-pool", "probabilistic"}
    for name in NAMES:
        config = paper(name)
        assert prices(config) == (EARLIER_POOL if name in is_earlier else MAIN_POOL), name
        is_single = name in {"packing", "held-out-datasets"}
        assert config.sweep.seeds == ((4,) if is_single else SEEDS), name
        assert config.seed == 4, name  # the best seed on validation
        assert config.unprofiled_arms == (), name  # MIRT is measured
    for name, pool in (("paper", MAIN_POOL), ("paper-earlier", EARLIER_POOL)):
        asked = load_pool(Path(f"configs/pools/{name}.yaml")).pool
        found = {
            arm.arm: (arm.price.input_usd_per_mtok, arm.price.output_usd_per_mtok) for arm in asked
        }
        assert found == pool
        assert not any(arm.extra_body for arm in asked)  # default temperature
