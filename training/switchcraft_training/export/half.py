"""The graph for GPUs: the encoder in fp16, everything else as it is."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from switchcraft_training.export.onnx_graph import export_onnx
from switchcraft_training.finetune.model import RouterModel


def export_fp16(model: RouterModel, features: int, path: Path) -> None:
    """Write the graph with its encoder in fp16; the model stays as it is.

    Pooling adds up to 512 states and trees part counts by thresholds: 11 bits are for neither.
    """
    halved = deepcopy(model)
    halved.encoder.encoder.half()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    export_onnx(halved, features, path)
