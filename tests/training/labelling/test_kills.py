"""A labelling run that is killed repeatedly has the result of an undisturbed one."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.sandbox import run_in_thread
from tests.serving import Sandbox
from tests.training.labelling.cases import Case, wait_for_requests

pytestmark = pytest.mark.slow

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
