"""The exported graph: only the encoder is quantized."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from router_service.predictor.model import Classifier, Graph, batches_by_length, pad_rows
from switchcraft_training.models.export import export_int8, full_precision
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.training import predict, train_router
from tests.training.models.cases import config, encoder, rows

SHARES = {"forest": 2, "networks": 2, "lexical": 1, "encoder": 1}
DATA = rows(80, 1)
pytestmark = pytest.mark.usefixtures("small_models")
"""Tolerance for sums in another order; 8-bit weights of the networks would change 2e-4."""


@cache
def router(*names: str) -> RouterModel:
    """Return a router with these branches and with demand; it is trained once for all tests."""
    shares = {name: SHARES[name] for name in names}
    data = DATA.take(range(80))
    data.expected_calls[:] = np.arange(80) % 3
    return train_router(encoder(), config(shares=shares, max_epochs=1), data, data).model


def said(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return a graph's predictions, row by row as in the service."""
    return Classifier(path, arms=2).predict(DATA.packed)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Return a function that exports a router with every branch once, for small models."""
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def export() -> Path:
        return export_int8(router(*SHARES), 2, folder / "all.int8.onnx")

    return export


def test_only_the_encoder_becomes_int8(exported: Callable[[], Path]) -> None:
    """Its matrices have 8 bits and change predictions slightly; other weights keep their bits."""
    graph = exported()
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


@pytest.mark.parametrize("name", SHARES)
def test_every_branch_can_be_exported_separately(name: str, tmp_path: Path) -> None:
    """A graph that does not use ids, or features, still accepts both as inputs."""
    model = router(name)
    graph = export_int8(model, 2, tmp_path / "one.int8.onnx")
    np.testing.assert_allclose(said(full_precision(graph)), predict(model, DATA), atol=1e-5)


def test_rows_are_independent_of_their_batch(exported: Callable[[], Path]) -> None:
    """Padding is masked, and a row's prediction does not depend on the other rows."""
    path = full_precision(exported())
    graph, alone = Graph(path), said(path)
    assert graph.rows_are_independent
    lengths = [len(row.token_ids) for row in DATA.packed]
    batches = list(batches_by_length(lengths, max_batch_tokens=100))
    assert 1 < len(batches) < len(lengths)
    together = np.empty_like(alone)
    for batch in batches:
        together[batch], _ = graph.run(*pad_rows([DATA.packed[row] for row in batch]))
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
