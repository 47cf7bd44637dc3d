"""A DistilBERT router on a GPU as the service runs it: canary requests, latency, and the gateway.

    python benchmarks/gpu.py --device cuda --out runs/gpu

An artifact is exported as training exports it, with DistilBERT's shape, random weights, eight arms
and the shipped artifact's tokenizer. Random weights cost the same as trained ones. Its head is
scaled so that the probabilities of the canary requests are spread from nearly 0 to nearly 1, which
makes them as sensitive to rounding as those of a well-trained router.

Three things are measured, and written as Markdown and JSON:

1. By how much each graph's probabilities of the canary requests differ from those that the graph
   had at export, on the CPU. The limit is the artifact's tolerance. Two lines without a limit
   compare the fp16 graph's probabilities at export with the int8 graph's, and with torch's on the
   device if the encoder computes in fp16.
2. Latency of `Classifier.predict` for one request at a time, with synthetic ids of 64, 200 and 512
   tokens: the int8 graph on the CPU, and the fp16 graph on the GPU. Each thread predicts without
   pause for `--cell-s` seconds, as the gateway's decision threads do under load.
3. A gateway with the shipped artifact, with this artifact on the CPU, and with it on the GPU: the
   graph and provider that `/readyz` names, the time until it is ready, and its resident memory
   after the load. Requests one after another must be decided by the router. Then 1, 8 and 64
   connections send requests of 200 random words, each a token, which no cache knows; an upstream
   on this machine answers at once, and its own waiting time is subtracted from the gateway's.

The exit status is 1 if a canary request fails, or if the gateway does not run as configured, and 2
if there is no usable GPU. With `--device cpu`, only the int8 graph is measured, which tests the
script on any machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import DistilBertConfig, DistilBertModel

from benchmarks.load.bodies import ROUTED, framed
from benchmarks.load.client import Load, RefusedError, play
from benchmarks.load.contenders import Place, direct, switchcraft
from benchmarks.load.processes import Program, Running, free_port, running
from benchmarks.stamp import write_figures
from router_service.apis.conversation import Json
from router_service.artifact import SHIPPED, TOKENIZER, Artifact, Encoder
from router_service.core.errors import SwitchcraftError
from router_service.core.reasons import ROUTER_REASONS
from router_service.measurement.held_out import Figures
from router_service.policies.registry import choosing_reasons
from router_service.predictor.model import CUDA_PROVIDER, IDENTITY, Classifier, has_cuda
from router_service.predictor.packing import Packed, Packer, PackingSpec
from router_service.router import Router
from switchcraft_training.config import RunConfig
from switchcraft_training.models.export import (
    CUDA_GRAPH,
    GRAPH,
    export_fp16,
    export_int8,
    full_precision,
    write_canaries,
    write_manifest,
)
from switchcraft_training.models.model import EncoderBranch, FeatureBranches, RouterModel

WARM_UPS = 10
LOGITS_SD = 2.5
"""Standard deviation of each arm's logit over the canary requests."""
ROUTED_REQUESTS = 20
DECIDED = frozenset((*choosing_reasons(), *ROUTER_REASONS))
"""Reasons of answers that the router decided."""
CONNECTIONS = (1, 8, 64)
QUESTION_WORDS = 200
HEADERS = {"x-switchcraft-policy": "theta=0.5"}
"""The same policy for every artifact; the shipped one's default also verifies answers."""
READY = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_forecast",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one request at a time in each of several threads, and the throughput of all."""

    execution: str
    tokens: int
    threads: int
    n: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    queries_per_s: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers of a gateway to connections that send requests without pause."""

    connections: int
    answers_per_s: float
    added_p50_ms: float
    added_p99_ms: float
    """Waiting time less the upstream's own, at the same percentile and number of connections."""
    cpu_ms: float
    """Processor time per answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a gateway with an artifact says, needs and manages."""

    name: str
    graph: str
    provider: str
    ready_s: float
    resident_mb: float
    """After the load."""
    routed: int
    """Requests that the router decided, of `ROUTED_REQUESTS`."""
    loads: list[Answered]
    """Without those that were refused, because decisions take too long for so many connections."""


def main() -> int:
    """Measure, print Markdown, and return the exit status."""
    arguments = _arguments()
    device: str = arguments.device
    if device == "cuda" and not (torch.cuda.is_available() and has_cuda()):
        missing = "torch finds no GPU" if has_cuda() else "ONNX Runtime is built without CUDA"
        print(f"cannot measure a GPU: {missing}", file=sys.stderr)
        return 2
    devices = ["cpu"] if device == "cpu" else ["cpu", device]
    problems: list[str] = []
    with TemporaryDirectory() as folder:
        artifact, model = export_artifact(Path(folder) / "artifact")
        tolerance = artifact.manifest.canary_tolerance
        differences = {}
        for each in devices:
            router = Router(artifact, device=each)
            differences[str(router.execution)] = canary_difference(router, each)
        problems += [
            f"{execution}: canary requests differ by {difference:.4f}"
            for execution, difference in differences.items()
            if not difference <= tolerance
        ]
        print("| graph | largest difference of the canary requests' probabilities | limit |")
        print("|---|--:|--:|")
        for execution, difference in differences.items():
            print(f"| {execution} | {difference:.5f} | {tolerance} |")
        others = between_graphs(artifact, model, device)
        for name, difference in others.items():
            print(f"| {name} | {difference:.5f} | |", flush=True)
        print("\n| graph | tokens | threads | P50 ms | P95 ms | P99 ms | queries/s |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        latencies = []
        for latency in measure(artifact, devices, arguments):
            print(
                f"| {latency.execution} | {latency.tokens} | {latency.threads} |"
                f" {latency.p50_ms:.2f} | {latency.p95_ms:.2f} | {latency.p99_ms:.2f} |"
                f" {latency.queries_per_s:,.0f} |",
                flush=True,
            )
            latencies.append(latency)
        print(
            "\n| gateway | graph | ready after | resident memory | decided by the router |"
            " connections | answers/s | added P50 ms | added P99 ms | processor ms |"
        )
        print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
        gateways = []
        for served in serve_each(artifact, devices, Path(folder), arguments):
            start = (
                f"| {served.name} | {served.graph} on {served.provider} | {served.ready_s:.1f} s |"
                f" {served.resident_mb:,.0f} MB | {served.routed} of {ROUTED_REQUESTS} |"
            )
            for load in served.loads:
                print(
                    f"{start} {load.connections} | {load.answers_per_s:,.0f} |"
                    f" {load.added_p50_ms:.2f} | {load.added_p99_ms:.2f} | {load.cpu_ms:.2f} |",
                    flush=True,
                )
            gateways.append(served)
    wanted = CUDA_PROVIDER if device == "cuda" else "CPUExecutionProvider"
    if gateways[-1].provider != wanted:
        problems.append(f"the gateway runs on {gateways[-1].provider}, not on {wanted}")
    problems += [
        f"{served.name}: the router decided only {served.routed} of {ROUTED_REQUESTS} requests"
        for served in gateways
        if served.routed < ROUTED_REQUESTS
    ]
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    if arguments.out:
        figures = {
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "canaries": differences | others,
            "latencies": [asdict(latency) for latency in latencies],
            "gateways": [asdict(served) for served in gateways],
            "problems": problems,
        }
        packages = ("onnxruntime-gpu" if has_cuda() else "onnxruntime", "torch", "transformers")
        write_figures(arguments.out / f"artifact-{device}.json", figures, *packages)
    return 1 if problems else 0


def export_artifact(directory: Path) -> tuple[Artifact, RouterModel]:
    """Export an artifact of DistilBERT's shape with random weights; return it and its network."""
    directory.mkdir()
    shipped = Artifact.load(SHIPPED)
    manifest = shipped.manifest
    packing = PackingSpec(budget_tokens=512, tool_budget_tokens=100, signature="names", features=())
    pool = [
        {"arm": arm, "price": use.price, "stands_for": manifest.stands_for.get(arm, ())}
        for arm, use in manifest.profile.items()
    ]
    config = RunConfig.model_validate(
        {
            "name": "distilbert-random",
            "source": {"format": "bfcl", "path": "none"},
            "pool": pool,
            "packing": packing,
            "calibration": "none",
            "cuda_graph": True,
        }
    )
    (directory / TOKENIZER).write_bytes((SHIPPED / TOKENIZER).read_bytes())
    torch.manual_seed(0)
    encoder = DistilBertModel(DistilBertConfig())
    branch = EncoderBranch(encoder, len(config.arms), pooling="cls", dropout=0)
    model = RouterModel(
        branch, None, FeatureBranches(None, None, None), {"encoder": 1.0}, len(config.arms)
    ).eval()
    packer = Packer(packing, shipped.tokenizer)
    spread_probabilities(branch, [packer.pack(each.conversation) for each in shipped.canaries()])
    export_int8(model, 0, directory / GRAPH)
    full_precision(directory / GRAPH).unlink()
    export_fp16(model, 0, directory / CUDA_GRAPH)
    write_canaries(directory, config)
    write_manifest(
        directory,
        config,
        Encoder(
            name="DistilBERT's shape, random weights",
            parameters=sum(p.numel() for p in encoder.parameters()),  # pyrefly: ignore[bad-argument-type]  # never none
            hidden_size=encoder.config.hidden_size,
            layers=encoder.config.num_hidden_layers,
        ),
        manifest.profile,
        manifest.provenance.model_copy(update={"config": ""}),
        figures=Figures(frontier=(), metrics={}, policies=config.policies),
        calibration=IDENTITY,
    )
    return Artifact.load(directory), model


def spread_probabilities(branch: EncoderBranch, packed: Sequence[Packed]) -> None:
    """Set the head so that each arm's logits for the rows have the mean 0 and `LOGITS_SD`.

    Its weights are random combinations of the directions in which the encoder's states differ most,
    as training aligns them. In other directions, rounding would be a larger part of the logits.
    """
    with torch.no_grad():
        rows = [torch.tensor([row.token_ids]) for row in packed]
        states = torch.cat(
            [
                branch.pool(branch.encoder(ids).last_hidden_state, torch.ones_like(ids))
                for ids in rows
            ]
        )
        mean = states.mean(0)
        _, _, directions = torch.linalg.svd(states - mean, full_matrices=False)
        weights = torch.randn(branch.head.out_features, 3) @ directions[:3]
        weights *= LOGITS_SD / ((states - mean) @ weights.T).std(0)[:, None]
        branch.head.weight.copy_(weights)
        branch.head.bias.copy_(-weights @ mean)


def recorded_probabilities(artifact: Artifact, device: str) -> NDArray[np.float64]:
    """Return the probabilities of the canary requests, (requests, arms), that a graph must have."""
    return np.array([list(each.probabilities.values()) for each in artifact.canaries(device)])


def canary_difference(router: Router, device: str) -> float:
    """Return the largest difference from the probabilities that the graph had at export."""
    found = router.predict_batch([each.conversation for each in router.artifact.canaries()])
    return float(np.abs(found - recorded_probabilities(router.artifact, device)).max())


def between_graphs(artifact: Artifact, model: RouterModel, device: str) -> dict[str, float]:
    """Return the largest differences between the fp16 graph and the two others, by a title."""
    packer = Packer(artifact.manifest.packing, artifact.tokenizer)
    halved = deepcopy(model)
    assert halved.encoder is not None  # noqa: S101 - for types
    halved.encoder.encoder.half()
    halved.to(device)
    rows = []
    with torch.inference_mode():
        for canary in artifact.canaries():
            ids = torch.tensor([packer.pack(canary.conversation).token_ids], device=device)
            logits = halved(ids, torch.ones_like(ids), torch.zeros(1, 0, device=device))
            rows.append(torch.sigmoid(logits)[0].cpu().numpy())
    fp16 = recorded_probabilities(artifact, "cuda")
    others = {
        f"{CUDA_GRAPH} and {GRAPH}": recorded_probabilities(artifact, "cpu"),
        f"{CUDA_GRAPH} and fp16 in torch on {device}": np.array(rows),
    }
    return {name: float(np.abs(fp16 - other).max()) for name, other in others.items()}


def measure(
    artifact: Artifact, devices: Sequence[str], arguments: argparse.Namespace
) -> Iterator[Latency]:
    """Yield the latency of each graph, number of tokens and number of threads."""
    arms = len(artifact.manifest.arms)
    for device in devices:
        classifier = Classifier(artifact.model_path(device), arms=arms, device=device)
        name = f"{artifact.model_path(device).name} on {classifier.graph.provider}"
        for tokens in arguments.tokens:
            ids = np.random.default_rng(0).integers(1_000, 20_000, tokens).tolist()
            row = Packed(tuple(ids), (), ())
            for _ in range(WARM_UPS):
                classifier.predict([row])
            for threads in arguments.threads:
                yield _measure_threads(classifier, row, name, threads, arguments.cell_s)


def _measure_threads(
    classifier: Classifier, row: Packed, name: str, threads: int, cell_s: float
) -> Latency:
    begin = time.perf_counter()
    end = begin + cell_s

    def work() -> list[float]:
        taken_ms: list[float] = []
        while not taken_ms or time.perf_counter() < end:
            started = time.perf_counter()
            classifier.predict([row])
            taken_ms.append((time.perf_counter() - started) * 1e3)
        return taken_ms

    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(work) for _ in range(threads)]
        calls_ms: NDArray[np.float64] = np.array([ms for job in jobs for ms in job.result()])
    elapsed_s = time.perf_counter() - begin
    p50, p95, p99 = np.percentile(calls_ms, [50, 95, 99]).tolist()
    count = len(calls_ms)
    return Latency(name, len(row.token_ids), threads, count, p50, p95, p99, count / elapsed_s)


def serve_each(
    artifact: Artifact, devices: Sequence[str], folder: Path, arguments: argparse.Namespace
) -> Iterator[Served]:
    """Yield the figures of each gateway: with the shipped artifact, then with this on each device.

    All gateways have the same upstream.
    """
    place = Place(folder, folder, free_port())
    upstream = direct(place)
    contenders = [("shipped", SHIPPED, "cpu")]
    contenders += [("DistilBERT", artifact.directory, device) for device in devices]
    requests = framed(random_questions(artifact.tokenizer), ROUTED, HEADERS)
    with running(upstream.program, next(requests)) as source:
        for threads in arguments.decision_threads:
            for name, directory, device in contenders:
                router = {"artifact": str(directory), "device": device}
                contender = switchcraft(place, router=router, server={"decision_threads": threads})
                title = f"{name}, {threads} decision threads"
                yield serve(title, contender.program, source, requests, arguments.cell_s)


def serve(
    name: str, program: Program, upstream: Running, requests: Iterator[bytes], seconds: float
) -> Served:
    """Run a gateway, send it requests to decide, and load it."""
    with running(program, READY) as gateway:
        address = f"http://127.0.0.1:{gateway.port}"
        with httpx.Client(base_url=address, headers=HEADERS, timeout=60) as http:
            state = http.get("/readyz").json()
            routed = 0
            for number in range(ROUTED_REQUESTS):
                question = _question(f"What is the forecast for city number {number}?")
                answer = http.post("/v1/chat/completions", json={"model": ROUTED, **question})
                reason = answer.headers.get("x-switchcraft-reason")
                routed += answer.status_code == 200 and reason in DECIDED
        loads = []
        for connections in CONNECTIONS:
            try:
                alone, through = (
                    play(Load(each.port, requests, connections, seconds, seconds / 4), each.cpu_s)
                    for each in (upstream, gateway)
                )
            except RefusedError as exc:  # decisions are too slow for so many connections
                print(f"{name}, {connections} connections: {exc}", file=sys.stderr)
                continue
            waits_s, own_s = (
                np.percentile(each.latencies_s, [50, 99]) for each in (through, alone)
            )
            added_p50_ms, added_p99_ms = ((waits_s - own_s) * 1e3).tolist()
            cpu_ms = through.cpu_s * 1e3 / len(through.latencies_s)
            loads.append(
                Answered(connections, through.rate_per_s, added_p50_ms, added_p99_ms, cpu_ms)
            )
        resident_mb = gateway.resident_mb()
    return Served(
        name, state["graph"], state["provider"], gateway.ready_s, resident_mb, routed, loads
    )


def random_questions(tokenizer: Tokenizer) -> Iterator[Mapping[str, Json]]:
    """Yield requests with `QUESTION_WORDS` random words of the tokenizer, without end."""
    words = sorted(each for each in tokenizer.get_vocab() if each.isascii() and each.isalpha())
    draw = random.Random(0)  # noqa: S311 - a load, not a secret
    while True:
        yield _question(" ".join(draw.choices(words, k=QUESTION_WORDS)))


def _question(text: str) -> Mapping[str, Json]:
    return {"messages": [{"role": "user", "content": text}], "tools": [TOOL]}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 200, 512])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--cell-s", type=float, default=2, help="seconds for each line")
    parser.add_argument(
        "--decision-threads", type=int, nargs="+", default=[4, 16], help="of the gateways"
    )
    parser.add_argument("--out", type=Path, help="folder for the figures as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SwitchcraftError, TimeoutError) as exc:
        sys.exit(f"FAILED: {exc}")
