"""Where the processor time of a request goes: shares of its stages, beside another version.

    git worktree add PEERS/before REVISION
    python benchmarks/stages.py --peers PEERS --mode stream --rounds 40

Both versions run all the time in front of one upstream, and take turns. A timer interrupts a
gateway after each tick of its processor time, and the stack shows the stage. All shares are those
of an answer of `before`, so that the second column adds up to the ratio of both versions. Modes are
those of `gateway.py`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.gateway import CONNECTIONS, first_request, requests_of
from benchmarks.load import sampled
from benchmarks.load.client import Load, play
from benchmarks.load.contenders import Contender, Place, before, direct, switchcraft
from benchmarks.load.figures import markdown
from benchmarks.load.processes import free_port, running
from benchmarks.stamp import write_figures

WARM_S = 5.0
"""Seconds of load before the first sample. Meanwhile, a gateway measures its expected accuracy."""
OTHER = "event loop, and everything else"
STAGES: Sequence[tuple[str, Sequence[str]]] = (
    ("writing to the client", ("http/protocol.py:write", "http/protocol.py:_uncork")),
    ("writing to the client", ("http/protocol.py:send", "http/protocol.py:_send_head")),
    ("writing to the client", ("httptools_impl.py:send", "http/transfer.py:send_")),
    (
        "reading the request",
        ("http/protocol.py", "http/transfer.py:read_body", "httptools_impl.py"),
    ),
    ("receiving from the upstream", ("upstream/connection.py:data_received",)),
    ("receiving from the upstream", ("upstream/connection.py:_pass_on",)),
    ("receiving from the upstream", ("upstream/connection.py:on_", "upstream/connection.py:read")),
    ("receiving from the upstream", ("upstream/connection.py:_wa", "upstream/client.py:chunks")),
    ("receiving from the upstream", ("upstream/client.py:pass_part", "upstream/client.py:renew")),
    (
        "receiving from the upstream",
        ("upstream/client.py:__enter__", "upstream/client.py:__exit__"),
    ),
    (
        "asking the upstream",
        ("upstream/connection.py", "upstream/client.py", "upstream/retries.py"),
    ),
    ("asking the upstream", ("upstream/breaker.py", "upstream/translation.py")),
    ("reading events", ("upstream/streams.py",)),
    ("relaying", ("http/relay.py",)),
    ("planning", ("requests/deciding.py", "requests/planning.py", "requests/parsing.py")),
    ("planning", ("requests/mapping.py", "/router.py", "requests/trials.py")),
    ("recording", ("requests/recording.py", "requests/exchange.py", "requests/feedback.py")),
    ("recording", ("telemetry/", "store/")),
    ("middleware", ("http/middleware.py", "http/auth.py", "http/inference.py", "serving/app.py")),
    ("middleware", ("access/", "requests/limits.py", "http/transfer.py")),
)
"""Stages, each with beginnings of `FILE:FUNCTION` after a folder's name. Of a stack, the innermost
frame that is listed counts; the first line that fits it has its stage."""


def stage_of(stack: Sequence[str]) -> str:
    """Return the stage of a stack, whose innermost frame comes first."""
    for frame in stack:
        for stage, marks in STAGES:
            if any(mark in frame for mark in marks):
                return stage
    return OTHER


def measure(arguments: argparse.Namespace) -> Mapping[str, Mapping[str, float]]:
    """Return the samples of each version by stage, for 1,000 answers."""
    answers: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with ExitStack() as programs:
            place = Place(arguments.peers, folder, free_port())
            upstream = direct(place)
            programs.enter_context(running(upstream.program, first_request(upstream)))
            versions = {"before": before(place), "switchcraft": switchcraft(place)}
            found = {
                name: _sampled(it, folder / f"{name}.samples")
                for name, it in versions.items()
                if it
            }
            serving = {
                name: programs.enter_context(running(it.program, first_request(it)))
                for name, it in found.items()
            }
            requests = {name: requests_of(arguments.mode, it) for name, it in found.items()}
            for name, it in serving.items():
                play(Load(it.port, requests[name], arguments.connections, WARM_S))
                os.kill(it.process.pid, signal.SIGUSR1)
            for number in range(arguments.rounds):
                print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
                for name, it in serving.items():
                    load = Load(it.port, requests[name], arguments.connections, arguments.seconds)
                    answers[name] += sum(play(load).answers_by_connection)
        return {name: _read_samples(folder / f"{name}.samples", answers[name]) for name in found}


def _sampled(contender: Contender, samples: Path) -> Contender:
    """Return a gateway whose stack is sampled."""
    command = list(contender.program.command)
    start = command.index("-m")
    command[start : start + 2] = [sampled.__file__, str(samples)]
    return replace(contender, program=replace(contender.program, command=command))


def _read_samples(path: Path, answers: int) -> Mapping[str, float]:
    samples: dict[str, float] = defaultdict(float)
    for line in path.read_text().splitlines():
        count, *stack = line.split("\t")
        samples[stage_of(stack)] += int(count) * 1000 / answers
    return samples


def table(samples: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a Markdown table of shares of the first version's processor time."""
    whole = sum(next(iter(samples.values())).values())
    stages = [*dict.fromkeys(stage for stage, _ in STAGES), OTHER]
    rows = {
        stage: [f"{100 * of.get(stage, 0.0) / whole:.1f}%" for of in samples.values()]
        for stage in stages
    }
    rows["all"] = [f"{100 * sum(of.values()) / whole:.1f}%" for of in samples.values()]
    yield from markdown("stage", list(samples), rows)


def main() -> None:
    """Print the table; with `--out`, also write the samples for 1,000 answers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"), help="see above")
    parser.add_argument("--mode", choices=list(CONNECTIONS), default="stream")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20, help="loads of each version")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each load")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    samples = measure(arguments)
    print("\n".join(table(samples)))
    write_figures(arguments.out, {"mode": arguments.mode, "samples": samples})


if __name__ == "__main__":
    main()
