"""Distillation of a pretrained encoder into a narrow student (Hinton et al., 2015).

The student learns to reproduce its teacher's hidden states on texts without labels. It is trained
once for all folds and seeds, because its training rows are not tested in any fold, and are not
near-duplicates of tested rows.
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
from transformers import DistilBertConfig, DistilBertModel

from router_service.core.errors import ConfigError
from router_service.predictor.words import Ids
from switchcraft_training.config import DistilledConfig, EncoderConfig
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.frozen import row_inputs, weights_sha256
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import (
    device,
    linear_schedule,
    padded,
    shuffled_batches,
)
from switchcraft_training.progress import Bar
from switchcraft_training.storage import complete_file

log = logging.getLogger(__name__)

SEED = 0
BATCH_ROWS = 32
START_ROWS = 500
"""Number of rows on which least squares initializes the map from student to teacher states.

This initialization saves three epochs.
"""

WARMUP_RATIO = 0.1
WEIGHT_DECAY = 0.01
FIELD = "encoder.distilled"


def distil(
    encoder: PretrainedEncoder, config: EncoderConfig, rows: Sequence[Ids], workspace: Path
) -> PretrainedEncoder:
    """Return an encoder's student, trained on `rows` or read from `workspace`.

    Return the encoder itself if `config` does not ask for distillation. Raises ConfigError if
    the encoder is not a DistilBERT, or if there are no rows.
    """
    settings = config.distilled
    if settings is None:
        return encoder
    teacher = find_teacher(encoder, has_rows=bool(rows))
    branch = _new_student(teacher, settings, config.pooling)
    # The name of the file is the SHA-256 of everything that determines the student's weights.
    fields = config.model_dump(mode="json", include={"distilled", "pooling"})
    digest = sha256(json.dumps([fields, [list(row) for row in rows]], sort_keys=True).encode())
    digest.update(weights_sha256(teacher).encode())
    path = workspace / "distilled" / f"{digest.hexdigest()}.safetensors"
    if not path.exists():
        teacher_branch = EncoderBranch(teacher, 1, pooling="cls", dropout=0.0).to(device())
        layers = teacher.config.n_layers
        # The teacher's last hidden states for each row, with the shape (tokens, hidden).
        wanted = row_inputs(teacher_branch, layers, rows, workspace / "frozen", in_bf16=True)
        _train_student(branch.to(device()), settings, rows, wanted)
        branch.cpu()
        with complete_file(path) as partial:
            save_file(branch.encoder.state_dict(), partial)
        log.info("distilled: weights saved in %s", path.parent)
    branch.encoder.load_state_dict(load_file(path))
    # `freeze` decides which layers are fine-tuned.
    branch.encoder.requires_grad_(requires_grad=True)
    return replace(encoder, model=branch.encoder)


def find_teacher(encoder: PretrainedEncoder, *, has_rows: bool) -> DistilBertModel:
    """Return the model of an encoder that can be distilled; raises ConfigError if it cannot."""
    teacher = encoder.model
    if not isinstance(teacher, DistilBertModel):
        problem = "needs a DistilBERT or a BERT; use such an encoder, or remove the setting"
        raise ConfigError(encoder.name, FIELD, problem)
    if not has_rows:
        problem = (
            "needs training-only rows that are not near-duplicates of measured rows; add a source"
            " under `also`, or remove the setting (`distilled: null`)"
        )
        raise ConfigError(encoder.name, FIELD, problem)
    return teacher


def _new_student(
    teacher: DistilBertModel, settings: DistilledConfig, pooling: str
) -> EncoderBranch:
    """Return an untrained student whose embeddings are principal components of the teacher's.

    The embeddings stay fixed, so that what the student learns from the words in its rows also holds
    for other words. The branch's head maps the student's states to the teacher's, and is discarded
    after the training.
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
        own, teachers = (getattr(model.embeddings, table) for model in (student, teacher))
        own.weight.requires_grad_(requires_grad=False).copy_(teachers.weight.detach() @ axes)
    return EncoderBranch(student, size.dim, pooling=pooling, dropout=0.0)


def _train_student(
    branch: EncoderBranch, settings: DistilledConfig, rows: Sequence[Ids], wanted: list[Tensor]
) -> None:
    """Train the student to predict the teacher's states `wanted`, of tokens and of whole rows."""
    ids = [torch.tensor(row) for row in rows]
    with torch.no_grad():  # Initialize the map by least squares on the untrained student.
        where = branch.head.weight.device
        states = torch.cat(
            [branch.encoder(row[None].to(where)).last_hidden_state[0] for row in ids[:START_ROWS]]
        ).cpu()
        known = torch.cat([states, torch.ones(len(states), 1)], dim=1)  # (tokens, width + 1)
        solved = torch.linalg.lstsq(known, torch.cat(wanted[:START_ROWS])).solution
        branch.head.weight.copy_(solved[:-1].T)
        branch.head.bias.copy_(solved[-1])
    rng = np.random.default_rng(SEED)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    learning = [p for p in branch.train().parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=settings.learning_rate, weight_decay=WEIGHT_DECAY)
    steps = math.ceil(len(rows) / BATCH_ROWS) * settings.epochs
    schedule = linear_schedule(optimizer, steps, WARMUP_RATIO)
    with Bar("distilling", steps, "steps") as progress:
        for _ in range(settings.epochs):
            for batch in shuffled_batches(lengths, BATCH_ROWS, rng):
                loss = _loss(branch, [ids[i] for i in batch], [wanted[i] for i in batch])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learning, 1.0)
                optimizer.step()
                schedule.step()
                progress.update()
                progress.show(f"unexplained={loss.item() / 2:.3g}")


def _loss(branch: EncoderBranch, ids: list[Tensor], wanted: list[Tensor]) -> Tensor:
    """Return the unexplained share of the teacher's token states, plus that of its row states."""
    where = branch.head.weight.device
    stacked, mask = (each.to(where) for each in padded(ids, branch.pad_id))
    theirs = padded(wanted, 0.0)[0].to(where)  # (batch, tokens, teacher's width)
    states = branch.encoder(stacked, attention_mask=mask).last_hidden_state
    is_token = mask.bool()
    of_tokens = _unexplained(branch.head(states[is_token]), theirs[is_token])
    return of_tokens + _unexplained(branch.classify(states, mask), branch.pool(theirs, mask))


def _unexplained(predicted: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean squared error of `predicted`, relative to the variance of `wanted`."""
    spread = (wanted - wanted.mean(0)).square().mean().clamp(min=1e-6)
    return (predicted - wanted).square().mean() / spread
