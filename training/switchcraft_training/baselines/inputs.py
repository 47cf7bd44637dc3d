"""Inputs of baselines: packed or truncated token ids of a query, and frozen embeddings of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.predictor.packing import Packer, PackingSpec, signature
from router_service.predictor.words import Ids
from switchcraft_training.data.table import Floats
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.frozen import row_inputs
from switchcraft_training.models.model import EncoderBranch
from switchcraft_training.models.optimization import device
from switchcraft_training.records import Example

View = Callable[[Example], Ids]
"""Function from an example to token ids, including the encoder's special tokens."""


class Views:
    """Views of examples (forms of their token ids) by one tokenizer, each computed only once."""

    def __init__(self, spec: PackingSpec, tokenizer: Tokenizer) -> None:
        self._window_tokens = spec.budget_tokens
        # Copies, because the packer changes how its tokenizer treats special tokens.
        self._packer = Packer(spec, Tokenizer.from_str(tokenizer.to_str()))
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # 4 bytes for a token, where a tuple has 36: 150,000 queries have 150 million tokens.
        self._cache: dict[tuple[str, bytes], NDArray[np.int32]] = {}

    def packed(self, example: Example) -> Ids:
        """Return the token ids that the gateway's encoder gets."""
        return self._cached("packed", example, lambda chat: self._packer.pack(chat).token_ids)

    def vanilla(self, example: Example) -> Ids:
        """Return token ids of the latest user message and all tool signatures, cut off at the end.

        This is the input of the MIRT router (appendix on the MIRT-DistilBERT baseline).
        """

        def read(chat: Conversation) -> Ids:
            latest = "" if chat.deciding_turn is None else chat.turns[chat.deciding_turn].text
            return self.text(" ".join([latest, *map(signature, chat.tools)]))

        return self._truncate(self._cached("vanilla", example, read))

    def truncated(self, example: Example) -> Ids:
        """Return token ids of the conversation from its start, then the tools, cut off at the end.

        This is the naive input of the appendix on token packing.
        """
        return self._truncate(self.raw(example))

    def raw(self, example: Example) -> Ids:
        """Return token ids of the whole conversation, then of the tools as JSON, not truncated."""

        def read(chat: Conversation) -> Ids:
            lines = []
            for turn in chat.turns:
                calls = (f"{call.name}({call.arguments})" for call in turn.tool_calls)
                lines.append(" ".join([f"{turn.role}:", turn.text, *calls]))
            return self.text("\n".join([*lines, orjson.dumps(example.request["tools"]).decode()]))

        return self._cached("raw", example, read)

    def text(self, text: str) -> Ids:
        """Return a text's token ids."""
        return tuple(self._tokenizer.encode(text).ids)

    def _cached(self, view: str, example: Example, read: Callable[[Conversation], Ids]) -> Ids:
        key = view, _digest(orjson.dumps(example.request))
        if key not in self._cache:
            ids = read(parse_conversation(example.request))
            self._cache[key] = np.array(ids, dtype=np.int32)
        return tuple(self._cache[key].tolist())

    def _truncate(self, ids: Ids) -> Ids:
        """Truncate token ids to the encoder's window, but keep the closing special token."""
        if len(ids) <= self._window_tokens:
            return ids
        return (*ids[: self._window_tokens - 1], ids[-1])


def turns(example: Example) -> int:
    """Return the number of turns of a conversation."""
    return len(parse_conversation(example.request).turns)


class Embedder(Protocol):
    """Function from token ids to vectors."""

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return a vector of length 1 for each row, (rows, hidden)."""
        ...


class EncoderEmbedder:
    """Embedder that returns an encoder's mean hidden state, scaled to length 1 (MIRT appendix)."""

    def __init__(self, encoder: PretrainedEncoder, cache: Path | None = None) -> None:
        """Use `encoder`. Vectors are cached in memory, and hidden states in the folder `cache`."""
        branch = EncoderBranch(encoder.model, 1, pooling="mean", dropout=0.0)
        self._branch = branch.to(device())
        self._cache = cache
        self._vectors: dict[bytes, Floats] = {}

    def __call__(self, rows: Sequence[Ids]) -> Floats:
        """Return a vector for each row, (rows, hidden). Each distinct row is computed once."""
        keys = [_digest(np.array(row, dtype=np.int32).tobytes()) for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._vectors}
        if new:
            states = torch.cat(
                row_inputs(self._branch, "all", list(new.values()), self._cache, in_bf16=True)
            )
            vectors = torch.nn.functional.normalize(states, dim=1).double().numpy()
            self._vectors.update(zip(new, vectors, strict=True))
        return np.stack([self._vectors[key] for key in keys])


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
