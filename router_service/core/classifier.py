"""ONNX session: packed conversations -> calibrated probabilities (batch, arms)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from router_service.core.calibration import IDENTITY, Calibration
from router_service.core.errors import ArtifactError
from router_service.core.packing import Packed

PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
}


NO_CUDA = (
    "cannot be run on cuda: the runtime finds none here; install switchcraft[gpu] where there is"
    " an NVIDIA driver, or set router.device: cpu"
)


class Classifier:
    """Runs an artifact's graph; may be shared by threads, and releases the GIL while it runs.

    The one place where what a graph says becomes a probability: service, canaries and evaluation
    have theirs from here.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        arms: int,
        calibration: Calibration = IDENTITY,
        device: str = "cpu",
        threads: int | None = None,
    ) -> None:
        """Load the graph; raises ArtifactError where it does not load or fit the arms.

        Without a calibration, probabilities are as the graph says, and a calibration is fitted
        on them.
        """
        self._session = _session(model_path, device, threads)
        self._inputs = {node.name for node in self._session.get_inputs()}
        output_arms = self._session.get_outputs()[0].shape[-1]
        if output_arms != arms:
            raise ArtifactError(model_path, f"has {output_arms} outputs for {arms} arms")
        self._calibration = calibration

    def predict(self, packed: Sequence[Packed]) -> NDArray[np.float64]:
        """Return the probability that each arm answers correctly, (len(packed), arms).

        Rows run one at a time: a dynamically quantized graph scales its activations over the
        whole batch, and a decision must not depend on its neighbours.
        """
        rows = [self._session.run(None, self._feed(row))[0] for row in packed]
        return self._calibration.apply(np.concatenate(rows).astype(np.float64))

    def _feed(self, row: Packed) -> dict[str, NDArray[np.generic]]:
        ids = np.asarray([row.token_ids], dtype=np.int64)  # (1, tokens)
        feed: dict[str, NDArray[np.generic]] = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
        }
        if "features" in self._inputs:
            feed["features"] = np.asarray([row.features], dtype=np.float32)  # (1, features)
        return feed


def _session(model_path: Path, device: str, threads: int | None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or min(4, os.cpu_count() or 1)
    # Spinning worker threads would take the core that the event loop needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    providers = PROVIDERS[device]
    if providers[0] not in ort.get_available_providers():
        raise ArtifactError(model_path, NO_CUDA)
    if device == "cuda":
        ort.preload_dlls()  # from the packages that the runtime's extras install
    try:
        session = ort.InferenceSession(str(model_path), sess_options=options, providers=providers)
    except Exception as exc:  # the runtime's own classes are not exported
        raise ArtifactError(model_path, f"is not a graph that loads: {exc}") from exc
    # Where CUDA does not load the runtime takes the CPU, and only warns.
    if session.get_providers()[0] != providers[0]:
        raise ArtifactError(model_path, NO_CUDA)
    return session
