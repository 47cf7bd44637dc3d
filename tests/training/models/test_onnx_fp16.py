"""The fp16 graph for GPUs, and whether the rows of a batch are independent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from router_service.predictor.model import Classifier, Graph, batches_by_length, pad_rows
from switchcraft_training.models.export import export_fp16, export_int8
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.training import train_router
from tests.training.models.cases import config, encoder, rows

pytestmark = pytest.mark.slow

DATA = rows(80, 1)
SHARES = {"networks": 2, "lexical": 1, "encoder": 2}


@pytest.fixture(scope="module")
def model() -> RouterModel:
    """Return a router whose encoder has a share."""
    return train_router(encoder(), config(shares=SHARES, max_epochs=1), DATA, DATA).model


@pytest.fixture(scope="module")
def folder(model: RouterModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of its graphs: `all.int8.onnx`, `all.fp32.onnx`, `all.fp16.onnx`."""
    folder = tmp_path_factory.mktemp("graphs")
    export_int8(model, 2, folder / "all.int8.onnx")
    export_fp16(model, 2, folder / "all.fp16.onnx")
    return folder


@pytest.mark.parametrize(("name", "tolerance"), [("all.fp32", 1e-6), ("all.fp16", 1e-3)])
def test_rows_are_independent_of_their_batch(folder: Path, name: str, tolerance: float) -> None:
    """Padding is masked, and a row's prediction does not depend on the other rows."""
    path = folder / f"{name}.onnx"
    graph, alone = Graph(path), Classifier(path, arms=2).predict(DATA.packed)
    assert graph.rows_are_independent
    lengths = [len(row.token_ids) for row in DATA.packed]
    batches = list(batches_by_length(lengths, max_batch_tokens=100))
    assert 1 < len(batches) < len(lengths)
    together = np.empty_like(alone)
    for batch in batches:
        together[batch], _ = graph.run(*pad_rows([DATA.packed[row] for row in batch]))
    np.testing.assert_allclose(together, alone, rtol=0, atol=tolerance)
