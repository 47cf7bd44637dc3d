"""Each request has one log line, however it ends, without content and without keys."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.serving.app import create_app
from router_service.settings import (
    BreakerSettings,
    KeySettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)
from router_service.telemetry.logs import FIELDS, JsonFormatter
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

KEY, ADMIN = "planted-client-key-Kx81QzPw", "planted-admin-key-Jw72RtVs"
SAID = "planted-prompt-Pa09"
WAYS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"stream": True}, ""),
    ({"stream": True}, "cut_after=2"),
    ({}, "malformed"),
    ({"messages": [{"role": SAID}]}, ""),
]
"""Changes to a request, and faults of its upstream."""


@pytest.fixture(scope="module")
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client with the admin key of a gateway that serves one request at a time."""
    settings = Settings.sandbox(
        sandbox.base_url,
        list(FakeRouter().probabilities),
        server=ServerSettings(max_requests_in_flight_per_key=1),
    )
    keys = KeySettings(api={"team-a": SecretStr(KEY)}, admin=SecretStr(ADMIN))
    breaker = BreakerSettings(allowed_fails=1000, max_cooldown_s=0.01)  # no test affects the next
    changes = {"keys": keys, "upstreams": UpstreamSettings(breaker=breaker)}
    app = create_app(settings.model_copy(update=changes), FakeRouter())
    headers = {"authorization": f"Bearer {ADMIN}"}
    with served(app) as url, httpx.Client(base_url=url, timeout=10, headers=headers) as client:
        yield client


@pytest.fixture(autouse=True)
def _without_earlier_lines(http: httpx.Client) -> None:
    """Write the lines of earlier tests' requests; a scrape has none of its own."""
    http.get("/metrics")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the log lines of all requests so far."""
    found = (record for record in caplog.records if record.name == "switchcraft.request")
    return [getattr(record, FIELDS) for record in found]


@pytest.mark.parametrize(
    ("request_line", "body", "changes", "expected"),
    [
        (f"POST {CHAT}", BODY, {}, {"status": 200, "model": "medium", "key": "admin"}),
        (f"POST {CHAT}", BODY | {"stream": True}, {}, {"status": 200, "stream": True}),
        (f"POST {CHAT}", BODY | {"model": "none"}, {}, {"status": 404}),
        (f"POST {CHAT}", BODY, {"x-sandbox": "cut_after=0"}, {"status": 502, "ending": "failed"}),
        (f"POST {CHAT}", BODY, {"authorization": f"Bearer {SAID}"}, {"status": 401, "path": CHAT}),
        ("GET /v1/files", None, {}, {"status": 404}),
        ("GET /nowhere", None, {}, {"status": 404, "method": "GET", "path": "/nowhere"}),
        ("GET /v1/models", None, {}, {"status": 200, "path": "/v1/models", "key": "admin"}),
        ("GET /admin/status", None, {}, {"status": 200, "path": "/admin/status"}),
        ("GET /admin/status", None, {"authorization": f"Bearer {KEY}"}, {"status": 403}),
        ("PUT /v1/models", None, {}, {"status": 405}),
        ("GET /v1/decisions/none", None, {}, {"status": 404}),
        (
            "POST /v1/feedback",
            {"decision_id": "dec_none", "correct": True},
            {},
            {"status": 404, "path": "/v1/feedback"},
        ),
        ("POST /admin/reload", None, {}, {"status": 409, "path": "/admin/reload"}),
        ("GET /ui", None, {}, {"path": "/ui"}),
    ],
)
def test_every_request_has_one_log_line(
    http: httpx.Client,
    caplog: pytest.LogCaptureFixture,
    request_line: str,
    body: Any,  # noqa: ANN401 - JSON
    changes: dict[str, str],
    expected: dict[str, object],
) -> None:
    """Routed, relayed, refused or unknown: one line, with the client's id and the outcome."""
    method, path = request_line.split()
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        headers = {"x-request-id": "mine", **changes}
        answer = http.request(method, path, json=body, headers=headers)
        wait_for(lambda: lines(caplog), "the line is written")
        http.get("/v1/models")
        wait_for(lambda: len(lines(caplog)) > 1, "the next one is written")
    line, _ = lines(caplog)
    assert line | expected == line
    assert (line["request_id"], line["status"]) == ("mine", answer.status_code)
    assert line["id"].startswith("dec_")
    assert answer.headers["x-request-id"] == "mine"


def test_refused_request_without_slot_has_a_log_line(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that are refused for overload are logged with the key that had used its share."""
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        slow = {"x-sandbox": "chunk_delay_s=60"}
        with http.stream("POST", CHAT, json=BODY | {"stream": True}, headers=slow):
            assert http.post(CHAT, json=BODY).status_code == 429
            wait_for(lambda: lines(caplog), "the line is written")
        wait_for(lambda: len(lines(caplog)) == 2, "the client that left has one too")
    shed, left = lines(caplog)
    assert (shed["status"], shed["key"]) == (429, "admin")
    assert left["ending"] == "client_left"


def test_successful_probes_are_logged_only_at_debug(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Frequent probes are logged only at level debug, unless they are refused."""
    mine = {"x-request-id": "probe"}

    def levels() -> list[int]:
        found = (x for x in caplog.records if x.name == "switchcraft.request")
        return [x.levelno for x in found if getattr(x, FIELDS)["request_id"] == "probe"]

    with caplog.at_level(logging.DEBUG, "switchcraft.request"):
        http.get("/readyz", headers=mine)
        http.get("/metrics", headers=mine)
        http.get("/metrics", headers={"authorization": "Bearer no", **mine})
        wait_for(lambda: len(levels()) == 3, "all are told")
    assert levels() == [logging.DEBUG, logging.DEBUG, logging.INFO]


def test_client_data_cannot_forge_a_log_line(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids and paths are JSON strings of bounded length in one line, whatever they contain."""
    forged = 'a","level":"error\\n\xe9' + "x" * 300
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        headers = [(b"x-request-id", forged.encode("latin-1"))]
        http.get(f"/nowhere%0a%22{'y' * 300}", headers=headers)
        wait_for(lambda: lines(caplog), "the line is written")
    (record,) = [x for x in caplog.records if x.name == "switchcraft.request"]
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert line["level"] == "info"
    assert line["request_id"] == forged[:200]
    assert line["path"].startswith('/nowhere\n"yy')
    assert len(line["path"]) == 200


@pytest.mark.parametrize(
    ("body", "changes", "level", "cause"),
    [
        (BODY, {}, logging.INFO, None),
        (BODY | {"model": "none"}, {}, logging.INFO, "model_not_found"),
        (BODY, {"authorization": "Bearer no"}, logging.INFO, None),
        (BODY, {"x-sandbox": "status=400"}, logging.INFO, None),
        (BODY, {"x-sandbox": "status=500"}, logging.WARNING, "answered with status 500"),
        (BODY, {"x-sandbox": "status=429"}, logging.WARNING, "answered with status 429"),
        (
            BODY,
            {"x-sandbox": "malformed"},
            logging.WARNING,
            "sent an answer that is not valid JSON",
        ),
        (
            BODY | {"stream": True},
            {"x-sandbox": "cut_after=2"},
            logging.WARNING,
            "broke the connection, or does not speak HTTP",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_failed_requests_are_logged_as_warnings(
    http: httpx.Client,
    caplog: pytest.LogCaptureFixture,
    body: Any,  # noqa: ANN401 - JSON
    changes: dict[str, str],
    level: int,
    cause: str | None,
) -> None:
    """An upstream's failure is a warning, a client's mistake is not; both have their cause."""
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        http.post(CHAT, json=body, headers=changes)
        wait_for(lambda: lines(caplog), "the line is written")
    (record,) = [x for x in caplog.records if x.name == "switchcraft.request"]
    assert (record.levelno, lines(caplog)[0].get("cause")) == (level, cause)
