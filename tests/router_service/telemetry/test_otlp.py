"""Spans as a collector receives them: hierarchy, names, attributes, and no content."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import SecretStr

from router_service.settings import Settings, TracingSettings
from tests.bodies import BODY, CHAT
from tests.collector import Collector, attributes_of, collecting
from tests.fakes import FakeRouter
from tests.gateways import gateway_client
from tests.serving import Sandbox, wait_for

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT}-01"
DROPPED = 'switchcraft_lost_records_total{kind="spans",reason="failed"}'


@contextmanager
def traced(sandbox: Sandbox, tracing: TracingSettings) -> Iterator[httpx.Client]:
    """Serve a gateway that sends spans; leaving the block sends the waiting ones."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    settings = settings.model_copy(update={"tracing": tracing})
    with gateway_client(settings, FakeRouter()) as http:
        yield http


@contextmanager
def exchanged(sandbox: Sandbox, **settings: object) -> Iterator[tuple[Collector, httpx.Client]]:
    """Serve a gateway and its collector."""
    with collecting() as collector:
        tracing = {"otlp_endpoint": collector.url, **settings}
        with traced(sandbox, TracingSettings.model_validate(tracing)) as http:
            yield collector, http


def children(collector: Collector, parent: Span) -> set[str]:
    """Return the names of a span's children."""
    return {span.name for span in collector.spans if span.parent_span_id == parent.span_id}


def test_request_has_decision_and_upstream_spans(sandbox: Sandbox) -> None:
    """The client's trace continues in the gateway, and the gateway's trace at the upstream."""
    with exchanged(sandbox) as (collector, http):
        answer = http.post(CHAT, json=BODY, headers={"traceparent": TRACEPARENT})
        sent = sandbox.last_headers()["traceparent"]
    server, call = collector.only("POST /v1/chat"), collector.only("chat medium")
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert (server.kind, server.parent_span_id.hex()) == (Span.SPAN_KIND_SERVER, PARENT)
    assert children(collector, server) == {"decide", "chat medium"}
    assert children(collector, collector.only("decide")) == {"body", "queue", "parse", "select"}
    assert sent == f"00-{TRACE_ID}-{call.span_id.hex()}-01"
    assert attributes_of(server.attributes) | {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "switchcraft.arm": "medium",
        "switchcraft.policy": "theta=0.5",
        "switchcraft.reason": "threshold",
        "switchcraft.decision_id": answer.headers["x-switchcraft-decision-id"],
    } == attributes_of(server.attributes)
    assert collector.paths == {"/v1/traces"}


def test_spans_contain_no_content(sandbox: Sandbox) -> None:
    """No span contains a part of a request, an answer or a key."""
    secret = "client-key-Kx81QzPw"
    headers = {"authorization": f"Bearer {secret}"}
    collector_key = {"x-collector-key": SecretStr("planted-collector-key")}
    with exchanged(sandbox, headers=collector_key) as (collector, http):
        answer = http.post(CHAT, json=BODY, headers=headers)
        http.post(CHAT, json=BODY | {"messages": [{"role": "Oslo"}]}, headers=headers)
        http.post(f"{CHAT}?key={secret}", json=BODY, headers={"x-sandbox": "cut_after=0"})
    call = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert json.loads(call["arguments"])
    told = str(collector.spans) + str(collector.resources)
    planted = ("Oslo", "weather", secret, "planted-collector-key", call["arguments"])
    assert [text for text in planted if text in told] == []
    assert {headers["x-collector-key"] for headers in collector.headers} == {
        "planted-collector-key"
    }


@pytest.mark.parametrize("is_hanging", [False, True])
def test_unreachable_collector_does_not_fail_requests(
    sandbox: Sandbox,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_hanging: bool,
) -> None:
    """Requests succeed, lost spans are counted, and one line is logged."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_hanging else 9
        tracing = TracingSettings(otlp_endpoint=f"http://127.0.0.1:{port}")
        with traced(sandbox, tracing) as http:
            for _ in range(3):
                assert http.post(CHAT, json=BODY).status_code == 200
                wait_for(lambda: _dropped(http) >= 3, "lost spans are counted")
            wait_for(lambda: _dropped(http) == 3 * 7, "all seven spans of each request are counted")
    told = [record for record in caplog.records if record.name == "switchcraft.tracing"]
    assert [record.getMessage() for record in told] == [
        "trace collector accepts no spans: dropping them; check tracing.otlp_endpoint"
    ]
    others = ("opentelemetry", "urllib3")
    assert not [x for x in caplog.records if x.name.startswith(others) and x.levelno > logging.INFO]


def _dropped(http: httpx.Client) -> float:
    (count,) = re.findall(rf"^{re.escape(DROPPED)} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return float(count)


def test_sample_share_is_respected(sandbox: Sandbox) -> None:
    """At share 0, only traces that the client sampled are kept; the upstream receives the flag."""
    with exchanged(sandbox, sample_share=0, service_name="front") as (collector, http):
        http.post(CHAT, json=BODY)
        flags = sandbox.last_headers()["traceparent"].rpartition("-")[2]
        assert int(flags, 16) & 1 == 0
        http.post(CHAT, json=BODY, headers={"traceparent": TRACEPARENT, "tracestate": "a=b"})
        assert sandbox.last_headers()["tracestate"] == "a=b"
        http.post(CHAT, json=BODY, headers={"traceparent": "no-trace", "tracestate": "a=b"})
        assert "tracestate" not in sandbox.last_headers()
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert {resource["service.name"] for resource in collector.resources} == {"front"}
