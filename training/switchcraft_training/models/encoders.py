"""Pretrained encoders, loaded by Hugging Face name, from a folder, or from a Python package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from router_service.core.errors import ConfigError
from router_service.predictor.packing import PackingSpec
from switchcraft_training.models.optimization import WIDTH_STEP

_BERT_TO_DISTILBERT = (
    (r"^encoder\.layer\.", "transformer.layer."),
    (r"attention\.self\.query", "attention.q_lin"),
    (r"attention\.self\.key", "attention.k_lin"),
    (r"attention\.self\.value", "attention.v_lin"),
    (r"attention\.output\.dense", "attention.out_lin"),
    (r"attention\.output\.LayerNorm", "sa_layer_norm"),
    (r"intermediate\.dense", "ffn.lin1"),
    (r"output\.dense", "ffn.lin2"),
    (r"output\.LayerNorm", "output_layer_norm"),
)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """A tokenizer's special tokens: at the start of a row, and between its segments."""

    first: str = "[CLS]"
    separator: str = "[SEP]"


@dataclass(frozen=True, slots=True)
class PretrainedEncoder:
    """An encoder with its tokenizer, and the name with which it was loaded."""

    name: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    marks: SpecialTokens = SpecialTokens()


def load_encoder(source: str) -> PretrainedEncoder:
    """Load an encoder; a BERT becomes the DistilBERT that computes the same hidden states.

    Raises ConfigError if the package of a `package:` source is not installed, if the encoder does
    not exist, or if its tokenizer has no fast version or no special tokens.
    """
    location = find_encoder(source)
    # Its bar of a few milliseconds would break the lines of ours.
    disable_progress_bar()
    with _as_config_error(source):
        model = AutoModel.from_pretrained(location, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(location)
    return _prepare(source, model, tokenizer)  # pyrefly: ignore[bad-argument-type]


def load_untrained(source: str) -> PretrainedEncoder:
    """Load an encoder with random weights, which needs only its configuration and tokenizer.

    Raises the errors of `load_encoder`.
    """
    location = find_encoder(source)
    with _as_config_error(source):
        config = AutoConfig.from_pretrained(location)
        model = AutoModel.from_config(config, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(location)
    return _prepare(source, model, tokenizer)  # pyrefly: ignore[bad-argument-type]


def find_encoder(source: str) -> str:
    """Return the folder of a `package:` source; other sources are returned as they are.

    Raises ConfigError if the package is not installed.
    """
    if not source.startswith("package:"):
        return source
    # `find_spec` does not import the package, which might need dependencies that the encoder does
    # not need.
    package, _, folder = source.removeprefix("package:").partition("/")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        problem = f"the Python package {package!r} is not installed; install it with pip"
        raise ConfigError(source, "encoder.source", problem)
    return str(Path(spec.submodule_search_locations[0]) / folder)


@contextmanager
def _as_config_error(source: str) -> Iterator[None]:
    """Raise the library's errors in the block as ConfigError."""
    try:
        yield
    except (OSError, ValueError) as exc:
        problem = f"the encoder cannot be loaded; check its name or folder: {exc}"
        raise ConfigError(source, "encoder.source", problem) from exc


def _prepare(source: str, model: Any, tokenizer: PreTrainedTokenizerBase) -> PretrainedEncoder:  # noqa: ANN401 - attributes differ by architecture
    if isinstance(model, BertModel):
        model = distilbert_from_bert(model)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # Parameters that are not used break training with several processes.
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        problem = "its tokenizer has no `tokenizer.json`; choose another encoder"
        raise ConfigError(source, "encoder.source", problem)
    first = tokenizer.cls_token or tokenizer.bos_token
    separator = tokenizer.sep_token or tokenizer.eos_token
    if first is None or separator is None:
        problem = (
            "its tokenizer has no special tokens for the start and end of a row; choose another"
            " encoder"
        )
        raise ConfigError(source, "encoder.source", problem)
    marks = SpecialTokens(first, separator)
    return PretrainedEncoder(source, model, tokenizer.backend_tokenizer, marks)


def packing_for(encoder: PretrainedEncoder, spec: PackingSpec) -> PackingSpec:
    """Return the packing settings with the encoder's special tokens instead of `[CLS]` and `[SEP]`.

    Raises ConfigError if the token budget is larger than the encoder's window.
    """
    window_tokens = _window_tokens(encoder.model)
    if window_tokens is not None and spec.budget_tokens > window_tokens:
        problem = f"{encoder.name} reads at most {window_tokens} tokens; lower the budget"
        raise ConfigError(str(spec.budget_tokens), "packing.budget_tokens", problem)
    default, own = SpecialTokens(), encoder.marks
    template = spec.template.replace(default.first, own.first)
    template = template.replace(default.separator, own.separator)
    return spec.model_copy(update={"template": template})


def distilbert_from_bert(bert: BertModel) -> DistilBertModel:
    """Return a DistilBERT that computes the hidden states of a BERT, for single-segment input.

    DistilBERT has no token types, so the embedding of type 0 is added to every position embedding.
    The pooler is dropped. Raises RuntimeError if a weight is unused or missing.
    """
    config = bert.config
    weights = {}
    for name, tensor in bert.state_dict().items():
        if not re.match(r"pooler|embeddings\.(token_type|position_ids)", name):
            for pattern, replacement in _BERT_TO_DISTILBERT:
                name = re.sub(pattern, replacement, name)  # noqa: PLW2901 - renamed step by step
            weights[name] = tensor
    segment = bert.embeddings.token_type_embeddings.weight[0]
    positions = "embeddings.position_embeddings.weight"
    weights[positions] = weights[positions] + segment
    distilled = DistilBertModel(
        DistilBertConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            dim=config.hidden_size,
            hidden_dim=config.intermediate_size,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            activation=config.hidden_act,
            dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
            pad_token_id=config.pad_token_id,
        )
    )
    distilled.load_state_dict(weights, strict=True)
    return distilled


def _window_tokens(model: PreTrainedModel) -> int | None:
    """Return the encoder's maximum number of tokens, as a multiple of `WIDTH_STEP`.

    None means no limit: the encoder has no position embeddings.
    """
    embeddings = getattr(model, "embeddings", None)
    positions = getattr(embeddings, "position_embeddings", None)
    if positions is None:
        return None
    # RoBERTa's positions start after the position of padding.
    offset = 0 if positions.padding_idx is None else positions.padding_idx + 1
    return int(positions.num_embeddings - offset) // WIDTH_STEP * WIDTH_STEP
