"""The router's network: branches that each predict probabilities of the arms, and their mean."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from switchcraft_training.models.branches import Forest, LexicalBranch, NetworksBranch

MIN_TREE_PROBABILITY = 0.01
"""The trees' probabilities are clipped to 0.01 to 0.99: leaves of 5 rows often predict 0 or 1."""


class EncoderBranch(nn.Module):
    """A pretrained encoder with one linear head (paper, appendix on training configuration)."""

    def __init__(
        self, encoder: PreTrainedModel, heads: int, *, pooling: str, dropout: float
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(encoder.config.hidden_size, heads)

    @property
    def pad_id(self) -> int:
        """Return the token id that pads a batch's rows; the mask excludes it."""
        return int(self.encoder.config.pad_token_id or 0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, heads) for ids and mask (batch, tokens)."""
        states = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        # The encoder may be in half precision; pooling and head are not.
        return self.classify(states.to(self.head.weight.dtype), attention_mask)

    def classify(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, heads) for the last layer's states (batch, tokens, hidden)."""
        logits: Tensor = self.head(self.dropout(self.pool(states, attention_mask)))
        return logits

    def pool(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one state per row, (batch, hidden)."""
        if self.pooling == "cls":
            return states[:, 0]
        mask = attention_mask.unsqueeze(-1).to(states.dtype)  # (batch, tokens, 1)
        return (states * mask).sum(1) / mask.sum(1)


class FeatureBranches(nn.Module):
    """Trees and small networks over structural features and the predicted number of calls."""

    def __init__(
        self, demand: Forest | None, forest: Forest | None, networks: NetworksBranch | None
    ) -> None:
        super().__init__()
        self.demand = demand
        self.forest = forest
        self.networks = networks

    def forward(self, features: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return each branch's logits (batch, heads), and the demand for calls (batch, 3).

        `features` are (batch, features). The demand is None if no forest predicts it.
        """
        demand = None if self.demand is None else self.demand(features)
        if demand is not None:
            features = torch.cat([features, demand], dim=1)
        logits = {}
        if self.forest is not None:
            logits["forest"] = torch.logit(
                self.forest(features).clamp(MIN_TREE_PROBABILITY, 1 - MIN_TREE_PROBABILITY)
            )
        if self.networks is not None:
            logits["networks"] = self.networks(features)
        return logits, demand


class RouterModel(nn.Module):
    """Network that predicts for every arm the probability of a correct answer."""

    def __init__(
        self,
        encoder: EncoderBranch | None,
        lexical: LexicalBranch | None,
        counts: FeatureBranches,
        shares: Mapping[str, float],
        arms: int,
    ) -> None:
        """Combine the branches; `shares` are their weights, which sum to 1.

        The encoder may be None if it has no share.
        """
        super().__init__()
        self.encoder = encoder
        self.lexical = lexical
        self.counts = counts
        self.shares = dict(shares)
        self.arms = arms

    @property
    def pad_id(self) -> int:
        """Return the token id that pads a batch's rows; the mask excludes it."""
        return 0 if self.encoder is None else self.encoder.pad_id

    def branches(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor
    ) -> dict[str, Tensor]:
        """Return each branch's logits of the arms, (batch, arms)."""
        return self.branches_and_demand(input_ids, attention_mask, features)[0]

    def branches_and_demand(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the result of `branches`, and the demand for calls as in `FeatureBranches`."""
        logits, demand = self.counts(features)
        if self.encoder is not None and "encoder" in self.shares:
            logits["encoder"] = self.encoder(input_ids, attention_mask)
        if self.lexical is not None:
            logits["lexical"] = self.lexical(input_ids, attention_mask)
        return {name: logits[name][:, : self.arms] for name in self.shares}, demand

    def forward(self, input_ids: Tensor, attention_mask: Tensor, features: Tensor) -> Tensor:
        """Return the router's logits, (batch, arms): the geometric mean of the branches' odds."""
        return weighted_mean(self.branches(input_ids, attention_mask, features), self.shares)


def weighted_mean(logits: Mapping[str, Tensor], shares: Mapping[str, float]) -> Tensor:
    """Return the mean of the branches' logits (batch, arms), weighted by their shares."""
    return torch.stack([share * logits[name] for name, share in shares.items()]).sum(0)
