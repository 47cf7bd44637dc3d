"""Failing upstreams: retries, fallbacks, circuit breakers, deadlines and what the client gets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI

from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.policies.costs import Price
from router_service.router import Prediction
from router_service.sandbox.provider import run_in_thread
from router_service.serving.app import create_app
from router_service.settings import (
    BreakerSettings,
    Deployment,
    Model,
    RetrySettings,
    Settings,
    Timeouts,
    UpstreamSettings,
)
from router_service.upstream.bodies import BodyTemplate
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, metric, record_of, sandbox_settings
from tests.serving import ONE_TRY, Sandbox, scripted, served, wait_for

LENIENT = UpstreamSettings(
    retries=RetrySettings(budget_floor_per_s=100, backoff_s=0.01),
    breaker=BreakerSettings(allowed_fails=1000, cooldown_s=0.01, max_cooldown_s=0.01),
)
"""Default retries, and circuit breakers that have no effect."""


@dataclass(frozen=True)
class House:
    """A gateway and the sandbox behind it."""

    http: httpx.Client
    sandbox: Sandbox

    def ask(self, stream: bool = False, **body: object) -> httpx.Response:
        """Send a request for which the router prefers `medium`, then `large`, then `small`."""
        return self.http.post(CHAT, json=BODY | {"stream": stream} | body)

    def asked(self) -> dict[str, int]:
        """Return the number of requests that each model received."""
        by_model = self.sandbox.stats()["by_model"]
        return {name: counts["requests"] for name, counts in by_model.items()}


@pytest.fixture
def house() -> Iterator[House]:
    """Yield a gateway that retries, in front of its own sandbox."""
    with (
        run_in_thread() as url,
        gateway_client(sandbox_settings(url, LENIENT), FakeRouter()) as http,
    ):
        yield House(http, Sandbox(url))


def app(url: str, upstreams: UpstreamSettings) -> FastAPI:
    """Return a gateway whose arms are models of one sandbox."""
    return create_app(sandbox_settings(url, upstreams), FakeRouter())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        "status=500",
        "status=503,retry_after_s=60",
        "status=429,retry_after_s=60",
        "status=401",
        "status=404",
        "cut_after=0",
        "error_in_body",
        "error_after=0",
    ],
)
def test_next_best_arm_answers_after_a_failure(house: House, fault: str, stream: bool) -> None:
    """However the chosen arm fails, the router's next choice answers, and the headers say so."""
    house.sandbox.set_faults("medium", fault)
    response = house.ask(stream)
    assert response.status_code == 200
    assert response.headers["x-switchcraft-model"] == "large"
    assert response.headers["x-switchcraft-reason"] == "fallback"
    why = "large: the next choice, because the router's choice, medium, failed."
    assert response.headers["x-switchcraft-why"] == why
    assert house.asked()["large"] == 1
    assert "small" not in house.asked()


def test_temporary_failure_is_retried(house: House) -> None:
    """A temporary failure is retried at the same deployment; no other model is called."""
    house.sandbox.set_faults("medium", "status=500,times=2")
    response = house.ask()
    assert response.headers["x-switchcraft-model"] == "medium"
    assert response.headers["x-switchcraft-attempts"] == "3"
    assert house.asked() == {"medium": 3}


def test_errors_that_a_client_can_cause_open_no_breaker() -> None:
    """Requests for missing or too large things do not block the deployment for other clients."""
    upstreams = LENIENT.model_copy(update={"breaker": BreakerSettings(allowed_fails=0)})
    with run_in_thread() as url, served(app(url, upstreams)) as gateway, httpx.Client() as http:
        for fault in ("status=400", "status=404", "status=413", "status=422"):
            Sandbox(url).set_faults("medium", f"{fault},times=3")
            for _ in range(3):
                http.post(gateway + CHAT, json=BODY)
        assert http.post(gateway + CHAT, json=BODY).json()["model"] == "medium"


@pytest.mark.parametrize("status", [400, 422])
def test_client_errors_are_not_retried(house: House, status: int) -> None:
    """An error in the request itself is returned at once, by the model that reported it."""
    house.sandbox.set_faults("medium", f"status={status}")
    response = house.ask()
    assert (response.status_code, response.headers["x-switchcraft-attempts"]) == (status, "1")
    assert house.asked() == {"medium": 1}


def test_if_all_arms_fail_the_chosen_models_error_is_returned(house: House) -> None:
    """If every arm is down, each is tried, and the client gets the chosen model's error."""
    for model, status in (("small", 500), ("medium", 503), ("large", 502)):
        house.sandbox.set_faults(model, f"status={status}")
    response = house.ask()
    assert response.status_code == 503
    assert response.headers["x-switchcraft-model"] == "medium"
    assert set(house.asked()) == {"small", "medium", "large"}


def test_no_fallback_after_the_first_output(house: House) -> None:
    """An error in mid-stream is relayed and counted, and no other model is called."""
    house.sandbox.set_faults("medium", "error_after=2")
    response = house.ask(stream=True)
    assert response.status_code == 200
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert "error" in json.loads(events[-1])
    assert house.asked() == {"medium": 1}
    assert 'broken_streams_total{model="medium"} 1.0' in house.http.get("/metrics").text


def test_fallback_is_possible_after_leading_comments(house: House) -> None:
    """Comments are not output: after an error that follows them, another model still answers."""
    house.sandbox.set_faults("medium", "keep_alives,error_after=0")
    response = house.ask(stream=True)
    assert response.headers["x-switchcraft-model"] == "large"
    assert "keep-alive" not in response.text


def test_pinned_model_has_no_fallback_by_default(house: House) -> None:
    """A client that names a model gets the answer or the failure of that model."""
    house.sandbox.set_faults("medium", "status=503,retry_after_s=60")
    assert house.ask(model="medium").status_code == 503
    assert house.asked() == {"medium": 1}


def test_pinned_model_uses_its_configured_fallbacks() -> None:
    """Fallbacks that the configuration names for a model answer in their order."""
    with run_in_thread() as url:
        base = Settings.sandbox(url, ["small", "medium", "large"], upstreams=LENIENT)
        models = tuple(
            model.model_copy(update={"fallbacks": ("small",)}) if model.name == "large" else model
            for model in base.models
        )
        settings = base.model_copy(update={"models": models})
        Sandbox(url).set_faults("large", "status=500")
        with served(create_app(settings, FakeRouter())) as gateway:
            response = httpx.post(gateway + CHAT, json=BODY | {"model": "large"})
    assert response.headers["x-switchcraft-model"] == "small"
    why = "small: the next choice, because the model before it failed."
    assert response.headers["x-switchcraft-why"] == why


def two_places(first: str, second: str, **first_place: object) -> Settings:
    """Return settings in which `medium` has two deployments."""
    base = Settings.sandbox(second, ["small", "medium", "large"], upstreams=LENIENT)
    place = {"upstream_model": "medium", "base_url": first, **first_place}
    deployments = (Deployment.model_validate(place), base.models[1].deployments[0])
    both = Model(name="medium", deployments=deployments)
    return base.model_copy(update={"models": (base.models[0], both, base.models[2])})


def test_single_deployment_cools_down() -> None:
    """Only the first requests of an outage wait for the timeout; later ones use the next arm."""
    upstreams = UpstreamSettings(
        timeouts=Timeouts(first_byte_s=0.3),
        retries=RetrySettings(budget_floor_per_s=100),
        breaker=BreakerSettings(allowed_fails=1, cooldown_s=60),
    )
    with run_in_thread() as url:
        Sandbox(url).set_faults("medium", "hang")
        with served(app(url, upstreams)) as gateway, httpx.Client(timeout=20) as http:
            for _ in range(8):
                assert http.post(gateway + CHAT, json=BODY).json()["model"] == "large"
            told = http.get(gateway + "/metrics").text
            assert 'breaker_openings_total{deployment="medium@' in told
            (circuit,) = http.get(gateway + "/admin/status").json()["open_circuits"]
            assert circuit["deployment"].startswith("medium@")
            assert (circuit["models"], circuit["address"]) == (["medium"], url)
            assert circuit["cause"] == "did not answer in time"
            assert 0 < circuit["closes_in_s"] <= 60
        assert Sandbox(url).stats()["by_model"]["medium"]["requests"] == 2


def test_exhausted_connection_pool_opens_no_breaker() -> None:
    """A request without a free connection gets 503, and no circuit breaker opens."""
    upstreams = UpstreamSettings(
        timeouts=Timeouts(pool_s=0.1), max_connections=1, breaker=BreakerSettings(allowed_fails=0)
    )
    with run_in_thread() as url, served(app(url, upstreams)) as gateway, httpx.Client() as http:
        Sandbox(url).set_faults("medium", "hang_after=2,times=1")
        with http.stream("POST", gateway + CHAT, json=BODY | {"stream": True}) as response:
            parts = response.iter_raw()
            next(parts)
            refused = httpx.post(gateway + CHAT, json=BODY)
        assert (refused.status_code, refused.headers["x-switchcraft-attempts"]) == (503, "3")
        wait_for(lambda: Sandbox(url).stats()["cancelled"] == 1, "the connection is free")
        assert http.post(gateway + CHAT, json=BODY).json()["model"] == "medium"


def test_if_every_breaker_is_open_the_client_gets_503_with_retry_after() -> None:
    """If every arm cools down, the client learns when to retry, and no upstream is called."""
    upstreams = LENIENT.model_copy(
        update={"breaker": BreakerSettings(allowed_fails=0, cooldown_s=60)}
    )
    with served(app("http://127.0.0.1:9/v1", upstreams)) as gateway, httpx.Client() as http:
        http.post(gateway + CHAT, json=BODY)
        response = http.post(gateway + CHAT, json=BODY)
    assert response.status_code == 503
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert response.json()["error"]["code"] == "upstream_unavailable"


def test_retry_budget_limits_the_load_of_an_outage() -> None:
    """If everything is down, the retry budget keeps attempts near one per request."""
    upstreams = UpstreamSettings(
        retries=RetrySettings(budget_share=0.2, budget_floor_per_s=0, backoff_s=0.001),
        breaker=BreakerSettings(allowed_fails=10_000),
    )
    with run_in_thread() as url:
        for model in ("small", "medium", "large"):
            Sandbox(url).set_faults(model, "status=500")
        with served(app(url, upstreams)) as gateway, httpx.Client() as http:
            for _ in range(50):
                assert http.post(gateway + CHAT, json=BODY).status_code == 500
        assert Sandbox(url).stats()["requests"] == 60


@pytest.mark.parametrize("stream", [False, True])
def test_deadline_is_forwarded_and_enforced(house: House, stream: bool) -> None:
    """The upstream receives the client's deadline, which ends a request with 504 at every stage."""
    house.sandbox.set_faults("medium", "hang")
    began_s = time.perf_counter()
    response = house.http.post(
        CHAT, json=BODY | {"stream": stream}, headers={"x-request-timeout": "0.5"}
    )
    assert 0.5 <= time.perf_counter() - began_s < 5
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert set(house.asked()) == {"medium"}


def test_deadline_ends_a_stream(house: House) -> None:
    """A stream that exceeds the deadline ends with an error event."""
    house.sandbox.set_faults("medium", "hang_after=2")
    headers = {"x-request-timeout": "0.5"}
    response = house.http.post(CHAT, json=BODY | {"stream": True}, headers=headers)
    assert response.text.count("data: ") == 3
    assert "deadline_exceeded" in response.text


USD_A_TOKEN = Price(input_usd_per_mtok=1e6, output_usd_per_mtok=0)
"""With this price, a cost is a number of prompt tokens."""


@dataclass(frozen=True)
class Fault:
    """A failure of upstreams, and what they bill for it."""

    text: str
    prompts: int
    """Attempts without an answer that are billed."""
    everywhere: bool = False
    """Whether all models fail, and not only the first one."""
    timeout: str = "30"


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"model": "medium"}], ids=str)
@pytest.mark.parametrize(
    "fault",
    [
        Fault("hang", 1, timeout="0.3"),
        Fault("hang_after=0", 1, timeout="0.3"),
        Fault("hang", 3, everywhere=True),
        Fault("cut_after=0", 3),
        Fault("cut_after=0,times=2", 2),
        Fault("status=500", 0),
        Fault("status=429", 0, everywhere=True),
        Fault("status=400", 0),
    ],
    ids=str,
)
def test_attempts_without_an_answer_cost_their_prompts(
    fault: Fault, body: dict[str, object]
) -> None:
    """Each prompt that was sent is billed, as an estimate, unless its upstream reported an error.

    `medium` is asked first; a request that names it has no other model.
    """
    upstreams = LENIENT.model_copy(
        update={
            "timeouts": Timeouts(first_byte_s=1.0),
            "retries": RetrySettings(budget_floor_per_s=100, backoff_s=0.01, max_backoff_s=0.1),
        }
    )
    asked = BODY | body
    content = json.dumps(asked).encode()
    with run_in_thread() as url:
        settings = sandbox_settings(url, upstreams)
        models = tuple(m.model_copy(update={"price": USD_A_TOKEN}) for m in settings.models)
        for model in ("small", "medium", "large") if fault.everywhere else ("medium",):
            Sandbox(url).set_faults(model, fault.text)
        with gateway_client(settings.model_copy(update={"models": models}), FakeRouter()) as http:
            headers = {"x-request-timeout": fault.timeout, "content-type": "application/json"}
            response = http.post(CHAT, content=content, headers=headers)
            record = record_of(http, response)
            counted_usd = metric(http, "switchcraft_cost_usd_total")
    prompt_tokens = -(-BodyTemplate.of(content).size_bytes // CHARACTERS_PER_TOKEN)
    is_hanging = fault.everywhere and fault.text == "hang"
    prompts = 1 if is_hanging and "model" in body else fault.prompts
    is_answered = response.status_code == 200 and record["ending"] == "complete"
    answer_usd = record["prompt_tokens"] if is_answered else 0
    assert (record["actual_cost_usd"] or 0) == pytest.approx(prompts * prompt_tokens + answer_usd)
    assert counted_usd == pytest.approx(record["actual_cost_usd"] or 0)
    if prompts and not is_answered:
        assert (record["prompt_tokens"], record["usage_is_estimated"]) == (prompt_tokens, True)


def test_requests_that_were_not_sent_cost_nothing() -> None:
    """Nobody bills a prompt for which no connection was made."""
    with gateway_client(sandbox_settings("http://127.0.0.1:9/v1"), FakeRouter()) as http:
        response = http.post(CHAT, json=BODY)
        assert (response.status_code, record_of(http, response)["actual_cost_usd"]) == (502, None)


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "nan", "inf", "1e99"])
def test_invalid_deadline_is_refused(house: House, text: str) -> None:
    """The error for an invalid deadline names the header."""
    response = house.http.post(CHAT, json=BODY, headers={"x-request-timeout": text})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-timeout")


def test_idle_stream_ends_after_the_idle_timeout() -> None:
    """The gateway stops reading a stream whose upstream is silent for the idle time."""
    upstreams = LENIENT.model_copy(update={"timeouts": Timeouts(idle_s=0.3)})
    with run_in_thread() as url:
        Sandbox(url).set_faults("medium", "hang_after=2")
        with served(app(url, upstreams)) as gateway:
            response = httpx.post(gateway + CHAT, json=BODY | {"stream": True})
    assert response.text.count("data: ") == 3
    assert "upstream_timeout" in response.text


def test_stream_options_are_dropped_if_the_upstream_refuses_them(house: House) -> None:
    """The options are left out, also in later requests, so that the client gets an answer."""
    house.sandbox.set_faults("medium", "reject_stream_options")
    options = {"stream_options": {"include_usage": True}}
    first = house.ask(stream=True, **options)
    assert house.asked() == {"medium": 2}
    second = house.ask(stream=True, **options)
    assert house.asked() == {"medium": 3}
    for answer in (first, second):
        assert answer.headers["x-switchcraft-model"] == "medium"
        assert answer.text.endswith("data: [DONE]\n\n")
    assert record_of(house.http, second)["usage_is_estimated"]


def test_cancelled_stream_is_billed_by_an_estimate(house: House) -> None:
    """If a client disconnects in mid-stream, its tokens are estimated and counted."""
    house.sandbox.set_faults("medium", "chunk_delay_s=0.05")
    with house.http.stream("POST", CHAT, json=BODY | {"stream": True}) as response:
        next(response.iter_bytes())
    record = record_of(house.http, response)
    assert (record["ending"], record["status"]) == ("client_left", 499)
    assert record["usage_is_estimated"]
    assert record["prompt_tokens"] > 0
    assert record["actual_cost_usd"] > 0


class BrokenRouter(FakeRouter):
    """Router whose graph fails."""

    def predict(self, *_args: object, **_kwargs: object) -> Prediction:
        """Fail."""
        raise RuntimeError("the graph does not run")


def test_failing_router_fails_no_request(sandbox: Sandbox) -> None:
    """Without a decision the most expensive arm answers, and the failure is counted."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    with served(create_app(settings, BrokenRouter())) as url, httpx.Client(base_url=url) as http:
        response = http.post(CHAT, json=BODY)
        assert response.json()["model"] == "large"
        assert response.headers["x-switchcraft-reason"] == "undecided"
        counted = 'switchcraft_router_failures_total{release="stable"} 1.0'
        wait_for(lambda: counted in http.get("/metrics").text, "the failure is counted")


LAST_LINE = b"content-length: 0\r\n\r\n"


def breaking(
    url: str, *, deployments: int = 1, retries: RetrySettings | None = None
) -> AbstractContextManager[str]:
    """Serve a gateway whose models, with fallbacks, share one upstream that breaks connections."""
    place = Deployment(upstream_model="m", base_url=url)
    places = tuple(place.model_copy(update={"query": f"n={n}"}) for n in range(deployments))
    models = tuple(
        Model(name=name, deployments=places, fallbacks=("large",) if name == "small" else ())
        for name in FakeRouter().probabilities
    )
    upstreams = LENIENT.model_copy(update={"retries": retries or LENIENT.retries})
    return served(create_app(Settings(models=models, upstreams=upstreams), FakeRouter()))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"HTTP/1.1 500 No\r\n" + LAST_LINE,
        b"HTTP/1.1 503 No\r\nretry-after: 0\r\n" + LAST_LINE,
        b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {"error":{"code":1}}',
        b"HTTP/1.1 302 Go\r\nlocation: /\r\n" + LAST_LINE,
    ],
)
def test_request_that_creates_something_is_sent_once(answer: bytes) -> None:
    """The upstream may have acted before it broke the connection or failed."""
    seen: list[bytes] = []
    with scripted(answer, seen) as url, breaking(url, deployments=2) as gateway:
        for headers in ({}, {"idempotency-key": "k"}):
            response = httpx.post(
                f"{gateway}/v1/batches",
                json={"model": "small", "stream": True},
                headers=headers,
                timeout=30,
            )
            assert response.status_code >= 500
            assert response.headers["x-switchcraft-attempts"] == "1"
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("path", "fields", "times"),
    [
        (CHAT, {"messages": ASK}, 6),
        ("/v1/rerank", {"query": "x"}, 6),
        ("/v1/responses", {"input": "x", "background": True}, 1),
    ],
)
def test_request_that_changes_nothing_is_retried(
    path: str, fields: dict[str, object], times: int
) -> None:
    """Model and fallback are tried three times each, unless the completion has an effect."""
    seen: list[bytes] = []
    with scripted(b"", seen) as url, breaking(url) as gateway:
        response = httpx.post(gateway + path, json={"model": "small"} | fields)
    assert (response.status_code, len(seen)) == (502, times)


@pytest.mark.parametrize("status", [401, 403, 404, 408, 409, 413, 429])
def test_refused_request_may_go_to_another_model(status: int) -> None:
    """An upstream that refuses a request has created nothing."""
    seen: list[bytes] = []
    answer = b"HTTP/1.1 %d No\r\n" % status + LAST_LINE
    with scripted(answer, seen) as url, breaking(url) as gateway:
        response = httpx.post(f"{gateway}/v1/batches", json={"model": "small"})
    assert response.status_code == status
    assert len(seen) > 1


def test_unsent_request_may_go_to_another_model() -> None:
    """If no server listens at the address, nothing can have been created."""
    with scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as url:
        settings = two_places("http://127.0.0.1:9/v1", url, weight=1e9)
        with served(create_app(settings, FakeRouter())) as gateway:
            response = httpx.post(f"{gateway}/v1/batches", json={"model": "medium"})
    assert response.status_code == 200
    assert response.headers["x-switchcraft-attempts"] == "2"


@pytest.mark.parametrize(("deployments", "key", "times"), [(1, "k", 3), (1, None, 1), (2, "k", 1)])
def test_supported_idempotency_key_allows_retries(
    deployments: int, key: str | None, times: int
) -> None:
    """Retries go only to the deployment that supports the key, and to no other model."""
    seen: list[bytes] = []
    retries = RetrySettings(budget_floor_per_s=100, backoff_s=0.01, idempotency_keys=True)
    with (
        scripted(b"", seen) as url,
        breaking(url, deployments=deployments, retries=retries) as gateway,
    ):
        headers = {} if key is None else {"idempotency-key": key}
        httpx.post(f"{gateway}/v1/batches", json={"model": "small"}, headers=headers)
    assert len(seen) == times


USED = b'"usage":{"prompt_tokens":3,"completion_tokens":2}'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (rb'{"choices":[{"message":{"content":"\ud83d"}}],' + USED + b"}", 200),
        (b'{"choices":[{"message":{"content":"a"},"p":-Infinity}],' + USED + b"}", 200),
        (b'{"choices":[],"n":' + b"7" * 5000 + b"," + USED + b"}", 200),
        (b'\xef\xbb\xbf{"choices":[],' + USED + b"}", 200),
        (b'{"choices":[{"message":{"content":"\xf0\x9f"}}],' + USED + b"}", 200),
        (b'{"choices":[],"choices":[],' + USED + b"}", 200),
        (b'{"a":' * 1000 + b"1" + b"}" * 999 + b"," + USED + b"}", 200),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, 200),
        (b'{"choices":[', 502),
        (b"{" * 50_000, 502),
        (b"oops", 502),
        (b'{"a":"b"c"}', 502),
        (b"", 502),
    ],
)
def test_readable_answer_is_relayed_unchanged(body: bytes, status: int) -> None:
    """Bytes are relayed unchanged; an answer that no client could read counts as a failure."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with (
        scripted(head % len(body) + body) as url,
        gateway_client(sandbox_settings(url, ONE_TRY), FakeRouter()) as http,
    ):
        response = http.post(CHAT, json=BODY)
        assert response.status_code == status
        if status == 200:
            assert response.content == body
        if status == 200 and USED in body:
            assert record_of(http, response)["completion_tokens"] == 2
