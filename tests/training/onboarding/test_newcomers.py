"""`switchcraft onboard`: models that a gateway does not know join it, from their own answers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from router_service import cli
from switchcraft_training.cli import main as train
from switchcraft_training.onboarding.newcomers import CONCURRENCY
from switchcraft_training.records import Judged
from tests.bodies import CHAT
from tests.serving import wait_for
from tests.training.gateways import gateway, published
from tests.training.onboarding.cases import ROWS

pytestmark = pytest.mark.slow

ANSWERS = 30
START_S = 240.0
"""Longest time until a process asks its first question: it imports torch first."""
MODELS = ("caller", "expert")
BY_QUERY = {row.example.query: row for row in ROWS}


class Upstream:
    """An OpenAI-compatible server: `expert` is always right, `caller` makes a call every time.

    `liar` calls for a city that nobody named, and `stranger` does not exist. After `limit` requests
    for answers, the server does not answer any more.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.limit = 10_000
        self._lock = threading.Lock()
        self._end = threading.Event()
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = upstream.answer(body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def answer(self, body: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Return the status and the body of the answer to a request."""
        model = str(body["model"])
        if model == "stranger":
            return 404, {"error": {"message": "no such model", "code": "model_not_found"}}
        row = BY_QUERY.get(body["messages"][-1]["content"])  # pyrefly: ignore[bad-index]  # JSON
        with self._lock:
            self.counts[model] += row is not None
            is_over = self.counts.total() > self.limit
        if is_over:
            self._end.wait()
        message: dict[str, object] = {"role": "assistant", "content": "No."}
        if row is not None and (row.expected.calls or model != "expert"):
            message = {"role": "assistant", "content": None, "tool_calls": [_call(row, model)]}
        usage = {"prompt_tokens": 90, "completion_tokens": 20, "total_tokens": 110}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": model} | {
            "choices": [choice],
            "usage": usage,
        }

    def close(self) -> None:
        """Let all requests end, and stop."""
        self._end.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _call(row: Judged, model: str) -> dict[str, object]:
    is_right = row.expected.calls and model != "liar"
    city = row.expected.calls[0].arguments["city"][0] if is_right else "Atlantis"
    function = {"name": "forecast", "arguments": json.dumps({"city": city})}
    return {"id": "call_1", "type": "function", "function": function}


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """Run the upstream."""
    server = Upstream()
    yield server
    server.close()


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
    upstream: Upstream, artifact: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Newcomers:
    """Return the newcomers, with a state directory of their own."""
    found = Newcomers(tmp_path, artifact, upstream.url, data)
    monkeypatch.setenv("XDG_STATE_HOME", str(found.state))
    return found


def route(http: httpx.Client, row: Judged) -> str:
    """Send a query to a gateway, and return the model that it chooses before any answer."""
    body = {**row.example.request, "model": "switchcraft"}
    headers = {"x-switchcraft-policy": "theta=0.5"}
    answer = http.post(CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-switchcraft-model"]


def test_unknown_models_join_after_a_kill_and_are_routed_to(
    newcomers: Newcomers, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run shows the cost and asks nothing; a killed run continues; then requests are routed.

    Only requests in flight at the kill are repeated. The accuracies are those of the models. A
    running gateway gets the canary and, when it is promoted, chooses both models before an answer.
    """
    assert cli.main(newcomers.arguments("--dry-run")) == 0
    assert upstream.counts.total() == 0
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [[m, "30"] for m in MODELS]

    upstream.limit = 20
    command = [sys.executable, "-m", "router_service.cli", *newcomers.arguments("--yes")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as run:
        try:
            wait_for(lambda: upstream.counts.total() > upstream.limit, "it asks", START_S)
        finally:
            run.kill()
    upstream.limit = 10_000
    with gateway(newcomers.config) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert cli.main(newcomers.arguments("--yes", "--publish")) == 0
        wait_for(lambda: published(http)["canary"], "the canary is loaded")
        assert train(["publish", "--to", str(newcomers.published), "--promote"]) == 0
        wait_for(lambda: not published(http)["canary"], "the canary is promoted")
        served = {bool(row.expected.calls): route(http, row) for row in ROWS[:2]}
    assert served == {True: "caller", False: "expert"}
    assert upstream.counts.total() <= len(MODELS) * (ANSWERS + CONCURRENCY)
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
