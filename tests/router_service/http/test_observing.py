"""What can be observed of requests: metrics, costs, log lines, and what stays in memory."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, metric, sandbox_settings
from tests.serving import ONE_TRY, Sandbox, wait_for


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
