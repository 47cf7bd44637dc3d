"""Small networks over structural features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from switchcraft_training.models.branches import (
    NETWORKS,
    NetworksBranch,
    fit_networks,
)
from tests.training.models.cases import config

SETTINGS = config().training


def counts(n: int, seed: int = 0) -> Tensor:
    """Return an informative feature, an uninformative one, and a constant one."""
    rng = np.random.default_rng(seed)
    told = rng.integers(0, 2, n) * 9
    return torch.tensor(np.column_stack([told, rng.integers(0, 9, n), np.full(n, 4)])).float()


def labels_of(features: Tensor) -> Tensor:
    """Return labels of an arm that is correct if the first feature is positive, and the rest."""
    right = features[:, :1] > 0
    return torch.cat([right, ~right], dim=1).float()


def fitted(features: Tensor, labels: Tensor, seed: int = 0) -> NetworksBranch:
    """Fit with a seed and equal weights of both arms."""
    torch.manual_seed(seed)
    return fit_networks(features, labels, torch.ones(labels.shape[1]), SETTINGS)


def logits_of(branch: NetworksBranch, features: Tensor) -> Tensor:
    """Return logits, computed without gradients."""
    with torch.no_grad():
        logits: Tensor = branch(features)
    return logits


def test_networks_learn_an_informative_feature_and_are_averaged() -> None:
    """Held-out rows are predicted correctly, and the branch returns the mean of its networks."""
    train, test = counts(300), counts(80, seed=1)
    branch = fitted(train, labels_of(train))
    assert ((logits_of(branch, test) > 0) == (labels_of(test) == 1)).float().mean() > 0.95
    with torch.no_grad():
        votes = branch.member_logits(test)
    assert len(votes) == NETWORKS
    assert torch.allclose(torch.stack(votes).mean(0), logits_of(branch, test))
    assert not torch.allclose(votes[0], votes[1])
