"""A narrow encoder that learns to say what a pretrained one says (Hinton et al., 2015).

It learns from texts alone, without labels, once for all folds and seeds: from rows that no fold
tests, and that are no near-duplicates of any that one does.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import DistilBertConfig, DistilBertModel

from router_service.core.errors import ConfigError
from router_service.core.packing import Ids
from switchcraft_training.config import DistilledConfig, EncoderConfig
from switchcraft_training.finetune.acceleration import is_main_process, main_process_first
from switchcraft_training.finetune.batches import padded, shuffled_batches
from switchcraft_training.finetune.encoders import PretrainedEncoder
from switchcraft_training.finetune.frozen import row_inputs, weights_sha256
from switchcraft_training.finetune.model import EncoderBranch
from switchcraft_training.finetune.objective import scheduled

log = logging.getLogger(__name__)

SEED = 0
BATCH_ROWS = 32
START_ROWS = 500
"""Rows that the map to the teacher's states is first solved on; without, three epochs find it."""

WARMUP_RATIO = 0.1
WEIGHT_DECAY = 0.01
WHERE = "encoder.distilled"


def distil(
    encoder: PretrainedEncoder, config: EncoderConfig, rows: Sequence[Ids], workspace: Path
) -> PretrainedEncoder:
    """Return the student of an encoder, taught by these rows or read from `workspace`.

    Raises ConfigError where the encoder is no DistilBERT or there is no row to learn from.
    """
    settings, teacher = config.distilled, encoder.model
    if settings is None:
        return encoder
    if not isinstance(teacher, DistilBertModel):
        raise ConfigError(encoder.name, WHERE, "needs a DistilBERT or a BERT")
    if not rows:
        problem = "needs rows that only teach, and are no near-duplicates of the pool's own"
        raise ConfigError(encoder.name, WHERE, problem)
    branch = _untaught(teacher, settings, config.pooling)
    path = workspace / "distilled" / f"{_identity(teacher, config, rows)}.safetensors"
    with main_process_first():
        if not path.exists():
            _teach(branch, settings, rows, _wanted(teacher, rows, workspace))
            _save(branch.encoder, path)
    branch.encoder.load_state_dict(load_file(path))
    branch.encoder.requires_grad_(requires_grad=True)  # what is fine-tuned of it is said elsewhere
    return replace(encoder, model=branch.encoder)


def _untaught(teacher: DistilBertModel, settings: DistilledConfig, pooling: str) -> EncoderBranch:
    """Return a student whose embeddings are the teacher's principal components, and stay so.

    What it learns of the words that it is taught with then holds for those that it is not. The
    branch's head is the map from its states to the teacher's, which nobody needs afterwards.
    """
    torch.manual_seed(SEED)
    size, width = teacher.config, settings.hidden_size
    student = DistilBertModel(
        DistilBertConfig(
            vocab_size=size.vocab_size,
            max_position_embeddings=size.max_position_embeddings,
            dim=width,
            hidden_dim=settings.intermediate_size,
            n_layers=settings.layers,
            n_heads=settings.attention_heads,
            activation=size.activation,
            dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=size.pad_token_id,
            initializer_range=width**-0.5,
        )
    )
    words = teacher.embeddings.word_embeddings.weight.detach()
    axes = torch.linalg.svd(words, full_matrices=False).Vh[:width].T  # (teacher's width, width)
    for table in ("word_embeddings", "position_embeddings"):
        own, theirs = (getattr(model.embeddings, table) for model in (student, teacher))
        own.weight.requires_grad_(requires_grad=False).copy_(theirs.weight.detach() @ axes)
    return EncoderBranch(student, size.dim, pooling=pooling, dropout=0.0)


def _wanted(teacher: DistilBertModel, rows: Sequence[Ids], workspace: Path) -> list[Tensor]:
    """Return what the teacher's last layer says of each row, (tokens, hidden), kept as usual."""
    branch = EncoderBranch(teacher, 1, pooling="cls", dropout=0.0)
    return row_inputs(branch, teacher.config.n_layers, rows, workspace / "frozen")


def _teach(
    branch: EncoderBranch, settings: DistilledConfig, rows: Sequence[Ids], wanted: list[Tensor]
) -> None:
    """Fit a student's states of each token, mapped, and those of whole rows to the teacher's."""
    ids = [torch.tensor(row) for row in rows]
    _solve_map(branch, ids[:START_ROWS], wanted[:START_ROWS])
    rng = np.random.default_rng(SEED)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    learning = [p for p in branch.train().parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=settings.learning_rate, weight_decay=WEIGHT_DECAY)
    steps = math.ceil(len(rows) / BATCH_ROWS) * settings.epochs
    schedule = scheduled(optimizer, steps, WARMUP_RATIO)
    with tqdm(total=steps, desc="distilling", disable=not is_main_process()) as progress:
        for _ in range(settings.epochs):
            for batch in shuffled_batches(lengths, BATCH_ROWS, rng):
                loss = _loss(branch, [ids[i] for i in batch], [wanted[i] for i in batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                nn.utils.clip_grad_norm_(learning, 1.0)
                optimizer.step()
                schedule.step()
                progress.update()
                progress.set_postfix(unexplained=f"{loss.item() / 2:.3f}", refresh=False)


@torch.no_grad()
def _solve_map(branch: EncoderBranch, ids: list[Tensor], wanted: list[Tensor]) -> None:
    """Start the map where least squares put it for the untaught student."""
    states = torch.cat([branch.encoder(row[None]).last_hidden_state[0] for row in ids])
    known = torch.cat([states, torch.ones(len(states), 1)], dim=1)  # (tokens, width + 1)
    solved = torch.linalg.lstsq(known, torch.cat(wanted)).solution
    branch.head.weight.copy_(solved[:-1].T)
    branch.head.bias.copy_(solved[-1])


def _loss(branch: EncoderBranch, ids: list[Tensor], wanted: list[Tensor]) -> Tensor:
    """Return the share of the teacher's states that stays unexplained, of tokens and of rows."""
    stacked, mask = padded(ids, branch.pad_id)
    theirs, _ = padded(wanted, 0.0)  # (batch, tokens, teacher's width)
    states = branch.encoder(stacked, attention_mask=mask).last_hidden_state
    is_token = mask.bool()
    of_tokens = _unexplained(branch.head(states[is_token]), theirs[is_token])
    return of_tokens + _unexplained(branch.decide(states, mask), branch.pool(theirs, mask))


def _unexplained(said: Tensor, wanted: Tensor) -> Tensor:
    spread = (wanted - wanted.mean(0)).square().mean().clamp(min=1e-6)
    return (said - wanted).square().mean() / spread


def _identity(teacher: DistilBertModel, config: EncoderConfig, rows: Sequence[Ids]) -> str:
    """Return the SHA-256 of all that a student's weights follow from."""
    settings = config.model_dump(mode="json", include={"distilled", "pooling"})
    digest = sha256(json.dumps([settings, [list(row) for row in rows]], sort_keys=True).encode())
    digest.update(weights_sha256(teacher).encode())
    return digest.hexdigest()


def _save(student: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(student.state_dict(), path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)
    log.info("distilled: weights kept in %s", path)
