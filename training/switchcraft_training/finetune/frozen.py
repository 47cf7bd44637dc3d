"""Layers that keep their pretrained weights: what they say of a row is computed once, and kept."""

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
from tqdm import tqdm
from transformers import DistilBertModel, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from router_service.core.errors import ConfigError
from router_service.core.packing import Ids
from switchcraft_training.finetune.acceleration import is_main_process
from switchcraft_training.finetune.batches import padded
from switchcraft_training.finetune.model import EncoderBranch

log = logging.getLogger(__name__)

Frozen = int | Literal["all"] | None

SHARD_ROWS = 2048
"""Rows of one file: of 300 tokens and 768 wide, 2 GB, all that is held in memory at a time."""

BATCH_ROWS = 32


class UpperLayers(nn.Module):
    """What is trained of a branch above its frozen layers; weights are shared with the branch."""

    def __init__(self, branch: EncoderBranch, frozen_layers: int | Literal["all"]) -> None:
        super().__init__()
        layers = [] if frozen_layers == "all" else list(_layers(branch)[frozen_layers:])
        self.layers = nn.ModuleList(layers)
        self.dropout, self.head = branch.dropout, branch.head
        self._branch = (branch,)  # in a tuple, so that its frozen weights are none of this module's

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, heads) for what the frozen layers said, (batch, tokens, hidden)."""
        (branch,) = self._branch
        if self.layers:
            states = _run(branch.encoder, self.layers, states, attention_mask)
        return branch.decide(states, attention_mask)


def freeze(branch: EncoderBranch, frozen_layers: Frozen) -> nn.Module:
    """Fix what keeps its pretrained weights; return what is trained: inputs, mask -> logits.

    Raises ConfigError where the encoder cannot be parted there.
    """
    if frozen_layers is None:
        return branch
    _embeddings(branch).requires_grad_(requires_grad=False)
    if frozen_layers == 0:
        return branch
    _check(branch.encoder, frozen_layers)
    fixed = branch.encoder if frozen_layers == "all" else _layers(branch)[:frozen_layers]
    fixed.requires_grad_(requires_grad=False)
    return UpperLayers(branch, frozen_layers)


def row_inputs(
    branch: EncoderBranch, frozen_layers: Frozen, rows: Sequence[Ids], cache: Path | None
) -> list[Tensor]:
    """Return what the trained part reads of each row: ids (tokens,), or states (tokens, hidden).

    States are read from `cache` where they are there, else computed, and written there; with
    everything frozen they are the pooled state alone, (1, hidden). Call it before training.
    """
    if frozen_layers is None or frozen_layers == 0:
        return [torch.tensor(row) for row in rows]
    keys = [sha256(np.asarray(row, np.int64).tobytes()).hexdigest() for row in rows]
    by_key = dict(zip(keys, rows, strict=True))
    folder = None if cache is None else cache / _name(branch, frozen_layers)
    states = {} if folder is None else _read(folder, by_key)
    found = len(states)
    missing = {key: row for key, row in by_key.items() if key not in states}
    for shard in _shards(_computed(branch, frozen_layers, missing)):
        states.update(shard if folder is None else _kept(shard, folder))
    kept = "memory" if folder is None else folder
    log.info("states of frozen layers: %d reused, %d computed (%s)", found, len(missing), kept)
    return [states[key] for key in keys]


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of a model's weights with their names."""
    digest = sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy())
    return digest.hexdigest()


def _check(encoder: PreTrainedModel, frozen_layers: int | Literal["all"]) -> None:
    where = "encoder.frozen_layers"
    if frozen_layers == "all":
        return
    if not isinstance(encoder, DistilBertModel):
        problem = "a number above 0 needs a DistilBERT or a BERT; use 0 or `all`"
        raise ConfigError(type(encoder).__name__, where, problem)
    if frozen_layers > encoder.config.n_layers:
        raise ConfigError(str(frozen_layers), where, f"it has {encoder.config.n_layers} layers")


def _embeddings(branch: EncoderBranch) -> nn.Module:
    embeddings = getattr(branch.encoder, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        problem = "its embeddings are not to be found; leave it out"
        raise ConfigError(type(branch.encoder).__name__, "encoder.frozen_layers", problem)
    return embeddings


def _layers(branch: EncoderBranch) -> nn.ModuleList:
    assert isinstance(branch.encoder, DistilBertModel)  # noqa: S101 - `_check` has refused others
    return branch.encoder.transformer.layer


def _run(
    encoder: PreTrainedModel, layers: Iterable[nn.Module], states: Tensor, mask: Tensor
) -> Tensor:
    """Pass states (batch, tokens, hidden) through layers as the encoder itself does."""
    wide = create_bidirectional_mask(
        config=encoder.config, inputs_embeds=states, attention_mask=mask
    )
    for layer in layers:
        states = layer(states, wide)
    return states


def _name(branch: EncoderBranch, frozen_layers: int | Literal["all"]) -> str:
    what = f"pooled-{branch.pooling}" if frozen_layers == "all" else f"layer-{frozen_layers}"
    return f"{weights_sha256(branch.encoder)}-{what}"


def _computed(
    branch: EncoderBranch, frozen_layers: int | Literal["all"], rows: Mapping[str, Ids]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the frozen layers' states of each row, the shortest rows first."""
    branch.train(mode=False)
    left = sorted(rows.items(), key=lambda item: len(item[1]))
    device = branch.head.weight.device
    is_hidden = not left or not is_main_process()
    starts = tqdm(range(0, len(left), BATCH_ROWS), desc="frozen layers", disable=is_hidden)
    for batch in (left[start : start + BATCH_ROWS] for start in starts):
        ids, mask = padded([torch.tensor(row) for _, row in batch], branch.pad_id)
        with torch.inference_mode():
            states = _states(branch, frozen_layers, ids.to(device), mask.to(device)).cpu()
        for (key, row), state in zip(batch, states, strict=True):
            yield key, state[: len(row)].clone()


def _states(
    branch: EncoderBranch, frozen_layers: int | Literal["all"], ids: Tensor, mask: Tensor
) -> Tensor:
    if frozen_layers == "all":
        states = branch.encoder(ids, attention_mask=mask).last_hidden_state
        return branch.pool(states, mask).unsqueeze(1)  # (batch, 1, hidden)
    embedded = _embeddings(branch)(ids)
    return _run(branch.encoder, _layers(branch)[:frozen_layers], embedded, mask)


def _shards(states: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    while shard := dict(islice(states, SHARD_ROWS)):
        yield shard


def _kept(shard: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Write states to a file of their own, and return them as they lie there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid4().hex}.safetensors"
    save_file(shard, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)
    return _read(folder, shard.keys(), (path,))


def _read(
    folder: Path, keys: Iterable[str], paths: Iterable[Path] | None = None
) -> dict[str, Tensor]:
    """Return the states of those rows that are there; the files stay on the disk, mapped."""
    wanted = set(keys)
    states: dict[str, Tensor] = {}
    for path in paths or sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            states.update((key, file.get_tensor(key)) for key in wanted.intersection(file.keys()))
    return states
