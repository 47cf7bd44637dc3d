"""The gateway's benchmark, by what it measures of its own upstream and of this gateway."""

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
from benchmarks.load.upstream import CHUNKS
from tests.bodies import ASK
from tests.serving import scripted

ROOT = Path(__file__).parents[2]
FIGURES = Figures(10, 100.0, 1.0, 2.0, 1.0, 2.0, 0.5, 0.6, 0.1)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run the benchmark's upstream."""
    contender = direct(Place(Path(), tmp_path_factory.mktemp("bench"), free_port()))
    with running(contender.program, next(asked(bodies.small()))) as program:
        yield program


def asked(request: Mapping[str, Any]) -> Iterator[bytes]:
    """Return a request to ask for ever."""
    return bodies.again(bodies.framed(iter([request]), bodies.MODEL, {}))


def test_warming_up_is_not_counted(upstream: Running) -> None:
    """What is asked before the warming up has passed is in no figure."""
    requests = iter(list(islice(asked(bodies.small()), 100_000)))
    load = Load(upstream.port, requests, connections=3, seconds=0.1, warm_requests=500)
    record = play(load, upstream.cpu_s)
    count = len(record.latencies_s)
    assert 0 < count <= 100_000 - 500 - len(list(requests))
    assert len(record.first_bytes_s) == count
    assert all(latency > 0 for latency in record.latencies_s)


def test_every_event_of_a_stream_has_an_age(upstream: Running) -> None:
    """Each event tells when it was written, and is told to be older when it arrives."""
    requests = asked(bodies.small_stream(paced=False))
    record = play(Load(upstream.port, requests, connections=1, seconds=0.1))
    assert len(record.ages_s) == CHUNKS * len(record.latencies_s) > 0
    assert all(age > 0 for age in record.ages_s)


def test_paced_streams_last_as_long_as_their_pauses(upstream: Running) -> None:
    """A paced stream's first byte comes before its other events are written."""
    requests = asked(bodies.small_stream(paced=True))
    record = play(Load(upstream.port, requests, connections=1, seconds=0.1))
    (latency,), (first_byte,) = record.latencies_s, record.first_bytes_s
    assert latency - first_byte > max(record.ages_s)


def test_refusals_are_not_measured() -> None:
    """A load whose answers are errors ends with what they say."""
    answer = b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nfull"
    with scripted(answer) as url:
        load = Load(urlsplit(url).port or 0, asked(bodies.small()), connections=1, seconds=1.0)
        with pytest.raises(RefusedError, match="503: full"):
            play(load)


def test_requests_come_again_with_other_words() -> None:
    """Once all were asked, a number stands behind what the user said last, and nothing else."""
    requests = [{"messages": ASK}, {"messages": [*ASK, {"role": "tool", "content": "{}"}]}]
    first, second, third, fourth, fifth = islice(bodies.once(requests), 5)
    assert [first, second] == requests
    assert third["messages"][0]["content"] == f"{ASK[0]['content']} (2)"
    assert fourth["messages"] == [third["messages"][0], {"role": "tool", "content": "{}"}]
    assert fifth["messages"][0]["content"] == f"{ASK[0]['content']} (3)"


def test_the_upstreams_own_time_is_taken_off() -> None:
    """Added latency is the difference within a round, whatever the rounds took."""
    slower = [replace(FIGURES, p50_ms=upstream + 0.5) for upstream in (1.0, 9.0)]
    upstreams = [replace(FIGURES, p50_ms=upstream) for upstream in (1.0, 9.0)]
    rounds = {Setting("pass-through", 1): {"direct": upstreams, "slower": slower}}
    row = next(line for line in tables(rounds, {}) if line.startswith("| slower"))
    assert row.split(" | ")[2] == "0.500 (0.500 to 0.500)"


def test_this_gateway_is_measured(tmp_path: Path) -> None:
    """One command measures what is installed, says what is not, and leaves stamped figures."""
    out = tmp_path / "gateway.json"
    what = "--only switchcraft portkey --modes pass-through stream --connections 1 2"
    often = "--rounds 1 --seconds 0.1 --starts 1"
    command = [sys.executable, "benchmarks/gateway.py", *what.split(), *often.split()]
    places = ["--peers", str(tmp_path), "--out", str(out)]
    run = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, check=True)
    told = orjson.loads(out.read_bytes())
    assert {"commit", "processor", "versions"} < told.keys()
    assert len(told["settings"]) == 4
    for setting in told["settings"]:
        (ours,) = setting["rounds"]["switchcraft"]
        assert ours["answers"] > 0
        assert f"| {setting['mode']} |" in run.stdout.decode()
    assert told["gateways"]["switchcraft"]["loaded_mb"] > 10
    assert "not measured: portkey" in run.stdout.decode()
