"""The predictor of an arm that joins an artifact: a separate network next to the pool's."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import brentq

from router_service.policies.costs import Price
from router_service.predictor.model import Calibration, Platt, Temperature, logit, sigmoid
from switchcraft_training.config import ArmConfig, Branch, RunConfig
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.models.branches import fit_lexical
from switchcraft_training.models.export import Line
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.training import Demand, fit_feature_branches, predict

log = logging.getLogger(__name__)

SHARES: dict[Branch, float] = {"forest": 2.0, "networks": 2.0, "lexical": 1.0}
"""The shipped routers' shares, without the encoder: it takes most of a decision's time and changes
the AUC by less than 0.001. They are used if the configuration has none but the encoder's."""

AUXILIARY_WEIGHT = 0.5
"""Weight of the recorded models' labels, from which the networks learn too."""

WIDEST_SHIFT = 20.0


def fit_predictor(
    config: RunConfig, table: Table, demand: Demand | None, arm: str, price: Price
) -> RouterModel:
    """Fit a network to the first column of a packed table, (rows, 1 + recorded models).

    Labels are probabilities, and NaN in rows that are only used by the other columns. The pool's
    arms, which are the next columns, help to choose the trees' splits. On eight models with 100
    answers each, this raises the AUC of the trees by 0.002. `demand` was fitted to the same rows.
    """
    given = {branch: share for branch, share in config.training.shares.items() if branch in SHARES}
    shares = given or SHARES if config.packing.features else {"lexical": 1.0}
    training = config.training.model_copy(
        update={"shares": shares, "auxiliary_weight": AUXILIARY_WEIGHT}
    )
    pool = (ArmConfig(arm=arm, price=price), *config.pool)
    own = config.model_copy(update={"pool": pool, "training": training})
    torch.manual_seed(config.seed)
    ids = [row.token_ids for row in table.packed]
    branches = fit_feature_branches(own, table, demand)
    if branches.forest is not None:
        branches.forest.value = branches.forest.value[:, :1].clone()
    model = RouterModel(
        encoder=None,
        lexical=fit_lexical(ids, table.labels[:, :1]),
        counts=branches,
        shares=training.branch_shares,
        arms=1,
    )
    return model.eval()


def predict_unseen(
    config: RunConfig, table: Table, demand: Demand | None, arm: str, price: Price
) -> Floats:
    """Return the logits of the rows with a fold, (rows with a fold,), in the table's order.

    Each is predicted by a network that is fitted as in `fit_predictor`, but without the row's fold.
    Of the rows without a fold, near-duplicates of the predicted ones are left out too.
    """
    if demand is not None:
        # The demand for calls is read from its held-out predictions, of the tested rows too.
        packed = (
            replace(row, features=(*row.features, *map(float, extra)))
            for row, extra in zip(table.packed, demand.held_out, strict=True)
        )
        table = replace(table, packed=tuple(packed))
    logits = np.empty(len(table))
    for fold in np.unique(table.folds[table.folds >= 0]):
        tested = table.folds == fold
        log.info("measuring the predictor of %s: fold %d", arm, fold + 1)
        is_near = np.isin(table.groups, table.groups[tested])
        known = table.take(np.where(table.folds >= 0, ~tested, ~is_near))
        model = fit_predictor(config, known, None, arm, price)
        logits[tested] = logit(predict(model, table.take(tested))[:, 0])
    return logits[table.folds >= 0]


def fit_line(logits: Floats, accuracy: float, pool: Calibration) -> Line:
    """Return the slope and shift that calibrate a new arm's logits, (queries,).

    Few answers do not determine both, so the slope is the mean of the pool's arms. The shift makes
    the mean probability of the recorded queries equal to the estimated accuracy.
    """
    slope = float(np.mean(pool.slopes)) if isinstance(pool, Platt) else 1.0
    return slope, shift_to_mean(slope * logits, accuracy)


def shift_to_mean(logits: Floats, mean: float) -> float:
    """Return what to add to logits (n,) so that their probabilities have this mean."""

    def excess(shift: float) -> float:
        return float(sigmoid(logits + shift).mean()) - mean

    return float(brentq(excess, -WIDEST_SHIFT, WIDEST_SHIFT))


def extend_calibration(pool: Calibration, line: Line) -> tuple[Calibration, Line]:
    """Return the calibration with one more arm, and the line to apply inside that arm's graph.

    The values of the pool's arms do not change, and the calibration then leaves the new arm's
    probabilities as they are.
    """
    slope, shift = line
    match pool:
        case Platt(slopes=slopes, intercepts=intercepts):
            return Platt(slopes=(*slopes, 1.0), intercepts=(*intercepts, 0.0)), line
        case Temperature(temperature=temperature):
            return pool, (slope * temperature, shift * temperature)
    return pool, line


def select_calibration(pool: Calibration, columns: list[int]) -> Calibration:
    """Return the calibration of some of the arms."""
    if not isinstance(pool, Platt):
        return pool
    return Platt(
        slopes=tuple(pool.slopes[c] for c in columns),
        intercepts=tuple(pool.intercepts[c] for c in columns),
    )
