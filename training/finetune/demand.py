"""How many calls a query asks for, as counts of their own for the branches over the counts.

Models differ most between queries that ask for no call, for one and for several. What a query asks
for is known of every query of a benchmark, whoever was asked it, so that it is learned from far
more rows than what a pool's arms answered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from training.finetune.batches import Rows, feature_tensor
from training.finetune.forest import Forest, fit_forest

SEVERAL = 2
FOLDS = 4


def fit_demand(rows: Rows, seed: int) -> Forest | None:
    """Fit counts -> probabilities of no call, one, several; None where no demand is known."""
    known = np.flatnonzero(~np.isnan(rows.calls))
    if not len(known):
        return None
    return fit_forest(feature_tensor(rows).numpy()[known], _classes(rows.calls[known]), seed)


def demand_unseen(rows: Rows, seed: int) -> NDArray[np.float32] | None:
    """Return what forests that have not seen a row say of it, (n, 3); None where none is known.

    The branches that read them must learn how far they are to be trusted. Near-duplicates, which
    share a group, are left out together.
    """
    if np.isnan(rows.calls).all():
        return None
    features = feature_tensor(rows)
    said = np.empty((len(rows.packed), SEVERAL + 1), dtype=np.float32)
    for seen, left in GroupKFold(FOLDS).split(rows.groups, groups=rows.groups):
        forest = fit_demand(rows.take(seen), seed)
        assert forest is not None  # noqa: S101 - some of the others' demand is known
        said[left] = forest(features[left]).numpy()
    return said


def _classes(calls: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 in the column of each row's demand, (n, 3)."""
    return np.eye(SEVERAL + 1, dtype=np.float32)[np.minimum(calls, SEVERAL).astype(np.int64)]
