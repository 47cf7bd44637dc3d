"""A second model answers a share of the requests in the background (`router.compare`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router_service.cli.commands import app
from router_service.core.errors import ConfigError
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, Settings, UpstreamSettings
from switchcraft_training.decisions.log import read_log
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, metric, sandbox_settings
from tests.serving import Sandbox, wait_for


def compared(http: httpx.Client) -> list[dict[str, Any]]:
    """Return what the page shows of comparisons; nothing while the database is busy."""
    answer = http.get("/ui/api/comparisons")
    found: list[dict[str, Any]] = answer.json() if answer.is_success else []
    return found


def wait_for_stored(http: httpx.Client, count: int) -> dict[str, Any]:
    """Return what is shown of the only compared model, once so many requests are stored."""
    found: list[dict[str, Any]] = []

    def are_stored() -> bool:
        found[:] = compared(http)
        return bool(found) and (found[0]["total"] or {}).get("comparisons", 0) >= count

    wait_for(are_stored, f"{count} comparisons are stored")
    (shown,) = found
    return shown


def settings(sandbox: Sandbox, folder: Path, **compare: object) -> Settings:
    """Return settings that compare every request with `large`, and log content to a folder."""
    wanted = {"model": "large", "share": 1.0, **compare}
    made = sandbox_settings(sandbox.base_url, UpstreamSettings(), compare=wanted)
    log = made.decision_log.model_copy(update={"path": folder / "log", "content": True})
    database = DatabaseSettings.model_validate({"url": f"sqlite:///{folder}/switchcraft.db"})
    return made.model_copy(update={"decision_log": log, "database": database})


@pytest.fixture
def http(sandbox: Sandbox, tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of a gateway that compares every request."""
    with gateway_client(settings(sandbox, tmp_path), FakeRouter()) as client:
        yield client


def ask(http: httpx.Client, **fields: object) -> httpx.Response:
    """Ask once, with these fields changed."""
    return http.post(CHAT, json={**BODY, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_second_model_answers_in_the_background(
    http: httpx.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, stream: bool
) -> None:
    """The page and the command show the agreement and both costs, and the log has the answer."""
    ask(http, stream=stream)
    answer = ask(http, stream=stream)
    assert answer.headers["x-switchcraft-model"] == "medium"
    shown = wait_for_stored(http, 2)
    assert (shown["other"], shown["total"]["comparisons"], shown["total"]["same"]) == (
        "large",
        2,
        1.0,
    )
    assert shown["total"]["low"] < 1.0
    assert shown["total"]["other_usd"] > shown["total"]["usd"] > 0
    assert [each["name"] for each in shown["tools"]] == [BODY["tools"][0]["function"]["name"]]
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "model_list:\n- {model_name: large, litellm_params: {model: openai/gpt-5.2, api_key: k}}\n"
        f"database: {{url: sqlite:///{tmp_path}/switchcraft.db}}\n"
    )
    app(["compare", "--config", str(config)], result_action="return_value")
    assert "large makes the same calls" in capsys.readouterr().out
    log = read_log(tmp_path / "log")
    comparison = log.comparisons[answer.headers["x-switchcraft-decision-id"]][0]
    assert comparison.model == "large"
    assert comparison.content is not None
    assert comparison.content.calls


def test_budget_of_comparisons_is_their_own(
    sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without budget no second model is asked, while the client's request is answered."""
    caplog.set_level("DEBUG", "switchcraft")
    with gateway_client(settings(sandbox, tmp_path, budget_usd=1e-9), FakeRouter()) as http:
        assert ask(http).status_code == 200
        wait_for(lambda: "router.compare.budget_usd is spent" in caplog.text, "it is skipped")
        assert compared(http) == []


def test_failure_of_the_second_model_is_counted_and_harms_nobody(
    http: httpx.Client, sandbox: Sandbox
) -> None:
    """The delivered answers stay as they are, and no circuit opens for clients."""
    sandbox.set_faults("large", "status=500")
    try:
        for _ in range(12):
            assert ask(http).status_code == 200
        wait_for(lambda: [each for each in compared(http) if each["failed"] >= 5], "5 have failed")
        assert "switchcraft_breaker_open" in http.get("/metrics").text
        assert metric(http, "switchcraft_breaker_open") == 0
    finally:
        sandbox.set_faults("large", "")
    assert ask(http, model="large").status_code == 200


@pytest.mark.parametrize("fields", [{"model": "large"}, {"tools": []}, {"n": 2}])
def test_requests_that_cannot_be_compared_are_not(
    http: httpx.Client, fields: dict[str, object]
) -> None:
    """The model has answered already, or there are no calls to compare."""
    ask(http, **fields)
    ask(http)  # a comparable one, after which the other one would have been compared too
    assert wait_for_stored(http, 1)["total"]["comparisons"] == 1


def test_unknown_model_of_comparisons_stops_the_start(sandbox: Sandbox, tmp_path: Path) -> None:
    """The error names the setting."""
    wrong = settings(sandbox, tmp_path, model="nobody")
    problem = r"router\.compare\.model: there is no model 'nobody'"
    with pytest.raises(ConfigError, match=problem):
        create_app(wrong, FakeRouter())
