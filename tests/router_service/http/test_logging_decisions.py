"""The decision log, feedback and evidence: what is written, counted, kept and refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_service.core.decision_record import LoggedDecision, LoggedEvidence, LoggedFeedback
from router_service.settings import KeySettings, RouterSettings
from tests.bodies import BODY, CHAT, RESPONSES_BODY, TOOLS
from tests.fakes import VerifyingRouter
from tests.logs import LoggingGateway, logging_gateway
from tests.serving import Sandbox, served, wait_for

RESPONSES = "/v1/responses"
KEYS = KeySettings(
    api={name: SecretStr(f"planted-key-of-{name}-9f3a") for name in ("anna", "bob", "carol")},
    admin=SecretStr("planted-key-of-the-admin-90ab"),
)


def bearer(name: str = "admin") -> dict[str, str]:
    """Return the header with a key."""
    key = KEYS.admin if name == "admin" else KEYS.api[name]
    assert key is not None
    return {"authorization": f"Bearer {key.get_secret_value()}"}


@pytest.fixture(scope="module")
def plain(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggingGateway]:
    """Yield a gateway that logs no content, and looks for no evidence."""
    with logging_gateway(sandbox.base_url, tmp_path_factory.mktemp("plain")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggingGateway]:
    """Yield a gateway with keys that logs content, and looks for evidence.

    Its models call the weather tool with the user's text; each call has an id of its own.
    """
    numbers = count()

    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        function = {"name": "get_weather", "arguments": body["user"]}
        call = {"id": f"call_{next(numbers)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return JSONResponse({"choices": [{"index": 0, "message": message}]})

    route = Route("/v1/chat/completions", chat, methods=["POST"])
    folder, changes = tmp_path_factory.mktemp("full"), {"keys": KEYS, "router": RouterSettings()}
    with (
        served(Starlette(routes=[route])) as url,
        logging_gateway(
            f"{url}/v1", folder, content=True, evidence=True, changes=changes
        ) as gateway,
    ):
        yield gateway


def line_of(gateway: LoggingGateway, response: httpx.Response) -> LoggedDecision:
    """Return the logged decision of a response."""
    name = response.headers["x-switchcraft-decision-id"]

    def found() -> list[LoggedDecision]:
        return [each for each in gateway.decisions(0) if each.id == name]

    wait_for(found, "the decision is logged")
    return found()[0]


def decided(gateway: LoggingGateway, name: str = "", **fields: object) -> str:
    """Return the id of a stored decision."""
    headers = bearer(name) if name else {}
    response = gateway.http.post(CHAT, json=BODY | {"user": "{}"} | fields, headers=headers)
    decision: str = response.headers["x-switchcraft-decision-id"]
    path = f"/v1/decisions/{decision}"
    wait_for(lambda: gateway.http.get(path, headers=headers).is_success, "it is recorded")
    return decision


def give(gateway: LoggingGateway, decision: str, name: str = "", **said: Any) -> httpx.Response:  # noqa: ANN401 - JSON
    """Send feedback on a decision."""
    body = {"decision_id": decision, **said}
    return gateway.http.post("/v1/feedback", json=body, headers=bearer(name) if name else {})


def feedback_on(gateway: LoggingGateway, decision: str, least: int) -> list[LoggedFeedback]:
    """Return the logged feedback on a decision, once this much is written."""

    def found() -> list[LoggedFeedback]:
        return [each for each in gateway.feedback(0) if each.decision_id == decision]

    wait_for(lambda: len(found()) >= least, "the feedback is logged")
    return found()


@pytest.mark.parametrize("content", [False, True])
def test_all_candidates_of_a_verified_answer_are_logged(
    sandbox: Sandbox, tmp_path: Path, content: bool
) -> None:
    """The line has every candidate with its cost; contents only by the opt-in."""
    router = VerifyingRouter(trust={"medium": 0.8})
    with logging_gateway(sandbox.base_url, tmp_path, router, content=content) as gateway:
        line = line_of(gateway, gateway.ask(model="switchcraft:verified"))
        assert give(gateway, line.id, correct=True).is_success
        assert (
            gateway.metric('feedback_total{arm="medium",release="stable",verdict="correct"}') == 1
        )
        assert gateway.metric('calibration_decisions_total{bin="0.7",verdict="correct"}') == 0
    assert (line.arm, line.model, line.reason) == ("medium", "medium", "verified")
    assert (line.policy, line.is_fallback, line.propensity) == ("verified=0.002", False, None)
    assert line.candidates is not None
    assert [c.arm for c in line.candidates] == ["small", "medium"]
    assert line.actual_cost_usd == pytest.approx(sum(c.cost_usd or 0.0 for c in line.candidates))
    kept = [c.content for c in line.candidates if c.content is not None]
    assert len(kept) == (2 if content else 0)
    assert all([call.name for call in k.calls or ()] == ["get_weather"] for k in kept)


def test_content_is_logged_only_by_opt_in(plain: LoggingGateway, full: LoggingGateway) -> None:
    """By default the log has no request, answer or tool; with the opt-in, all but the key."""
    messages = [{"role": "user", "content": "What is the weather in Planted-Oslo?"}]
    plain.ask(messages=messages)
    line_of(plain, plain.http.post(RESPONSES, json=RESPONSES_BODY))
    for word in ("Planted", "get_weather", '"city"'):
        assert word not in plain.text()
    body = BODY | {"messages": messages, "user": '{"city": "Oslo"}'}
    line = line_of(full, full.http.post(CHAT, json=body, headers=bearer("anna")))
    assert line.key == "anna"
    assert "planted-key" not in full.text()
    assert line.content is not None
    assert line.content.request["messages"] == messages
    assert line.content.request["tools"][0]["function"]["name"] == "get_weather"
    assert [call.name for call in line.content.calls or ()] == ["get_weather"]


def test_exploration_draws_arms_and_logs_their_propensity(sandbox: Sandbox, tmp_path: Path) -> None:
    """With a share of 1, each of three arms has propensity 1/3; pinned requests do not explore."""
    everything = {"router": RouterSettings(exploration_share=1)}
    with logging_gateway(sandbox.base_url, tmp_path, changes=everything) as gateway:
        for _ in range(40):
            gateway.ask()
        seen = gateway.decisions(40)
        pinned = gateway.ask(model="large")
        unread = gateway.ask(tools=[*TOOLS, {"type": "function"}])
    # The probability that 40 draws miss one of three arms is below 3 * (2/3)**40.
    assert {each.arm for each in seen} == {"small", "medium", "large"}
    for each in seen:
        assert each.reason == ("threshold" if each.arm == "medium" else "explored")
        assert each.propensity == pytest.approx(1 / 3)
    assert pinned.headers["x-switchcraft-reason"] == "pinned"
    assert unread.headers["x-switchcraft-reason"] == "unread"


def test_feedback_is_logged_each_time_and_counted_once(sandbox: Sandbox, tmp_path: Path) -> None:
    """Each first verdict is counted by the predicted probability of the chosen arm.

    Feedback on requests that were not routed counts for no arm.
    """
    with logging_gateway(sandbox.base_url, tmp_path) as gateway:
        assert gateway.metric('calibration_decisions_total{bin="0.9",verdict="correct"}') == 0
        names = [decided(gateway) for _ in range(3)]
        for name, correct in zip(names, (True, True, False), strict=True):
            verdict = "correct" if correct else "wrong"
            answer = give(gateway, name, correct=correct)
            assert answer.json() == {"decision_id": name, "verdict": verdict}
        give(gateway, names[0], correct=False)
        assert [line.correct for line in feedback_on(gateway, names[0], 2)] == [True, False]
        give(gateway, decided(gateway, model="small"), correct=True)
        counted = {
            'feedback_total{arm="medium",release="stable",verdict="correct"}': 2,
            'feedback_total{arm="medium",release="stable",verdict="wrong"}': 1,
            'feedback_total{arm="none",release="none",verdict="correct"}': 1,
            'calibration_decisions_total{bin="0.7",verdict="correct"}': 2,
            'calibration_decisions_total{bin="0.7",verdict="wrong"}': 1,
            'calibration_predicted_total{bin="0.7"}': pytest.approx(3 * 0.7),
        }
        assert {name: gateway.metric(name) for name in counted} == counted


def test_keys_can_access_only_their_own_decisions(full: LoggingGateway) -> None:
    """Another key's decisions are unknown to view and to judge; the admin key has access to all."""
    decision = decided(full, "anna")
    statuses = []
    for name in ("bob", "anna", "admin"):
        posted = give(full, decision, name, correct=True)
        got = full.http.get(f"/v1/decisions/{decision}", headers=bearer(name))
        statuses.append((posted.status_code, got.status_code))
    assert statuses == [(404, 404), (200, 200), (200, 200)]
    assert give(full, "dec_unknown", "anna", correct=True).json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "correct"),
        ({"correct": True, "expected": []}, "correct"),
        ({"correct": 1}, "correct"),
        ({"correct": True, "because": "x"}, "because"),
        ({"expected": [{"name": "f"}]}, "expected.0.arguments"),
        ({"expected": [{"name": "f", "arguments": {}}] * 129}, "expected"),
        ({"correct": True, "decision_id": "x" * 101}, "decision_id"),
    ],
)
def test_invalid_feedback_is_refused(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    """The error names the invalid field."""
    answer = http.post("/v1/feedback", json={"decision_id": "dec_1", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


class Talk:
    """One conversation that is sent turn by turn."""

    def __init__(self, gateway: LoggingGateway, opening: str, name: str = "anna") -> None:
        self.gateway = gateway
        self.messages: list[Any] = [{"role": "user", "content": opening}]
        self.decisions: list[str] = []
        self.name, self.headers = name, bearer(name)

    def turn(self, arguments: str, result: str | None = None, **fields: object) -> None:
        """Add a result for the last call, and let the next answer call with these arguments."""
        if result is not None:
            call_id = self.messages[-1]["tool_calls"][0]["id"]
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        body = BODY | {"messages": self.messages, "user": arguments} | fields
        response = self.gateway.http.post(CHAT, json=body, headers=self.headers)
        self.messages.append(response.json()["choices"][0]["message"])
        self.decisions.append(response.headers["x-switchcraft-decision-id"])

    def evidence(self) -> list[tuple[str, str]]:
        """Return the decisions with evidence against them and its kind, once all is written."""
        # Feedback is written after all that was queued before it.
        asked, known = self.decisions[-1], len(feedback_on(self.gateway, self.decisions[-1], 0))
        give(self.gateway, asked, self.name, correct=True).raise_for_status()
        feedback_on(self.gateway, asked, known + 1)
        found: list[LoggedEvidence] = self.gateway.evidence(0)
        return [
            (each.decision_id, each.kind) for each in found if each.decision_id in self.decisions
        ]


OSLO, BERGEN = '{"city": "Oslo"}', '{"city": "Bergen"}'
ERROR = "Error: no such city"


def test_errors_and_repeated_calls_are_evidence(full: LoggingGateway) -> None:
    """An error counts once, however often it is repeated, and a repeated call if it differs.

    Pinned calls get no evidence, but their turn may be evidence against earlier calls.
    """
    talk = Talk(full, "Errors")
    for arguments, result in ((OSLO, None), (OSLO, ERROR), (OSLO, "7 degrees"), (OSLO, "8")):
        talk.turn(arguments, result)
        if result == ERROR:  # the client sends the request again
            del talk.messages[-1]
            talk.turn(arguments)
    assert talk.evidence() == [(talk.decisions[0], "tool_error")]
    talk = Talk(full, "Repetitions")
    for arguments, result in ((OSLO, None), ('{ "city":"Oslo" }', "7"), (BERGEN, "7")):
        talk.turn(arguments, result)
    assert talk.evidence() == [(talk.decisions[1], "repeated_call")]
    talk = Talk(full, "Pinned")
    talk.turn(OSLO, model="small")
    talk.turn(OSLO, ERROR)
    talk.turn(OSLO, ERROR, model="small")
    assert talk.evidence() == [(talk.decisions[1], "tool_error")]


def test_other_keys_cannot_give_evidence(full: LoggingGateway) -> None:
    """A call id of another client or another conversation counts as unknown."""
    mine, theirs, other = Talk(full, "Mine"), Talk(full, "Mine", "bob"), Talk(full, "Another")
    mine.turn(OSLO)
    theirs.messages = [*mine.messages]
    theirs.turn(OSLO, ERROR)
    other.messages = [*other.messages, *mine.messages[1:]]
    other.turn(OSLO, ERROR)
    assert mine.evidence() == []
    mine.turn(OSLO, ERROR)
    wait_for(lambda: mine.evidence() == [(mine.decisions[0], "tool_error")], "it is found")


def test_usage_counts_calls_that_were_probably_wrong(full: LoggingGateway) -> None:
    """Errors, repeated calls and calls that violate their schema count for the calls' answers."""
    talk = Talk(full, "Usage", "carol")
    for arguments, result in (('{"city": 7}', None), (OSLO, ERROR), (BERGEN, "7 degrees")):
        talk.turn(arguments, result)
    wanted = {"requests": 3, "invalid_calls": 1, "tool_errors": 1, "repeated_calls": 1}
    query = {"by": "key", "key": "carol"}

    def found() -> dict[str, int]:
        rows = full.http.get("/admin/usage", params=query, headers=bearer()).json()["rows"]
        return {name: rows[0][name] for name in wanted} if rows else {}

    wait_for(lambda: found() == wanted, "all are written")


def test_expected_calls_need_content_logging(plain: LoggingGateway, full: LoggingGateway) -> None:
    """They are logged as they were sent; an empty list means an answer without calls.

    Without content logging, the error says what to configure.
    """
    calls = [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": None}}]
    name = decided(full, "anna")
    assert give(full, name, "anna", expected=calls).json()["verdict"] == "expected"
    give(full, name, "anna", expected=[])
    first, second = feedback_on(full, name, 2)
    assert [call.model_dump() for call in first.expected or ()] == calls
    assert (second.expected, second.correct) == ((), None)
    refused = give(plain, decided(plain), expected=calls)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "content_not_kept")
    assert error["param"] == "expected"
    assert "decision_log.content" in error["message"]
