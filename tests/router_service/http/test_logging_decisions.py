"""The decision log that a real gateway writes in front of a real sandbox."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from router_service.settings import KeySettings, RouterSettings
from tests.bodies import ASK, BODY, CHAT, TOOLS, WEATHER
from tests.fakes import FakeRouter, VerifyingRouter
from tests.logs import LoggingGateway, logging_gateway
from tests.serving import Sandbox, scripted, wait_for

RESPONSES_BODY: Any = {
    "model": "switchcraft",
    "input": ASK,
    "tools": [{"type": "function", **WEATHER["function"]}],
}


def test_every_routed_request_is_one_line(sandbox: Sandbox, tmp_path: Path) -> None:
    """Both APIs, whole and streamed, are logged; requests that are not routed are not."""
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        for stream in (False, True):
            gateway.ask(stream=stream)
            gateway.http.post("/v1/responses", json=RESPONSES_BODY | {"stream": stream})
        gateway.ask(model="small")
        gateway.ask(tools=[])
        asked = gateway.ask()
        decisions = gateway.decisions(5)
    assert len(decisions) == len(gateway.lines()) == 5
    assert {(d.arm, d.model, d.reason) for d in decisions} == {("medium", "medium", "threshold")}
    assert all(d.calls == 1 and d.calls_fit for d in decisions)
    assert {d.stream for d in decisions} == {False, True}
    assert decisions[-1].id == asked.headers["x-switchcraft-decision-id"]


def test_line_contains_decision_and_outcome(sandbox: Sandbox, tmp_path: Path) -> None:
    """Probabilities, costs, the artifact, tokens, times, and hashes in place of content."""
    body = orjson.dumps(BODY)
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        answer = gateway.http.post(CHAT, content=body)
        (line,) = gateway.decisions(1)
    usage = answer.json()["usage"]
    assert line.request_sha256 == hashlib.sha256(body).hexdigest()
    assert line.probabilities == FakeRouter().probabilities
    assert set(line.expected_cost_usd) == set(line.probabilities)
    assert (line.propensity, line.artifact, line.release) == (1.0, "fake", "stable")
    assert (line.prompt_tokens, line.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert line.actual_cost_usd == pytest.approx(usage["total_tokens"] * 2 / 1e6)
    assert (line.status, line.ending, line.attempts) == (200, "complete", 1)
    assert line.answer_sha256 is not None
    assert line.content is None


@pytest.mark.parametrize("content", [False, True])
def test_all_candidates_of_a_verified_answer_are_logged(
    sandbox: Sandbox, tmp_path: Path, content: bool
) -> None:
    """The line has every candidate with its cost; contents only by the opt-in."""
    router = VerifyingRouter(trust={"medium": 0.8})
    with logging_gateway(sandbox.base_url, tmp_path, router, content=content) as gateway:
        answer = gateway.ask(model="switchcraft:verified")
        (line,) = gateway.decisions(1)
        assert gateway.metric('verification_agreement_total{agrees="yes"}') == 1
        feedback = {"decision_id": line.id, "correct": True}
        assert gateway.http.post("/v1/feedback", json=feedback).is_success
        assert gateway.metric('feedback_total{arm="medium",verdict="correct"}') == 1
        assert gateway.metric('calibration_decisions_total{bin="0.7"}') == 0
    assert (line.arm, line.model, line.reason) == ("medium", "medium", "verified")
    assert (line.policy, line.is_fallback) == ("verified=0.002", False)
    assert line.propensity is None
    assert line.candidates is not None
    assert [c.arm for c in line.candidates] == ["small", "medium"]
    costs_usd = [c.cost_usd or 0.0 for c in line.candidates]
    assert line.actual_cost_usd == pytest.approx(sum(costs_usd))
    assert float(answer.headers["x-switchcraft-cost-usd"]) == pytest.approx(sum(costs_usd))
    kept = [c.content for c in line.candidates if c.content is not None]
    assert len(kept) == (2 if content else 0)
    assert all([call.name for call in k.calls or ()] == ["get_weather"] for k in kept)


KEY = "planted-key-of-a-client-9f3a"
SAID = "Whether-planted-words-are-in-the-log"


@pytest.mark.parametrize("content", [False, True])
def test_content_is_logged_only_by_opt_in(sandbox: Sandbox, tmp_path: Path, content: bool) -> None:
    """By default the log has no request, answer, tool or key; with the opt-in, all but the key."""
    keys = KeySettings(api={"team-a": SecretStr(KEY)})
    messages = [{"role": "user", "content": f"What is the weather in Oslo? {SAID}"}]
    with logging_gateway(
        sandbox.base_url, tmp_path, changes={"keys": keys}, content=content, evidence=True
    ) as gateway:
        headers = {"authorization": f"Bearer {KEY}"}
        for path, body in (
            (CHAT, BODY | {"messages": messages}),
            ("/v1/responses", RESPONSES_BODY),
        ):
            assert gateway.http.post(path, json=body, headers=headers).status_code == 200
        lines = gateway.decisions(2)
    text = gateway.text()
    assert KEY not in text
    assert {line.key for line in lines} == {"team-a"}
    for word in (SAID, "get_weather", "Oslo", '"city"'):
        assert (word in text) is content
    if content:
        kept = [line.content for line in lines if line.content is not None]
        assert kept[0].request["messages"] == messages
        assert [k.request["tools"][0]["function"]["name"] for k in kept] == ["get_weather"] * 2
        assert kept[1].request["messages"] == ASK
        assert [call.name for k in kept for call in k.calls or ()] == ["get_weather"] * 2


@pytest.mark.parametrize(
    ("faults", "stream", "expected"),
    [
        ("status=503", False, (503, "complete", None)),
        ("cut_after=0", False, (502, "failed", None)),
        ("cut_after=2", True, (200, "broken", None)),
        ("", True, (200, "complete", 1)),
    ],
)
def test_failed_answer_has_no_logged_calls(
    sandbox: Sandbox, tmp_path: Path, faults: str, stream: bool, expected: tuple[Any, ...]
) -> None:
    """The calls of an incomplete answer would be misleading."""
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        gateway.ask(faults, stream=stream)
        (line,) = gateway.decisions(1)
    assert (line.status, line.ending, line.calls) == expected
    assert (line.answer_sha256 is None) == (line.calls is None)


def answer_with(name: str, arguments: str) -> bytes:
    """Return an upstream's HTTP answer that calls a tool."""
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = orjson.dumps(
        {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


@pytest.mark.parametrize(
    ("name", "arguments", "fits", "calls_fit"),
    [
        ("get_weather", '{"city": "Oslo"}', "yes", True),
        ("get_weather", '{"town": "Oslo"}', "no", False),
        ("get_weather", "{", "no", False),
        ("send_mail", "{}", "unknown_tool", False),
    ],
)
def test_calls_are_checked_against_their_schemas(
    tmp_path: Path, name: str, arguments: str, fits: str, calls_fit: bool
) -> None:
    """Results are counted by model, with or without a log, unless the check is disabled."""
    series = f'tool_calls_total{{fits="{fits}",model="medium"}}'
    with scripted(answer_with(name, arguments)) as upstream:
        with logging_gateway(upstream, tmp_path / "log") as gateway:
            gateway.ask()
            (line,) = gateway.decisions(1)
            assert line.calls_fit is calls_fit
            assert gateway.metric(series) == 1
        with logging_gateway(upstream, tmp_path, path=None) as gateway:
            gateway.ask()
            wait_for(lambda: gateway.metric(series) == 1, "the call is counted")
        with logging_gateway(upstream, tmp_path / "unchecked", check_calls=False) as gateway:
            gateway.ask()
            assert gateway.decisions(1)[0].calls_fit is None
            assert gateway.metric(series) == 0
    assert list(tmp_path.glob("*.jsonl")) == []


def test_unwritable_content_loses_only_its_line(tmp_path: Path) -> None:
    """Answers may be nested deeper than log lines. The lost line is counted; the log continues."""
    deep = '{"a":' * 400 + "1" + "}" * 400
    with (
        scripted(answer_with("get_weather", deep)) as upstream,
        logging_gateway(upstream, tmp_path, content=True, evidence=True) as gateway,
    ):
        name = gateway.ask().headers["x-switchcraft-decision-id"]
        lost = 'decision_log_dropped_total{reason="failed"}'
        wait_for(lambda: gateway.metric(lost) == 1, "the line is lost")
        feedback = {"decision_id": name, "correct": True}
        assert gateway.http.post("/v1/feedback", json=feedback).status_code == 200
        assert [line.decision_id for line in gateway.feedback(1)] == [name]
        assert gateway.metric(lost) == 1
        assert gateway.metric("decision_log_up") == 1


def explored(gateway: LoggingGateway, requests: int) -> list[tuple[str, str, float | None]]:
    """Send requests; return the logged choice of each."""
    for _ in range(requests):
        gateway.ask()
    return [(d.arm, d.reason, d.propensity) for d in gateway.decisions(requests)]


def test_exploration_draws_arms_and_logs_their_propensity(sandbox: Sandbox, tmp_path: Path) -> None:
    """With a share of 1, each of three arms has propensity 1/3; pinned requests do not explore."""
    everything = {"router": RouterSettings(exploration_share=1)}
    with logging_gateway(sandbox.base_url, tmp_path, changes=everything) as gateway:
        seen = explored(gateway, 40)
        decided = gateway.ask()
        record_path = f"/v1/decisions/{decided.headers['x-switchcraft-decision-id']}"
        wait_for(lambda: gateway.http.get(record_path).status_code == 200, "it is recorded")
        assert gateway.http.get(record_path).json()["propensity"] == pytest.approx(1 / 3)
        pinned = gateway.ask(model="large")
        unread = gateway.ask(tools=[*TOOLS, {"type": "function"}])
    # The probability that 40 draws miss one of three arms is below 3 * (2/3)**40.
    assert {arm for arm, _, _ in seen} == {"small", "medium", "large"}
    assert all(
        reason == ("threshold" if arm == "medium" else "explored") for arm, reason, _ in seen
    )
    assert all(propensity == pytest.approx(1 / 3) for *_, propensity in seen)
    assert pinned.headers["x-switchcraft-reason"] == "pinned"
    assert unread.headers["x-switchcraft-reason"] == "unread"
