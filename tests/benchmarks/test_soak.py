"""The soak, in short: it loses nothing, its accounts agree, and it knows what is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from benchmarks.mixed.client import Answer
from benchmarks.mixed.report import slope_of
from benchmarks.mixed.traffic import Mix, Outcome, Request, Trouble, judge
from benchmarks.mixed.watching import Sample

ROOT = Path(__file__).parents[2]
MAX_RESIDENT_MB = 330
"""Three graphs at once, and one that is being loaded; freed memory that is kept comes on top."""


def test_mixed_traffic_with_faults_loses_nothing(tmp_path: Path) -> None:
    """Reloads, publications, faults and a restart of Redis within seconds, under all traffic."""
    how = "--seconds 15 --rate 40 --pause 0.2 --fault 0.5 --sample 0.5".split()
    command = [sys.executable, "benchmarks/soak.py", *how, "--out", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=240)
    soak = orjson.loads((tmp_path / "soak.json").read_bytes())
    assert soak["lost"] == [], run.stderr.decode()
    assert soak["requests"] == sum(soak["outcomes"].values()) == 15 * 40
    assert soak["errors_logged"] == []
    assert [balance for balance in soak["balances"] if not agrees(balance)] == []
    assert [it for it in soak["disturbances"] if it["problem"]] == []
    done = {it["name"] for it in soak["disturbances"]}
    # How many more there is time for depends on the machine.
    assert {"SIGHUP", "publication"} <= done
    assert soak["figures"]["resident_mb_highest"] < MAX_RESIDENT_MB
    assert (tmp_path / "soak.png").stat().st_size > 0


def agrees(balance: Mapping[str, int]) -> bool:
    """Whether both sides counted the same, but for clients that left."""
    return abs(balance["ours"] - balance["theirs"]) <= balance["uncertain"]


@pytest.fixture(scope="module")
def stream() -> Request:
    """Return a request for a stream that repeats its own words."""
    mix = Mix(["key"], "admin")
    return next(request for request in iter(mix.next, None) if request.kind == "pinned stream")


def answer(request: Request, *events: str, status: int = 200) -> Answer:
    """Return a complete answer of these events."""
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    return Answer(status, {"x-request-id": request.request_id}, body, is_complete=True)


def words_of(request: Request) -> str:
    """Return an event that repeats what a request says."""
    text = orjson.loads(request.data.partition(b"\r\n\r\n")[2])["messages"][0]["content"]
    return orjson.dumps({"choices": [{"delta": {"content": text}}]}).decode()


def test_complete_stream_is_no_loss(stream: Request) -> None:
    """The request's own words, and one [DONE] at the end."""
    given = answer(stream, words_of(stream), "[DONE]")
    assert judge(stream, given, Trouble()) == (Outcome.COMPLETE, "")


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((), "no events"),
        (("{}",), "DONE"),
        (('{"choices":[]}', "[DONE]", "[DONE]"), "DONE"),
        (('{"choices":[{"delta":{"content":"other"}}]}', "[DONE]"), "another request's answer"),
        (('{"choices":', "[DONE]"), "not JSON"),
        (('{"error":{"message":"broke"}}',), "error event"),
    ],
)
def test_incomplete_or_foreign_stream_is_lost(
    stream: Request, events: tuple[str, ...], reason: str
) -> None:
    """A stream without its end, with two, with another's words, or broken without a fault."""
    outcome, problem = judge(stream, answer(stream, *events), Trouble())
    assert outcome is Outcome.LOST
    assert reason in problem


def test_broken_stream_is_explained_by_a_fault(stream: Request) -> None:
    """An error event at the end is what an injected fault leads to."""
    given = answer(stream, words_of(stream), '{"error":{"message":"broke"}}')
    assert judge(stream, given, Trouble(upstreams=True)) == (Outcome.EXPLAINED, "")


def test_answer_to_another_request_is_lost(stream: Request) -> None:
    """The id of the request must come back."""
    given = answer(stream, words_of(stream), "[DONE]")
    given.headers["x-request-id"] = "another"
    assert judge(stream, given, Trouble())[0] is Outcome.LOST


def test_status_500_of_the_gateway_is_lost_whatever_else_fails(stream: Request) -> None:
    """No injected fault explains an internal error."""
    body = b'{"error":{"message":"internal","code":"internal_error"}}'
    given = Answer(500, {"x-request-id": stream.request_id}, body, is_complete=True)
    assert judge(stream, given, Trouble(upstreams=True))[0] is Outcome.LOST


def test_slope_is_per_10000_requests() -> None:
    """Two MB more with every 10,000 requests, whatever single samples show."""
    samples = [
        Sample(at_s, at_s * 100, 200 + at_s / 50 + 30 * (at_s % 60 == 0), 10, 5, 3)
        for at_s in range(0, 600, 5)
    ]
    slope = slope_of(samples)
    assert slope is not None
    assert slope.mb == pytest.approx(2.0, abs=0.05)
    assert slope.high_mb - slope.low_mb < 0.1
    assert slope_of(samples[:20]) is None
