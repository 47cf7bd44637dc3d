"""The Berkeley leaderboard's harness generates its answers through the gateway and scores them.

Its package imports the SDKs of all vendors that it supports. Those that are missing here are
installed in a separate folder that only the harness sees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from router_service.artifact import SHIPPED
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.clients.installed import INSTALL_S, installed
from tests.serving import Sandbox, served

HARNESS = Path(__file__).parent / "bfcl"
INSTALL = (
    sys.executable,
    *"-m pip install --quiet --no-deps --no-compile --target modules".split(),
)
RUN_S = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 2 * RUN_S)]

ENTRIES = {
    "simple_python": ["simple_python_0", "simple_python_1"],
    "simple_java": ["simple_java_0"],
    "multiple": ["multiple_0"],
    "parallel": ["parallel_0"],
    "irrelevance": ["irrelevance_0"],
    "live_simple": ["live_simple_0-0-0"],
    "multi_turn_base": ["multi_turn_base_0"],
}
RIGHT = {"simple_python": 1.0, "simple_java": 1.0, "multiple": 1.0}
"""Accuracy by category where the sandbox's answers are known to be right."""


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest) -> Path:
    """Return a folder with the harness's imports that are not installed here."""
    assert request.config.cache is not None
    manifest = HARNESS / "requirements.txt"
    return installed(request.config.cache, manifest, (*INSTALL, "-r", manifest.name)) / "modules"


@pytest.fixture(scope="module")
def shipped_url(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway with the shipped artifact in front of the sandbox; yield its base URL."""
    router = Router.load(SHIPPED)
    settings = Settings.sandbox(sandbox.base_url, router.artifact.manifest.arms)
    # One model answers each request, so that both sides' counts compare.
    once = settings.router.model_copy(update={"default_policy": "fast"})
    settings = settings.model_copy(update={"router": once})
    with served(create_app(settings, router)) as url:
        yield f"{url}/v1"


@dataclass(frozen=True)
class Project:
    """Project folder of the harness, with its output."""

    folder: Path

    def results(self, model: str) -> list[dict[str, Any]]:
        """Return the results of each entry."""
        files = self.folder.glob(f"result/{model}/**/*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def scores(self, model: str) -> dict[str, dict[str, Any]]:
        """Return the first line of each category's scores."""
        return {
            file.stem.removeprefix("BFCL_v4_").removesuffix("_score"): json.loads(
                file.read_text().splitlines()[0]
            )
            for file in self.folder.glob(f"score/{model}/**/*.json")
        }


def run(project: Path, modules: Path, base_url: str) -> None:
    """Answer `ENTRIES` through each API of the gateway, and score the answers."""
    (project / "test_case_ids_to_generate.json").write_text(json.dumps(ENTRIES))
    environ = os.environ | {
        "BFCL_PROJECT_ROOT": str(project),
        "OPENAI_API_KEY": "client-key",
        "OPENAI_BASE_URL": base_url,
        "PYTHONPATH": str(modules),
    }
    command = [sys.executable, str(HARNESS / "harness.py"), ",".join(ENTRIES)]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_entry_is_answered_once_and_scored(
    tmp_path: Path, modules: Path, shipped_url: str, sandbox: Sandbox
) -> None:
    """Through each API, each entry gets one answer without error, which the checker scores.

    The sandbox received as many requests as the harness reports.
    """
    before, project = sandbox.stats(), Project(tmp_path)
    run(tmp_path, modules, shipped_url)
    after, asked = sandbox.stats(), 0
    for model in ("chat", "responses"):
        results, scores = project.results(model), project.scores(model)
        assert sorted(result["id"] for result in results) == sorted(chain(*ENTRIES.values()))
        assert not [result for result in results if "traceback" in result]
        asked += sum(steps(result["latency"]) for result in results)
        counts = {name: score["total_count"] for name, score in scores.items()}
        assert counts == {name: len(entries) for name, entries in ENTRIES.items()}
        assert {name: scores[name]["accuracy"] for name in RIGHT} == RIGHT
    assert after["requests"] - before["requests"] == asked
    assert after["completed"] - before["completed"] == asked


def steps(latency: Any) -> int:  # noqa: ANN401 - a number, or lists of them by turn
    """Return the number of requests of an entry, from the latencies that the harness recorded."""
    return sum(map(steps, latency)) if isinstance(latency, list) else 1
