"""Mixed traffic with injected faults for a given time; checks for lost requests and growth.

    python benchmarks/soak.py --seconds 3600 --out runs/soak

The benchmark runs the gateway as operators do, in front of the sandbox, with the shipped artifact,
two client keys, Redis, a publication and a rotating decision log. Clients send all kinds of
requests at a fixed rate: routed and pinned, streamed or not, through all three APIs and translated
between them, verified, in conversations that are followed, embeddings, feedback, invalid and
oversized bodies, and requests to models that fail. Some clients disconnect early or read slowly.
Meanwhile, configurations are reloaded, artifacts are published (stable, canary), routed
models fail, and Redis is killed.

A request may end with a complete answer, with an error that its own mistake or an injected fault
explains, or because its client disconnected. Every other request counts as lost and is listed. The
client's counts are compared with those of the gateway and the sandbox.

The command writes `soak.json` and `soak.png`. It exits with status 1 if a request is lost, the
counts differ, a disturbance has no effect, the gateway logs an error or exits with an error, or
resident memory grows by more than 1 MB per 10,000 requests or reaches 384 MB. Memory is not checked
in the first sixth of the time, while caches fill.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import onnx
import uvloop

from benchmarks.load import bodies
from benchmarks.load.processes import Program, free_port, running
from benchmarks.mixed.client import Client, NoAnswerError, frame
from benchmarks.mixed.disturbances import Configuration, Disturber, Pace
from benchmarks.mixed.report import Balance, Ended, Soak, as_json, plot, problems, summary
from benchmarks.mixed.traffic import FAULTY, STORED, Mix, Outcome, Request, Trouble, judge
from benchmarks.mixed.watching import Sample, forget_peak, look, peak_mb, probing, read_probes
from benchmarks.stamp import write_figures
from router_service.artifact import MANIFEST, read_manifest, save_manifest
from router_service.core.releases import Release
from switchcraft_training.publishing.releases import make_release, put_stable
from tests.drills.processes import GatewayProcess, RedisServer, gateway
from tests.publishing import make_artifact
from tests.serving import Sandbox

MAX_AT_ONCE = 200
"""Most requests in flight. At this limit clients wait, so the rate falls."""
SETTLING_S = 3.0
STORE_LAG_S = 2.0
"""Longest time from a failed store operation to the sample that shows it."""
VERSIONS = ("uvloop", "httptools", "onnxruntime")


def main() -> int:
    """Run the soak, print and write its figures; return 1 if a limit is exceeded."""
    arguments = _parser().parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    soak = run(arguments)
    print("\n".join(summary(soak)))
    row = {**as_json(soak), "rate": arguments.rate}
    write_figures(arguments.out / "soak.json", row, *VERSIONS)
    plot(soak, arguments.out / "soak.png")
    exceeded = list(problems(soak))
    print("\n".join(f"EXCEEDED: {problem}" for problem in exceeded), file=sys.stderr)
    return 1 if exceeded else 0


def run(arguments: argparse.Namespace) -> Soak:
    """Start all processes, send the traffic, and return what was recorded."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scene = stack.enter_context(_scene(folder, Pace(arguments.pause, arguments.fault)))
        probes = arguments.out / "probes.txt"
        traffic = Traffic(scene, arguments.rate)
        began_unix_s = time.time()
        with probing(scene.port, scene.idle_port, probes):
            samples = uvloop.run(
                traffic.run(arguments.seconds, arguments.seconds / 6, arguments.sample)
            )
        scene.disturber.stop()
        peak = peak_mb(scene.gateway.process.pid)
        at_rest = uvloop.run(traffic.settle())
        traffic.explain_store_failures()
        balances = list(_balances(scene, traffic))
        scene.gateway.process.terminate()
        exit_status = scene.gateway.process.wait(60)
        return Soak(
            seconds=arguments.seconds,
            warm_up_s=arguments.seconds / 6,
            began_unix_s=began_unix_s,
            ended=traffic.ended,
            samples=samples,
            probes=read_probes(probes),
            disturbances=scene.disturber.done,
            balances=balances,
            peak_mb=peak,
            at_rest=at_rest,
            errors_logged=_errors_logged(scene.gateway.log),
            exit_status=exit_status,
        )


@dataclass(frozen=True)
class Scene:
    """All running processes of a soak."""

    gateway: GatewayProcess
    sandbox: Sandbox
    disturber: Disturber
    idle_port: int
    keys: Sequence[str]
    admin_key: str

    @property
    def port(self) -> int:
        """The gateway's port."""
        return int(self.gateway.url.rpartition(":")[2])


class Traffic:
    """Client side of a soak: sends requests at a rate and judges each answer."""

    def __init__(self, scene: Scene, rate_per_s: float) -> None:
        """Prepare traffic for the scene's gateway."""
        self._scene = scene
        self._rate_per_s = rate_per_s
        self._mix = Mix(scene.keys, scene.admin_key)
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)
        self._is_over = asyncio.Event()
        self.ended: list[Ended] = []
        self._store_errors: list[tuple[float, int]] = []
        self.inferences = 0
        """Requests that the gateway must have counted."""
        self.uncertain = 0
        """Requests without a complete answer, which the gateway may or may not have counted."""

    async def run(self, seconds: float, warm_up_s: float, sample_s: float) -> list[Sample]:
        """Send requests for `seconds`, wait for the last answers, and return the samples."""
        self._client = Client(self._scene.port)
        self._began_s = time.monotonic()
        self._scene.disturber.start()
        sampling = asyncio.create_task(self._sample(warm_up_s, sample_s))
        async with asyncio.TaskGroup() as tasks:
            number = 0
            while (due_s := self._began_s + number / self._rate_per_s) < self._began_s + seconds:
                await asyncio.sleep(due_s - time.monotonic())
                await self._gate.acquire()
                tasks.create_task(self._send(self._mix.next()))
                number += 1
        self._is_over.set()
        samples = await sampling
        self._client.close()
        return samples

    async def settle(self) -> Sample:
        """Return a sample of the gateway after its connections are closed."""
        self._client = Client(self._scene.port)
        await asyncio.sleep(SETTLING_S)
        sample = await self._look()
        self._client.close()
        return sample

    async def _send(self, request: Request) -> None:
        sent_s = time.monotonic()
        status, outcome, problem = 0, Outcome.LOST, ""
        try:
            answer = await self._client.ask(request.data, request.manner)
            status = answer.status
            disturber = self._scene.disturber
            trouble = Trouble(
                upstreams=disturber.upstreams_troubled(sent_s),
                store=disturber.store_troubled(request.about_s or sent_s),
            )
            outcome, problem = judge(request, answer, trouble)
            if outcome is Outcome.COMPLETE:
                self._mix.remember(request, answer)
        except NoAnswerError as exc:
            problem = str(exc)
        finally:
            self._gate.release()
        if request.is_inference:
            self.inferences += 1
            self.uncertain += outcome in (Outcome.LEFT, Outcome.LOST)
        waited_s = time.monotonic() - sent_s
        self.ended.append(
            Ended(
                sent_s - self._began_s,
                request.kind,
                outcome,
                status,
                waited_s,
                problem,
                about_s=request.about_s - self._began_s,
                is_inference=request.is_inference,
            )
        )

    def explain_store_failures(self) -> None:
        """Mark lost lookups as explained if the gateway counted failed store operations then.

        On a busy machine Redis can take longer than 0.2 s, and the gateway then gives up its reads
        and writes. Inference requests do not wait for Redis.
        """
        windows = [
            (before_s - STORE_LAG_S, after_s + STORE_LAG_S)
            for (before_s, before), (after_s, after) in pairwise(self._store_errors)
            if after > before
        ]
        for i, ended in enumerate(self.ended):
            is_unknown = ended.outcome is Outcome.LOST and ended.status in (404, 503)
            has_failed = any(
                first_s <= at_s <= last_s
                for at_s in (ended.about_s, ended.at_s)
                for first_s, last_s in windows
            )
            if is_unknown and has_failed and ended.kind in STORED:
                self.ended[i] = replace(ended, outcome=Outcome.EXPLAINED)

    async def _sample(self, warm_up_s: float, period_s: float) -> list[Sample]:
        """Take samples until the traffic ends; count a sample without an answer as lost."""
        samples: list[Sample] = []
        is_warm = False
        while not self._is_over.is_set():
            at_s = time.monotonic() - self._began_s
            try:
                samples.append(await self._look())
            except NoAnswerError as exc:
                lost = Ended(at_s, "sample", Outcome.LOST, 0, 0.0, str(exc), is_inference=False)
                self.ended.append(lost)
            if not is_warm and at_s >= warm_up_s:
                forget_peak(self._scene.gateway.process.pid)
                is_warm = True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), period_s)
        return samples

    async def _look(self) -> Sample:
        request = frame("GET", "/metrics", {"authorization": f"Bearer {self._scene.admin_key}"})
        text = (await self._client.ask(request)).body.decode()
        at_s = time.monotonic() - self._began_s
        store_errors = sum(
            count
            for labels, count in _series(text, "switchcraft_storage_errors_total").items()
            if 'storage="store"' in labels
        )
        self._store_errors.append((at_s, store_errors))
        return look(self._scene.gateway.process.pid, at_s=at_s, answered=len(self.ended))


def _balances(scene: Scene, traffic: Traffic) -> Iterator[Balance]:
    """Yield the client's counts compared with those of the gateway and the sandbox."""
    metrics = scene.gateway.http.get("/metrics").text
    counted = _series(metrics, "switchcraft_requests_total")
    yield Balance(
        "inference requests, by the clients and by the gateway",
        traffic.inferences,
        sum(counted.values()),
        traffic.uncertain,
    )
    read = (Outcome.COMPLETE, Outcome.EXPLAINED)
    complete = sum(
        ended.status == 200 and ended.outcome in read and ended.is_inference
        for ended in traffic.ended
    )
    answered = sum(
        count
        for labels, count in counted.items()
        if 'status="200"' in labels or 'status="broken"' in labels
    )
    yield Balance("of these with status 200", complete, answered, traffic.uncertain)
    tries = sum(_series(metrics, "switchcraft_upstream_attempts_total").values())
    seen = scene.sandbox.stats()
    yield Balance(
        "tries, by the gateway and by the sandbox", tries, seen["requests"], traffic.uncertain
    )
    in_flight = sum(_series(metrics, "switchcraft_requests_in_flight").values())
    yield Balance("requests in flight at the end, at the gateway", 0, in_flight)
    yield Balance("requests in flight at the end, at the sandbox", 0, seen["in_flight"])


def _series(metrics: str, name: str) -> dict[str, int]:
    """Return a metric's values by label set."""
    lines = metrics.splitlines()
    rows = [line.rpartition(" ") for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    return {labels: int(float(value)) for labels, _, value in rows}


def _errors_logged(log: Path) -> Sequence[str]:
    """Return the gateway's log lines of level error, except refused reloads."""
    with log.open(errors="replace") as lines:
        return [
            line.strip()[:3000]
            for line in lines
            if '"level":"error"' in line and '"event":"reload"' not in line
        ]


@contextmanager
def _scene(folder: Path, pace: Pace) -> Iterator[Scene]:
    """Start Redis, the sandbox, an idle server and the gateway; yield them with a disturber."""
    keys, admin_key = [f"sk-{secrets.token_hex(24)}" for _ in range(2)], secrets.token_hex(24)
    redis_server = RedisServer(folder)
    with ExitStack() as stack:
        redis_server.start()
        stack.callback(redis_server.kill)
        sandbox_port = _serve(stack, folder, "sandbox", "tests.sandbox")
        url = f"http://127.0.0.1:{sandbox_port}/v1"
        path = folder / "config.yaml"
        configuration = Configuration(path, url, redis_server.url, keys, admin_key)
        releases = _releases(folder, configuration.releases)
        configuration.pointer.move(partial(put_stable, release=releases[0]))
        configuration.write(0)
        served = stack.enter_context(gateway(path, folder, key=admin_key))
        sandbox = Sandbox(url)
        for model, faults in FAULTY.items():
            sandbox.set_faults(model, faults)
        disturber = Disturber(served, redis_server, sandbox, configuration, releases, pace)
        idle_port = _serve(stack, folder, "idle", "benchmarks.load.upstream")
        yield Scene(served, sandbox, disturber, idle_port, keys, admin_key)


def _serve(stack: ExitStack, folder: Path, name: str, *module: str) -> int:
    """Run a module that serves the port which is its last argument, and return the port."""
    port = free_port()
    command = (sys.executable, "-m", *module, str(port))
    first = next(bodies.framed(iter([bodies.small()]), bodies.MODEL, {}))
    stack.enter_context(running(Program(command, port, folder / f"{name}.log", {}), first))
    return port


def _releases(folder: Path, published: Path) -> Sequence[Release]:
    """Return three renamed releases of the shipped artifact; the last two have their own graphs."""
    made = [make_artifact(folder / "artifacts", name) for name in ("one", "two", "three")]
    for path in made[1:]:
        _retrain(path)
    return [make_release(path, published) for path in made]


def _retrain(artifact: Path) -> None:
    """Give an artifact its own graph file, so that it shares no memory with the others."""
    manifest = read_manifest(artifact / MANIFEST)
    note = onnx.StringStringEntryProto(key="soak", value=manifest.name)
    path = artifact / manifest.models["cpu"]
    graph = path.read_bytes() + onnx.ModelProto(metadata_props=[note]).SerializeToString()
    path.unlink()  # a hard link to the shipped file
    path.write_bytes(graph)
    save_manifest(artifact, manifest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=60.0, help="requests per second")
    parser.add_argument("--pause", type=float, default=15.0, help="seconds between disturbances")
    parser.add_argument(
        "--fault", type=float, default=4.0, help="seconds that a model fails or Redis is down"
    )
    parser.add_argument("--sample", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="folder for results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
