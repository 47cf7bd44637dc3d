"""A labelling run whose requests are sent by Ray workers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.serving import Sandbox
from tests.training.labelling.cases import Case

pytestmark = pytest.mark.slow

RUN_S = 600
"""Half a minute on an idle machine: Ray starts about ten processes."""


@pytest.mark.timeout(2 * RUN_S)
def test_ray_workers_give_same_answers_as_one_process(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two local workers give the rows of a run without Ray; a failure keeps its reason."""
    # By default, Ray gives its workers a niceness of 15, with which they starve on a busy machine.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    slow = {"base_url": sandbox.base_url, "extra_headers": {"x-sandbox": "delay_s=0.05"}}
    broken = {
        "base_url": sandbox.base_url,
        "extra_headers": {"x-sandbox": "status=404"},
        "max_concurrency": 1,
    }
    case = Case(tmp_path).rows(30).pool({"slow": slow, "broken": broken})
    alone = case.folder / "alone"
    assert case.label(out=alone).returncode == 1
    done = subprocess.run(
        case.command("--ray", "--ray-workers", "2"), capture_output=True, check=False, timeout=RUN_S
    )
    assert done.returncode == 1
    assert b"Stopped: broken." in done.stderr
    assert case.answers() == case.answers(alone)
    assert [(row["code"], row["status"]) for row in case.failures()] == [("not_found", 404)]
