"""Evidence against a call from later turns: weak, counted once, and only if it is enabled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_service.core.decision_record import LoggedEvidence
from router_service.settings import KeySettings, RouterSettings
from tests.bodies import ASK, BODY, CHAT
from tests.logs import LoggingGateway, logging_gateway
from tests.serving import served, wait_for

OSLO, BERGEN = '{"city": "Oslo"}', '{"city": "Bergen"}'
SERIES = 'weak_evidence_total{{arm="medium",kind="{}"}}'


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """Serve models that call the weather tool with the user's text; each call has a unique id."""
    numbers = count()

    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        name = body.get("metadata", {}).get("tool", "get_weather")
        function = {"name": name, "arguments": body["user"]}
        call = {"id": f"call_{next(numbers)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return JSONResponse({"choices": [{"index": 0, "message": message}]})

    async def respond(request: Request) -> JSONResponse:
        body = await request.json()
        call = {"type": "function_call", "call_id": f"call_{next(numbers)}", "name": "get_weather"}
        output = [call | {"arguments": body["user"]}]
        return JSONResponse({"object": "response", "id": "resp_1", "output": output})

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/responses", respond, methods=["POST"]),
    ]
    with served(Starlette(routes=routes)) as url:
        yield f"{url}/v1"


class Talk:
    """One conversation that is sent turn by turn."""

    def __init__(self, gateway: LoggingGateway, key: str | None = None) -> None:
        self.gateway = gateway
        self.messages = [*ASK]
        self.decisions: list[str] = []
        self.headers = {"authorization": f"Bearer {key}"} if key else {}

    def turn(self, arguments: str, result: str | None = None, **fields: object) -> None:
        """Add a result for the last call, and let the next answer call with these arguments."""
        if result is not None:
            call_id = self.messages[-1]["tool_calls"][0]["id"]
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        self.send(arguments, **fields)

    def send(self, arguments: str, **fields: object) -> None:
        """Send the conversation so far, and add the answer."""
        body = BODY | {"messages": self.messages, "user": arguments} | fields
        response = self.gateway.http.post(CHAT, json=body, headers=self.headers)
        self.messages.append(response.json()["choices"][0]["message"])
        self.decisions.append(response.headers["x-switchcraft-decision-id"])


def settled(gateway: LoggingGateway, decisions: int) -> list[LoggedEvidence]:
    """Return the evidence once this many decisions are logged and the queue is empty."""
    gateway.decisions(decisions)
    wait_for(lambda: gateway.metric("decision_log_queued") == 0, "all is written")
    return gateway.evidence(0)


def test_error_result_is_evidence_against_its_call(upstream: str, tmp_path: Path) -> None:
    """The error counts once against the call, however often later turns repeat it."""
    with logging_gateway(upstream, tmp_path, evidence=True, content=True) as gateway:
        talk = Talk(gateway)
        talk.turn(OSLO)
        talk.turn(OSLO, "Error: no such city")
        talk.turn(OSLO, "7 degrees")
        talk.turn(OSLO, "8 degrees")
        (line,) = settled(gateway, 4)
        assert gateway.metric(SERIES.format("tool_error")) == 1
        assert gateway.metric('decision_log_lines_total{type="evidence"}') == 1
    assert (line.decision_id, line.arm, line.kind) == (talk.decisions[0], "medium", "tool_error")
    assert (line.tool, line.strength) == ("get_weather", "weak")


def test_usage_counts_calls_that_were_probably_wrong(upstream: str, tmp_path: Path) -> None:
    """Errors, repeated calls and calls that violate their schema count for the calls' answers."""
    with logging_gateway(upstream, tmp_path, evidence=True) as gateway:
        talk = Talk(gateway)
        talk.turn('{"city": 7}')
        talk.turn(OSLO, "Error: no such city")
        talk.turn(BERGEN, "7 degrees")
        wanted = {"requests": 3, "invalid_calls": 1, "tool_errors": 1, "repeated_calls": 1}

        def found() -> dict[str, int]:
            rows = gateway.http.get("/admin/usage", params={"by": "policy"}).json()["rows"]
            return {name: rows[0][name] for name in wanted} if len(rows) == 1 else {}

        wait_for(lambda: found() == wanted, "all are written")


def test_repeated_call_with_other_arguments_is_evidence(upstream: str, tmp_path: Path) -> None:
    """A repeated call with equal arguments is no evidence."""
    with logging_gateway(upstream, tmp_path, evidence=True) as gateway:
        talk = Talk(gateway)
        talk.turn(OSLO)
        talk.turn('{ "city":"Oslo" }', "7 degrees")
        talk.turn(BERGEN, "7 degrees")
        (line,) = settled(gateway, 3)
        assert gateway.metric(SERIES.format("repeated_call")) == 1
    assert (line.decision_id, line.kind) == (talk.decisions[1], "repeated_call")
    assert line.tool != "get_weather"


@pytest.mark.parametrize("log", [{"evidence": False}, {"evidence": True, "path": None}])
def test_evidence_is_opt_in_and_needs_no_log(
    upstream: str, tmp_path: Path, log: dict[str, Any]
) -> None:
    """If it is disabled, nothing is searched; without a log, only the metric counts."""
    with logging_gateway(upstream, tmp_path, **log) as gateway:
        talk = Talk(gateway)
        talk.turn(OSLO)
        talk.turn(OSLO, "Error: no such city")
        talk.turn(OSLO)
        calls = 'tool_calls_total{fits="yes",model="medium"}'
        wait_for(lambda: gateway.metric(calls) == 3, "all answers are looked at")
        wait_for(lambda: gateway.metric("decision_log_queued") == 0, "all is done")
        assert gateway.metric(SERIES.format("tool_error")) == bool(log["evidence"])
        assert gateway.evidence(0) == []


def test_other_keys_cannot_give_evidence(upstream: str, tmp_path: Path) -> None:
    """A call id of another client or another conversation counts as unknown."""
    keys = KeySettings(api={"a": SecretStr("key-of-a-3c81d0"), "b": SecretStr("key-of-b-77aa21")})
    changes = {"keys": keys, "router": RouterSettings()}
    with logging_gateway(upstream, tmp_path, evidence=True, changes=changes) as gateway:
        mine, theirs = Talk(gateway, "key-of-a-3c81d0"), Talk(gateway, "key-of-b-77aa21")
        mine.turn(OSLO)
        theirs.messages = [*mine.messages]
        theirs.turn(OSLO, "Error: no such city")
        other = Talk(gateway, "key-of-a-3c81d0")
        other.messages = [{"role": "user", "content": "Another opening."}, *mine.messages[1:]]
        other.turn(OSLO, "Error: no such city")
        mine.turn(OSLO, "Error: no such city")
        assert [line.decision_id for line in gateway.evidence(1)] == [mine.decisions[0]]
