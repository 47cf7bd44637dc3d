"""The graph that ships: what is kept in fewer bits is the encoder's alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from router_service.core.model import Classifier
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.onnx_export import export_int8, export_onnx, full_precision
from switchcraft_training.models.training import predict, train_router
from tests.training.finetune.cases import config, encoder, rows

SMALL: dict[str, float] = {"forest": 2, "networks": 2, "lexical": 1}
DATA = rows(80, 1)
SUMS = 1e-6
"""Single-precision sums in another order; 8-bit weights of the networks alone moved 2e-4."""


def router(shares: dict[str, float]) -> RouterModel:
    """Train a router of these branches, demand included."""
    data = DATA.take(range(80))
    data.calls[:] = np.arange(80) % 3
    return train_router(encoder(), config(shares=shares, max_epochs=1), data, data).model


def said(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return what a graph answers, row by row as the service asks."""
    return Classifier(path, arms=2).predict(DATA.packed)


def operators(path: Path) -> set[str]:
    """Return what a graph computes."""
    return {node.op_type for node in onnx.load(str(path)).graph.node}


def test_without_the_encoder_nothing_is_quantized(tmp_path: Path) -> None:
    """Trees, networks and words answer alike in both graphs, and as torch does."""
    model = router(SMALL)
    graph = export_int8(model, 2, tmp_path / "small.int8.onnx")
    np.testing.assert_allclose(said(graph), said(full_precision(graph)), atol=SUMS)
    np.testing.assert_allclose(said(graph), predict(model, DATA), atol=1e-6)
    assert "DynamicQuantizeLinear" not in operators(graph)


def test_with_the_encoder_the_others_stay_as_they_are(tmp_path: Path) -> None:
    """An encoder whose head is 0 adds nothing: what int8 would change of the others would show."""
    model = router({**SMALL, "encoder": 1})
    for parameter in model.encoder.head.parameters():
        parameter.data.zero_()
    graph = export_int8(model, 2, tmp_path / "all.int8.onnx")
    assert "DynamicQuantizeLinear" in operators(graph)
    np.testing.assert_allclose(said(graph), said(full_precision(graph)), atol=SUMS)
    np.testing.assert_allclose(said(graph), predict(model, DATA), atol=1e-6)


def test_the_encoder_is_what_becomes_int8(tmp_path: Path) -> None:
    """Its matrices are 8 bits wide, and move the answers a little; the others' keep their bits."""
    graph = export_int8(router({**SMALL, "encoder": 1}), 2, tmp_path / "all.int8.onnx")
    int8, full = (
        {each.name: numpy_helper.to_array(each) for each in onnx.load(str(path)).graph.initializer}
        for path in (graph, full_precision(graph))
    )
    small = [name for name in full if name.startswith(("model.counts.", "model.lexical."))]
    assert any(name.startswith("model.lexical.") for name in small)
    for name in small:
        # Layers' weights are turned over on the way.
        kept = int8[name] if name in int8 else int8[f"{name}_Transposed"]
        np.testing.assert_array_equal(np.sort(kept, axis=None), np.sort(full[name], axis=None))
    assert any(values.dtype == np.int8 for values in int8.values())
    difference = float(np.abs(said(graph) - said(full_precision(graph))).max())
    assert 0 < difference < 0.05


def test_trees_and_attention_are_one_operator_each(tmp_path: Path) -> None:
    """The runtime has kernels for both; their parts take many times as long."""
    export_onnx(router({**SMALL, "encoder": 1}), 2, tmp_path / "all.onnx")
    found = operators(tmp_path / "all.onnx")
    assert {"TreeEnsemble", "Attention", "Gelu", "LayerNormalization"} <= found
    assert not {"Walk", "Softmax", "Where"} & found


@pytest.mark.parametrize("name", [*SMALL, "encoder"])
def test_every_branch_ships_alone(name: str, tmp_path: Path) -> None:
    """A graph that does not read ids, or does not read counts, is still asked with both."""
    model = router({name: 1})
    graph = export_int8(model, 2, tmp_path / "one.int8.onnx")
    np.testing.assert_allclose(said(full_precision(graph)), predict(model, DATA), atol=1e-5)
