"""Sentence embeddings of a pretrained encoder, for the comparison of paraphrases."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils.logging import disable_progress_bar

from switchcraft_training.checking.paraphrase import Embed
from switchcraft_training.finetune.encoders import load_encoder


def encoder_embeddings(source: str) -> Embed:
    """Return a function from text to the mean of the encoder's hidden states, of length 1.

    `source` is a Hugging Face name, a folder, or `package:NAME/FOLDER`. Raises ConfigError where
    it names no installed package.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call] # transformers ships no types for it
    encoder = load_encoder(source)
    encoder.tokenizer.no_padding()  # a packaged tokenizer may pad every text to one length
    encoder.model.train(mode=False)

    def embed(text: str) -> NDArray[np.float32]:
        ids = torch.tensor([encoder.tokenizer.encode(text).ids])  # (1, tokens)
        with torch.inference_mode():
            hidden = encoder.model(input_ids=ids, attention_mask=torch.ones_like(ids))
        mean = hidden.last_hidden_state[0].mean(0)  # (hidden,)
        vector: NDArray[np.float32] = (mean / mean.norm()).numpy()
        return vector

    return embed
