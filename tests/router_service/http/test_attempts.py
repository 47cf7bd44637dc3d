"""What clients get when upstreams fail: the next model, one status, or one error in the stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.router import Prediction
from router_service.settings import BreakerSettings
from tests.bodies import BODY, CHAT
from tests.fakes import PRICES, FakeRouter
from tests.gateways import NO_RETRIES, gateway_client, metric, record_of, sandbox_settings
from tests.router_service.http.scripted import DONE, Answer, Script, data, exactly, stream, whole
from tests.serving import Sandbox, wait_for

USED = b'"usage":{"prompt_tokens":3,"completion_tokens":2}'
GOOD = whole(b'{"id":"c","choices":[{"message":{"content":"good"}}],' + USED + b"}")
CALL = {"id": "c", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
MESSAGE = {"role": "assistant", "content": None, "tool_calls": [CALL]}
CALLS = whole(
    json.dumps(
        {
            "id": "c",
            "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        }
    ).encode()
)
STREAMED = stream(
    data({"choices": [{"index": 0, "delta": MESSAGE, "finish_reason": "tool_calls"}]}) + DONE
)
ERROR = {"error": {"message": "No.", "code": 1}}
BROKEN = exactly()


def status(code: int, *headers: bytes) -> Answer:
    """Return an error with a status."""
    return whole(b'{"error":{"message":"Told by the upstream."}}', code, *headers)


@pytest.mark.parametrize(
    ("is_stream", "failure", "tries", "answered"),
    [
        (False, status(500), 3, True),
        (False, status(429, b"retry-after: 60"), 1, True),
        (False, status(404), 1, True),
        (False, status(400), 1, False),
        (False, whole(json.dumps(ERROR).encode()), 3, True),
        (False, BROKEN, 3, True),
        (True, BROKEN, 3, True),
        (True, stream(b": wait\n\n" + data(ERROR)), 3, True),
    ],
)
def test_next_model_answers_after_failures_that_the_request_has_not_caused(
    script: Script, is_stream: bool, failure: Answer, tries: int, answered: bool
) -> None:
    """The router prefers `medium`, then `large`. A model that the request names has no fallback."""
    script.play(failure, at="medium")
    script.play(STREAMED if is_stream else CALLS, at="large")
    response = script.http.post(CHAT, json=BODY | {"stream": is_stream})
    assert script.places() == ["medium"] * tries + ["large"] * answered
    assert response.headers["x-switchcraft-attempts"] == str(tries + answered)
    assert response.headers["x-switchcraft-model"] == ("large" if answered else "medium")
    assert response.is_success is answered
    script.upstream.asked.clear()
    named = script.http.post(CHAT, json=BODY | {"model": "medium", "stream": is_stream})
    assert (named.is_success, script.places()) == (False, ["medium"] * tries)


def test_if_all_models_fail_the_chosen_models_error_is_returned(script: Script) -> None:
    """Each is tried."""
    for model, code in (("small", 500), ("medium", 503), ("large", 502)):
        script.play(status(code), at=model)
    response = script.http.post(CHAT, json=BODY)
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (503, "medium")
    assert set(script.places()) == {"small", "medium", "large"}


def test_a_model_cools_down() -> None:
    """The status names its circuit, and if all are open, the client learns when to try again.

    Nobody bills a prompt for which no connection was made.
    """
    breaker = BreakerSettings(allowed_fails=0, cooldown_s=60)
    upstreams = NO_RETRIES.model_copy(update={"breaker": breaker})
    settings = sandbox_settings("http://127.0.0.1:9/v1", upstreams)
    with gateway_client(settings, FakeRouter()) as http:
        failed = http.post(CHAT, json=BODY)
        refused = http.post(CHAT, json=BODY)
        circuits = http.get("/admin/status").json()["open_circuits"]
        is_open = metric(http, "switchcraft_breaker_open")
        assert (failed.status_code, record_of(http, failed)["actual_cost_usd"]) == (502, None)
    assert "127.0.0.1" not in failed.text
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert {circuit["models"][0] for circuit in circuits} == {"small", "medium", "large"}
    assert is_open == len(circuits) == 3
    assert circuits[0]["address"] == "http://127.0.0.1:9/v1"
    assert circuits[0]["cause"].startswith("could not be reached")
    assert 0 < circuits[0]["closes_in_s"] <= 60


@pytest.mark.parametrize("sent", [b"", data({"choices": [{"delta": {"content": "Hi"}}]})])
def test_the_clients_deadline_ends_a_request(script: Script, sent: bytes) -> None:
    """Before the first output it gets 504, and afterwards the stream ends with an error event."""
    is_over = threading.Event()
    script.play(stream(sent, b"", wait=is_over))
    body = {"model": "chat", "messages": BODY["messages"], "stream": True}
    response = script.http.post(CHAT, json=body, headers={"x-request-timeout": "2"})
    is_over.set()
    assert response.status_code == (200 if sent else 504)
    error = json.loads(response.text.strip().rpartition("data: ")[2])["error"]
    assert error["code"] == "deadline_exceeded"


@dataclass(frozen=True)
class Bill:
    """What one model answers, and how many of its prompts are billed."""

    answers: Sequence[Answer]
    prompts: int
    is_answered: bool = False


@pytest.mark.parametrize(
    "bill",
    [
        Bill([BROKEN], 3),
        Bill([BROKEN, BROKEN, GOOD], 2, is_answered=True),
        Bill([BROKEN, status(500)], 1),
        Bill([status(500)], 0),
        Bill([status(400)], 0),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_attempts_without_an_answer_cost_their_prompts(
    script: Script, bill: Bill, is_stream: bool
) -> None:
    """Each prompt that was sent is billed by its length, unless its upstream reported an error."""
    if is_stream and bill.is_answered:
        return
    script.play(*bill.answers, at="medium")
    content = json.dumps(BODY | {"model": "medium", "stream": is_stream}).encode()
    before_usd = metric(script.http, 'switchcraft_cost_usd_total{model="medium"')
    response = script.http.post(CHAT, content=content)
    record = script.record(response)
    prompt_tokens = -(-len(content.replace(b'"medium"', b"")) // CHARACTERS_PER_TOKEN)
    tokens = bill.prompts * prompt_tokens + (5 if bill.is_answered else 0)
    cost_usd = tokens * PRICES["medium"] / 1e6
    assert (record["actual_cost_usd"] or 0) == pytest.approx(cost_usd)
    after_usd = metric(script.http, 'switchcraft_cost_usd_total{model="medium"')
    assert after_usd - before_usd == pytest.approx(cost_usd)
    if bill.prompts and not bill.is_answered:
        assert (record["prompt_tokens"], record["usage_is_estimated"]) == (prompt_tokens, True)


class BrokenRouter(FakeRouter):
    """Router whose graph fails."""

    def predict(self, *_args: object, **_kwargs: object) -> Prediction:
        """Fail."""
        raise RuntimeError("the graph does not run")


def test_failing_router_fails_no_request(sandbox: Sandbox) -> None:
    """Without a decision the most expensive arm answers, and the failure is counted."""
    with gateway_client(sandbox_settings(sandbox.base_url), BrokenRouter()) as http:
        response = http.post(CHAT, json=BODY)
        assert response.json()["model"] == "large"
        assert response.headers["x-switchcraft-reason"] == "undecided"
        series = 'switchcraft_router_failures_total{release="stable"}'
        wait_for(lambda: metric(http, series) == 1, "the failure is counted")


@pytest.mark.parametrize(
    "failure", [BROKEN, status(503, b"retry-after: 0"), stream(data(ERROR)), status(302)]
)
def test_request_that_creates_something_is_sent_once(script: Script, failure: Answer) -> None:
    """The upstream may have acted before it broke the connection or failed."""
    script.play(failure)
    for headers in ({}, {"idempotency-key": "k"}):
        body = {"model": "twice", "stream": True}
        response = script.http.post("/v1/batches", json=body, headers=headers)
        assert response.status_code >= 500
        assert response.headers["x-switchcraft-attempts"] == "1"
    assert script.places() == ["first"] * 2
