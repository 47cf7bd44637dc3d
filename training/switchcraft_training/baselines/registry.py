"""Every baseline, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import yaml

from switchcraft_training.baselines.base import Baseline
from switchcraft_training.baselines.embedder import Embedder
from switchcraft_training.baselines.heuristics import Heuristic
from switchcraft_training.baselines.lexical import Lexical
from switchcraft_training.baselines.neighbours import Nearest, Similarity
from switchcraft_training.baselines.networks import (
    Fitting,
    MatrixFactorization,
    Network,
    by_cost,
    equal_weights,
    item_response,
    mlp,
)
from switchcraft_training.baselines.simple import DatasetOracle, Oracle, Random, Single
from switchcraft_training.baselines.views import Views, turns

MLP_FITTING = Fitting(learning_rate=1e-3, batch_size=64, max_epochs=200, weight_decay=1e-4)
FACTORIZATION_FITTING = Fitting(
    learning_rate=3e-4, batch_size=64, max_epochs=1000, weight_decay=1e-5
)
"""RouteLLM's, but its 100 epochs are of far more queries: here validation decides."""

ITEM_RESPONSE_FITTING = Fitting(learning_rate=5e-3, batch_size=16, max_epochs=30)
"""The paper's (appendix on MIRT-DistilBERT), but its batches are of 16 pairs of query and arm."""


def baselines(
    arms: tuple[str, ...], views: Views, embed: Embedder, seed: int = 0
) -> tuple[Baseline, ...]:
    """Return every baseline for a pool, in the order of the main table."""
    return (
        *(Single(arm) for arm in arms),
        Heuristic("number of turns", turns),
        Heuristic("length", lambda example: len(views.raw(example))),
        Heuristic("number of tools", lambda example: len(example.request["tools"])),
        Random(seed),
        DatasetOracle(),
        Lexical("TF-IDF + LR", views.packed),
        Lexical("TF-IDF + LR, truncated input", views.truncated),
        Nearest(views.packed, embed),
        Similarity(views.packed, embed),
        *networks(views, embed, seed),
        Oracle(),
    )


def contenders(
    views: Views, embed: Embedder, seed: int = 0, *, truncated: bool = True
) -> tuple[Baseline, ...]:
    """Return the baselines that an evaluation does not know by itself.

    Single models, random choice and the oracle are the same whatever they are fitted on; on
    truncated input only where asked for.
    """
    known = {"random", "oracle"}
    return tuple(
        each
        for each in baselines((), views, embed, seed)
        if each.name not in known and (truncated or "truncated" not in each.name)
    )


def networks(views: Views, embed: Embedder, seed: int) -> tuple[Network, ...]:
    """Return the small networks on frozen embeddings."""
    network = partial(Network, embed=embed, weigh=equal_weights, seed=seed)
    mirt = item_response(views, embed, read_profiles())
    return (
        network("MLP", views.packed, build=mlp, fitting=MLP_FITTING),
        network("MLP, truncated input", views.truncated, build=mlp, fitting=MLP_FITTING),
        network(
            "MLP, cost-weighted loss", views.packed, build=mlp, fitting=MLP_FITTING, weigh=by_cost
        ),
        network(
            "matrix factorization",
            views.packed,
            build=MatrixFactorization,
            fitting=FACTORIZATION_FITTING,
        ),
        network("MIRT", views.vanilla, build=mirt, fitting=ITEM_RESPONSE_FITTING),
    )


def read_profiles() -> Mapping[str, str]:
    """Return what is known of each arm in words: release, abilities, use (appendix on MIRT)."""
    profiles: Mapping[str, str] = yaml.safe_load(
        Path(__file__).with_name("profiles.yaml").read_text()
    )
    return profiles
