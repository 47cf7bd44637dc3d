"""All baselines, with their hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from switchcraft_training.baselines.base import Baseline
from switchcraft_training.baselines.inputs import Embedder, Views, turns
from switchcraft_training.baselines.predictors import (
    Fitting,
    Lexical,
    MatrixFactorization,
    Nearest,
    Network,
    Similarity,
    by_cost,
    equal_weights,
    item_response,
    mlp,
)
from switchcraft_training.baselines.simple import DatasetOracle, Heuristic

SEED = 0
MLP_FITTING = Fitting(learning_rate=1e-3, batch_size=64, max_epochs=200, weight_decay=1e-4)
FACTORIZATION_FITTING = Fitting(
    learning_rate=3e-4, batch_size=64, max_epochs=1000, weight_decay=1e-5
)
"""RouteLLM's values, except for the epochs. RouteLLM trains for 100 epochs on more queries; here,
validation decides when to stop."""

ITEM_RESPONSE_FITTING = Fitting(learning_rate=5e-3, batch_size=16, max_epochs=30)
"""The paper's values (appendix on MIRT-DistilBERT). The paper's batches are 16 pairs of a query and
an arm; here, they are 16 queries with all arms."""


def baselines(
    views: Views,
    embed: Embedder,
    profiles: Mapping[str, str] | None = None,
    *,
    truncated: bool = True,
) -> tuple[Baseline, ...]:
    """Return all baselines, in the order of the report's main table.

    Single models, random choice and the oracle are not among them, because they need no fitting.
    MIRT is included only with `profiles`, which must describe every arm that it is fitted on, and
    the baselines with truncated input only if `truncated`.
    """
    network = partial(Network, embed=embed, weigh=equal_weights, seed=SEED)
    mlp_network = partial(network, build=mlp, fitting=MLP_FITTING)
    found: list[Baseline] = [
        Heuristic("number of turns", turns),
        Heuristic("length", lambda example: len(views.raw(example))),
        Heuristic("number of tools", lambda example: len(example.request["tools"])),
        DatasetOracle(),
        Lexical("TF-IDF + LR", views.packed),
    ]
    if truncated:
        found.append(Lexical("TF-IDF + LR, truncated input", views.truncated))
    found += [
        Nearest(views.packed, embed),
        Similarity(views.packed, embed),
        mlp_network("MLP", views.packed),
    ]
    if truncated:
        found.append(mlp_network("MLP, truncated input", views.truncated))
    found += [
        mlp_network("MLP, cost-weighted loss", views.packed, weigh=by_cost),
        network(
            "matrix factorization",
            views.packed,
            build=MatrixFactorization,
            fitting=FACTORIZATION_FITTING,
        ),
    ]
    if profiles is not None:
        build = item_response(views, embed, profiles)
        found.append(network("MIRT", views.vanilla, build=build, fitting=ITEM_RESPONSE_FITTING))
    return tuple(found)
