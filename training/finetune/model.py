"""The router's network: an encoder branch and a branch over structural counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

MEMBERS = 4
"""Networks over the counts: 1,100 rows make one of them waver by a point of AUC with its seed."""

CLIP = 5.0
"""Standardized counts are clipped here: a count never seen in training must not decide alone."""


class BranchLogits(NamedTuple):
    """Logits of the two branches, (batch, heads) each."""

    encoder: Tensor
    structure: Tensor

    def mixed(self, encoder_share: Tensor | float) -> Tensor:
        """Return the logits that decide: the branches' weighted geometric mean of odds."""
        return encoder_share * self.encoder + (1 - encoder_share) * self.structure


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
        return self.decide(states, attention_mask)

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


class StructureBranch(nn.Module):
    """Small networks over the counts, averaged; they learn on standardized signed logarithms."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, heads: int, *, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.members = nn.ModuleList(_member(features, heads, width) for _ in range(MEMBERS))

    def fit_scale(self, features: Tensor) -> None:
        """Take mean and deviation from training rows (n, features); constant ones are muted."""
        logs = _signed_log(features)
        deviation = logs.std(0)
        self.mean.copy_(logs.mean(0))
        self.scale.copy_(torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 0.0))

    def votes(self, features: Tensor) -> list[Tensor]:
        """Return each member's logits (batch, heads) for raw counts (batch, features)."""
        standardized = (_signed_log(features) - self.mean) * self.scale
        clipped = standardized.clamp(-CLIP, CLIP)
        return [member(clipped) for member in self.members]

    def forward(self, features: Tensor) -> Tensor:
        """Return the members' mean logits (batch, heads) for raw counts (batch, features)."""
        return torch.stack(self.votes(features)).mean(0)


def _member(features: int, heads: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(0.1),
        nn.Linear(features, width),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(width, heads),
    )


class RouterModel(nn.Module):
    """Predicts for every head whether its model answers correctly; the arms come first."""

    encoder_share: Tensor

    def __init__(self, encoder: EncoderBranch, structure: StructureBranch | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.structure = structure
        self.register_buffer("encoder_share", torch.tensor(0.5))

    def branches(self, input_ids: Tensor, attention_mask: Tensor, features: Tensor) -> BranchLogits:
        """Return both branches' logits; the encoder's stand for both where it is alone."""
        encoder = self.encoder(input_ids, attention_mask)
        structure = encoder if self.structure is None else self.structure(features)
        return BranchLogits(encoder, structure)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, features: Tensor) -> Tensor:
        """Return the logits that decide, (batch, heads)."""
        return self.branches(input_ids, attention_mask, features).mixed(self.encoder_share)


def _signed_log(values: Tensor) -> Tensor:
    return torch.sign(values) * torch.log1p(torch.abs(values))
