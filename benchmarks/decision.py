"""Time from a request's body to its decision, by stage, and decisions per second.

    python benchmarks/decision.py --out runs/decision.json

The requests are an even sample of `--requests` requests from the installed `bfcl-eval`
(`pip install bfcl-eval`), including later turns of agents' conversations. `plan_request` decides
each of them on uvloop, as in service, with the shipped artifact or another one. The benchmark first
sends one request at a time and then `--concurrent` at a time. Each of these measurements runs in a
new process in every round, so that no cache holds a request, and starts with a warm-up on other
requests. `repeated` sends the same requests again. `rest` is the time outside all stages: the
hand-over to a thread and back. `loop` is the delay of a task that wakes up every millisecond.

The stage budget has each stage's share of the processor time of all threads. `verify` is the first
step of a verified answer, which names the arm to ask, and `judge` the step after an answer that
calls a tool; both are left out for requests that are not verified. Shares are comparable between
machines, unlike times.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import orjson
import uvloop

from benchmarks.stamp import write_figures
from benchmarks.verification import answer_with_call
from router_service.artifact import SHIPPED, Artifact
from router_service.core.resources import Timer
from router_service.requests.deciding import plan_request
from router_service.router import Router
from router_service.runtime.gateway import Gateway
from router_service.settings import ServerSettings, Settings
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import ArmAnswer, VerificationState
from switchcraft_training.datasets.bfcl import PACKAGE, read_source
from tests.endpoints import CHAT

Samples = dict[str, list[float]]
"""Seconds by stage, one sample per request."""

Measure = Callable[[Sequence[bytes], Sequence[bytes], argparse.Namespace], dict[str, float]]

Figures = dict[str, list[float]]
"""One value per round, by the name of the figure."""

WARM_UP = 50
TICK_S = 1e-3
PERCENTILES = (50, 99)
SIGHTS = ("first sight", "repeated")


def main() -> None:
    """Print a table, and write it as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument(
        "--repetitions", type=int, default=3, help="repetitions of the repeated requests"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--artifact", type=Path, default=SHIPPED)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    bodies = read_bodies(arguments.requests + WARM_UP)
    warm, requests = bodies[:WARM_UP], bodies[WARM_UP:]
    figures: Figures = {}
    for _, measure in product(
        range(arguments.rounds), (measure_alone, measure_together, measure_shares)
    ):
        for name, value in _in_new_process(measure, warm, requests, arguments).items():
            figures.setdefault(name, []).append(value)
    print(f"{len(requests)} requests, {arguments.rounds} rounds: medians (min to max)")
    for name, values in figures.items():
        spread = f"({min(values):,.3f} to {max(values):,.3f})"
        print(f"{name:<34} {statistics.median(values):>10,.3f} {spread}")
    row = {"requests": len(requests), "concurrent": arguments.concurrent, "figures": figures}
    write_figures(arguments.out, row, PACKAGE, "onnxruntime", "tokenizers")


def read_bodies(count: int) -> list[bytes]:
    """Return `count` distinct BFCL requests with tools, sampled evenly."""
    requests = (judged.example.request for judged in read_source(Path(PACKAGE)))
    bodies = dict.fromkeys(
        orjson.dumps({"model": "switchcraft", **request})
        for request in requests
        if request["tools"]
    )
    spread = list(bodies)[:: max(1, len(bodies) // count)][:count]
    # The first requests all come from one category, so the warm-up takes every n-th one.
    step = max(2, count // WARM_UP)
    return [*spread[::step][:WARM_UP], *(body for n, body in enumerate(spread) if n % step)]


def _in_new_process(
    measure: Measure,
    warm: Sequence[bytes],
    requests: Sequence[bytes],
    arguments: argparse.Namespace,
) -> dict[str, float]:
    """Measure in a new process, because caches outlive a router."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as process:
        return process.submit(measure, warm, requests, arguments).result()


def measure_alone(
    warm: Sequence[bytes], requests: Sequence[bytes], arguments: argparse.Namespace
) -> dict[str, float]:
    """Return one round's milliseconds by stage, one request at a time."""

    async def measured() -> dict[str, float]:
        gateway = _gateway(arguments.artifact)
        await one_at_a_time(gateway, warm)
        found: dict[str, float] = {}
        for sight in SIGHTS:
            found |= _percentiles(sight, await one_at_a_time(gateway, requests))
        return found

    return uvloop.run(measured())


def measure_together(
    warm: Sequence[bytes], requests: Sequence[bytes], arguments: argparse.Namespace
) -> dict[str, float]:
    """Return one round's decisions per second, processor time and delay of the event loop."""
    concurrent: int = arguments.concurrent

    async def measured() -> dict[str, float]:
        gateway = _gateway(arguments.artifact)
        await many_at_a_time(gateway, warm, concurrent)
        found: dict[str, float] = {}
        for sight, times in zip(SIGHTS, (1, arguments.repetitions), strict=True):
            name = f"{sight}, {concurrent} at a time"
            found |= await _together(name, gateway, list(requests) * times, concurrent)
        return found

    return uvloop.run(measured())


def measure_shares(
    warm: Sequence[bytes], requests: Sequence[bytes], arguments: argparse.Namespace
) -> dict[str, float]:
    """Return one round's stage budget: each stage's share of the processor time, in percent."""

    async def measured() -> dict[str, float]:
        gateway = _gateway(arguments.artifact)
        await _processor_time(gateway, warm)
        found: dict[str, float] = {}
        for sight in SIGHTS:
            spent_s = await _processor_time(gateway, requests)
            whole_s = sum(spent_s.values())
            for stage, seconds in spent_s.items():
                found[f"{sight}, {stage}, % of CPU"] = 100 * seconds / whole_s
        return found

    return uvloop.run(measured())


async def _processor_time(gateway: Gateway, bodies: Sequence[bytes]) -> Mapping[str, float]:
    """Return the seconds of processor time of all decisions, by stage."""
    spent_s: defaultdict[str, float] = defaultdict(float)
    for body in bodies:
        started_s = time.process_time()
        timer = Timer(time.process_time)
        plan = await plan_request(gateway, gateway.engine, CHAT, body, timer=timer)
        planned_s = time.process_time()
        spent_s["rest"] += planned_s - started_s
        for stage in timer.stages:
            spent_s[stage.name] += stage.seconds
            spent_s["rest"] -= stage.seconds
        if plan.verified is None or plan.prediction is None:
            continue
        router, decoded = plan.planner.router, plan.request.decoded()
        started_s = time.process_time()
        question = Question(plan.request.conversation, decoded["tools"])
        state = VerificationState(plan.verified, plan.arms)
        arm, *_ = router.next_step(question, plan.prediction, state).ask
        asked_s = time.process_time()
        candidates = [ArmAnswer(arm, answer_with_call(decoded, 0))]
        answered_s = time.process_time()
        router.next_step(question, plan.prediction, replace(state, candidates=candidates))
        spent_s["verify"] += asked_s - started_s
        spent_s["judge"] += time.process_time() - answered_s
    return spent_s


async def _together(
    name: str, gateway: Gateway, requests: Sequence[bytes], concurrent: int
) -> dict[str, float]:
    lags: list[float] = []
    ticking = asyncio.create_task(_tick(lags))
    start_cpu_s = time.process_time()
    rate = await many_at_a_time(gateway, requests, concurrent)
    cpu_ms = (time.process_time() - start_cpu_s) * 1e3 / len(requests)
    ticking.cancel()
    found = {f"{name}, a second": rate, f"{name}, CPU each, ms": cpu_ms}
    return found | _percentiles(name, {"loop": lags})


async def one_at_a_time(gateway: Gateway, bodies: Sequence[bytes]) -> Samples:
    """Return the seconds of each decision, by stage and as a whole."""
    samples: Samples = {}
    for body in bodies:
        start_s = time.perf_counter()
        timer = Timer(time.perf_counter)
        await plan_request(gateway, gateway.engine, CHAT, body, timer=timer)
        whole_s = time.perf_counter() - start_s
        stages = {str(stage.name): stage.seconds for stage in timer.stages}
        rest_s = whole_s - sum(stages.values())
        for name, seconds in {**stages, "rest": rest_s, "whole": whole_s}.items():
            samples.setdefault(name, []).append(seconds)
    return samples


async def many_at_a_time(gateway: Gateway, bodies: Sequence[bytes], concurrent: int) -> float:
    """Return decisions per second with `concurrent` clients that wait for each decision."""
    left = iter(bodies)

    async def client() -> None:
        for body in left:
            await plan_request(gateway, gateway.engine, CHAT, body)
            await asyncio.sleep(0)  # yield to other tasks, as an incoming request does

    start_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrent)))
    return len(bodies) / (time.perf_counter() - start_s)


async def _tick(lags: list[float]) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            start_s = time.perf_counter()
            await asyncio.sleep(TICK_S)
            lags.append(time.perf_counter() - start_s - TICK_S)


def _gateway(artifact: Path) -> Gateway:
    router = Router(Artifact.load(artifact))
    # On a slow machine the last client waits longer than the default limit.
    server = ServerSettings(max_decision_wait_s=60)
    arms = router.artifact.manifest.arms
    settings = Settings.sandbox("http://127.0.0.1:1/v1", arms, server=server)
    gateway = Gateway(settings, router)
    gc.freeze()  # as the service does at startup
    return gateway


def _percentiles(name: str, samples: Samples) -> dict[str, float]:
    """Return P50 and P99 of each stage in milliseconds."""
    return {
        f"{name}, {stage} P{percent}, ms": float(np.percentile(seconds, percent)) * 1e3
        for stage, seconds in samples.items()
        for percent in PERCENTILES
    }


if __name__ == "__main__":
    main()
