"""What can be observed of requests: metrics, costs, log lines, and what stays in memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.serving.app import create_app
from router_service.serving.serve import sandbox_for
from router_service.settings import KeySettings, RouterSettings, ServerSettings, Settings
from router_service.telemetry.logs import FIELDS, JsonFormatter
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, metric, sandbox_settings
from tests.router_service.http.scripted import DONE, Script, data, stream, whole
from tests.serving import ONE_TRY, Sandbox, served, wait_for


def series_of(http: httpx.Client, requests: int) -> Mapping[str, float]:
    """Return all series once this many requests are counted, right after their answers."""
    counted = "switchcraft_requests_total{"
    wait_for(lambda: metric(http, counted) == requests, "all requests are counted")
    lines = http.get("/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if line[0] != "#")
    return {name.removeprefix("switchcraft_"): float(value) for name, _, value in pairs}


def test_metrics_count_requests_and_failures(sandbox: Sandbox) -> None:
    """Requests, decisions, tokens, cost and failures are counted; clients cannot define labels.

    The fake router chooses the arm with 0.7. Savings are the difference
    to the same tokens at the baseline's price, of which `large` has five times that of `medium`.
    """
    settings = sandbox_settings(sandbox.base_url, ONE_TRY, baseline_model="large")
    with gateway_client(settings, FakeRouter()) as http:
        usage = http.post(CHAT, json=BODY).json()["usage"]
        http.post(CHAT, json=BODY | {"stream": True})
        http.post(CHAT, json=BODY | {"stream": True}, headers={"x-sandbox": "cut_after=2"})
        http.post(CHAT, json=BODY, headers={"x-sandbox": "status=429"})
        http.post(CHAT, json=BODY, headers={"x-sandbox": "cut_after=0"})
        http.post(CHAT, json=BODY | {"model": "by-the-client"})
        http.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "theta=0.123"})
        http.post(CHAT, json=BODY | {"model": "large"})
        series = series_of(http, 8)
    medium, routed = 'model="medium"', 'policy="theta",release="stable"'
    arm = 'chosen_probability_bucket{arm="medium",le='
    usd, tokens = 'cost_usd_total{model="medium",release="stable",source=', usage["total_tokens"]
    expected = {
        f'requests_total{{{medium},{routed},status="200"}}': 2,
        f'requests_total{{{medium},{routed},status="broken"}}': 1,
        f'requests_total{{{medium},{routed},status="429"}}': 1,
        f'requests_total{{{medium},{routed},status="502"}}': 1,
        f'requests_total{{model="small",{routed},status="200"}}': 1,
        'requests_total{model="none",policy="none",release="none",status="404"}': 1,
        'decisions_total{arm="medium",reason="threshold"}': 5,
        f'tokens_total{{kind="prompt",{medium},source="upstream"}}': usage["prompt_tokens"],
        usd + '"upstream"}': pytest.approx(tokens * 2 / 1e6),
        "decision_seconds_count": 7,
        f"upstream_seconds_count{{{medium}}}": 5,
        f"time_to_first_token_seconds_count{{{medium}}}": 2,  # only of streams
        arm + '"0.6"}': 0,
        arm + '"0.7"}': 5,
        "packed_tokens_sum": 6 * 7,
        'stage_seconds_count{stage="body"}': 7,
        'stage_seconds_count{stage="queue"}': 6,  # a named model waits for no thread
        "request_bytes_count": 6,
    }
    assert {name: series[name] for name in expected} == expected
    paid, baseline = (
        series[f'compared_cost_usd_total{{answered_by="{by}",{medium}}}']
        for by in ("routed", "baseline")
    )
    assert baseline == pytest.approx(5 * paid) != 0
    assert series[usd + '"gateway"}'] > 0
    attempts = {
        outcome: sum(
            value
            for name, value in series.items()
            if "attempts_total{" in name and f'outcome="{outcome}"' in name
        )
        for outcome in ("answered", "status", "broken")
    }
    assert attempts == {"answered": 5, "status": 1, "broken": 1}
    text = str(series.keys())
    assert "by-the-client" not in text
    assert "0.123" not in text


def test_memory_that_outlives_requests_is_shown(http: httpx.Client) -> None:
    """The status has each cache and store, with its limit."""
    http.post(CHAT, json=BODY, headers={"x-switchcraft-session-id": "shown"}).raise_for_status()
    held = http.get("/admin/status").json()["held_memory"]
    assert held.keys() >= {"tools", "tool_lists", "decision_records", "risks"}
    assert held["decision_records"]["bytes"] > 0
    assert all(0 <= each["bytes"] <= each["limit_bytes"] for each in held.values())


def test_default_policy_and_model_name_can_be_configured(sandbox: Sandbox) -> None:
    """The operator's default policy and model name replace those of the artifact and of ours."""
    settings = sandbox_settings(sandbox.base_url, default_policy="quality", model_name="auto")
    with gateway_client(settings, FakeRouter()) as http:
        response = http.post(CHAT, json=BODY | {"model": "auto"})
        assert response.headers["x-switchcraft-policy"] == "quality (theta=0.8)"
        assert http.post(CHAT, json=BODY).status_code == 404


def test_settings_without_models_use_a_sandbox(caplog: pytest.LogCaptureFixture) -> None:
    """Settings without models start a sandbox, and the log says so; other settings do not."""
    with sandbox_for(Settings()) as url:
        assert httpx.get(f"{url}/models").headers["x-sandbox"] == "true"
    assert "no upstream is configured" in caplog.text
    with sandbox_for(Settings.sandbox("http://h/v1", ("a", "b"))) as none:
        assert none is None


USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 100,
    "prompt_tokens_details": {"cached_tokens": 600},
    "completion_tokens_details": {"reasoning_tokens": 40},
}
COST_USD = (400 * 10 + 600 * 1 + 60 * 100 + 40 * 200) / 1e6
COST_HEADER = "x-switchcraft-cost-usd"
END = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
ANSWER = {"id": "c", "choices": [], "usage": USAGE}


@pytest.mark.parametrize("is_stream", [False, True])
def test_each_token_is_counted_once_at_its_own_price(script: Script, is_stream: bool) -> None:
    """Cached and reasoning tokens have own prices. An unknown price is never shown as zero."""
    whole_answer = whole(json.dumps(ANSWER).encode())
    script.play(stream(data(END, ANSWER) + DONE) if is_stream else whole_answer)
    before_usd = metric(script.http, 'switchcraft_cost_usd_total{model="priced"')
    response = script.ask(model="priced", stream=is_stream)
    assert script.record(response)["actual_cost_usd"] == pytest.approx(COST_USD)
    counted_usd = metric(script.http, 'switchcraft_cost_usd_total{model="priced"') - before_usd
    assert counted_usd == pytest.approx(COST_USD)
    if not is_stream:
        assert float(response.headers[COST_HEADER]) == pytest.approx(COST_USD)

    response = script.ask(stream=is_stream)
    assert COST_HEADER not in response.headers
    assert script.record(response)["actual_cost_usd"] is None
    assert metric(script.http, 'switchcraft_cost_usd_total{model="chat"') == 0


def test_time_is_recorded_at_the_cost_that_the_client_saw(script: Script) -> None:
    """At a price by time, sending the answer adds nothing to what its header says."""
    script.play(whole(json.dumps(ANSWER).encode()))
    response = script.ask(model="timed", stream=False)
    recorded = script.record(response)["actual_cost_usd"]
    assert float(response.headers[COST_HEADER]) == pytest.approx(recorded, abs=1e-9)


KEY, ADMIN = "planted-client-key-Kx81QzPw", "planted-admin-key-Jw72RtVs"


@pytest.fixture(scope="module")
def keyed(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client with the admin key of a gateway that serves each key's requests one by one."""
    server = ServerSettings(max_requests_in_flight_per_key=1)
    arms = list(FakeRouter().probabilities)
    settings = Settings.sandbox(sandbox.base_url, arms, server=server, upstreams=ONE_TRY)
    keys = KeySettings(api={"team-a": SecretStr(KEY)}, admin=SecretStr(ADMIN))
    changes = {"keys": keys, "router": RouterSettings()}
    app = create_app(settings.model_copy(update=changes), FakeRouter())
    headers = {"authorization": f"Bearer {ADMIN}"}
    with served(app) as url, httpx.Client(base_url=url, timeout=10, headers=headers) as client:
        yield client


def lines(caplog: pytest.LogCaptureFixture, request_id: str = "mine") -> list[dict[str, Any]]:
    """Return the fields of the log lines of requests with an id."""
    found = [record for record in caplog.records if record.name == "switchcraft.request"]
    fields: list[dict[str, Any]] = [
        getattr(each, FIELDS) | {"level": each.levelno} for each in found
    ]
    return [each for each in fields if each["request_id"] == request_id]


INFO, WARNING = logging.INFO, logging.WARNING


@pytest.mark.parametrize(
    ("request_line", "changes", "expected"),
    [
        (f"POST {CHAT}", {}, {"status": 200, "model": "medium", "key": "admin", "level": INFO}),
        (f"POST {CHAT}", {"authorization": "Bearer no"}, {"status": 401, "level": INFO}),
        (f"POST {CHAT}", {"x-switchcraft-policy": "x"}, {"status": 400, "cause": "invalid_policy"}),
        (f"POST {CHAT}", {"x-sandbox": "status=400"}, {"status": 400, "level": INFO}),
        (
            f"POST {CHAT}",
            {"x-sandbox": "status=500"},
            {"status": 500, "level": WARNING, "cause": "answered with status 500"},
        ),
        (
            f"POST {CHAT}",
            {"x-sandbox": "malformed"},
            {"status": 502, "level": WARNING, "cause": "sent an answer that is not valid JSON"},
        ),
        (f"POST {CHAT}", {"x-sandbox": "cut_after=0"}, {"status": 502, "ending": "failed"}),
        ("GET /nowhere", {}, {"status": 404, "method": "GET", "path": "/nowhere"}),
        ("GET /v1/models", {}, {"status": 200, "path": "/v1/models", "key": "admin"}),
        ("GET /admin/status", {"authorization": f"Bearer {KEY}"}, {"status": 403}),
        ("PUT /v1/models", {}, {"status": 405}),
        ("POST /admin/reload", {}, {"status": 409, "path": "/admin/reload"}),
        ("GET /readyz", {}, {"level": logging.DEBUG}),
        ("GET /metrics", {}, {"level": logging.DEBUG}),
        ("GET /metrics", {"authorization": "Bearer no"}, {"status": 401, "level": INFO}),
    ],
)
def test_every_request_has_one_log_line(
    keyed: httpx.Client,
    caplog: pytest.LogCaptureFixture,
    request_line: str,
    changes: dict[str, str],
    expected: dict[str, object],
) -> None:
    """Routed, relayed, refused or unknown: one line, with the client's id and the outcome.

    An upstream's failure is a warning, and a client's mistake is not.
    """
    method, path = request_line.split()
    body = BODY if path == CHAT else None
    with caplog.at_level(logging.DEBUG, "switchcraft.request"):
        headers = {"x-request-id": "mine", **changes}
        answer = keyed.request(method, path, json=body, headers=headers)
        wait_for(lambda: lines(caplog), "the line is written")
        keyed.get("/v1/models", headers={"x-request-id": "next"})
        wait_for(lambda: lines(caplog, "next"), "the next one is written")
    (line,) = lines(caplog)
    assert line | expected == line
    assert line["status"] == answer.status_code
    assert line["id"].startswith("dec_")
    assert answer.headers["x-request-id"] == "mine"


def test_refused_request_without_slot_has_a_log_line(
    keyed: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that are refused for overload are logged with the key that had used its share."""
    mine = {"x-request-id": "mine"}
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        slow = {"x-sandbox": "chunk_delay_s=60"} | mine
        with keyed.stream("POST", CHAT, json=BODY | {"stream": True}, headers=slow):
            refused = keyed.post(CHAT, json=BODY, headers=mine)
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "requests")
            wait_for(lambda: lines(caplog), "the line is written")
        wait_for(lambda: len(lines(caplog)) == 2, "the client that left has one too")
    shed, left = lines(caplog)
    assert (shed["status"], shed["key"], left["ending"]) == (429, "admin", "client_left")


def test_client_data_cannot_forge_a_log_line(
    keyed: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids and paths are JSON strings of bounded length in one line, whatever they contain."""
    forged = 'a","level":"error\\n\xe9' + "x" * 300
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        headers = [(b"x-request-id", forged.encode("latin-1"))]
        keyed.get(f"/nowhere%0a%22{'y' * 300}", headers=headers)
        wait_for(lambda: lines(caplog, forged[:200]), "the line is written")
    record = [x for x in caplog.records if x.name == "switchcraft.request"][-1]
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["level"], line["request_id"]) == ("info", forged[:200])
    assert line["path"].startswith('/nowhere\n"yy')
    assert len(line["path"]) == 200
