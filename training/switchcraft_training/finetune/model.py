"""The router's network: branches that each say how probably arms are right, and their mix."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from switchcraft_training.finetune.forest import Forest
from switchcraft_training.finetune.lexical import LexicalBranch
from switchcraft_training.finetune.networks import NetworksBranch

NEAREST = 0.01
"""Trees of five rows a leaf say 0 and 1 too easily; their logits end here."""


class EncoderBranch(nn.Module):
    """A pretrained encoder with one linear head (appendix on training configuration)."""

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
        """The id that fills a batch's rows up; the mask hides it."""
        return int(self.encoder.config.pad_token_id or 0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, heads) for ids and mask (batch, tokens)."""
        states = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        # An encoder may be in half precision; pooling and head are not.
        return self.decide(states.to(self.head.weight.dtype), attention_mask)

    def decide(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, heads) for the last layer's states (batch, tokens, hidden)."""
        logits: Tensor = self.head(self.dropout(self.pool(states, attention_mask)))
        return logits

    def pool(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return one state a row, (batch, hidden)."""
        if self.pooling == "cls":
            return states[:, 0]
        mask = attention_mask.unsqueeze(-1).to(states.dtype)  # (batch, tokens, 1)
        return (states * mask).sum(1) / mask.sum(1)


class CountsBranches(nn.Module):
    """Trees and small networks over the counts, and over the demand that a forest reads in them."""

    def __init__(
        self, demand: Forest | None, forest: Forest | None, networks: NetworksBranch | None
    ) -> None:
        super().__init__()
        self.demand = demand
        self.forest = forest
        self.networks = networks

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Return each branch's logits (batch, heads) for counts (batch, features)."""
        if self.demand is not None:
            features = torch.cat([features, self.demand(features)], dim=1)
        logits = {}
        if self.forest is not None:
            logits["forest"] = torch.logit(self.forest(features).clamp(NEAREST, 1 - NEAREST))
        if self.networks is not None:
            logits["networks"] = self.networks(features)
        return logits


class RouterModel(nn.Module):
    """Predicts for every arm whether it answers correctly."""

    def __init__(
        self,
        encoder: EncoderBranch,
        lexical: LexicalBranch | None,
        counts: CountsBranches,
        shares: Mapping[str, float],
        arms: int,
    ) -> None:
        """Take over the branches; `shares` say what each counts, and sum to 1."""
        super().__init__()
        self.encoder = encoder
        self.lexical = lexical
        self.counts = counts
        self.shares = dict(shares)
        self.arms = arms

    def branches(
        self, input_ids: Tensor, attention_mask: Tensor, features: Tensor
    ) -> dict[str, Tensor]:
        """Return each branch's logits of the arms, (batch, arms)."""
        logits = self.counts(features)
        if "encoder" in self.shares:
            logits["encoder"] = self.encoder(input_ids, attention_mask)
        if self.lexical is not None:
            logits["lexical"] = self.lexical(input_ids, attention_mask)
        return {name: logits[name][:, : self.arms] for name in self.shares}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, features: Tensor) -> Tensor:
        """Return the logits that decide, (batch, arms): the branches' geometric mean of odds."""
        return mixed(self.branches(input_ids, attention_mask, features), self.shares)


def mixed(logits: Mapping[str, Tensor], shares: Mapping[str, float]) -> Tensor:
    """Return the mean of branches' logits (batch, arms) by these shares."""
    return torch.stack([share * logits[name] for name, share in shares.items()]).sum(0)
