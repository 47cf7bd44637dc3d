"""The gateway benchmark, run on its own upstream and on this gateway."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from benchmarks.load import bodies
from benchmarks.load.client import Load, RefusedError, play
from benchmarks.load.figures import Figures, Setting, tables
from tests.serving import scripted

ROOT = Path(__file__).parents[2]
FIGURES = Figures(10, 100.0, 1.0, 2.0, 1.0, 2.0, 0.5, 0.6, 0.1, 1.0, 2.0, 3, 3.3, 4)


def endless(request: Mapping[str, Any]) -> Iterator[bytes]:
    """Return an endless iterator over one request."""
    return bodies.again(bodies.framed(iter([request]), bodies.MODEL, {}))


def test_error_answer_aborts_the_load() -> None:
    """A load with an error answer raises RefusedError with the answer's text."""
    answer = b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nfull"
    with scripted(answer) as url:
        load = Load(urlsplit(url).port or 0, endless(bodies.small()), connections=1, seconds=1.0)
        with pytest.raises(RefusedError, match="503: full"):
            play(load)


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
