"""Small networks over the counts: what they read, what they clip, what does not teach them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from switchcraft_training.models.branches import (
    MAX_DEVIATIONS,
    NETWORKS,
    NetworksBranch,
    fit_networks,
)
from tests.training.finetune.cases import config

SETTINGS = config(structure_width=16).training


def counts(n: int, seed: int = 0) -> Tensor:
    """Return a count that tells, one that does not, and one that is always the same."""
    rng = np.random.default_rng(seed)
    told = rng.integers(0, 2, n) * 9
    return torch.tensor(np.column_stack([told, rng.integers(0, 9, n), np.full(n, 4)])).float()


def labels_of(features: Tensor) -> Tensor:
    """Return an arm that is right where the first count is not 0, and one where it is."""
    right = features[:, :1] > 0
    return torch.cat([right, ~right], dim=1).float()


def fitted(features: Tensor, labels: Tensor, seed: int = 0) -> NetworksBranch:
    """Fit with a seed, both arms weighing the same."""
    torch.manual_seed(seed)
    return fit_networks(features, labels, torch.ones(labels.shape[1]), SETTINGS)


def said(branch: NetworksBranch, features: Tensor) -> Tensor:
    """Return logits without gradients."""
    with torch.no_grad():
        logits: Tensor = branch(features)
    return logits


def test_they_learn_what_counts_tell_and_agree_on_it() -> None:
    """Unseen rows are told right; the branch says the mean of its members."""
    train, test = counts(300), counts(80, seed=1)
    branch = fitted(train, labels_of(train))
    assert ((said(branch, test) > 0) == (labels_of(test) == 1)).float().mean() > 0.95
    with torch.no_grad():
        votes = branch.member_logits(test)
    assert len(votes) == NETWORKS
    assert torch.allclose(torch.stack(votes).mean(0), said(branch, test))
    assert not torch.allclose(votes[0], votes[1])


def test_a_constant_count_is_muted() -> None:
    """A count that never changed in training has no say, whatever it is in service."""
    train = counts(200)
    branch = fitted(train, labels_of(train))
    other = train.clone()
    other[:, 2] = 1e6
    assert torch.equal(said(branch, other), said(branch, train))
    moved = train.clone()
    moved[:, 0] = 9 - moved[:, 0]
    assert not torch.allclose(said(branch, moved), said(branch, train))


def test_outliers_are_clipped() -> None:
    """A count far beyond all of training says no more than one at the clip's edge."""
    train = counts(200)
    branch = fitted(train, labels_of(train))
    deviation = float(1 / branch.scale[1])
    edge = float(torch.expm1(branch.mean[1] + (MAX_DEVIATIONS + 0.01) * deviation))
    far, farther = train.clone(), train.clone()
    far[:, 1], farther[:, 1] = edge, 1e30
    assert torch.equal(said(branch, far), said(branch, farther))
    assert bool(torch.isfinite(said(branch, farther)).all())
    assert not torch.allclose(said(branch, far), said(branch, train))


def test_counts_below_zero_have_logarithms_too() -> None:
    """What is left over may be less than nothing; the scale is signed and stays finite."""
    branch = NetworksBranch(2, 1, width=4).eval()
    features = torch.tensor([[-9.0, 1.0], [9.0, 1.0], [0.0, 1.0]])
    branch.fit_scale(features)
    assert bool(torch.isfinite(branch.scale).all())
    assert branch.mean[0] == pytest.approx(0.0)
    assert branch.scale[1] == 0
    logits = said(branch, features)
    assert bool(torch.isfinite(logits).all())
    assert len({round(float(each), 6) for each in logits[:, 0]}) == 3


def test_unknown_labels_do_not_teach() -> None:
    """Labels that would teach the contrary are struck out, and then do not."""
    train, test = counts(300), counts(80, seed=1)
    labels = labels_of(train)
    misleading = labels.clone()
    misleading[100:] = 1 - misleading[100:]
    hidden = misleading.clone()
    hidden[100:] = torch.nan
    right = labels_of(test) == 1
    misled, taught = (said(fitted(train, each), test) > 0 for each in (misleading, hidden))
    assert (taught == right).float().mean() > 0.95
    assert (misled == right).float().mean() < 0.05


def test_an_arm_without_any_label_leaves_the_others_finite() -> None:
    """A column that is unknown everywhere neither fails nor spreads."""
    train = counts(200)
    labels = labels_of(train)
    labels[:, 1] = torch.nan
    logits = said(fitted(train, labels), train)
    assert bool(torch.isfinite(logits).all())
    assert ((logits[:, 0] > 0) == (labels[:, 0] == 1)).float().mean() > 0.95


def test_a_head_without_weight_is_not_learned() -> None:
    """An auxiliary head of weight 0 is as if its labels were unknown."""
    train = counts(200)
    labels = labels_of(train)
    unknown = labels.clone()
    unknown[:, 1] = torch.nan
    torch.manual_seed(0)
    weighted = fit_networks(train, labels, torch.tensor([1.0, 0.0]), SETTINGS)
    hidden = fit_networks_again(train, unknown)
    assert torch.equal(said(weighted, train), said(hidden, train))


def fit_networks_again(features: Tensor, labels: Tensor) -> NetworksBranch:
    """Fit with the same seed and the second head's weight at 0."""
    torch.manual_seed(0)
    return fit_networks(features, labels, torch.tensor([1.0, 0.0]), SETTINGS)


def test_a_seed_fixes_them() -> None:
    """Weights are drawn, rows shuffled and units dropped by torch's generator alone."""
    train = counts(100)
    first, again, other = (said(fitted(train, labels_of(train), s), train) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
