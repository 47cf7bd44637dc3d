"""Verified answers while candidates fail, hang or are too large, clients leave, and engines change.

In every drill, the cost of each candidate is counted exactly once.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from router_service.runtime.engine import Engine
from router_service.serving.app import create_app
from router_service.settings import Settings, Timeouts
from tests.bodies import BODY, CHAT
from tests.fakes import VerifyingRouter
from tests.gateways import (
    VERIFIED,
    VerifyingGateway,
    listed_requests,
    metric,
    sandbox_settings,
    verifying,
)
from tests.serving import WAIT_S, Sandbox, scripted, served, wait_for


def last_record(gateway: VerifyingGateway) -> dict[str, Any]:
    """Return the record of a gateway's only request, once it has ended."""
    (row,) = listed_requests(gateway.http)
    record: dict[str, Any] = gateway.http.get(f"/v1/decisions/{row['id']}").json()
    return record


def check_costs(gateway: VerifyingGateway) -> None:
    """Assert that the metrics count the cost of each of the only request's candidates once."""
    record = last_record(gateway)
    costs_usd = [candidate["cost_usd"] or 0.0 for candidate in record["candidates"]]
    assert sum(costs_usd) > 0
    assert record["actual_cost_usd"] == pytest.approx(sum(costs_usd))
    spent_usd = metric(gateway.http, "switchcraft_cost_usd_total{")
    assert spent_usd == pytest.approx(sum(costs_usd))


def with_small(upstream: Sandbox, **deployment: object) -> Settings:
    """Return settings for a sandbox in which the deployment of `small` has these values."""
    settings = sandbox_settings(upstream.base_url)
    small, *others = settings.models
    places = (small.deployments[0].model_copy(update=deployment),)
    models = (small.model_copy(update={"deployments": places}), *others)
    return settings.model_copy(update={"models": models})


def failures(record: dict[str, Any]) -> dict[str, str | None]:
    """Return each candidate's failure by its arm."""
    return {candidate["arm"]: candidate["failure"] for candidate in record["candidates"]}


@pytest.mark.parametrize(
    ("fault", "stream", "failure"),
    [
        ("hang", False, "timeout"),
        ("cut_after=2", True, "broken"),
        ("error_after=2", True, "error_body"),
        ("malformed", True, "malformed"),
        ("keep_alives,error_after=0", True, "error_body"),
    ],
)
def test_failing_candidate_costs_only_its_time(
    upstream: Sandbox, fault: str, stream: bool, failure: str
) -> None:
    """However a candidate fails, the next arms are asked, and the client gets one good answer."""
    upstream.set_faults("small", fault)
    timeouts = Timeouts(first_byte_s=0.4, idle_s=0.4) if "hang" in fault else Timeouts()
    with verifying(upstream.base_url, with_small(upstream, timeouts=timeouts)) as gateway:
        response = gateway.ask(stream)
        assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "large")
        assert b'"model":"small"' not in response.content
        assert failures(last_record(gateway)) == {"small": failure, "medium": None, "large": None}
        check_costs(gateway)


@pytest.mark.parametrize(
    ("header", "value", "stream"),
    [
        ("x-switchcraft-max-added-latency-s", "0.2", False),
        ("x-switchcraft-max-added-latency-s", "0.2", True),
        ("x-request-timeout", "1.5", True),
    ],
)
def test_slow_candidate_gives_way_to_the_one_in_hand(
    upstream: Sandbox, header: str, value: str, stream: bool
) -> None:
    """If the time is over, the best candidate so far is delivered, and the slow one cancelled."""
    upstream.set_faults("medium", "hang")
    with verifying(upstream.base_url) as gateway:
        response = gateway.http.post(
            CHAT, json=BODY | {"stream": stream}, headers=VERIFIED | {header: value}
        )
        assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "small")
        wait_for(lambda: upstream.stats()["cancelled"] == 1, "the slow call is cancelled")
        assert failures(last_record(gateway)) == {"small": None, "medium": "cancelled"}
        check_costs(gateway)


def test_deadline_without_any_candidate_ends_the_request(upstream: Sandbox) -> None:
    """If no candidate is complete at the client's deadline, the client gets 504."""
    upstream.set_faults("small", "hang")
    with verifying(upstream.base_url) as gateway:
        response = gateway.ask(x_request_timeout="0.2")
        assert (response.status_code, response.json()["error"]["code"]) == (
            504,
            "deadline_exceeded",
        )
        assert failures(last_record(gateway)) == {"small": "timeout"}


@pytest.mark.parametrize("stream", [False, True])
def test_disconnecting_client_cancels_all_candidates(upstream: Sandbox, stream: bool) -> None:
    """When the client leaves, all upstream calls are cancelled, and billed with an estimate."""
    upstream.set_faults("small", "delay_s=10")
    upstream.set_faults("medium", "delay_s=10")
    router = VerifyingRouter((("small", "medium"),))
    with verifying(upstream.base_url, router=router) as gateway:
        address = urlsplit(str(gateway.http.base_url))
        body = json.dumps(BODY | {"stream": stream, "model": "switchcraft:verified"}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(
            (address.hostname, address.port), timeout=WAIT_S
        ) as connection:
            connection.sendall(head.encode() + body)
            wait_for(lambda: upstream.stats()["in_flight"] == 2, "both calls are made")
        wait_for(lambda: upstream.stats()["cancelled"] == 2, "both calls are cancelled")
        record = last_record(gateway)
        assert (record["status"], record["ending"]) == (499, "client_left")
        assert failures(record) == {"small": "cancelled", "medium": "cancelled"}
        check_costs(gateway)


def test_reload_during_verification_does_not_disturb_it(upstream: Sandbox) -> None:
    """A request keeps its engine until its answer is delivered; new requests use the new one."""
    upstream.set_faults("small", "delay_s=0.3")
    old, new = VerifyingRouter(), VerifyingRouter((("large",),))
    settings = sandbox_settings(upstream.base_url)
    app = create_app(settings, old)

    async def reloadable(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/replace-engine":
            gateway = app.state.gateway
            await gateway.replace_engine(Engine(settings, new, gateway.breakers))
            await PlainTextResponse("replaced")(scope, receive, send)
        else:
            await app(scope, receive, send)

    answers: list[httpx.Response] = []
    with served(reloadable) as url, httpx.Client(base_url=url, timeout=20) as http:

        def ask() -> httpx.Response:
            return http.post(CHAT, json=BODY, headers=VERIFIED)

        thread = threading.Thread(target=lambda: answers.append(ask()))
        thread.start()
        wait_for(lambda: upstream.stats()["in_flight"] == 1, "the first candidate is asked")
        httpx.get(f"{url}/replace-engine").raise_for_status()
        assert upstream.stats()["in_flight"] == 1
        assert ask().headers["x-switchcraft-candidates"] == "1"
        thread.join()
    (answer,) = answers
    assert (answer.status_code, answer.headers["x-switchcraft-candidates"]) == (200, "3")
    assert (len(old.steps), len(new.steps)) == (4, 2)


def answer_with(arguments: str, *, stream: bool) -> bytes:
    """Return an upstream's whole HTTP response whose only call has these arguments."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    usage = {"prompt_tokens": 9, "completion_tokens": 9}
    if stream:
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}
        chunk = {"model": "odd", "choices": [choice]}
        last = {"model": "odd", "choices": [], "usage": usage}
        parts = [b"data: " + orjson.dumps(each) + b"\n\n" for each in (chunk, last)]
        body, kind = b"".join([*parts, b"data: [DONE]\n\n"]), b"text/event-stream"
    else:
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choices = [{"index": 0, "message": message}]
        body = orjson.dumps({"model": "odd", "choices": choices, "usage": usage})
        kind = b"application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


def test_whole_answer_to_a_request_for_a_stream_is_a_candidate(upstream: Sandbox) -> None:
    """Some servers do not stream calls; their answers are judged and delivered as they are."""
    router = VerifyingRouter(trust={"small": 0.9})
    with (
        scripted(answer_with('{"city":"Oslo"}', stream=False)) as whole,
        verifying(upstream.base_url, with_small(upstream, base_url=whole), router) as gateway,
    ):
        response = gateway.ask(stream=True)
        assert response.headers["content-type"] == "application/json"
        assert response.json()["model"] == "odd"
        check_costs(gateway)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "failure"),
    [
        pytest.param('{"city":"' + "x" * 5_000_000 + '"}', "unfit", id="5 MB"),
        pytest.param('{"a":' * 1000 + "1" + "}" * 1000, None, id="deep"),
        pytest.param('{"city": Oslo', "unusable", id="not JSON"),
    ],
)
def test_unreadable_arguments_make_no_verified_answer(
    upstream: Sandbox, arguments: str, failure: str | None, stream: bool
) -> None:
    """An answer whose call cannot be read is not delivered."""
    with (
        scripted(answer_with(arguments, stream=stream)) as odd,
        verifying(upstream.base_url, with_small(upstream, base_url=odd)) as gateway,
    ):
        response = gateway.ask(stream)
        assert response.headers["x-switchcraft-model"] == "large"
        assert failures(last_record(gateway))["small"] == failure
        check_costs(gateway)
