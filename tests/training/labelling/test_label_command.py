"""`switchcraft-train label` as a user runs it, against a sandbox that fails as it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.serving import Sandbox, served
from tests.training.labelling.cases import KEY, KEY_NAME, TOOL, Case, flaky, wait_for_requests


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Return a case with twelve queries, and a key in the environment."""
    monkeypatch.setenv(KEY_NAME, KEY)
    return Case(tmp_path).rows(12)


def endpoint(url: str, faults: str = "delay_s=0", **fields: object) -> Mapping[str, Any]:
    """Return an endpoint with these faults."""
    return {"base_url": url, "extra_headers": {"x-sandbox": faults}, **fields}


def test_every_arm_is_asked_every_query_so_many_times(case: Case, sandbox: Sandbox) -> None:
    """Answers come with their calls, tokens and cost, sorted; a second run asks nothing."""
    case.pool({"one": endpoint(sandbox.base_url), "two": endpoint(sandbox.base_url)})
    before = sandbox.stats()["requests"]
    done = case.label("--attempts", "2")
    assert (done.returncode, sandbox.stats()["requests"] - before) == (0, 48), done.stderr
    rows = case.answers()
    keys = [(row["example_id"], row["arm"], row["attempt"]) for row in rows]
    assert keys == [
        (f"q{i:03}", arm, n) for i in range(12) for arm in ("one", "two") for n in (0, 1)
    ]
    assert rows[4]["calls"] == [{"name": "book", "arguments": {"guests": 3}}]
    assert rows[4]["served_model"] == "model-one"
    assert rows[4]["cost_usd"] == (rows[4]["input_tokens"] + 5 * rows[4]["output_tokens"]) / 1e6
    exported = (case.out / "answers.jsonl").read_bytes()
    again = case.label("--attempts", "2")
    assert (again.returncode, sandbox.stats()["requests"] - before) == (0, 48)
    assert (case.out / "answers.jsonl").read_bytes() == exported


def test_a_request_is_the_query_and_nothing_else(case: Case, sandbox: Sandbox) -> None:
    """Native tools, no system prompt, no temperature; the arm's own parameters are added."""
    pool = {"one": endpoint(sandbox.base_url, api_key_env=KEY_NAME)}
    case.pool(pool, extra_body={"reasoning_effort": "low"})
    assert case.label("--limit", "1").returncode == 0
    assert json.loads(sandbox.last_body()) == {
        "model": "model-one",
        "messages": [{"role": "user", "content": "Book a table for 2 guests"}],
        "tools": [TOOL],
        "reasoning_effort": "low",
    }
    assert sandbox.last_headers()["authorization"] == f"Bearer {KEY}"


def test_what_passes_is_tried_again(case: Case) -> None:
    """After 429, 500, a broken connection and a broken body the answer comes at last."""
    with flaky(["status=429", "status=500", "delay_s=0", "cut_after=1", "malformed"]) as (url, app):
        case.pool({"one": {"base_url": url, "max_concurrency": 1}})
        begun_s = time.monotonic()
        done = case.label("--limit", "2")
        assert time.monotonic() - begun_s > 1.0, "Retry-After was 1 second"
    assert (done.returncode, len(case.answers()), case.failures()) == (0, 2, [])
    first, last = app.keys[0], app.keys[-1]
    assert app.keys == [first] * 3 + [last] * 3, "one idempotency key a question"
    assert first != last
    assert "2 requests were sent and their answers lost" in done.stdout


@pytest.mark.parametrize(
    ("faults", "code", "status", "may_be_paid"),
    [
        ("status=429", "rate_limited", 429, False),
        ("status=503", "server_error", 503, False),
        ("status=400", "bad_request", 400, False),
        ("malformed", "malformed_body", 200, True),
        ("cut_after=1", "connection_lost", None, True),
        ("hang", "timeout", None, True),
    ],
)
def test_a_failure_is_no_answer_and_is_asked_again(
    case: Case, sandbox: Sandbox, faults: str, code: str, status: int | None, *, may_be_paid: bool
) -> None:
    """What fails to the end is kept with its reason, apart from answers, until it is answered."""
    limits = {"max_retries": 0, "timeout_s": 0.5}
    case.pool({"one": endpoint(sandbox.base_url, faults, **limits)})
    failed = case.label("--limit", "2")
    assert failed.returncode == 1
    assert "2 questions have no answer; run the same command again" in failed.stderr
    assert case.answers() == []
    assert [(row["code"], row["status"]) for row in case.failures()] == [(code, status)] * 2
    assert ("answers lost" in failed.stdout) == may_be_paid
    case.pool({"one": endpoint(sandbox.base_url)})
    assert case.label("--limit", "2").returncode == 0
    assert (len(case.answers()), case.failures()) == (2, [])


def test_a_wrong_key_stops_its_arm_alone(case: Case, sandbox: Sandbox) -> None:
    """The arm is given up after the requests that were in flight; the others are finished."""
    wrong = endpoint(sandbox.base_url, "status=401", max_concurrency=2, api_key_env=KEY_NAME)
    case.pool({"wrong": wrong, "right": endpoint(sandbox.base_url)})
    done = case.label()
    assert done.returncode == 1
    assert "wrong is stopped: wrong_key" in done.stderr
    assert {row["arm"] for row in case.answers()} == {"right"}
    assert len(case.answers()) == 12
    assert len(case.failures()) <= 2


def test_an_endpoint_that_is_down_stops_its_arm(case: Case) -> None:
    """Where nobody listens, an arm is given up after twenty failures, and nothing was paid."""
    case.rows(40).pool({"one": {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0}})
    done = case.label()
    assert done.returncode == 1
    assert "one is stopped: 20 consecutive failures, the last unreachable" in done.stderr
    assert 20 <= len(case.failures()) < 40
    assert "answers lost" not in done.stdout


def test_the_key_is_nowhere(case: Case) -> None:
    """An endpoint that repeats the key in its error does not get it into a file or a message."""
    error = {"error": {"message": f"Incorrect API key provided: {KEY}"}}

    async def refuse(_: Request) -> JSONResponse:
        return JSONResponse(error, 401)

    route = Route("/chat/completions", refuse, methods=["POST"])
    with served(Starlette(routes=[route])) as address:
        case.pool({"one": {"base_url": address, "api_key_env": KEY_NAME}})
        done = case.label()
    assert "Incorrect API key provided: (the key)" in done.stderr
    assert KEY not in done.stderr + done.stdout
    assert not [f for f in case.out.iterdir() if KEY.encode() in f.read_bytes()]


def test_the_cap_ends_a_run_before_it_is_exceeded(case: Case, sandbox: Sandbox) -> None:
    """A run stops with its own status below the cap, and a higher cap takes it on from there."""
    case.pool({"one": endpoint(sandbox.base_url, "delay_s=0.02")}, reserve_output_tokens=10)
    done = case.label("--spending-cap-usd", "0.0005")
    answered = case.answers()
    assert done.returncode == 3
    assert "Stopped below the spending cap of 0.0005 USD" in done.stderr
    assert 0 < len(answered) < 12
    assert 0.0003 < sum(row["cost_usd"] for row in answered) <= 0.0005
    assert case.label("--spending-cap-usd", "0.01").returncode == 0
    assert len(case.answers()) == 12
    assert [row for row in case.answers() if row in answered] == answered


def test_requests_are_spaced(case: Case, sandbox: Sandbox) -> None:
    """`requests_per_minute: 600` sends one every tenth of a second, however many may be open."""
    case.pool({"one": endpoint(sandbox.base_url, requests_per_minute=600)})
    begun_s = time.monotonic()
    assert case.label().returncode == 0
    assert time.monotonic() - begun_s > 1.1


def test_ctrl_c_waits_for_what_is_paid(case: Case, sandbox: Sandbox) -> None:
    """The first Ctrl-C asks nothing more and keeps the answers in flight: none is lost."""
    case.pool({"one": endpoint(sandbox.base_url, "delay_s=0.5", max_concurrency=3)})
    before = sandbox.stats()["requests"]
    with subprocess.Popen(case.command(), stderr=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        wait_for_requests(sandbox, before + 3, run)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=20)
    assert (run.returncode, len(case.answers())) == (130, 3)
    assert b"Interrupted; run the same command again" in err
    assert b"lost" not in out


def test_a_second_ctrl_c_leaves_what_is_in_flight(case: Case, sandbox: Sandbox) -> None:
    """The run ends at once, and its journal counts what it left as possibly paid."""
    case.pool({"one": endpoint(sandbox.base_url, "hang", max_concurrency=3)})
    before = sandbox.stats()["requests"]
    with subprocess.Popen(case.command(), stderr=subprocess.PIPE) as run:
        wait_for_requests(sandbox, before + 3, run)
        run.send_signal(signal.SIGINT)
        time.sleep(0.3)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=10)
    assert run.returncode == 130
    assert b"Interrupted; run the same command again" in err
    assert b"Traceback" not in err
    assert "3 requests were sent and their answers lost" in case.label("--export").stdout


def test_a_journal_takes_one_run_alone(case: Case, sandbox: Sandbox) -> None:
    """Other rows or other arms are refused with what to do; other limits are the same run."""
    case.pool({"one": endpoint(sandbox.base_url)})
    assert case.label("--limit", "2").returncode == 0
    case.pool({"one": endpoint(sandbox.base_url, max_concurrency=2)})
    assert case.label("--limit", "3").returncode == 0
    case.pool({"one": endpoint(sandbox.base_url)}, extra_body={"reasoning_effort": "high"})
    other_pool = case.label()
    assert other_pool.returncode == 1
    assert "belongs to a run with another pool file; give another --out" in other_pool.stderr
    case.rows(13).pool({"one": endpoint(sandbox.base_url)})
    assert "belongs to a run with another rows file" in case.label().stderr
    assert len(case.answers()) == 3


def test_two_runs_do_not_share_a_journal(case: Case, sandbox: Sandbox) -> None:
    """While a run writes, another one into the same folder is refused, and asks nothing."""
    case.pool({"one": endpoint(sandbox.base_url, "hang")})
    before = sandbox.stats()["requests"]
    with subprocess.Popen(case.command(), stderr=subprocess.DEVNULL) as run:
        wait_for_requests(sandbox, before + 8, run)
        second = case.label()
        run.kill()
    assert second.returncode == 1
    assert "is in use by another run" in second.stderr
    assert sandbox.stats()["requests"] - before == 8


def test_export_asks_nothing(case: Case, sandbox: Sandbox) -> None:
    """`--export` writes the answers again from the journal."""
    case.pool({"one": endpoint(sandbox.base_url)})
    case.label("--limit", "2")
    exported = (case.out / "answers.jsonl").read_bytes()
    (case.out / "answers.jsonl").unlink()
    before = sandbox.stats()["requests"]
    assert case.label("--export").returncode == 0
    assert (case.out / "answers.jsonl").read_bytes() == exported
    assert sandbox.stats()["requests"] == before
