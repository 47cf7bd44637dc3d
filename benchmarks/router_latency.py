"""Latency of the shipped artifact's graph, compared with DistilBERT in ONNX Runtime and torch.

    python benchmarks/router_latency.py --out runs/router_latency.json
    python benchmarks/router_latency.py --device cuda --out runs/router_latency-cuda.json

The protocol is the paper's (appendix on router inference latency): synthetic ids of 64, 200 and 512
tokens in batches of 1 to 128, 50 warm-ups, 200 timed calls, wall clock. Contenders take turns in
ten rounds of each cell, with a tenth of the warm-ups and timed calls in each, so that their ratios
are valid even on a shared machine.

`switchcraft` is the shipped artifact, called through `Classifier` as in the service, with features
of its canary requests. `distilbert onnx` is DistilBERT's shape with a head of eight arms,
attention, layer norms and GELUs fused by ONNX Runtime's optimizer; `distilbert torch` the same in
eager mode. Their weights are random, which costs the same. FP32 is without TF32. On cuda both run
in fp16 too. With `--student`, so does an encoder of the shipped one's shape (one layer of width
128), without the artifact's other branches; its rows may run in batches. The shipped graph's rows
run one at a time, and on the CPU, because the shipped artifact has no graph for GPUs. With
`--modernbert`, so does ModernBERT's shape in eager mode. `MB` is the memory of the weights; on
cuda, for torch, with the peak of one call's activations. The ONNX contenders need `pip install
'onnxruntime-gpu[cuda,cudnn]'` in place of `onnxruntime`, and are left out with a note where it is
not installed.

On CPUs, a call of DistilBERT takes up to 40 s. Cells of more than `--peer-tokens` therefore measure
only the artifact, and above batch 1, a contender is timed for `--cell-s` seconds or 3 calls (`n`).
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from onnxruntime.transformers import optimizer
from transformers import (
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
)

from benchmarks.stamp import write_figures
from router_service.artifact import SHIPPED, Artifact
from router_service.predictor.model import Classifier, Graph, has_cuda
from router_service.predictor.packing import Packed, Packer
from switchcraft_training.models.model import EncoderBranch

Call = Callable[[], object]
Ids = NDArray[np.int64]

ARMS = 8
ROUNDS = 10
WARM_UPS, TIMED = 50, 200
LEAST_TIMED = 3
P99_GOALS_MS = {64: 3.2, 200: 7.4, 512: 17.1}
"""The paper's P99 at batch 1 on a T4."""
T4_P50_MS = {
    64: {1: 3.1, 8: 12.6, 32: 48.0, 64: 88.7, 128: 194.8},
    200: {1: 7.2, 8: 40.5, 32: 167.0, 64: 344.5, 128: 683.0},
    512: {1: 16.6, 8: 121.2, 32: 501.8, 64: 994.2, 128: 1989.9},
}
"""The paper's P50 of DistilBERT in FP32 on a T4, by tokens and batch (table `latency-t4`)."""
LEAST_RATIO = 10
OURS, EAGER = "switchcraft", "distilbert torch fp32"
HEADER = (
    f"{'':<22} batch tokens    n   P50 (rounds' least to most)      P95      P99 ms  queries/s"
    "      MB"
)
LINE = (
    "{contender:<22} {batch:>5} {tokens:>6} {n:>4} {p50_ms:>8.2f} "
    "({fastest_round_ms:.2f} to {slowest_round_ms:.2f}) {p95_ms:>8.2f} {p99_ms:>8.2f}"
    " {queries_per_s:>10,.0f} {memory_mb:>7,.0f}"
)


class Cell(NamedTuple):
    """A batch of rows of equal length."""

    batch: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Contender:
    """Function from ids (batch, tokens) to a call that ends with its results on the host."""

    name: str
    prepare: Callable[[Ids], Call]
    weights_mb: float


@dataclass(frozen=True, slots=True)
class Timed:
    """Milliseconds of one contender's calls in one cell, by round."""

    contender: str
    cell: Cell
    memory_mb: float
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def calls_ms(self) -> NDArray[np.float64]:
        """All calls, in order."""
        return np.array([ms for each in self.rounds for ms in each])

    @property
    def medians_ms(self) -> NDArray[np.float64]:
        """The median of each round."""
        return np.array([np.median(each) for each in self.rounds])

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of all calls."""
        return float(np.percentile(self.calls_ms, 99))

    @property
    def queries_per_s(self) -> float:
        """Rows per second of consecutive calls."""
        return 1e3 * self.cell.batch / float(self.calls_ms.mean())

    def row(self) -> dict[str, str | int | float]:
        """Return the figures, in ms and queries a second."""
        p50, p95 = np.percentile(self.calls_ms, [50, 95]).tolist()
        return {
            "contender": self.contender,
            **self.cell._asdict(),
            "n": len(self.calls_ms),
            "memory_mb": self.memory_mb,
            "p50_ms": p50,
            "p95_ms": p95,
            "p99_ms": self.p99_ms,
            "fastest_round_ms": float(self.medians_ms.min()),
            "slowest_round_ms": float(self.medians_ms.max()),
            "queries_per_s": self.queries_per_s,
        }


class Goal(NamedTuple):
    """A goal and the measured figure."""

    name: str
    wanted: str
    found: float
    is_met: bool


def main() -> None:
    """Print a table, and write it as JSON if `--out` is given."""
    arguments = _arguments()
    timed: list[Timed] = []
    with TemporaryDirectory() as folder:
        contenders = _contenders(
            arguments.artifact, arguments.device, Path(folder), has_student=arguments.student
        )
        if arguments.modernbert:
            names = ("fp32", "fp16") if arguments.device == "cuda" else ("fp32",)
            for name in names:
                branch = _branch(ModernBertModel(ModernBertConfig()), name)
                contenders.append(_eager(f"modernbert torch {name}", branch, arguments.device))
        print(HEADER)
        for cell in (Cell(batch, n) for n in arguments.tokens for batch in arguments.batches):
            is_large = cell.batch * cell.tokens > arguments.peer_tokens
            figures = measure(contenders[:1] if is_large else contenders, cell, arguments.cell_s)
            for each in figures:
                print(LINE.format(**each.row()), flush=True)
            if cell.batch in T4_P50_MS.get(cell.tokens, {}):
                p50_ms = T4_P50_MS[cell.tokens][cell.batch]
                rate = 1e3 * cell.batch / p50_ms
                name = "paper: distilbert, T4"
                print(f"{name:<22} {cell.batch:>5} {cell.tokens:>6} {p50_ms:>13.2f} {rate:>50,.0f}")
            timed.extend(figures)
    goals = list(_goals(timed, arguments.device))
    for goal in goals:
        print(
            f"{'met' if goal.is_met else 'MISSED':<6} {goal.name} {goal.wanted}: {goal.found:,.2f}"
        )
    row = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "rows": [each.row() for each in timed],
        "goals": [goal._asdict() for goal in goals],
    }
    packages = ("onnxruntime-gpu" if has_cuda() else "onnxruntime", "torch", "transformers")
    write_figures(arguments.out, row, *packages)


def measure(contenders: Sequence[Contender], cell: Cell, cell_s: float) -> list[Timed]:
    """Time the contenders in turns; above batch 1 for about `cell_s` each, or 3 calls."""
    ids = np.random.default_rng(0).integers(1_000, 20_000, cell)
    calls = [contender.prepare(ids) for contender in contenders]
    counts = [_affordable(call, cell, cell_s) for call in calls]
    timed = [
        Timed(contender.name, cell, contender.weights_mb + _activations_mb(call))
        for contender, call in zip(contenders, calls, strict=True)
    ]
    for turn in range(ROUNDS):
        for call, count, figures in zip(calls, counts, timed, strict=True):
            share = count * (turn + 1) // ROUNDS - count * turn // ROUNDS
            for _ in range(share * WARM_UPS // TIMED):
                call()
            if share:
                figures.rounds.append([_ms(call) for _ in range(share)])
    return timed


def _activations_mb(call: Call) -> float:
    """Return the peak memory that torch allocates on the GPU during a call; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def _affordable(call: Call, cell: Cell, cell_s: float) -> int:
    """Return the number of timed calls, by the second call's time: on a GPU, the first is slow."""
    call()
    if cell.batch == 1:
        return TIMED
    return max(LEAST_TIMED, min(TIMED, int(cell_s * 1e3 / _ms(call))))


def _ms(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def _goals(timed: Sequence[Timed], device: str) -> Iterator[Goal]:
    by_place = {(each.contender, each.cell): each for each in timed}
    if device == "cuda":
        for name in ("distilbert", "student"):
            peers = [each for each in timed if each.contender.startswith(name)]
            yield from _cuda_goals(name, peers)
        return
    for tokens, limit_ms in P99_GOALS_MS.items():
        ours = by_place.get((OURS, Cell(1, tokens)))
        eager = by_place.get((EAGER, Cell(1, tokens)))
        if ours and eager:
            p99_ms = ours.p99_ms
            yield Goal(f"P99 at {tokens} tokens", f"<= {limit_ms} ms", p99_ms, p99_ms <= limit_ms)
            ratio = float(np.median(eager.medians_ms / ours.medians_ms))
            yield Goal(
                f"{EAGER} / {OURS} at {tokens}", f">= {LEAST_RATIO}", ratio, ratio >= LEAST_RATIO
            )


def _cuda_goals(name: str, peers: Sequence[Timed]) -> Iterator[Goal]:
    """Yield the goals for an H200, for the fastest of one encoder's precisions and runtimes."""
    latencies_ms = [each.p99_ms for each in peers if each.cell == Cell(1, 512)]
    if latencies_ms:
        best_ms = min(latencies_ms)
        yield Goal(f"{name}, P99 at 512 tokens", "<= 1.5 ms", best_ms, best_ms <= 1.5)
    rates = [each.queries_per_s for each in peers if each.cell.tokens == 64]
    if rates:
        best = max(rates)
        yield Goal(f"{name}, queries a second at 64 tokens", ">= 20,000", best, best >= 20_000)


def _contenders(
    directory: Path, device: str, folder: Path, *, has_student: bool
) -> list[Contender]:
    """Return the contenders, the artifact first; only torch's if the runtime has no CUDA."""
    precisions = ("fp32", "fp16") if device == "cuda" else ("fp32",)
    torch.manual_seed(0)
    shapes = {"distilbert": DistilBertConfig()}
    if has_student:
        shapes["student"] = DistilBertConfig(n_layers=1, n_heads=2, dim=128, hidden_dim=512)
    branches = {
        f"{name} {precision}": _branch(DistilBertModel(shape), precision)
        for name, shape in shapes.items()
        for precision in precisions
    }
    in_torch = [_eager(_named(n, "torch"), branch, device) for n, branch in branches.items()]
    if device == "cuda" and not has_cuda():
        print("skipping the ONNX contenders: the installed ONNX Runtime has no CUDA support")
        return in_torch
    in_onnx = [
        _in_runtime(_named(name, "onnx"), branch, device, folder / f"{name}.onnx")
        for name, branch in branches.items()
    ]
    return [_shipped(directory, device), *in_onnx, *in_torch]


def _shipped(directory: Path, device: str) -> Contender:
    artifact = Artifact.load(directory)
    packer = Packer(artifact.manifest.packing, artifact.tokenizer)
    counts = [packer.pack(canary.conversation).features for canary in artifact.canaries()]
    device = device if device in artifact.manifest.models else "cpu"
    path = artifact.model_path(device)
    classifier = Classifier(path, arms=len(artifact.manifest.arms), device=device)

    def prepare(ids: Ids) -> Call:
        rows = [
            Packed(tuple(row), counts[i % len(counts)], ()) for i, row in enumerate(ids.tolist())
        ]
        return lambda: classifier.predict(rows)

    return Contender(OURS, prepare, path.stat().st_size / 1e6)


def _named(name: str, runtime: str) -> str:
    """Return `distilbert onnx fp32` for `distilbert fp32`."""
    return name.replace(" ", f" {runtime} ")


def _branch(encoder: PreTrainedModel, precision: str) -> EncoderBranch:
    branch = EncoderBranch(encoder, ARMS, pooling="cls", dropout=0)
    if precision == "fp16":
        branch.encoder.half()
    return branch.eval()


def _eager(name: str, branch: EncoderBranch, device: str) -> Contender:
    placed = copy.deepcopy(branch).to(device)

    def prepare(ids: Ids) -> Call:
        host = torch.from_numpy(ids)

        def call() -> None:
            with torch.inference_mode():
                on_device = host.to(device)
                placed(on_device, torch.ones_like(on_device)).cpu()  # waits for the device

        return call

    weights_bytes = sum(p.numel() * p.element_size() for p in branch.parameters())
    return Contender(name, prepare, weights_bytes / 1e6)


def _in_runtime(name: str, branch: EncoderBranch, device: str, path: Path) -> Contender:
    _export(branch, path)
    graph = Graph(path, device=device, threads=os.cpu_count() or 1)

    def prepare(ids: Ids) -> Call:
        mask, no_counts = np.ones_like(ids), np.zeros((len(ids), 0), dtype=np.float32)
        return lambda: graph.run(ids, mask, no_counts)

    return Contender(name, prepare, path.stat().st_size / 1e6)


def _export(branch: EncoderBranch, path: Path) -> None:
    """Write the graph fused by ONNX Runtime's optimizer, which recognizes eager attention."""
    branch, config = copy.deepcopy(branch), branch.encoder.config
    branch.encoder.set_attn_implementation("eager")
    ids = torch.ones(2, 8, dtype=torch.long)
    free = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        branch,
        (ids, torch.ones_like(ids)),
        str(path),
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_axes={"input_ids": free, "attention_mask": free},
        opset_version=18,
        dynamo=False,
    )
    fused = optimizer.optimize_model(
        str(path), model_type="bert", num_heads=config.n_heads, hidden_size=config.dim, opt_level=0
    )
    fused.save_model_to_file(str(path))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--artifact", type=Path, default=SHIPPED)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 200, 512])
    parser.add_argument("--cell-s", type=float, default=10, help="see above")
    parser.add_argument(
        "--peer-tokens", type=int, help="see above; default: 4,096, unlimited on cuda"
    )
    parser.add_argument("--student", action="store_true", help="see above")
    parser.add_argument("--modernbert", action="store_true", help="see above")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    if arguments.peer_tokens is None:
        arguments.peer_tokens = 4_096 if arguments.device == "cpu" else 10**9
    return arguments


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # progress messages of the exporter and the optimizer
    warnings.simplefilter("ignore")
    main()
