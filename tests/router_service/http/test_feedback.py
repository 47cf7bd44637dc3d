"""`POST /v1/feedback`: counted once, logged each time, refused if it cannot be stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.settings import KeySettings, ServerSettings
from tests.bodies import BODY, CHAT
from tests.logs import LoggingGateway, logging_gateway
from tests.serving import Sandbox, wait_for

CALLS = [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": None}}]
KEYS = KeySettings(
    api={"team-a": SecretStr("key-of-team-a-71c5"), "team-b": SecretStr("key-of-team-b-52d0")},
    admin=SecretStr("key-of-the-admin-90ab"),
)


def bearer(key: SecretStr | None) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}


def decided(http: httpx.Client, key: SecretStr | None = None, **fields: object) -> str:
    """Return the id of a stored decision."""
    response = http.post(CHAT, json=BODY | fields, headers=bearer(key))
    name: str = response.headers["x-switchcraft-decision-id"]
    path = f"/v1/decisions/{name}"
    wait_for(lambda: http.get(path, headers=bearer(key)).status_code == 200, "it is recorded")
    return name


def give(gateway: LoggingGateway, name: str, **said: Any) -> httpx.Response:  # noqa: ANN401 - JSON
    """Send feedback on a decision."""
    return gateway.http.post("/v1/feedback", json={"decision_id": name, **said})


def test_feedback_is_counted_and_logged(sandbox: Sandbox, tmp_path: Path) -> None:
    """Each verdict is counted by the predicted probability of the chosen arm."""
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        assert gateway.metric('calibration_decisions_total{bin="0.9"}') == 0
        names = [decided(gateway.http) for _ in range(3)]
        for name, correct in zip(names, (True, True, False), strict=True):
            verdict = "correct" if correct else "wrong"
            answer = give(gateway, name, correct=correct)
            assert answer.json() == {"decision_id": name, "verdict": verdict}
        lines = gateway.feedback(3)
        assert [(line.decision_id, line.arm) for line in lines] == [(n, "medium") for n in names]
        assert gateway.metric('feedback_total{arm="medium",verdict="correct"}') == 2
        assert gateway.metric('feedback_total{arm="medium",verdict="wrong"}') == 1
        assert gateway.metric('release_feedback_total{release="stable",verdict="correct"}') == 2
        assert gateway.metric('calibration_decisions_total{bin="0.7"}') == 3
        predicted = gateway.metric('calibration_predicted_total{bin="0.7"}')
        assert predicted == pytest.approx(3 * 0.7)
        assert gateway.metric('calibration_correct_total{bin="0.7"}') == 2


def test_repeated_feedback_counts_once(sandbox: Sandbox, tmp_path: Path) -> None:
    """Metrics count the first verdict; the log has all in order, and the last one counts."""
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        name = decided(gateway.http)
        for correct in (False, False, True):
            assert give(gateway, name, correct=correct).status_code == 200
        assert [line.correct for line in gateway.feedback(3)] == [False, False, True]
        assert gateway.metric('feedback_total{arm="medium",verdict="wrong"}') == 1
        assert gateway.metric('feedback_total{arm="medium",verdict="correct"}') == 0
        assert gateway.metric('calibration_decisions_total{bin="0.7"}') == 1


def test_expected_calls_are_kept_with_content_logging(sandbox: Sandbox, tmp_path: Path) -> None:
    """They are logged as they were sent; an empty list means an answer without calls."""
    with logging_gateway(sandbox.base_url, tmp_path, content=True) as gateway:
        name = decided(gateway.http)
        assert give(gateway, name, expected=CALLS).json()["verdict"] == "expected"
        give(gateway, name, expected=[])
        first, second = gateway.feedback(2)
        assert gateway.metric('feedback_total{arm="medium",verdict="expected"}') == 1
        assert gateway.metric('calibration_decisions_total{bin="0.7"}') == 0
    assert [call.model_dump() for call in first.expected or ()] == CALLS
    assert (second.expected, second.correct) == ((), None)


@pytest.mark.parametrize("log", [{}, {"path": None, "content": True}])
def test_expected_calls_are_refused_without_content_logging(
    sandbox: Sandbox, tmp_path: Path, log: dict[str, Any]
) -> None:
    """Expected calls are content; the error says what to send instead, and what to configure."""
    with logging_gateway(sandbox.base_url, tmp_path, **log) as gateway:
        name = decided(gateway.http)
        refused = give(gateway, name, expected=CALLS)
        assert give(gateway, name, correct=True).status_code == 200
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("expected", "content_not_kept")
    assert "decision_log.content" in error["message"]


def test_feedback_on_unrouted_requests_is_accepted(sandbox: Sandbox, tmp_path: Path) -> None:
    """It is logged, but counts for no arm and no probability."""
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        for name in (decided(gateway.http, model="small"), decided(gateway.http, tools=[])):
            assert give(gateway, name, correct=True).status_code == 200
        assert gateway.metric('feedback_total{arm="none",verdict="correct"}') == 2
        shown = gateway.http.get("/metrics").text
        assert 'switchcraft_calibration_decisions_total{bin="0.3"} 0.0' in shown


def test_keys_can_access_only_their_own_decisions(sandbox: Sandbox, tmp_path: Path) -> None:
    """Another key's decisions are unknown to view and to judge; the admin key has access to all."""
    with logging_gateway(sandbox.base_url, tmp_path, changes={"keys": KEYS}) as gateway:
        http, owner = gateway.http, KEYS.api["team-a"]
        name = decided(http, owner)
        statuses = []
        for key in (KEYS.api["team-b"], owner, KEYS.admin):
            said = {"decision_id": name, "correct": True}
            posted = http.post("/v1/feedback", json=said, headers=bearer(key))
            got = http.get(f"/v1/decisions/{name}", headers=bearer(key))
            statuses.append((posted.status_code, got.status_code))
        assert http.get(f"/v1/decisions/{name}", headers=bearer(owner)).json()["key"] == "team-a"
    assert statuses == [(404, 404), (200, 200), (200, 200)]


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "correct"),
    ({"correct": True, "expected": []}, "correct"),
    ({"correct": "yes"}, "correct"),
    ({"correct": 1}, "correct"),
    ({"correct": None}, "correct"),
    ({"correct": True, "because": "x"}, "because"),
    ({"expected": {}}, "expected"),
    ({"expected": [{"name": "f"}]}, "expected.0.arguments"),
    ({"expected": [{"name": "f", "arguments": "{}"}]}, "expected.0.arguments"),
    ({"expected": [{"name": "f", "arguments": {}}] * 129}, "expected"),
    ({"correct": True, "decision_id": 7}, "decision_id"),
    ({"correct": True, "decision_id": ""}, "decision_id"),
    ({"correct": True, "decision_id": "x" * 101}, "decision_id"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_invalid_feedback_is_refused(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    """The error names the invalid field."""
    answer = http.post("/v1/feedback", json={"decision_id": "dec_1", **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_feedback_gets_an_error_if_the_store_is_unavailable(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Only feedback waits for the store, and only for a short time."""
    server = {"server": ServerSettings(redis_url=SecretStr("redis://127.0.0.1:9/0"))}
    with logging_gateway(sandbox.base_url, tmp_path, changes=server) as gateway:
        answer = give(gateway, "dec_1", correct=True)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "store_unavailable"
