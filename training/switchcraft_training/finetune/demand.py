"""How many calls a query asks for, as counts of their own for the branches over the counts.

Models differ most between queries that ask for no call, for one and for several. What a query asks
for is known of every query of a benchmark, whoever was asked it, so that it is learned from far
more rows than what a pool's arms answered.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from switchcraft_training.finetune.batches import Rows, feature_tensor
from switchcraft_training.finetune.forest import Forest, fit_forest

SEVERAL = 2
FOLDS = 4


def demand_unseen(rows: Rows, seed: int) -> NDArray[np.float32] | None:
    """Return what forests that have not seen a row say of it, (n, 3).

    The branches that read them must learn how far they are to be trusted. Near-duplicates, which
    share a group, are left out together. None where fewer than two groups have a known demand.
    """
    known = np.flatnonzero(~np.isnan(rows.calls))
    groups = rows.groups[known]
    folds = min(FOLDS, len(np.unique(groups)))
    if folds < 2:
        return None
    features = feature_tensor(rows)
    said = np.empty((len(rows.packed), SEVERAL + 1), dtype=np.float32)
    parts = [(known[a], known[b]) for a, b in GroupKFold(folds).split(known, groups=groups)]
    parts.append((known, np.flatnonzero(np.isnan(rows.calls))))
    for seen, left in parts:
        if len(left):
            said[left] = _forest(rows.take(seen), seed)(features[left]).numpy()
    return said


def fit_demand(rows: Rows, seed: int) -> Forest:
    """Fit counts -> probabilities of no call, one, several, on the rows whose demand is known."""
    return _forest(rows.take(np.flatnonzero(~np.isnan(rows.calls))), seed)


def _forest(known: Rows, seed: int) -> Forest:
    return fit_forest(feature_tensor(known).numpy(), _classes(known.calls), seed)


def _classes(calls: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 in the column of each row's demand, (n, 3)."""
    return np.eye(SEVERAL + 1, dtype=np.float32)[np.minimum(calls, SEVERAL).astype(np.int64)]
