"""Share of each stage of a request in the gateway's processor time.

    python benchmarks/stages.py --out runs/stages.json

For each mode, one gateway gets requests over 8 connections. Every millisecond of processor time, a
signal interrupts it, and what its main thread has used since then counts to the stage of the
innermost function in `STAGES` that runs. Time in the kernel counts to the function that makes the
system call. What is in no such function is that of uvicorn and of the event loop. All other threads
are a stage of their own: in the mode `first sight`, they predict and verify (`decision.py` shows
the stages of that), and in all modes they write to the database and to the decision log.

Shares hardly depend on the machine, so that `BUDGETS` can say how much each stage may take. The
benchmark ends with status 1 if a stage takes more.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType

import orjson

from benchmarks.gateway import REPEATED, first_request, requests_for
from benchmarks.load.client import Load, play
from benchmarks.load.contenders import Place, direct, switchcraft
from benchmarks.load.figures import markdown
from benchmarks.load.processes import free_port, running
from benchmarks.stamp import write_figures
from router_service.cli import main as run_cli

CONNECTIONS = 8
INTERVAL_S = 0.001
WARM_S = 10.0
"""Seconds before the first sample, in which the gateway measures how exact its expectations are."""
MODES = ("pass-through", "stream", "repeated", "first sight")

SERVER = "uvicorn and event loop"
THREADS = "other threads"
STAGES: Mapping[str, str] = {
    "http/protocol.py:BoundedProtocol.data_received": "read the request",
    "http/transfer.py:read_body": "read the request",
    "http/front.py:Front.__call__": "ids, key, slot, route",
    "http/inference.py:RoutedAnswer.__call__": "coordinate",
    "http/relay.py:AnswerRelay.run": "coordinate",
    "http/transfer.py:admit": "ids, key, slot, route",
    "requests/deciding.py:plan_request": "parse and plan",
    "requests/verification.py:Verification.run": "coordinate",
    "http/deferred.py:relay_verified": "coordinate",
    "upstream/retries.py:RetryingClient.start": "choose a deployment and send",
    "upstream/client.py:UpstreamClient.send": "choose a deployment and send",
    "upstream/connection.py:Connection.data_received": "read the answer",
    "upstream/streams.py:read_whole": "read the answer",
    "upstream/streams.py:EventReader._feed": "read the answer",
    "apis/registry.py:parse_answer": "read the answer",
    "requests/call.py:Call.decision_headers": "answer the client",
    "http/front.py:Front.__call__.<locals>.send_with_headers": "answer the client",
    "http/protocol.py:_Cycle.send": "answer the client",
    "http/protocol.py:_Cycle._write_head": "answer the client",
    "requests/recording.py:Recorder.answered": "record and log",
    "requests/recording.py:Recorder.ended": "record and log",
    "requests/recording.py:Recorder._give": "record and log",
}
"""The stage of each function of `router_service`, by its file and its qualified name."""

BUDGETS: Mapping[str, Mapping[str, float]] = {
    "pass-through": {
        "read the request": 0.12,
        "ids, key, slot, route": 0.10,
        "coordinate": 0.16,
        "parse and plan": 0.07,
        "choose a deployment and send": 0.25,
        "read the answer": 0.13,
        "answer the client": 0.15,
        "record and log": 0.21,
    },
    "stream": {"coordinate": 0.16, "read the answer": 0.31, "record and log": 0.18},
    "repeated": {"coordinate": 0.47, "parse and plan": 0.11, "record and log": 0.11},
    "first sight": {"coordinate": 0.26, "parse and plan": 0.10, "record and log": 0.05},
}
"""Largest share of each stage, by mode: about a quarter more than was measured."""


class _Sampler:
    """Adds up the processor time of each stage of this process."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._stages: dict[CodeType, str | None] = {}
        self._counted_s = 0.0

    def start(self) -> None:
        """Count from now on. The second signal `SIGUSR1` ends the counting."""
        self.seconds.clear()
        self._counted_s = time.thread_time()
        self._began_s = time.process_time(), time.thread_time()
        signal.signal(signal.SIGPROF, self._count)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> dict[str, float]:
        """Return the seconds of each stage since the start."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        whole_s, main_s = time.process_time(), time.thread_time()
        whole_s, main_s = whole_s - self._began_s[0], main_s - self._began_s[1]
        return {**self.seconds, THREADS: whole_s - main_s}

    def _count(self, _number: int, frame: FrameType | None) -> None:
        now_s = time.thread_time()
        stage: str | None = None
        while frame is not None and stage is None:
            code = frame.f_code
            if code not in self._stages:
                file = code.co_filename.rpartition("router_service/")[2]
                self._stages[code] = STAGES.get(f"{file}:{code.co_qualname}")
            stage, frame = self._stages[code], frame.f_back
        self.seconds[stage or SERVER] += now_s - self._counted_s
        self._counted_s = time.thread_time()


def serve(config: str, out: Path) -> None:
    """Serve a configuration. Each signal SIGUSR1 starts counting, or writes what was counted."""
    sampler, is_counting = _Sampler(), False

    def toggle(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_counting
        if is_counting:
            out.with_suffix(".part").write_bytes(orjson.dumps(sampler.stop()))
            out.with_suffix(".part").rename(out)
        else:
            sampler.start()
        is_counting = not is_counting

    signal.signal(signal.SIGUSR1, toggle)
    sys.exit(run_cli(["serve", "--config", config]))


def measure(mode: str, seconds: float, warm_s: float = WARM_S) -> dict[str, float]:
    """Return the share of each stage in a mode, after a warm-up."""
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name), Path(name), free_port())
        upstream, gateway = direct(place), switchcraft(place)
        out, program = Path(name) / "stages.json", gateway.program
        module = (sys.executable, "-m", "benchmarks.stages", "--out", str(out), "--serve")
        program = replace(program, command=(*module, program.command[-1]))
        with (
            running(upstream.program, first_request(upstream)),
            running(program, first_request(gateway)) as process,
        ):
            requests = requests_for(mode, gateway)
            warm_requests = REPEATED if mode == "repeated" else 0
            play(Load(process.port, requests, CONNECTIONS, warm_s, warm_requests=warm_requests))
            process.process.send_signal(signal.SIGUSR1)
            play(Load(process.port, requests, CONNECTIONS, seconds))
            process.process.send_signal(signal.SIGUSR1)
            while not out.exists():
                time.sleep(0.01)
            found: dict[str, float] = orjson.loads(out.read_bytes())
    whole_s = sum(found.values())
    return {stage: seconds / whole_s for stage, seconds in found.items()}


def main() -> int:
    """Print the table; return 1 if a stage exceeds its budget. With `--out`, also write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured seconds of each mode")
    parser.add_argument("--out", type=Path, help="file for the shares as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve, arguments.out)
    shares = {mode: measure(mode, arguments.seconds) for mode in arguments.modes}
    rows = {
        stage: [f"{shares[mode].get(stage, 0.0):.0%}" for mode in shares]
        for stage in (*STAGES.values(), SERVER, THREADS)
    }
    print("\n".join(markdown("stage", list(shares), rows)))
    write_figures(arguments.out, {"shares": shares}, "uvloop", "onnxruntime")
    problems = [
        f"{mode}: {stage} takes {shares[mode][stage]:.1%}, more than its budget of {budget:.0%}"
        for mode in shares
        for stage, budget in BUDGETS.get(mode, {}).items()
        if shares[mode].get(stage, 0.0) > budget
    ]
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
