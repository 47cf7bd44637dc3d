"""The programs in `examples/`, and the walk-through of docs/accounts.md."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.core.keys import PREFIX
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings, read_settings
from tests.clients.installed import installed
from tests.drills.processes import install_programs, sandbox_gateway
from tests.serving import Sandbox, served

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ARMS = ("gpt-5.2", "gpt-4.1-mini")
LITELLM = ROOT / "tests" / "examples" / "litellm.txt"
RUN_ELSEWHERE = {
    "move_litellm_keys.py": "tests/moving/test_moving.py",
    "retraining_job.py": "tests/training/test_runs.py",
}
"""Examples that other test files run."""


@pytest.fixture(scope="module")
def url(sandbox: Sandbox, shipped: Router) -> Iterator[str]:
    """Serve the shipped router in front of a sandbox that plays its arms; yield the base URL."""
    settings = Settings.sandbox(sandbox.base_url, shipped.arms)
    with served(create_app(settings, shipped)) as base_url:
        yield f"{base_url}/v1"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Point the examples at the gateway."""
    monkeypatch.setenv("SWITCHCRAFT_URL", url)


def run(name: str) -> None:
    """Run an example as a program in this process."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_openai_sdk_prints_the_call_and_the_decision(capsys: pytest.CaptureFixture[str]) -> None:
    """The quickstart prints the streamed call and all decision headers."""
    run("openai_sdk.py")
    printed = capsys.readouterr().out
    assert printed.startswith("get_forecast")
    assert '"Lisbon"' in printed
    assert "policy: verified=" in printed
    assert "likely to be correct" in printed
    assert "decision-id: dec_" in printed


def test_agent_loop_ends_with_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop calls the tool once, sends its result, and prints the final answer."""
    run("agent_loop.py")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert 'calls get_weather({"city":"Lisbon"})' in lines[0].replace('": "', '":"')
    assert "calls" not in lines[1]


def test_langchain_agent_calls_its_tool(capsys: pytest.CaptureFixture[str]) -> None:
    """LangChain's bound tool is called and its result is sent back."""
    run("langchain_agent.py")
    printed = capsys.readouterr().out
    assert "calls: [('get_weather', {'city': 'Oslo'})]" in printed
    assert "answer: \n" not in printed


def test_embedded_router_chooses_among_the_given_arms(capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded router prints its choice and both arms' probabilities."""
    run("embed_router.py")
    first, *others = capsys.readouterr().out.splitlines()
    assert first.partition(":")[0] in ARMS
    assert [line.partition(":")[0].strip() for line in others] == list(ARMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["litellm_in_front.py", "litellm_callback.py"])
def test_program_with_litellm(name: str, request: pytest.FixtureRequest, sandbox: Sandbox) -> None:
    """LiteLLM's SDK reads the gateway's answer; its router asks the arm that ours chooses.

    LiteLLM is installed into a separate folder. It is not a test dependency, because it pins
    older versions of packages that the tests need; it works with the present ones. Only what is
    missing here is installed, which takes seconds.
    """
    cache = request.config.cache
    assert cache is not None
    install = (*"-m pip install --quiet --no-deps --no-compile --target modules -r".split(),)
    modules = installed(cache, LITELLM, (sys.executable, *install, LITELLM.name)) / "modules"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(modules))),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_BASE_URL": sandbox.base_url,
            "OPENAI_API_KEY": "not-needed",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "calls get_weather(" in done.stdout
    if name == "litellm_callback.py":
        assert done.stdout.startswith("gpt-4.1-mini ")


def test_wrapper_asks_the_model_of_the_chosen_arm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sandbox: Sandbox
) -> None:
    """Without a gateway, the request goes to the model that the router chose."""
    monkeypatch.setenv("OPENAI_BASE_URL", sandbox.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "not-needed")
    before = sandbox.stats()["by_model"].get("gpt-4.1-mini-2025-04-14", {"requests": 0})
    run("openai_wrapper.py")
    printed = capsys.readouterr().out
    assert printed == 'gpt-4.1-mini-2025-04-14 calls get_weather({"city":"Oslo"})\n'
    after = sandbox.stats()["by_model"]["gpt-4.1-mini-2025-04-14"]
    assert after["requests"] == before["requests"] + 1


def test_litellm_behind_is_a_valid_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration loads, and both models point at the proxy."""
    monkeypatch.setenv("LITELLM_PROXY_URL", "http://litellm:4000/v1")
    monkeypatch.setenv("LITELLM_PROXY_KEY", "sk-1234")
    settings = read_settings(
        EXAMPLES / "litellm_behind.yaml", environ={**os.environ, "HOME": "", "XDG_STATE_HOME": ""}
    )
    addresses = [model.deployments[0].base_url for model in settings.models]
    assert addresses == ["http://litellm:4000/v1"] * 2
    assert settings.unsupported == ()


def test_every_example_is_tested() -> None:
    """A new example needs a test in this file, or an entry in `RUN_ELSEWHERE`."""
    for path in EXAMPLES.iterdir():
        if path.suffix in {".py", ".yaml"}:
            tests = ROOT / RUN_ELSEWHERE.get(path.name, "tests/examples/test_examples.py")
            assert f'"{path.name}"' in tests.read_text(), path.name


PAGE = ROOT / "docs" / "accounts.md"
ADDRESS = "http://127.0.0.1:8080"


def commands() -> str:
    """Return the commands of the walk-through as one script."""
    section = PAGE.read_text().partition("## In five minutes\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) > 5
    return "\n".join(blocks)


@pytest.fixture
def sandbox_url(tmp_path: Path) -> Iterator[str]:
    """Run a gateway without a configuration and with an empty database; yield its address."""
    with sandbox_gateway(tmp_path) as address:
        yield address


@pytest.mark.slow
def test_walk_through_works_as_written(sandbox_url: str, tmp_path: Path) -> None:
    """It runs "spend_a_budget.py"; only port, folder, installation and pauses are replaced.

    A key works, spends its budget with ever cheaper policies, is refused, rotated and revoked.
    """
    programs = install_programs(tmp_path)
    script = commands().replace(".venv/bin", str(programs)).replace(ADDRESS, sandbox_url)
    environment = {name: value for name, value in os.environ.items() if "SWITCHCRAFT" not in name}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment |= {"XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": path}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**environment, "SWITCHCRAFT_URL": f"{sandbox_url}/v1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert PREFIX not in printed, "secrets go to variables"
    _, before, after = printed.split("request 1:")
    assert re.search(r"^search +search-agent +5 +0 ", before, re.MULTILINE)
    cheaper = re.findall(r"policy default \((\S+)\), left: (\S+), expected accuracy: (\S+)", after)
    assert cheaper, "a cheaper policy comes before the refusal"
    assert [float(left) for _, left, _ in cheaper] == sorted(
        (float(left) for _, left, _ in cheaper), reverse=True
    )
    accuracies = [float(accuracy) for _, _, accuracy in cheaper]
    assert accuracies == sorted(accuracies, reverse=True)
    assert "is refused with insufficient_quota: Error code: 429" in after
    assert "The budget of the key 'search-agent' (0.002 USD in total)" in after
    assert re.findall(r"^\d{3}$", printed, re.MULTILINE) == ["200", "200", "401"]
    assert "revoked" in after
