"""All baselines, with their hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from switchcraft_training.baselines.base import Baseline
from switchcraft_training.baselines.chat import ChatPreferences, ChatTrained
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
from switchcraft_training.baselines.simple import (
    DatasetOracle,
    Heuristic,
    Oracle,
    RandomChoice,
    SingleModel,
)

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
    arms: tuple[str, ...],
    views: Views,
    embed: Embedder,
    profiles: Mapping[str, str] | None = None,
    seed: int = 0,
    *,
    preferences: ChatPreferences | None = None,
) -> tuple[Baseline, ...]:
    """Return all baselines for a pool, in the order of the report's main table.

    MIRT is included only with `profiles`, which must describe every arm that it is fitted on. The
    baseline that is trained on chats is included only with `preferences`.
    """
    network = partial(Network, embed=embed, weigh=equal_weights, seed=seed)
    mirt: tuple[Baseline, ...] = ()
    if profiles is not None:
        build = item_response(views, embed, profiles)
        mirt = (network("MIRT", views.vanilla, build=build, fitting=ITEM_RESPONSE_FITTING),)
    chat: tuple[Baseline, ...] = ()
    if preferences is not None:
        chat = (ChatTrained(preferences, views, embed, seed),)
    return (
        *(SingleModel(arm) for arm in arms),
        Heuristic("number of turns", turns),
        Heuristic("length", lambda example: len(views.raw(example))),
        Heuristic("number of tools", lambda example: len(example.request["tools"])),
        RandomChoice(seed),
        DatasetOracle(),
        Lexical("TF-IDF + LR", views.packed),
        Lexical("TF-IDF + LR, truncated input", views.truncated),
        Nearest(views.packed, embed),
        Similarity(views.packed, embed),
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
        *mirt,
        *chat,
        Oracle(),
    )


def baselines_to_fit(
    views: Views,
    embed: Embedder,
    profiles: Mapping[str, str] | None = None,
    seed: int = 0,
    *,
    truncated: bool = True,
    preferences: ChatPreferences | None = None,
) -> tuple[Baseline, ...]:
    """Return the baselines that an evaluation must fit.

    Single models, random choice and the oracle need no fitting. Baselines with truncated input are
    included only if `truncated` is true.
    """
    need_no_fitting = {"random", "oracle"}
    return tuple(
        each
        for each in baselines((), views, embed, profiles, seed, preferences=preferences)
        if each.name not in need_no_fitting and (truncated or "truncated" not in each.name)
    )
