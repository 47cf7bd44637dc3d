"""Frozen layers: their states are computed once for each row and cached."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Literal
from uuid import uuid4

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import DistilBertModel, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from router_service.core.errors import ConfigError
from router_service.predictor.words import Ids
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import padded
from switchcraft_training.progress import track
from switchcraft_training.storage import complete_file

log = logging.getLogger(__name__)

Frozen = int | Literal["all"] | None

SHARD_ROWS = 2048
"""Rows per cache file. With 300 tokens per row and width 768, a file has 2 GB.

At most one file's states are held in memory.
"""

BATCH_ROWS = 32


class UpperLayers(nn.Module):
    """The trained part of a branch, above its frozen layers; it shares the branch's weights."""

    def __init__(self, branch: EncoderBranch, frozen_layers: int | Literal["all"]) -> None:
        super().__init__()
        layers = [] if frozen_layers == "all" else list(_layers(branch)[frozen_layers:])
        self.layers = nn.ModuleList(layers)
        self.dropout, self.head = branch.dropout, branch.head
        self._branch = (branch,)  # A tuple hides the frozen weights from this module.

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, heads) for the frozen layers' states (batch, tokens, hidden)."""
        (branch,) = self._branch
        if self.layers:
            states = _apply_layers(branch.encoder, self.layers, states, attention_mask)
        return branch.classify(states, attention_mask)


def freeze(branch: EncoderBranch, frozen_layers: Frozen) -> nn.Module:
    """Freeze layers, and return the trained part, which maps inputs and mask to logits.

    Raises ConfigError if the encoder cannot be split at this layer.
    """
    if frozen_layers is None:
        return branch
    _embeddings(branch).requires_grad_(requires_grad=False)
    if frozen_layers == 0:
        return branch
    if frozen_layers == "all":
        branch.encoder.requires_grad_(requires_grad=False)
        return UpperLayers(branch, frozen_layers)
    field = "encoder.frozen_layers"
    if not isinstance(branch.encoder, DistilBertModel):
        problem = "a number above 0 needs a DistilBERT or a BERT; use 0 or `all`"
        raise ConfigError(type(branch.encoder).__name__, field, problem)
    available = branch.encoder.config.n_layers
    if frozen_layers > available:
        problem = f"the encoder has only {available} layers; use a smaller number or `all`"
        raise ConfigError(str(frozen_layers), field, problem)
    _layers(branch)[:frozen_layers].requires_grad_(requires_grad=False)
    return UpperLayers(branch, frozen_layers)


def row_inputs(
    branch: EncoderBranch,
    frozen_layers: Frozen,
    rows: Sequence[Ids],
    cache: Path | None,
    *,
    in_bf16: bool = False,
) -> list[Tensor]:
    """Return the trained part's input for each row: ids (tokens,), or states (tokens, hidden).

    States are read from the folder `cache`, or computed and written there. If everything is frozen,
    a row has only its pooled state, (1, hidden). Call this before training starts, because it may
    switch the branch to evaluation mode.

    `in_bf16` allows matrix products in bfloat16, which a CPU with instructions for them computes in
    40% of the time. Do not use it for the encoder that ships, whose graph computes otherwise.
    """
    if frozen_layers is None or frozen_layers == 0:
        return [torch.tensor(row) for row in rows]
    is_on_cpu = branch.head.weight.device.type == "cpu"
    in_bf16 = in_bf16 and is_on_cpu and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    keys = [sha256(np.asarray(row, np.int64).tobytes()).hexdigest() for row in rows]
    by_key = dict(zip(keys, rows, strict=True))
    if cache is None:
        folder = None
    else:
        part = f"pooled-{branch.pooling}" if frozen_layers == "all" else f"layer-{frozen_layers}"
        folder = cache / f"{weights_sha256(branch.encoder)}-{part}{'-bf16' if in_bf16 else ''}"
    states = {} if folder is None else _read_states(folder, by_key)
    found = len(states)
    missing = {key: row for key, row in by_key.items() if key not in states}
    computed = _compute_states(branch, frozen_layers, missing, in_bf16=in_bf16)
    while shard := dict(islice(computed, SHARD_ROWS)):
        if folder is not None:
            path = folder / f"{uuid4().hex}.safetensors"
            with complete_file(path) as partial:
                save_file(shard, partial)
            # Memory-mapped from the file, so that the computed states can be freed.
            shard = _read_states(folder, shard.keys(), (path,))
        states.update(shard)
    place = "memory" if cache is None else cache
    log.info("states of frozen layers: %d reused, %d computed, in %s", found, len(missing), place)
    return [states[key] for key in keys]


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of a model's weights and their names."""
    digest = sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy())
    return digest.hexdigest()


def _embeddings(branch: EncoderBranch) -> nn.Module:
    embeddings = getattr(branch.encoder, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        problem = "this architecture has no `embeddings` to freeze; remove the setting"
        raise ConfigError(type(branch.encoder).__name__, "encoder.frozen_layers", problem)
    return embeddings


def _layers(branch: EncoderBranch) -> nn.ModuleList:
    assert isinstance(branch.encoder, DistilBertModel)  # noqa: S101 - `freeze` has refused others
    return branch.encoder.transformer.layer


def _apply_layers(
    encoder: PreTrainedModel, layers: Iterable[nn.Module], states: Tensor, mask: Tensor
) -> Tensor:
    """Apply layers to states (batch, tokens, hidden) as the encoder does."""
    wide = create_bidirectional_mask(
        config=encoder.config, inputs_embeds=states, attention_mask=mask
    )
    for layer in layers:
        states = layer(states, wide)
    return states


def _compute_states(
    branch: EncoderBranch,
    frozen_layers: int | Literal["all"],
    rows: Mapping[str, Ids],
    *,
    in_bf16: bool,
) -> Iterator[tuple[str, Tensor]]:
    """Yield each row's key and states, from the shortest row to the longest."""
    branch.train(mode=False)
    left = sorted(rows.items(), key=lambda item: len(item[1]))
    device = branch.head.weight.device
    precision = torch.autocast(device.type, torch.bfloat16, enabled=in_bf16)
    starts = range(0, len(left), BATCH_ROWS)
    for start in track(starts, "frozen layers", len(starts), "batches", is_hidden=not left):
        batch = left[start : start + BATCH_ROWS]
        ids, mask = padded([torch.tensor(row) for _, row in batch], branch.pad_id)
        with torch.inference_mode(), precision:
            ids, mask = ids.to(device), mask.to(device)
            if frozen_layers == "all":
                states = branch.encoder(ids, attention_mask=mask).last_hidden_state
                states = branch.pool(states, mask).unsqueeze(1)  # (batch, 1, hidden)
            else:
                layers = _layers(branch)[:frozen_layers]
                states = _apply_layers(branch.encoder, layers, _embeddings(branch)(ids), mask)
            states = states.float().cpu()
        for (key, row), state in zip(batch, states, strict=True):
            yield key, state[: len(row)].clone()


def _read_states(
    folder: Path, keys: Iterable[str], paths: Iterable[Path] | None = None
) -> dict[str, Tensor]:
    """Return the cached states of the rows with these keys, memory-mapped from `folder`."""
    wanted = set(keys)
    states: dict[str, Tensor] = {}
    for path in paths or sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            states.update((key, file.get_tensor(key)) for key in wanted.intersection(file.keys()))
    return states
