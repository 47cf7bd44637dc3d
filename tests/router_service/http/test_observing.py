"""Introspection: models, health, metrics, logs and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest

from router_service.serving.app import create_app
from router_service.serving.serve import sandbox_for
from router_service.settings import RouterSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import ONE_TRY, Sandbox, served, wait_for

PATH = "/v1/decisions/"
REQUESTS = "switchcraft_requests_total{"


def decision(http: httpx.Client, response: httpx.Response) -> dict[str, Any]:
    """Return the record of a response's decision once it is written."""
    path = PATH + response.headers["x-switchcraft-decision-id"]
    wait_for(lambda: http.get(path).status_code == 200, "the decision is recorded")
    record: dict[str, Any] = http.get(path).json()
    return record


def test_models_are_listed_in_openai_format(client: openai.OpenAI, http: httpx.Client) -> None:
    """The list has the router's name, its policies and the pool's models."""
    names = [model.id for model in client.models.list()]
    policies = ["switchcraft:economy", "switchcraft:quality"]
    assert names == ["switchcraft", *policies, "small", "medium", "large"]
    assert client.models.retrieve("small").object == "model"
    assert http.get("/v1/models/none").json()["error"]["code"] == "model_not_found"


def test_routed_decision_is_recorded(http: httpx.Client) -> None:
    """The record contains the decision, its inputs and its outcome."""
    response = http.post(CHAT, json=BODY)
    record = decision(http, response)
    usage = response.json()["usage"]
    expected = {
        "model": "medium",
        "arm": "medium",
        "reason": "threshold",
        "policy": "theta=0.5",
        "probabilities": {"small": 0.3, "medium": 0.7, "large": 0.9},
        "packed_tokens": 7,
        "stream": False,
        "status": 200,
        "ending": "complete",
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }
    assert {name: record[name] for name in expected} == expected
    assert record["cost_usd"]["small"] == pytest.approx(110 / 1e6)
    assert record["actual_cost_usd"] == pytest.approx(usage["total_tokens"] * 2 / 1e6)
    assert 0 < record["first_byte_s"] < record["latency_s"] < 10


def test_memory_that_outlives_requests_is_shown(http: httpx.Client) -> None:
    """The status and the metrics have each cache and store, with its limit."""
    http.post(CHAT, json=BODY, headers={"x-switchcraft-session-id": "shown"}).raise_for_status()
    held = http.get("/admin/status").json()["held_memory"]
    assert held.keys() >= {"tools", "requests", "tool_lists", "decision_records", "risks"}
    assert held["decision_records"]["bytes"] > 0
    assert all(0 <= each["bytes"] <= each["limit_bytes"] for each in held.values())
    series = http.get("/metrics").text
    assert all(f'switchcraft_held_bytes{{what="{name}"}}' in series for name in held)


def _requests_counted(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(REQUESTS))


def tries(series: Mapping[str, str], outcome: str) -> float:
    """Return the number of a deployment's attempts with this outcome."""
    counted = {name: float(value) for name, value in series.items() if "attempts_total{" in name}
    return sum(value for name, value in counted.items() if f'outcome="{outcome}"' in name)


def test_metrics_count_requests_and_failures(sandbox: Sandbox) -> None:
    """Requests, decisions, tokens, cost and failures are counted; clients cannot define labels."""
    arms = list(FakeRouter().probabilities)
    settings = Settings.sandbox(sandbox.base_url, arms, upstreams=ONE_TRY)
    with served(create_app(settings, FakeRouter())) as url, httpx.Client(base_url=url) as http:
        usage = http.post(CHAT, json=BODY).json()["usage"]
        http.post(CHAT, json=BODY | {"stream": True})
        http.post(CHAT, json=BODY | {"stream": True}, headers={"x-sandbox": "cut_after=2"})
        http.post(CHAT, json=BODY, headers={"x-sandbox": "status=429"})
        http.post(CHAT, json=BODY, headers={"x-sandbox": "cut_after=0"})
        http.post(CHAT, json=BODY | {"model": "by-the-client"})
        http.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "theta=0.123"})
        # A request is counted right after its last byte, which the client may already have.
        wait_for(lambda: _requests_counted(http) == 7, "all requests are counted")
        text = http.get("/metrics").text
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    requests = 'switchcraft_requests_total{model="medium",policy="theta",status='
    small = 'switchcraft_requests_total{model="small",policy="theta",status="200"}'
    assert float(series[requests + '"200"}']) == 3
    assert float(series[requests + '"429"}']) == 1
    assert float(series[requests + '"502"}']) == 1
    assert float(series[small]) == 1
    assert float(series['switchcraft_requests_total{model="none",policy="none",status="404"}']) == 1
    assert float(series['switchcraft_decisions_total{arm="medium",reason="threshold"}']) == 5
    assert float(series['switchcraft_broken_streams_total{model="medium"}']) == 1
    attempts = {outcome: tries(series, outcome) for outcome in ("answered", "status", "broken")}
    assert attempts == {"answered": 4, "status": 1, "broken": 1}
    prompt = series['switchcraft_tokens_total{kind="prompt",model="medium",source="upstream"}']
    assert float(prompt) == usage["prompt_tokens"]
    cost_usd = float(series['switchcraft_cost_usd_total{model="medium",source="upstream"}'])
    assert cost_usd == pytest.approx(usage["total_tokens"] * 2 / 1e6)
    assert float(series['switchcraft_cost_usd_total{model="medium",source="gateway"}']) > 0
    assert float(series["switchcraft_decision_seconds_count"]) == 6
    assert float(series['switchcraft_upstream_seconds_count{model="medium"}']) == 5
    assert 'switchcraft_artifact_info{commit="0000000",encoder="none",name="fake"}' in series
    assert 'switchcraft_graph_info{graph="model.onnx",provider="CPUExecutionProvider"}' in series
    assert "by-the-client" not in text
    assert "0.123" not in text


def test_default_policy_and_model_name_can_be_configured(sandbox: Sandbox) -> None:
    """The operator's default policy and model name replace those of the artifact and of ours."""
    base = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    section = RouterSettings(default_policy="quality", model_name="auto")
    settings = base.model_copy(update={"router": section})
    with served(create_app(settings, FakeRouter())) as url:
        response = httpx.post(url + CHAT, json=BODY | {"model": "auto"})
        assert response.headers["x-switchcraft-policy"] == "quality (theta=0.8)"
        assert httpx.post(url + CHAT, json=BODY).status_code == 404


def test_settings_without_models_use_a_sandbox(caplog: pytest.LogCaptureFixture) -> None:
    """Settings without models start a sandbox, and the log says so; other settings do not."""
    with sandbox_for(Settings()) as url:
        assert httpx.get(f"{url}/models").headers["x-sandbox"] == "true"
    assert "no upstream is configured" in caplog.text
    with sandbox_for(Settings.sandbox("http://h/v1", ("a", "b"))) as none:
        assert none is None
