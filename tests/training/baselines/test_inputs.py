"""Inputs of baselines: views of a query, and embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import DistilBertConfig, DistilBertModel

from router_service.predictor.words import Ids
from switchcraft_training.baselines.inputs import EncoderEmbedder
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.records import Example
from tests.training.baselines.cases import views


def long_chat() -> Example:
    """Return a conversation whose latest turn is far from its start."""
    messages = [
        {"role": "user", "content": "river " * 40},
        {"role": "assistant", "content": "cloud"},
        {"role": "user", "content": "violin"},
    ]
    return Example("q", "simple", {"messages": messages, "tools": []})


VIOLIN = views().text("violin")[0]


def test_truncation_loses_the_latest_turn_and_packing_keeps_it() -> None:
    """A truncated long conversation lacks its latest turn; a packed one contains it."""
    seen = views(budget_tokens=32)
    assert VIOLIN not in seen.truncated(long_chat())
    assert VIOLIN in seen.raw(long_chat())
    assert VIOLIN in seen.packed(long_chat())
    assert VIOLIN in seen.vanilla(long_chat())
    assert len(seen.truncated(long_chat())) == 32


class CountingModel(DistilBertModel):
    """A small encoder with random weights that counts the rows that it embeds."""

    rows = 0

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> object:
        """Embed, and count."""
        self.rows += len(args[0])
        return super().forward(*args, **kwargs)


def embedder(cache: Path | None = None) -> tuple[EncoderEmbedder, CountingModel]:
    """Return an embedder and its encoder."""
    torch.manual_seed(0)
    model = CountingModel(
        DistilBertConfig(vocab_size=50, dim=8, n_layers=1, n_heads=2, hidden_dim=8)
    )
    tokenizer = Tokenizer.from_str('{"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}')
    return EncoderEmbedder(PretrainedEncoder("small", model, tokenizer), cache), model


SHORT: Ids = (1, 5)
LONG: Ids = (1, 5, 6, 7, 8, 9, 10, 11)


def test_embedding_does_not_depend_on_its_batch() -> None:
    """Vectors have length 1, and padding to a longer row does not change them."""
    alone, _ = embedder()
    together, _ = embedder()
    beside = together([LONG, SHORT])
    np.testing.assert_allclose(alone([SHORT])[0], beside[1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(beside, axis=1), 1, atol=1e-6)


def test_each_row_is_embedded_once() -> None:
    """Repeated rows do not run the encoder again."""
    embed, model = embedder()
    first = embed([SHORT, LONG, SHORT])
    np.testing.assert_array_equal(embed([LONG, SHORT]), first[[1, 0]])
    assert model.rows == 2
