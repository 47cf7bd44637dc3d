"""Verified answers: what is delivered if candidates, the verifier or time fail."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from router_service.requests.planning import POLICY_HEADER
from router_service.settings import Timeouts
from tests.bodies import BODY, CHAT
from tests.gateways import (
    VERIFIED,
    VerifyingGateway,
    listed_request,
    metric,
    sandbox_settings,
    verifying,
    with_models,
)
from tests.serving import Sandbox, connected, post_bytes, wait_for

ARMS = ("small", "medium", "large")


def candidates(record: dict[str, Any]) -> list[tuple[str, bool, float | None, str | None]]:
    """Return each candidate's arm, whether it was accepted, its estimate, and its failure."""
    return [
        (c["arm"], c["is_accepted"], c["p_correct"], c["failure"]) for c in record["candidates"]
    ]


def told(response: httpx.Response, *names: str) -> list[str | None]:
    """Return the values of some of the gateway's headers."""
    return [response.headers.get(f"x-switchcraft-{name}") for name in names]


def spent_usd(house: VerifyingGateway) -> float:
    """Return the cost of all requests in the metrics."""
    return metric(house.http, "switchcraft_cost_usd_total")


def check_costs(house: VerifyingGateway, record: dict[str, Any], before_usd: float) -> None:
    """Assert that the record and the metrics count the cost of each candidate once."""
    costs_usd = [candidate["cost_usd"] or 0.0 for candidate in record["candidates"]]
    assert sum(costs_usd) > 0
    assert record["actual_cost_usd"] == pytest.approx(sum(costs_usd))
    assert spent_usd(house) - before_usd == pytest.approx(sum(costs_usd))


@pytest.mark.parametrize("stream", [False, True])
def test_first_trusted_candidate_is_delivered(house: VerifyingGateway, stream: bool) -> None:
    """Arms are asked until a candidate is trusted, and only that one reaches the client.

    The header, the record and the metrics count each candidate's cost exactly once.
    """
    before_usd = spent_usd(house)
    house.router.trust["medium"] = 0.8
    response = house.ask(stream)
    assert response.status_code == 200
    assert b'"model":"medium"' in response.content
    assert b'"model":"small"' not in response.content
    names = ("model", "reason", "policy", "candidates", "p-correct")
    assert told(response, *names) == ["medium", "verified", "verified=0.002", "2", "0.8000"]
    record = house.record(response)
    assert candidates(record) == [("small", False, 0.2, None), ("medium", True, 0.8, None)]
    assert (record["arm"], record["model"], record["reason"]) == ("medium", "medium", "verified")
    assert min(candidate["cost_usd"] for candidate in record["candidates"]) > 0
    cost_usd = float(response.headers["x-switchcraft-cost-usd"])
    assert cost_usd == pytest.approx(record["actual_cost_usd"])
    check_costs(house, record, before_usd)


@pytest.mark.parametrize(
    ("header", "value", "stream"),
    [
        ("x_switchcraft_max_added_latency_s", "2", False),
        ("x_switchcraft_max_added_latency_s", "2", True),
        ("x_request_timeout", "4", True),
    ],
)
def test_slow_candidate_gives_way_to_the_one_in_hand(
    house: VerifyingGateway, header: str, value: str, stream: bool
) -> None:
    """If the time is over, the best candidate so far is delivered, and the slow one cancelled."""
    house.sandbox.set_faults("medium", "hang")
    before, before_usd = house.sandbox.stats()["cancelled"], spent_usd(house)
    response = house.ask(stream, **{header: value})
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "small")
    wait_for(lambda: house.sandbox.stats()["cancelled"] == before + 1, "the slow call is cancelled")
    record = house.record(response)
    assert [(c["arm"], c["failure"]) for c in record["candidates"]] == [
        ("small", None),
        ("medium", "cancelled"),
    ]
    check_costs(house, record, before_usd)


@pytest.mark.parametrize("stream", [False, True])
def test_disconnecting_client_cancels_all_candidates(house: VerifyingGateway, stream: bool) -> None:
    """When the client leaves, all upstream calls are cancelled, and billed with an estimate."""
    house.router.groups = (("small", "medium"),)
    for model in house.router.groups[0]:
        house.sandbox.set_faults(model, "hang")
    before, before_usd = house.sandbox.stats(), spent_usd(house)
    body, name = BODY | {"stream": stream, "model": "switchcraft:verified"}, f"left-{stream}"
    sent = post_bytes(CHAT, body, x_request_id=name)
    with connected(str(house.http.base_url), sent):
        wait_for(
            lambda: house.sandbox.stats()["in_flight"] == before["in_flight"] + 2, "both are asked"
        )
    wait_for(
        lambda: house.sandbox.stats()["cancelled"] == before["cancelled"] + 2, "both are cancelled"
    )
    row = listed_request(house.http, name)
    record = house.http.get(f"/v1/decisions/{row['id']}").json()
    assert record["status"] == 499
    assert record["ending"] == "client_left"
    assert [c["failure"] for c in record["candidates"]] == ["cancelled", "cancelled"]
    check_costs(house, record, before_usd)


def test_unasked_model_answers_if_the_verifier_names_no_arm(house: VerifyingGateway) -> None:
    """If no candidate can be delivered, and the limits allow it, another model answers."""
    house.sandbox.set_faults("small", "status=500")
    house.router.groups = (("small",),)
    response = house.ask(x_switchcraft_max_candidates="2")
    assert told(response, "model", "unverified") == ["medium", "candidates_failed"]
    record = house.record(response)
    assert candidates(record) == [("small", False, None, "status")]
    assert record["actual_cost_usd"] > 0
    house.sandbox.set_faults("medium", "status=500")
    before = calls(house.sandbox).get("large", 0)
    assert house.ask(x_switchcraft_max_cost_usd="0.0005").status_code == 500
    assert calls(house.sandbox).get("large", 0) == before, "only `large` would cost more"


def test_limit_of_cost_counts_the_length_of_the_prompt(house: VerifyingGateway) -> None:
    """The limit holds for a long prompt, which costs many times as much as a usual one."""
    limit_usd = 0.02
    headers = VERIFIED | {"x-switchcraft-max-cost-usd": str(limit_usd)}
    usual = house.record(house.ask(x_switchcraft_max_cost_usd=str(limit_usd)))
    assert [arm for arm, *_ in candidates(usual)] == list(ARMS)
    system = {"role": "system", "content": "Answer the traveller's question. " * 2_000}
    body = BODY | {"messages": [system, *BODY["messages"]]}
    response = house.http.post(CHAT, json=body, headers=headers)
    long = house.record(response)
    assert [arm for arm, *_ in candidates(long)] == ["small"]
    assert long["actual_cost_usd"] < limit_usd
    refused = house.http.post(
        CHAT, json=body, headers=headers | {"x-switchcraft-max-cost-usd": "0.002"}
    )
    assert refused.json()["error"]["code"] == "cost_limit_too_low"


def test_failing_verifier_delivers_the_likeliest_candidate(
    house: VerifyingGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure of the verifier does not fail the request, and is counted and logged.

    Without the verifier's estimates, the router's probabilities choose among the candidates.
    """
    series = 'switchcraft_router_failures_total{release="stable"}'
    house.router.is_broken, before = True, metric(house.http, series)
    house.router.groups = (("small", "medium"),)
    response = house.ask()
    assert (response.status_code, response.headers["x-switchcraft-model"]) == (200, "medium")
    assert candidates(house.record(response)) == [
        ("small", False, None, None),
        ("medium", True, None, None),
    ]
    assert metric(house.http, series) == before + 1
    assert "verifier failed" in caplog.text


@pytest.mark.parametrize(
    ("judging_s", "timeout_s", "expected"),
    [(0.2, "60", ["large", "0.9000"]), (6.0, "4", ["small", None])],
)
def test_verifier_has_until_the_deadline(
    house: VerifyingGateway, judging_s: float, timeout_s: str, expected: list[str | None]
) -> None:
    """A slow verifier is waited for, and then the candidate in hand is delivered without it."""
    house.router.judging_s = judging_s
    response = house.ask(x_request_timeout=timeout_s)
    assert told(response, "model", "p-correct") == expected


def calls(sandbox: Sandbox) -> dict[str, int]:
    """Return how often each model was called."""
    counts: dict[str, dict[str, int]] = sandbox.stats()["by_model"]
    return {model: each["requests"] for model, each in counts.items()}


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("fault", ["status=500", "malformed", "cut_after=0"])
def test_limit_of_candidates_counts_every_model_that_is_asked(
    house: VerifyingGateway, fault: str, limit: int
) -> None:
    """However models fail, at most `max_candidates` get the request, and the first error is told.

    No further model answers instead of the candidates.
    """
    for model in ARMS:
        house.sandbox.set_faults(model, fault)
    before = calls(house.sandbox)
    response = house.ask(x_switchcraft_max_candidates=str(limit))
    assert response.status_code >= 500
    assert response.headers["x-switchcraft-model"] == "small"
    after = calls(house.sandbox)
    assert {arm for arm in ARMS if after.get(arm, 0) > before.get(arm, 0)} == set(ARMS[:limit])


@pytest.mark.parametrize(("name", "value"), [("candidates", "2"), ("cost-usd", "0.0012")])
def test_parallel_candidates_count_towards_the_limits(
    house: VerifyingGateway, name: str, value: str
) -> None:
    """Of arms that are asked together, only as many are asked as the limits allow."""
    house.router.groups = (("small", "medium", "large"),)
    headers = VERIFIED | {f"x-switchcraft-max-{name}": value}
    response = house.http.post(CHAT, json=BODY, headers=headers)
    assert [arm for arm, *_ in candidates(house.record(response))] == ["small", "medium"]


def test_no_other_arm_is_asked_after_a_refused_request(house: VerifyingGateway) -> None:
    """The client gets the refusal, because the request itself may be wrong."""
    house.sandbox.set_faults("small", "status=400")
    before = calls(house.sandbox).get("medium", 0)
    assert house.ask().status_code == 400
    assert calls(house.sandbox).get("medium", 0) == before


def test_error_within_a_stream_is_the_failure_of_its_candidate(house: VerifyingGateway) -> None:
    """It is told as the upstream tells it, and another arm is asked."""
    house.sandbox.set_faults("small", "error_after=2")
    response = house.ask(stream=True)
    assert response.headers["x-switchcraft-model"] == "large"
    (first, *_) = candidates(house.record(response))
    assert first == ("small", False, None, "error_body")


@pytest.mark.parametrize("policy", ["verified", "theta=0.2"])
def test_total_time_is_one_deadline_for_all_attempts(sandbox: Sandbox, policy: str) -> None:
    """If every model hangs, candidates and fallbacks share `timeouts.total_s`."""
    settings = sandbox_settings(sandbox.base_url)
    timeouts = {"timeouts": Timeouts(total_s=2)}
    settings = with_models(
        settings.model_copy(update={"upstreams": settings.upstreams.model_copy(update=timeouts)}),
        lambda model: {"deployments": (model.deployments[0].model_copy(update=timeouts),)},
    )
    before = sandbox.stats()["requests"]
    with verifying(sandbox.base_url, settings) as gateway:
        headers = {POLICY_HEADER: policy, "x-sandbox": "hang"}
        response = gateway.http.post(CHAT, json=BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
    assert sandbox.stats()["requests"] == before + 1


def test_record_of_a_client_that_left_names_the_model_that_was_tried_last(
    sandbox: Sandbox,
) -> None:
    """No candidate was accepted, so the explanation does not say that one is likely correct."""
    settings = sandbox_settings(sandbox.base_url, verification={"keep_alive_s": 0.05})
    with verifying(sandbox.base_url, settings) as gateway:
        gateway.sandbox.set_faults("small", "hang")
        before = calls(sandbox).get("small", 0)
        with gateway.http.stream(
            "POST", CHAT, json=BODY | {"stream": True}, headers=VERIFIED
        ) as answer:
            wait_for(lambda: calls(sandbox).get("small", 0) > before, "the first arm is asked")
        record = gateway.record(answer)
        gateway.sandbox.set_faults("small", "")
    assert [each[0::3] for each in candidates(record)] == [("small", "cancelled")]
    assert record["ending"] == "client_left"
    assert (record["model"], record["arm"]) == ("small", "small")
    assert record["explanation"] == "small: the client left before an answer was accepted."


TEXT_BODY = BODY | {"tool_choice": "none", "stream": True}
"""A request that the sandbox answers with text instead of a call."""


def ask_text(house: VerifyingGateway) -> httpx.Response:
    """Ask for a verified stream, which will be text."""
    return house.http.post(CHAT, json=TEXT_BODY, headers=VERIFIED)


def test_text_streams_before_its_end_is_known(house: VerifyingGateway) -> None:
    """The client gets the text while the model still writes it, from the first model asked."""
    house.router.p_no_call = 0.95
    house.sandbox.set_faults("small", "hang_after=3")
    with house.http.stream("POST", CHAT, json=TEXT_BODY, headers=VERIFIED) as response:
        received = ""
        for line in response.iter_lines():
            received += line
            if '"content":"' in line.replace('"content":""', ""):
                break
    assert '"model":"small"' in received
    record = house.record(response)
    assert (record["ending"], record["reason"], record["arm"]) == ("client_left", "text", "small")
    assert [c["is_accepted"] for c in record["candidates"]] == [True]
    assert record["usage_is_estimated"]
    assert record["actual_cost_usd"] > 0


@pytest.mark.parametrize(
    ("fault", "arm", "accepted", "ending"),
    [
        ("cut_after=1", "medium", [False, True], "complete"),
        ("error_after=2,chunk_delay_s=0.05", "small", [True], "broken"),
    ],
)
def test_failure_leads_to_the_next_arm_only_before_the_text(
    house: VerifyingGateway, fault: str, arm: str, accepted: list[bool], ending: str
) -> None:
    """After the first text there is no second answer: the last event is an error."""
    house.router.p_no_call = 0.95
    house.sandbox.set_faults("small", fault)
    response = ask_text(house)
    record = house.record(response)
    assert (record["ending"], record["arm"], record["reason"]) == (ending, arm, "text")
    assert [c["is_accepted"] for c in record["candidates"]] == accepted
    assert ("error" in response.text) == (ending == "broken")
