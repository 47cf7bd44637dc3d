"""The router's model: packed conversations in, calibrated probabilities of every arm out.

Calibration is a monotone map for each arm from the graph's output to a probability. The
thresholds and drifts of policies are only meaningful for calibrated probabilities. The maps are
part of the manifest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from pydantic import Field, model_validator

from router_service.core.errors import ArtifactError
from router_service.core.resources import return_freed
from router_service.core.values import Strict
from router_service.policies.costs import NonNegative
from router_service.predictor.packing import Packed

Floats = NDArray[np.float64]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]

NEAREST = 1e-6
"""Raw probabilities are clipped to keep this distance from 0 and 1, where logits are infinite."""


class IdentityCalibration(Strict):
    """No calibration: the graph's output is the probability."""

    method: Literal["identity"] = "identity"

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for; None for any number."""
        return None

    def apply(self, probabilities: Floats) -> Floats:
        """Return probabilities (batch, arms) unchanged."""
        return probabilities


class Temperature(Strict):
    """Temperature scaling: all logits are divided by one number (Guo et al., 2017, section 4.2).

    arXiv 1706.04599.
    """

    method: Literal["temperature"] = "temperature"
    temperature: float = Field(gt=0, allow_inf_nan=False)

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for; None for any number."""
        return None

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        return sigmoid(logit(probabilities) / self.temperature)


class Platt(Strict):
    """Platt scaling: a linear map of each arm's logit that does not fall (Platt, 1999)."""

    method: Literal["platt"] = "platt"
    slopes: tuple[NonNegative, ...]
    intercepts: tuple[Number, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> Platt:
        if len(self.slopes) != len(self.intercepts):
            raise ValueError(f"{len(self.slopes)} slopes, but {len(self.intercepts)} intercepts")
        return self

    @property
    def arms(self) -> int | None:
        """Number of arms that the map is for."""
        return len(self.slopes)

    def apply(self, probabilities: Floats) -> Floats:
        """Calibrate raw probabilities (batch, arms)."""
        return sigmoid(logit(probabilities) * np.array(self.slopes) + np.array(self.intercepts))


Calibration = Annotated[IdentityCalibration | Temperature | Platt, Field(discriminator="method")]
Method = Literal["identity", "temperature", "platt"]

IDENTITY = IdentityCalibration()


def logit(probabilities: Floats, nearest: float = NEAREST) -> Floats:
    """Return the log-odds of probabilities that keep the distance `nearest` from 0 and 1."""
    # For a few numbers, `np.clip` takes 10 us, and these two functions 2 us.
    inside = np.minimum(np.maximum(probabilities, nearest), 1 - nearest)
    odds: Floats = np.log(inside) - np.log1p(-inside)
    return odds


def sigmoid(logits: Floats) -> Floats:
    """Return the probabilities of log-odds, without overflow."""
    # The argument of exp is never positive, so it does not overflow.
    small = np.exp(-np.abs(logits))
    probabilities: Floats = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return probabilities


Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

CUDA_PROVIDER = "CUDAExecutionProvider"
PROVIDERS: dict[str, list[str | tuple[str, dict[str, str]]]] = {
    "cpu": ["CPUExecutionProvider"],
    # TF32 would reduce the mantissa to 10 bits, although the graph is declared FP32.
    "cuda": [(CUDA_PROVIDER, {"use_tf32": "0"}), "CPUExecutionProvider"],
}

NO_CUDA_BUILD = (
    "the installed ONNX Runtime is built without CUDA. Use the GPU image, or install"
    " switchcraft-router[gpu] after `pip uninstall onnxruntime`, or set router.device: cpu"
)
NO_CUDA_DEVICE = (
    "ONNX Runtime cannot use a CUDA device, and has written the cause to stderr. Check that"
    " `nvidia-smi` works where the gateway runs (a container needs a GPU: `--gpus all`, or a limit"
    " of nvidia.com/gpu) and that its driver supports the installed CUDA, or set router.device: cpu"
)
"""Why a graph for GPUs cannot run, and what to do."""

BATCHING_KEY = "switchcraft.rows"
"""Metadata key of a graph file: whether the rows of a batch can be run together."""
INDEPENDENT_ROWS = "together"
"""Value of `BATCHING_KEY` if no row changes another row's output."""

DEMAND = "demand"
"""Name of the output that predicts how many calls a request asks for; older graphs lack it."""

BUCKET_TOKENS = 64
"""Rows of one batch differ in length by less than this, so that little of a batch is padding."""
MAX_BATCH_TOKENS = 32_768
"""Largest number of tokens in a batch, padding included: 64 rows of 512 tokens."""


class Graph:
    """One ONNX graph in an inference session.

    May be shared by threads. Releases the GIL while it runs.
    """

    def __init__(self, source: Path | bytes, *, device: str = "cpu", threads: int = 1) -> None:
        """Load a file, or its content. Raises ArtifactError if it does not load on the device.

        Each run uses one thread by default, because decisions run concurrently. With 64 concurrent
        decisions, each takes 8% less CPU time than with two threads per run. A single run at 512
        tokens takes 6.1 ms with one thread and 5.0 ms with two; at 64 and 200 tokens, both take the
        same time.
        """
        path = source if isinstance(source, Path) else Path("graph in memory")
        if device == "cuda":
            if not has_cuda():
                raise ArtifactError(path, f"cannot run on a GPU: {NO_CUDA_BUILD}")
            with redirect_stdout(sys.stderr):  # where it prints which libraries it does not find
                ort.preload_dlls()  # CUDA libraries from the packages of the runtime's extras
        _share_working_memory()
        options = ort.SessionOptions()
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.intra_op_num_threads = threads
        # Rows have many lengths, and a pattern would be kept for each: 5 MB, and no time is saved.
        options.enable_mem_pattern = False
        # Spinning threads save 0.3 of 1.5 ms, but cost a third of the event loop's throughput.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            session = ort.InferenceSession(
                str(source) if isinstance(source, Path) else source,
                sess_options=options,
                providers=PROVIDERS[device],
                # The fused kernel takes 118 us for 220 tokens, its two parts take 19 us.
                disabled_optimizers=["SkipLayerNormFusion"] if device == "cpu" else None,
            )
        except Exception as exc:  # the runtime does not export its own error classes
            raise ArtifactError(path, f"cannot be loaded as an ONNX graph: {exc}") from exc
        return_freed()
        self.provider: str = session.get_providers()[0]
        """The execution provider of ONNX Runtime that runs the graph."""
        # If CUDA does not load, the runtime only logs an error and uses the CPU.
        if device == "cuda" and self.provider != CUDA_PROVIDER:
            raise ArtifactError(path, f"cannot run on a GPU: {NO_CUDA_DEVICE}")
        output = session.get_outputs()[0]
        self._session = session
        self._inputs = {node.name for node in session.get_inputs()}
        self._output: str = output.name
        self.arms: int = output.shape[-1]
        self.has_demand = DEMAND in {node.name for node in session.get_outputs()}

    @property
    def rows_are_independent(self) -> bool:
        """Whether the file's metadata states that no row of a batch changes another row's output.

        A dynamically quantized graph scales its activations over the whole batch. A file without
        the metadata may hold such a graph.
        """
        declared: str | None = self._session.get_modelmeta().custom_metadata_map.get(BATCHING_KEY)
        return declared == INDEPENDENT_ROWS

    def run(
        self, input_ids: Int64s, attention_mask: Int64s, features: Float32s
    ) -> tuple[Float32s, Float32s | None]:
        """Return the raw probabilities of a batch, (batch, arms), and its demand for calls.

        The demand, (batch, 3), has the probabilities of no call, one call and several calls. It is
        None if the graph does not predict it.

        `input_ids` and `attention_mask` are (batch, tokens), `features` is (batch, features).
        """
        feed: dict[str, Int64s | Float32s] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "features": features,
        }
        names = (self._output, DEMAND) if self.has_demand else (self._output,)
        found = self._evaluate({name: feed[name] for name in self._inputs}, names)
        return found[0], found[1] if self.has_demand else None

    def evaluate(self, inputs: Mapping[str, Int64s | Float32s]) -> Float32s:
        """Return the graph's first output for inputs by name; the first dimension is the batch."""
        return self._evaluate(inputs, (self._output,))[0]

    def _evaluate(
        self, inputs: Mapping[str, Int64s | Float32s], outputs: Sequence[str]
    ) -> list[Float32s]:
        if self.provider != CUDA_PROVIDER:  # a small graph takes 7 us, and 12 us with a binding
            found: list[Float32s] = self._session.run(outputs, inputs)
            return found
        # A binding leaves the inputs in host memory until a node on another device reads them.
        binding = self._session.io_binding()
        for name, values in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(values))
        for name in outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        copied: list[Float32s] = binding.copy_outputs_to_cpu()
        return copied


@cache
def _share_working_memory() -> None:
    """Register one memory arena for all graphs of the process.

    Two sessions of the shipped graph, each used by two threads, then keep 20 MB instead of 37.
    """
    kind, memory = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtMemType.DEFAULT
    ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, memory), None)


def has_cuda() -> bool:
    """Return whether the installed runtime was built for CUDA."""
    return CUDA_PROVIDER in ort.get_available_providers()


@dataclass(frozen=True, slots=True)
class Execution:
    """How a router runs its model."""

    graph: str
    """Name of the graph's file in the artifact."""
    provider: str
    """The execution provider of ONNX Runtime that runs it."""
    warning: str | None = None
    """Why the configured device is not used, and what to do; None if it is."""

    def __str__(self) -> str:
        """Return the graph and the provider, such as `model.fp16.onnx on ...`."""
        return f"{self.graph} on {self.provider}"


class Classifier:
    """A graph with its calibration.

    The service, the check of canary requests and the evaluation all use this class. May be shared
    by threads.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        arms: int,
        calibration: Calibration = IDENTITY,
        device: str = "cpu",
        graph: Graph | None = None,
    ) -> None:
        """Load the graph, or use `graph`, which was loaded from the same file for this device.

        Raises ArtifactError if the graph does not load or has another number of arms. Training
        fits a calibration on the raw probabilities that the default calibration returns.
        """
        self.graph = graph or Graph(model_path, device=device)
        if self.graph.arms != arms:
            problem = f"has {self.graph.arms} outputs, but needs one for each of {arms} arms"
            raise ArtifactError(model_path, problem)
        # On CPUs, a batch would change the last bits of a row's output. Two threads with one row
        # each are about as fast: 603 rows of 90 tokens per second, and 690 in batches of 8.
        self._uses_batches = device != "cpu" and self.graph.rows_are_independent
        self._calibration = calibration

    def predict(self, packed: Sequence[Packed]) -> NDArray[np.float64]:
        """Return the probability that each arm answers correctly, (len(packed), arms)."""
        return self.predict_with_demand(packed)[0]

    def predict_with_demand(
        self, packed: Sequence[Packed]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return the probabilities of `predict`, and the demand for calls as in `Graph.run`.

        No row changes another row's probabilities: rows run one at a time or, on a GPU
        and if the graph allows it, in padded and masked batches.
        """
        raw = np.empty((len(packed), self.graph.arms), dtype=np.float64)
        demand = np.empty((len(packed), 3)) if self.graph.has_demand else None
        batches: Iterator[list[int]] = ([row] for row in range(len(packed)))
        if self._uses_batches:
            batches = batches_by_length([len(row.token_ids) for row in packed])
        for rows in batches:
            raw[rows], found = self.graph.run(*pad_rows([packed[row] for row in rows]))
            if demand is not None:
                demand[rows] = found
        return self._calibration.apply(raw), demand


def batches_by_length(
    lengths: Sequence[int], max_batch_tokens: int = MAX_BATCH_TOKENS
) -> Iterator[list[int]]:
    """Yield batches of row indices, of similar length and padded to at most `max_batch_tokens`.

    A row that is longer than this limit gets its own batch.
    """
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for _, bucket in groupby(by_length, key=lambda row: lengths[row] // BUCKET_TOKENS):
        rows = list(bucket)
        size = max(1, max_batch_tokens // max(1, lengths[rows[-1]]))
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def pad_rows(rows: Sequence[Packed]) -> tuple[Int64s, Int64s, Float32s]:
    """Return ids and mask, (rows, longest), and features, (rows, features)."""
    features = np.array([row.features for row in rows], dtype=np.float32)
    if len(rows) == 1:
        input_ids = np.array([rows[0].token_ids], dtype=np.int64)
        return input_ids, np.ones_like(input_ids), features
    longest = max(len(row.token_ids) for row in rows)
    input_ids = np.zeros((len(rows), longest), dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    for i, row in enumerate(rows):
        input_ids[i, : len(row.token_ids)] = row.token_ids
        attention_mask[i, : len(row.token_ids)] = 1
    return input_ids, attention_mask, features
