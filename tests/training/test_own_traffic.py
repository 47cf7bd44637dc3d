"""The complete loop: a gateway's decisions train the artifact that it serves next."""

from __future__ import annotations

import json
import logging
import runpy
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router_service.artifact import SHIPPED
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import RouterSettings, Settings
from router_service.store.pointers import open_pointer
from switchcraft_training.cli import main
from tests.bodies import BODY, CHAT
from tests.fakes import PRICES, FakeRouter
from tests.logs import LoggingGateway, logging_gateway
from tests.serving import ONE_TRY, Sandbox, served, wait_for
from tests.training.conftest import CITIES

pytestmark = pytest.mark.slow

QUERIES = tuple(f"Weather in {city}?" for city in CITIES)
JOB = Path(__file__).parents[2] / "examples" / "retraining_job.py"
ROUNDS = 8
"""Repetitions of each query, so that hardly any query is answered by only one of the two arms."""
ARMS = {"small": 0.6, "large": 0.8}
EXPLORING = {"router": RouterSettings(exploration_share=1.0)}


def is_correct(arm: str, query: str) -> bool:
    """Return the client's verdict: the small model fails every third question."""
    return arm == "large" or QUERIES.index(query) % 3 > 0


def ask(gateway: LoggingGateway, query: str) -> None:
    """Send a query, and give feedback: a verdict, or for one query the expected calls."""
    answer = gateway.ask(messages=[{"role": "user", "content": query}])
    name, arm = (answer.headers[f"x-switchcraft-{what}"] for what in ("decision-id", "model"))
    made = [call["function"] for call in answer.json()["choices"][0]["message"]["tool_calls"]]
    calls = [{"name": c["name"], "arguments": json.loads(c["arguments"])} for c in made]
    said: dict[str, Any] = {"correct": is_correct(arm, query)}
    if query == QUERIES[0]:  # the checker judges this one
        said = {"expected": calls}
    path = f"/v1/decisions/{name}"
    wait_for(lambda: gateway.http.get(path).status_code == 200, "the decision is recorded")
    given = gateway.http.post("/v1/feedback", json={"decision_id": name, **said})
    assert given.status_code == 200, given.text


@pytest.fixture
def log(sandbox: Sandbox, tmp_path: Path) -> Path:
    """Record the log of a real gateway with exploration and feedback."""
    folder = tmp_path / "log"
    router = FakeRouter(ARMS)
    with logging_gateway(sandbox.base_url, folder, router, EXPLORING, content=True) as gateway:
        for _ in range(ROUNDS):
            for query in QUERIES:
                ask(gateway, query)
        gateway.feedback(ROUNDS * len(QUERIES))
    return folder


def use_log_as_source(log: Path, config: Path) -> None:
    """Make the log the source of a run's configuration."""
    values = yaml.safe_load(config.read_text())
    values["source"] = {"format": "decisions", "path": str(log)}
    values["pool"] = [
        {"arm": arm, "price": dict.fromkeys(("input_usd_per_mtok", "output_usd_per_mtok"), usd)}
        for arm, usd in PRICES.items()
        if arm in ARMS
    ]
    values["auxiliary_arms"] = "none"
    values["training"] = {"shares": {"forest": 1}}  # the fastest branch
    # With theta=0.5 the small model, which is right in two of three cases, would always answer.
    values["policies"]["default"] = "theta=0.9"
    config.write_text(yaml.safe_dump(values))


def test_gateway_log_trains_the_next_artifact(
    sandbox: Sandbox,
    log: Path,
    config: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job of the examples trains from the log; replay and a gateway use its artifact."""
    use_log_as_source(log, config)
    published = tmp_path / "published"
    assert main(["publish", str(SHIPPED), "--to", str(published)]) == 0
    options = ["--work", str(tmp_path / "out"), "--publish-to", str(published)]
    monkeypatch.setattr("sys.argv", ["retraining_job.py", str(config), str(tmp_path), *options])
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOB), run_name="__main__")
    assert ended.value.code == 0
    publication = open_pointer(str(published)).read()
    assert publication is not None
    assert publication.canary is not None
    assert publication.canary.release.name == "made-up"
    asked = ROUNDS * len(QUERIES)
    assert f"{asked} of {asked} decisions give labels for {len(QUERIES)} queries" in caplog.text
    artifact = tmp_path / "out" / "artifact"
    options = ["--artifact", str(artifact), "--policy", "theta=0", "--out", str(tmp_path)]
    assert main(["replay", str(log), *options]) == 0
    found = json.loads((tmp_path / "replay.json").read_bytes())
    assert found["overlap"] == {"queries": asked, "learned": asked, "share": 1.0}
    cheapest = found["accuracy"]["policies"]["theta=0"]
    assert (found["with_feedback"], cheapest["coverage"]) == (asked, 1)
    assert cheapest["dr"]["value"] < found["accuracy"]["chosen"]["value"] + 0.05

    router = Router.load(artifact)
    settings = Settings.sandbox(sandbox.base_url, router.arms, upstreams=ONE_TRY)
    with served(create_app(settings, router)) as url:
        answer = httpx.post(f"{url}{CHAT}", json=BODY, timeout=10)
        ready = httpx.get(f"{url}/readyz").json()
    assert (answer.status_code, ready["artifact"]) == (200, "made-up")
    assert answer.headers["x-switchcraft-model"] in ARMS
    assert answer.headers["x-switchcraft-reason"] in {"threshold", "argmax"}
