"""A machine-learning engineer: rows, answers, a trained router, its report, and its release.

The steps are those of docs/training.md, with models of a sandbox and an encoder small enough to be
trained in seconds.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser

from router_service.artifact import SHIPPED
from router_service.cli import main as switchcraft
from switchcraft_training.cli import main as train
from tests.drills.processes import gateway, write_config
from tests.sandbox import run_in_thread
from tests.training.conftest import (  # noqa: F401 - fixtures
    benchmark,
    config,
    encoder_folder,
    few_draws,
    small_models,
)
from tests.walks.screens import Screens

pytestmark = pytest.mark.slow

POOL = Path(__file__).parents[2] / "training/switchcraft_training/configs/pools/sandbox.yaml"

# The first row of xlam_function_calling_60k.json as it is published, and one as users write it.
XLAM = [
    {
        "id": 0,
        "query": "Where can I find live giveaways for beta access and games?",
        "answers": json.dumps(
            [
                {"name": "live_giveaways_by_type", "arguments": {"type": "beta"}},
                {"name": "live_giveaways_by_type", "arguments": {"type": "game"}},
            ]
        ),
        "tools": json.dumps(
            [
                {
                    "name": "live_giveaways_by_type",
                    "description": "Retrieve live giveaways from the GamerPower API.",
                    "parameters": {
                        "type": {
                            "description": "The type of giveaways to retrieve.",
                            "type": "str",
                            "default": "game",
                        }
                    },
                }
            ]
        ),
    },
    {"id": 1, "query": "Broken", "answers": "[{]", "tools": "[]"},
]


MANY_BROKEN = ("--max-unreadable", 0.6)
"""Half of these two rows is broken; usually, that is a sign of the wrong file."""


class Shell:
    """Runs the two commands in this process, and takes a picture of each."""

    def __init__(self, screens: Screens) -> None:
        self._screens = screens

    def run(self, line: str, *arguments: object) -> str:
        """Run a command line, which must succeed; return what it printed and logged."""
        program, *words = [*line.split(), *map(str, arguments)]
        main = {"switchcraft": switchcraft, "switchcraft-train": train}[program]
        printed = StringIO()
        handler = logging.StreamHandler(printed)
        logging.getLogger().addHandler(handler)
        try:
            # Playwright's event loop runs in this thread, and the commands start their own.
            with redirect_stdout(printed), redirect_stderr(printed), ThreadPoolExecutor(1) as pool:
                status = pool.submit(main, words).result()
        finally:
            logging.getLogger().removeHandler(handler)
        return self._shown(line, arguments, status, printed.getvalue())

    def run_alone(self, line: str, *arguments: object) -> str:
        """Run a command line in a process of its own, because it handles signals."""
        module = {"switchcraft-train": "switchcraft_training.cli"}
        program, *words = [*line.split(), *map(str, arguments)]
        command = [sys.executable, "-m", module[program], *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return self._shown(line, arguments, done.returncode, done.stdout + done.stderr)

    def _shown(self, line: str, arguments: Sequence[object], status: int, text: str) -> str:
        names = " ".join(Path(str(each)).name for each in arguments)
        self._screens.terminal(f"{line} {names}", text)
        assert status == 0, text
        return text


def test_machine_learning_engineer(
    screens: Screens,
    browser: Browser,
    config: Path,  # noqa: F811
    benchmark: Path,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From published rows to a router that running gateways use, and back to the one before."""
    caplog.set_level(logging.INFO)
    shell = Shell(screens)

    # 1. Queries: a row that nobody can judge is set aside and counted.
    published = tmp_path / "xlam_function_calling_60k.json"
    published.write_text("[\n" + ",\n".join(map(json.dumps, XLAM)) + "\n]\n")
    rows = tmp_path / "rows.jsonl"
    said = shell.run("switchcraft-train import xlam", published, "--out", rows, *MANY_BROKEN)
    assert len(rows.read_text().splitlines()) == 1
    assert "1" in said

    # 2. Answers: each model of a pool is asked each query.
    with run_in_thread() as upstream:
        pool = yaml.safe_load(POOL.read_text())
        pool["endpoints"]["sandbox"] |= {"base_url": upstream, "extra_headers": {}}
        (tmp_path / "pool.yaml").write_text(yaml.safe_dump(pool))
        answers = tmp_path / "answers"
        command = "switchcraft-train label --spending-cap-usd 20"
        shell.run_alone(command, tmp_path / "pool.yaml", rows, "--out", answers)
    assert len((answers / "answers.jsonl").read_text().splitlines()) == 2

    # 3. A plan of the training, then the training, which leaves an artifact and a report.
    values = yaml.safe_load(config.read_text())
    values["training"] = {"shares": {"forest": 1}}  # the fastest branch
    config.write_text(yaml.safe_dump(values))
    out = tmp_path / "out"
    run = ("switchcraft-train run", config, "--data", benchmark, "--out", out)
    plan = shell.run(*run, "--dry-run", "--processes", 1)
    assert "80" in plan
    shell.run(*run, "--processes", 1)
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        tab = context.new_page()
        tab.goto((out / "report.html").as_uri())
        tab.get_by_text("With its default policy, the router answers").wait_for()
        screens.page(tab, "report", is_full=True)
        tab.get_by_role("heading", name="Rules", exact=True).click()
        screens.page(tab, "report with the rules unfolded")

    _release(shell, screens, browser, out / "artifact", tmp_path)


def _release(
    shell: Shell, screens: Screens, browser: Browser, artifact: Path, folder: Path
) -> None:
    """Look at the policies, release the artifact to a running gateway, and go back."""
    policies = shell.run("switchcraft policies --artifact", artifact)
    assert "quality" in policies
    pointer = folder / "published"
    shell.run("switchcraft-train publish", SHIPPED, "--to", pointer)
    with run_in_thread() as upstream:
        file = write_config(folder / "gateway.yaml", upstream)
        settings = yaml.safe_load(file.read_text())
        settings["router"] = {"publication": str(pointer), "unknown_prices": "allow"}
        settings["model_list"] += [
            {
                "model_name": arm,
                "litellm_params": {"model": f"openai/{arm}", "api_base": upstream},
            }
            for arm in ("large-FC", "small-FC")
        ]
        file.write_text(yaml.safe_dump(settings))
        with gateway(file, folder) as serving:
            assert serving.artifact() == SHIPPED.name
            shell.run("switchcraft-train publish", artifact, "--to", pointer)
            serving.wait_for_artifact("made-up")
            with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
                tab = context.new_page()
                tab.goto(f"{serving.url}/ui/#router")
                tab.get_by_text("made-up").first.wait_for()
                screens.page(tab, "the gateway's router", is_full=True)
            shell.run("switchcraft-train publish", SHIPPED, "--to", pointer)
            serving.wait_for_artifact(SHIPPED.name)
