"""Small encoders of three architectures, saved to a folder as on a model hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    DebertaV2Config,
    DebertaV2Model,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

CORPUS = "What is the weather in Paris? weather(city: string, days?: integer) ; 0 1 2 3 4, 5"
SIZE: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def roberta() -> PreTrainedModel:
    """Return an encoder whose positions start after its padding's id, with a pooler."""
    config = RobertaConfig(
        **SIZE,
        max_position_embeddings=514,
        type_vocab_size=1,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    return RobertaModel(config)


def deberta() -> PreTrainedModel:
    """Return an encoder with relative positions, as in DeBERTa-v3."""
    relative: dict[str, Any] = {
        "relative_attention": True,
        "position_buckets": 32,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    }
    config = DebertaV2Config(**SIZE, **relative, type_vocab_size=0, pad_token_id=0)
    return DebertaV2Model(config)


def modernbert() -> PreTrainedModel:
    """Return an encoder with rotary positions, whose second layer sees only 16 tokens."""
    config = ModernBertConfig(
        **SIZE,
        local_attention=16,
        layer_types=["full_attention", "sliding_attention"],
        pad_token_id=3,
        bos_token_id=0,
        cls_token_id=0,
        eos_token_id=2,
        sep_token_id=2,
    )
    return ModernBertModel(config)


STAND_INS: dict[str, tuple[Callable[[], PreTrainedModel], tuple[str, ...]]] = {
    # Special tokens in the order of their ids, 0 to 3.
    "roberta": (roberta, ("<s>", "<pad>", "</s>", "<unk>")),
    "deberta": (deberta, ("[PAD]", "[CLS]", "[SEP]", "[UNK]")),
    "modernbert": (modernbert, ("[CLS]", "[UNK]", "[SEP]", "[PAD]")),
}


def save(name: str, folder: Path) -> Path:
    """Save an encoder with random weights and a tokenizer of one sentence; return `folder`."""
    make, marks = STAND_INS[name]
    torch.manual_seed(0)
    make().save_pretrained(folder)
    tokenizer(marks).save_pretrained(folder)
    return folder


def tokenizer(marks: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with these special tokens, recognized by their names."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=110, special_tokens=list(marks))
    )
    by_letter = {mark.strip("[]<>/").lower(): mark for mark in marks}
    if "<s>" in marks:
        roles = {"cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>", "eos_token": "</s>"}
    else:
        roles = {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token=by_letter["pad"], unk_token=by_letter["unk"], **roles
    )
