"""The gateway benchmark, run on its own upstream and on this gateway."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from benchmarks.load import bodies
from benchmarks.load.client import Load, RefusedError, play
from benchmarks.load.contenders import Place, direct
from benchmarks.load.figures import Figures, Setting, tables
from benchmarks.load.processes import Running, free_port, running
from benchmarks.load.upstream import CHUNKS, DELAY_S
from tests.bodies import ASK, TOOLS
from tests.serving import scripted

ROOT = Path(__file__).parents[2]
FIGURES = Figures(10, 100.0, 1.0, 2.0, 1.0, 2.0, 0.5, 0.6, 0.1, 1.0, 2.0, 3, 3.3, 4)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run the benchmark's upstream."""
    contender = direct(Place(Path(), tmp_path_factory.mktemp("bench"), free_port()))
    with running(contender.program, next(endless(bodies.small()))) as program:
        yield program


def endless(request: Mapping[str, Any]) -> Iterator[bytes]:
    """Return an endless iterator over one request."""
    return bodies.again(bodies.framed(iter([request]), bodies.MODEL, {}))


def test_figures_exclude_the_warm_up(upstream: Running) -> None:
    """No figure includes a request that was sent during the warm-up."""
    requests = iter(list(islice(endless(bodies.small()), 100_000)))
    load = Load(upstream.port, requests, connections=3, seconds=0.1, warm_requests=500)
    record = play(load, upstream.cpu_s)
    count = len(record.latencies_s)
    assert 0 < count <= 100_000 - 500 - len(list(requests))
    assert len(record.first_bytes_s) == count
    assert all(latency > 0 for latency in record.latencies_s)


def test_every_event_of_a_stream_has_an_age(upstream: Running) -> None:
    """Each event contains its time of writing, so its age on arrival is positive."""
    requests = endless(bodies.small_stream(paced=False))
    record = play(Load(upstream.port, requests, connections=1, seconds=0.1))
    assert len(record.ages_s) == CHUNKS * len(record.latencies_s) > 0
    assert all(age > 0 for age in record.ages_s)


def test_first_byte_of_a_paced_stream_arrives_before_later_events(upstream: Running) -> None:
    """The first byte of a paced stream arrives before its other events are written."""
    requests = endless(bodies.small_stream(paced=True))
    record = play(Load(upstream.port, requests, connections=1, seconds=0.1))
    (latency,), (first_byte,) = record.latencies_s, record.first_bytes_s
    assert latency - first_byte > max(record.ages_s)


def test_measurement_begins_after_the_first_answers(upstream: Running) -> None:
    """Each connection's first answer is recorded separately, and counts as one of its answers."""
    requests = endless(bodies.delayed())
    record = play(Load(upstream.port, requests, connections=3, seconds=0.01))
    assert len(record.first_answers_s) == 3
    assert all(latency_s > DELAY_S for latency_s in record.first_answers_s)
    assert record.answers_by_connection == [2, 2, 2]
    assert record.latencies_s


def test_agents_send_growing_histories() -> None:
    """Every request of an agent has one tool call and its result more than the one before."""
    sent = list(islice(bodies.agents([{"messages": ASK, "tools": TOOLS}]), bodies.TURNS + 1))
    counts = [sum(m["role"] == "tool" for m in request["messages"]) for request in sent]
    assert counts == [*range(bodies.TURNS), 0]


def test_error_answer_aborts_the_load() -> None:
    """A load with an error answer raises RefusedError with the answer's text."""
    answer = b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nfull"
    with scripted(answer) as url:
        load = Load(urlsplit(url).port or 0, endless(bodies.small()), connections=1, seconds=1.0)
        with pytest.raises(RefusedError, match="503: full"):
            play(load)


def test_repeated_requests_get_a_number_in_the_last_user_message() -> None:
    """After the last request, they repeat with a number appended to the last user message."""
    requests = [{"messages": ASK}, {"messages": [*ASK, {"role": "tool", "content": "{}"}]}]
    first, second, third, fourth, fifth = islice(bodies.once(requests), 5)
    assert [first, second] == requests
    assert third["messages"][0]["content"] == f"{ASK[0]['content']} (2)"
    assert fourth["messages"] == [third["messages"][0], {"role": "tool", "content": "{}"}]
    assert fifth["messages"][0]["content"] == f"{ASK[0]['content']} (3)"


def test_added_latency_excludes_the_upstreams_own_time() -> None:
    """Added latency is the difference to the upstream in the same round."""
    slower = [replace(FIGURES, p50_ms=upstream + 0.5) for upstream in (1.0, 9.0)]
    upstreams = [replace(FIGURES, p50_ms=upstream) for upstream in (1.0, 9.0)]
    rounds = {Setting("pass-through", 1): {"direct": upstreams, "slower": slower}}
    row = next(line for line in tables(rounds, {}) if line.startswith("| slower"))
    assert row.split(" | ")[2] == "0.500 (0.500 to 0.500)"


@pytest.mark.slow
def test_benchmark_command_measures_installed_gateways(tmp_path: Path) -> None:
    """The command measures installed gateways, lists missing ones, and writes stamped figures."""
    out = tmp_path / "gateway.json"
    selection = "--only switchcraft portkey --modes pass-through stream --connections 1 2"
    effort = "--rounds 1 --seconds 0.1 --starts 1"
    command = [sys.executable, "benchmarks/gateway.py", *selection.split(), *effort.split()]
    places = ["--peers", str(tmp_path), "--out", str(out)]
    run = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, check=True)
    written = orjson.loads(out.read_bytes())
    assert {"commit", "processor", "versions"} < written.keys()
    assert len(written["settings"]) == 4
    for setting in written["settings"]:
        (ours,) = setting["rounds"]["switchcraft"]
        assert ours["answers"] > 0
        assert f"| {setting['mode']} |" in run.stdout.decode()
    assert written["gateways"]["switchcraft"]["loaded_mb"] > 10
    assert "not measured: portkey" in run.stdout.decode()
