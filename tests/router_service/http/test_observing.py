"""Introspection: models, health, metrics, logs and decisions."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

import httpx
import openai
import pytest
from pydantic import SecretStr

from router_service.core.errors import ConfigError
from router_service.policies.costs import Price
from router_service.requests.pool import Pool
from router_service.serving.app import create_app
from router_service.serving.serve import sandbox_for
from router_service.settings import Deployment, Model, RouterSettings, ServerSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter, manifest
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


def with_redis(sandbox: Sandbox, url: str) -> Settings:
    """Return settings of a gateway that shares its state in Redis."""
    server = ServerSettings(redis_url=SecretStr(url))
    return Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities), server=server)


def test_replicas_share_decisions(sandbox: Sandbox, redis_url: str) -> None:
    """A replica can show the decisions of another one."""
    settings = with_redis(sandbox, redis_url)
    with (
        served(create_app(settings, FakeRouter())) as first,
        served(create_app(settings, FakeRouter())) as second,
        httpx.Client(base_url=second) as http,
    ):
        response = httpx.post(first + CHAT, json=BODY)
        assert decision(http, response)["model"] == "medium"


@pytest.mark.parametrize("answers", ["never", "no"])
def test_gateway_without_redis_is_degraded_but_serves(sandbox: Sandbox, answers: str) -> None:
    """If Redis is gone or silent, requests succeed as fast as before; the failures are counted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if answers == "never" else 9
        settings = with_redis(sandbox, f"redis://127.0.0.1:{port}/0")
        with served(create_app(settings, FakeRouter())) as url, httpx.Client(base_url=url) as http:
            http.post(CHAT, json=BODY)
            started_s = time.perf_counter()
            for _ in range(10):
                response = http.post(CHAT, json=BODY)
                assert response.status_code == 200
            # Ten waits for the timeout of Redis would take 2 s.
            assert time.perf_counter() - started_s < 1.5
            wait_for(lambda: http.get("/readyz").json()["store"] == "away", "it is noticed")
            assert http.get("/readyz").status_code == 200
            lookup = http.get(PATH + response.headers["x-switchcraft-decision-id"])
            counts = http.get("/metrics").text
    assert lookup.status_code == 503
    assert lookup.json()["error"]["code"] == "store_unavailable"
    assert 'switchcraft_store_errors_total{operation="put"}' in counts


def settings_with(models: dict[str, Price | None], **router: object) -> Settings:
    """Return settings with these models and a router section."""
    made = tuple(
        Model(
            name=name,
            deployments=(Deployment(upstream_model=name, base_url="http://h/v1"),),
            price=price,
        )
        for name, price in models.items()
    )
    return Settings(models=made, router=RouterSettings.model_validate(router), source="config.yaml")


def test_arms_are_mapped_to_models() -> None:
    """An arm uses the model of its name unless it is mapped; prices in the file have priority."""
    price = Price(input_usd_per_mtok=0.5, output_usd_per_mtok=0.5)
    settings = settings_with(
        {"small": None, "b": price, "extra": None},
        arms={"medium": "b", "large": "b"},
        unknown_prices="allow",
    )
    pool = Pool.build(settings, manifest())
    assert {arm: model.name for arm, model in pool.by_arm.items()} == {
        "small": "small",
        "medium": "b",
        "large": "b",
    }
    profiled = Price(input_usd_per_mtok=1, output_usd_per_mtok=1)
    prices = {name: model.price for name, model in pool.models.items()}
    assert prices == {"small": profiled, "b": price, "extra": None}
    assert pool.prices == {"small": profiled, "medium": price, "large": price}
    assert pool.chat_models[0].name == "b"  # cheapest at the file's price


@pytest.mark.parametrize(
    ("router", "wanted"),
    [
        ({"arms": {"medium": "x", "large": "small"}}, r"router.arms.medium: there is no model 'x'"),
        ({"arms": {"tiny": "small"}}, r"router.arms.tiny: the artifact has no such arm"),
        (
            {"arms": {"medium": "small", "large": "small"}, "chat_model": "x"},
            r"router.chat_model: there is no model 'x'",
        ),
        (
            {"arms": {"medium": "small", "large": "small"}, "default_policy": "theta=7"},
            r"router.default_policy: 7 is outside",
        ),
    ],
)
def test_file_that_does_not_fit_the_artifact_prevents_startup(
    router: dict[str, Any], wanted: str
) -> None:
    """The error names the file, the place in it, and the remedy."""
    with pytest.raises(ConfigError, match=wanted) as caught:
        create_app(settings_with({"small": None}, **router), FakeRouter())
    assert caught.value.source == "config.yaml"


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
