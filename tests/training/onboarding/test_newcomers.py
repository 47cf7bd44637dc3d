"""`switchcraft onboard`: models that a gateway does not know join it, from their own answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router_service import cli
from router_service.apis.conversation import Json
from switchcraft_training.cli import main as train
from switchcraft_training.onboarding.newcomers import CONCURRENCY
from switchcraft_training.records import Judged
from tests.bodies import CHAT
from tests.serving import served, wait_for
from tests.training.gateways import gateway, published
from tests.training.onboarding.cases import ROWS
from tests.training.upstreams import ModelUpstream, calling

pytestmark = pytest.mark.slow

ANSWERS = 30
START_S = 240.0
"""Longest time until a process asks its first question: it imports torch first."""
MODELS = ("caller", "expert")
BY_QUERY = {row.example.query: row for row in ROWS}


def answer(body: dict[str, Any]) -> Mapping[str, Json] | None:
    """Return a model's answer: `expert` is always right, and `caller` makes a call every time.

    `liar` calls for a city that nobody named, and `stranger` does not exist.
    """
    model, row = body["model"], BY_QUERY.get(body["messages"][-1]["content"])
    if model == "stranger":
        return None
    if row is None or not (row.expected.calls or model != "expert"):
        return {"role": "assistant", "content": "No."}
    is_right = row.expected.calls and model != "liar"
    city = row.expected.calls[0].arguments["city"][0] if is_right else "Atlantis"
    return calling("forecast", json.dumps({"city": city}))


@pytest.fixture
def upstream() -> ModelUpstream:
    """Return the provider."""
    return ModelUpstream(answer)


class Newcomers:
    """A configuration whose models the artifact does not know, and the state directory."""

    def __init__(self, folder: Path, artifact: Path, url: str, data: Path) -> None:
        self.config = folder / "gateway.yaml"
        self.state = folder / "state"
        self.published = folder / "published"
        assert train(["publish", str(artifact), "--to", str(self.published)]) == 0
        self._url, self._data = url, data
        self.write(MODELS)

    def write(self, models: tuple[str, ...]) -> None:
        """Write the configuration of these models, whose gateways look for releases."""
        entries = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"openai/{name}",
                    "api_base": self._url,
                    "api_key": "k",
                },
                "model_info": {
                    "input_cost_per_token": (place + 1) * 1e-6,
                    "output_cost_per_token": (place + 1) * 4e-6,
                },
            }
            for place, name in enumerate(models)
        ]
        router = {"publication": str(self.published)}
        self.config.write_text(yaml.safe_dump({"model_list": entries, "router": router}))

    def arguments(self, *options: str) -> list[str]:
        """Return the command's arguments."""
        given = ["--answers", str(ANSWERS), "--data", str(self._data)]
        return ["onboard", str(self.config), *given, *options]

    @property
    def artifacts(self) -> list[Path]:
        """The artifacts that were written."""
        return [*(self.state / "switchcraft" / "artifacts").glob("*")]


@pytest.fixture
def newcomers(
    upstream: ModelUpstream,
    artifact: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Newcomers]:
    """Yield the newcomers, with a state directory of their own."""
    with served(upstream.app) as url:
        found = Newcomers(tmp_path, artifact, f"{url}/v1", data)
        monkeypatch.setenv("XDG_STATE_HOME", str(found.state))
        yield found


def route(http: httpx.Client, row: Judged) -> str:
    """Send a query to a gateway, and return the model that it chooses before any answer."""
    body = {**row.example.request, "model": "switchcraft"}
    headers = {"x-switchcraft-policy": "theta=0.5"}
    answer = http.post(CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-switchcraft-model"]


def test_unknown_models_join_after_a_kill_and_are_routed_to(
    newcomers: Newcomers, upstream: ModelUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run shows the cost and asks nothing; a killed run continues; then requests are routed.

    Only requests in flight at the kill are repeated. The accuracies are those of the models. A
    running gateway gets the canary and, when it is promoted, chooses both models before an answer.
    """
    assert cli.main(newcomers.arguments("--dry-run")) == 0
    assert upstream.asked.total() == 0
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [[m, "30"] for m in MODELS]

    upstream.limit = 20
    command = [sys.executable, "-m", "router_service.cli", *newcomers.arguments("--yes")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        try:
            wait_for(lambda: upstream.asked.total() > upstream.limit, "it asks", START_S)
        finally:
            run.kill()
    upstream.limit = 1_000_000
    with gateway(newcomers.config) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert cli.main(newcomers.arguments("--yes", "--publish")) == 0
        asked = upstream.asked.total()
        wait_for(lambda: published(http)["canary"], "the canary is loaded")
        assert train(["publish", "--to", str(newcomers.published), "--promote"]) == 0
        wait_for(lambda: not published(http)["canary"], "the canary is promoted")
        served = {bool(row.expected.calls): route(http, row) for row in ROWS[:2]}
    assert served == {True: "caller", False: "expert"}
    # Each of the two runs first sees whether a model answers at all.
    assert asked <= len(MODELS) * (ANSWERS + CONCURRENCY + 2)
    shown = capsys.readouterr().out
    estimated = {name: float(shown.split(f"{name}: ")[1].split("%")[0]) for name in MODELS}
    assert estimated["expert"] > 80
    assert estimated["caller"] < 70


@pytest.mark.parametrize(
    ("models", "options", "status", "problem"),
    [
        (("caller",), ("--budget", "0.02"), 3, "Stopped below the spending cap"),
        (("stranger",), (), 1, "Check the model's name at the provider"),
        (("liar",), (), 1, "none of the 30 answers of 'liar' is correct"),
    ],
    ids=["budget", "unreachable", "all wrong"],
)
def test_nothing_is_written_without_enough_answers(
    models: tuple[str, ...],
    options: tuple[str, ...],
    status: int,
    problem: str,
    newcomers: Newcomers,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A budget that runs out, an unknown model and wrong answers end with what to do."""
    newcomers.write(models)
    assert cli.main(newcomers.arguments("--yes", *options)) == status
    assert problem in capsys.readouterr().err
    assert not newcomers.artifacts
