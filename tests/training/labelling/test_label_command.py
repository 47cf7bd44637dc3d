"""`switchcraft-train label` against a sandbox with faults, and with kills."""

from __future__ import annotations

import json
import os
import random
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

from tests.sandbox import run_in_thread
from tests.serving import Sandbox, served
from tests.training.labelling.cases import KEY, KEY_NAME, TOOL, Case, serve_flaky, wait_for_requests


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Return a case with twelve queries, and set an API key in the environment."""
    monkeypatch.setenv(KEY_NAME, KEY)
    return Case(tmp_path).rows(12)


def endpoint(url: str, faults: str = "delay_s=0", **fields: object) -> Mapping[str, Any]:
    """Return an endpoint with these faults."""
    return {"base_url": url, "extra_headers": {"x-sandbox": faults}, **fields}


def test_every_arm_answers_every_query_repeatedly(
    case: Case, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers have calls, tokens and cost, and are sorted; a second run sends no requests.

    Without a terminal, progress is lines.
    """
    caplog.set_level("INFO")
    case.pool({"one": endpoint(sandbox.base_url), "two": endpoint(sandbox.base_url)})
    before = sandbox.stats()["requests"]
    done = case.label("--attempts", "2")
    assert (done.returncode, sandbox.stats()["requests"] - before) == (0, 48), done.stderr
    assert "asking: 48 of 48 questions, 0.0048 USD" in caplog.text
    assert "\r" not in done.stderr
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


def test_request_contains_only_the_query_and_the_arms_parameters(
    case: Case, sandbox: Sandbox
) -> None:
    """Native tools, no system prompt and no temperature; the arm's own parameters are added."""
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


def test_temporary_failures_are_retried(case: Case) -> None:
    """After 429, 500, a broken connection and a broken body, the answer arrives."""
    with serve_flaky(["status=429", "status=500", "delay_s=0", "cut_after=1", "malformed"]) as (
        url,
        app,
    ):
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
def test_failed_question_is_recorded_and_asked_again(
    case: Case, sandbox: Sandbox, faults: str, code: str, status: int | None, *, may_be_paid: bool
) -> None:
    """A failure is saved with its reason, apart from answers, until there is an answer."""
    limits = {"max_retries": 0, **({"timeout_s": 0.5} if code == "timeout" else {})}
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


def test_wrong_key_stops_only_its_arm(case: Case, sandbox: Sandbox) -> None:
    """The arm stops after the requests in flight; the other arms finish."""
    wrong = endpoint(sandbox.base_url, "status=401", max_concurrency=2, api_key_env=KEY_NAME)
    case.pool({"wrong": wrong, "right": endpoint(sandbox.base_url)})
    done = case.label()
    assert done.returncode == 1
    assert "wrong is stopped: wrong_key" in done.stderr
    assert {row["arm"] for row in case.answers()} == {"right"}
    assert len(case.answers()) == 12
    assert len(case.failures()) <= 2


def test_api_key_is_never_saved_or_printed(case: Case) -> None:
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


def test_run_stops_before_spending_cap_is_exceeded(case: Case, sandbox: Sandbox) -> None:
    """The run stops below the cap with its own status; a higher cap continues it."""
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


def test_second_ctrl_c_abandons_requests_in_flight(case: Case, sandbox: Sandbox) -> None:
    """The run ends immediately, and its journal counts abandoned requests as possibly paid.

    While it ran, a second run with the same journal was refused.
    """
    case.pool({"one": endpoint(sandbox.base_url, "hang", max_concurrency=3)})
    before = sandbox.stats()["requests"]
    with subprocess.Popen(case.command(), stderr=subprocess.PIPE) as run:
        wait_for_requests(sandbox, before + 3, run)
        second = case.label()  # of the same questions
        assert (second.returncode, sandbox.stats()["requests"] - before) == (1, 3)
        assert "is in use by another run" in second.stderr
        run.send_signal(signal.SIGINT)
        assert run.stderr is not None
        while b"press Ctrl-C" not in run.stderr.readline():
            assert run.poll() is None
        run.send_signal(signal.SIGINT)
        _, err = run.communicate()
    assert run.returncode == 130
    assert b"Interrupted; run the same command again" in err
    assert b"Traceback" not in err
    assert "3 requests were sent and their answers lost" in case.label("--export").stdout


KILLS, CONCURRENCY = 6, 4
ROWS, ATTEMPTS = 50, 4


def kill_at_random(case: Case, sandbox: Sandbox, rng: random.Random) -> None:
    """Start a run and kill it with SIGKILL after a random number of further requests."""
    options = ("--attempts", str(ATTEMPTS))
    with subprocess.Popen(case.command(*options), stderr=subprocess.DEVNULL) as run:
        enough = sandbox.stats()["requests"] + rng.randrange(40)
        wait_for_requests(sandbox, enough, run)
        time.sleep(rng.uniform(0, 0.1))
        assert run.poll() is None, "the kill must find a run that is not done"
        run.kill()


@pytest.mark.slow
def test_six_kills_lose_nothing_and_pay_nothing_twice(tmp_path: Path) -> None:
    """The rows equal an undisturbed run's; only requests in flight at a kill were repeated."""
    with run_in_thread() as url:
        sandbox = Sandbox(url)
        limits = {"max_concurrency": CONCURRENCY, "extra_headers": {"x-sandbox": "delay_s=0.05"}}
        case = Case(tmp_path).rows(ROWS).pool({arm: {"base_url": url, **limits} for arm in "ab"})
        undisturbed = case.folder / "undisturbed"
        assert case.label("--attempts", str(ATTEMPTS), out=undisturbed).returncode == 0
        requests = sandbox.stats()["requests"]
        assert requests == 2 * ROWS * ATTEMPTS
        rng = random.Random(os.urandom(8))
        for _ in range(KILLS):
            kill_at_random(case, sandbox, rng)
        done = case.label("--attempts", str(ATTEMPTS))
        assert done.returncode == 0
        assert case.answers() == case.answers(undisturbed)
        repeated = sandbox.stats()["requests"] - 2 * requests
    lost = int(done.stdout.split(" requests were sent and their answers lost")[0].split()[-1])
    assert repeated <= lost <= KILLS * 2 * CONCURRENCY
