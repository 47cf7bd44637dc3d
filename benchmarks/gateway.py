"""Cost of a gateway: added latency, requests per second, processor time, memory, startup time.

    python benchmarks/gateway.py --peers PEERS --out runs/gateway.json

Peers are measured if they are installed below PEERS, which can be any folder:

    python -m venv PEERS/litellm && PEERS/litellm/bin/pip install 'litellm[proxy]==1.106.2'
    python -m venv PEERS/ferrogw && PEERS/ferrogw/bin/pip install ferrogw==1.5.10
    pip install --target PEERS/switchyard nemo-switchyard==0.3.0
    mkdir PEERS/portkey
    echo '{"overrides": {"@hono/node-server": "1.13.7"}}' > PEERS/portkey/package.json
    npm install --prefix PEERS/portkey @portkey-ai/gateway@1.15.2

With later versions of that server, Portkey's gateway answers streams with status 500 (its issue
1389).

Another version of this gateway is measured as `before` if it is checked out there:

    git worktree add PEERS/before REVISION

All gateways run for the whole time, in front of one upstream. In every round, each gateway in turn
gets requests over several numbers of connections. All connections are opened at the same time, and
each sends its next request as soon as it has an answer. Latency is the client's waiting time,
without each connection's first answer, which is reported separately. Added latency is that time
minus the waiting time for the upstream itself in the same round. The first round is a warm-up.

- `pass-through`: a small request that names a model, so no gateway routes. The upstream answers
  immediately.
- `delayed`: the same, but the upstream answers after 20 ms.
- `repeated`: 64 requests of BFCL v4, with their tools, again and again. This gateway routes them.
  The others do not route and get the name of a model.
- `answered`: 64 requests that need calls, again and again. The upstream answers with the right
  calls, most of which this gateway's verifier accepts, and not with a text, which it rejects.
- `tool loop`: each agent sends a task with BFCL's tools, which the upstream answers with the right
  calls, and then their results of 1 KB, which it answers with a text.
- `first sight`: BFCL's requests, each only once. After the last one they start again, with a number
  appended to the user's text.
- `stream`: a small request whose answer is 50 events, sent as fast as the client reads them.
- `paced`: the same with one event every 10 ms, to measure the age of events on arrival.
- `agent`: requests with tools and a history of up to eight tool calls, as agents send them, with
  paced events. They name a model, so no gateway routes.

Processor time and memory include all processes of a gateway. Startup ends with the first answer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import repeat
from pathlib import Path

from benchmarks.load import bodies
from benchmarks.load.client import Load, play
from benchmarks.load.contenders import GATEWAYS, Contender, Place, direct
from benchmarks.load.figures import (
    DIRECT,
    FEW,
    Figures,
    Rounds,
    Setting,
    Weight,
    as_json,
    figures_of,
    tables,
)
from benchmarks.load.processes import Running, free_port, running
from benchmarks.stamp import write_figures

REPEATED = 64
CONNECTIONS: Mapping[str, Sequence[int]] = {
    "pass-through": (1, FEW, 64, 256),
    "delayed": (16, 64, 256),
    "repeated": (1, FEW, 64),
    "answered": (1, FEW, 64),
    "tool loop": (1, FEW, 64),
    "first sight": (1, FEW, 64),
    "stream": (1, FEW, 64),
    "paced": (FEW,),
    "agent": (16, 64),
}
"""Modes, each with its numbers of connections."""
AGAIN = ("repeated", "answered")
STREAMED = ("stream", "paced")
VERSIONS = ("uvloop", "httptools", "bfcl-eval", "onnxruntime")


class Bench:
    """Running contenders and the next requests for each."""

    def __init__(
        self, contenders: Mapping[str, Contender], programs: Mapping[str, Running]
    ) -> None:
        self.names = list(contenders)
        self._contenders = contenders
        self._programs = programs
        self._requests: dict[tuple[str, str], Iterator[bytes]] = {}

    def rounds(self, settings: Sequence[Setting], count: int, seconds: float) -> Rounds:
        """Return every contender's figures in `count` rounds after a warm-up round."""
        rounds: dict[Setting, dict[str, list[Figures]]] = {
            setting: {name: [] for name in self.names} for setting in settings
        }
        for number in range(count + 1):
            print(f"round {number} of {count}", file=sys.stderr)
            start = number % len(self.names)  # another contender begins
            for setting in settings:
                for name in self.names[start:] + self.names[:start]:
                    figures = self._measure(name, setting, seconds)
                    if number:
                        rounds[setting][name].append(figures)
        return rounds

    def _measure(self, name: str, setting: Setting, seconds: float) -> Figures:
        key = name, setting.mode
        if key not in self._requests:  # later rounds continue them
            self._requests[key] = requests_for(setting.mode, self._contenders[name])
        load = Load(
            self._programs[name].port,
            self._requests[key],
            setting.connections,
            seconds,
            warm_s=seconds / 4,
            warm_requests=REPEATED if setting.mode in AGAIN else 0,
        )
        return figures_of(play(load, self._programs[name].cpu_s))


def main() -> None:
    """Print the tables; with `--out`, also write them and every round as JSON."""
    arguments = _parser().parse_args()
    settings = [
        Setting(mode, connections)
        for mode in arguments.modes
        for connections in arguments.connections or CONNECTIONS[mode]
    ]
    rounds, weights = measure(settings, arguments)
    print("\n".join(tables(rounds, weights)))
    missing = [name for name in arguments.only if name not in weights]
    if missing:
        print(f"\nNot installed below {arguments.peers}, so not measured: {', '.join(missing)}.")
    row = {
        "settings": as_json(rounds),
        "gateways": {name: asdict(weight) for name, weight in weights.items()},
        "not_installed": missing,
    }
    write_figures(arguments.out, row, *VERSIONS)


def measure(
    settings: Sequence[Setting], arguments: argparse.Namespace
) -> tuple[Rounds, Mapping[str, Weight]]:
    """Return the figures of every round after the first, and the gateways' memory and startup."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place = Place(arguments.peers, folder, free_port())
        upstream = direct(place)
        programs = {DIRECT: stack.enter_context(running(upstream.program, first_request(upstream)))}
        made = {name: GATEWAYS[name](place) for name in arguments.only}
        contenders = {name: it for name, it in made.items() if it is not None}
        starts = {name: _starts(it, arguments.starts) for name, it in contenders.items()}
        for name, it in contenders.items():
            programs[name] = stack.enter_context(running(it.program, first_request(it)))
            starts[name].append(programs[name].ready_s)
        ready_mb = {name: programs[name].resident_mb() for name in contenders}
        bench = Bench({DIRECT: upstream, **contenders}, programs)
        rounds = bench.rounds(settings, arguments.rounds, arguments.seconds)
        weights = {
            name: Weight(it.version, starts[name], ready_mb[name], programs[name].resident_mb())
            for name, it in contenders.items()
        }
    return rounds, weights


def first_request(contender: Contender) -> bytes:
    """Return a request that a contender answers once it serves."""
    return next(requests_for("pass-through", contender))


def _starts(contender: Contender, times: int) -> list[float]:
    """Return the seconds of all startups but the last, whose process the benchmark keeps."""
    taken = []
    for _ in range(times - 1):
        with running(contender.program, first_request(contender)) as program:
            taken.append(program.ready_s)
    return taken


def requests_for(mode: str, contender: Contender) -> Iterator[bytes]:
    """Return an endless iterator over a contender's requests in a mode."""
    if mode in {*AGAIN, "first sight"}:
        real = bodies.answered() if mode == "answered" else bodies.real()
        model = contender.routed_model
        if mode == "first sight":
            return bodies.framed(bodies.once(real[REPEATED:]), model, contender.headers)
        return bodies.again(bodies.framed(iter(real[:REPEATED]), model, contender.headers))
    if mode == "tool loop":
        return bodies.framed(bodies.loops(), contender.routed_model, contender.headers)
    if mode == "agent":
        return bodies.framed(bodies.agents(bodies.real()), bodies.MODEL, contender.headers)
    small = bodies.delayed() if mode == "delayed" else bodies.small()
    if mode in STREAMED:
        small = bodies.small_stream(paced=mode == "paced")
    (request,) = bodies.framed(iter([small]), bodies.MODEL, contender.headers)
    return repeat(request)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"), help="see above")
    parser.add_argument("--only", nargs="+", choices=list(GATEWAYS), default=list(GATEWAYS))
    parser.add_argument("--modes", nargs="+", choices=list(CONNECTIONS), default=list(CONNECTIONS))
    parser.add_argument(
        "--connections", nargs="+", type=int, help="by default as many as suit a mode"
    )
    parser.add_argument("--rounds", type=int, default=5, help="in addition to the warm-up round")
    parser.add_argument("--seconds", type=float, default=1.5, help="measured seconds of each load")
    parser.add_argument("--starts", type=int, default=3, help="startups of each gateway")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    return parser


if __name__ == "__main__":
    main()
