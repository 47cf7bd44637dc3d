"""Verified answers while candidates hang, and while clients leave.

In every drill, the cost of each candidate is counted exactly once.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.bodies import BODY, CHAT
from tests.fakes import VerifyingRouter
from tests.gateways import (
    VERIFIED,
    VerifyingGateway,
    listed_requests,
    metric,
    verifying,
)
from tests.serving import Sandbox, connected, post_bytes, wait_for


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


def failures(record: dict[str, Any]) -> dict[str, str | None]:
    """Return each candidate's failure by its arm."""
    return {candidate["arm"]: candidate["failure"] for candidate in record["candidates"]}


@pytest.mark.parametrize(
    ("header", "value", "stream"),
    [
        ("x-switchcraft-max-added-latency-s", "2", False),
        ("x-switchcraft-max-added-latency-s", "2", True),
        ("x-request-timeout", "4", True),
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


@pytest.mark.parametrize("stream", [False, True])
def test_disconnecting_client_cancels_all_candidates(upstream: Sandbox, stream: bool) -> None:
    """When the client leaves, all upstream calls are cancelled, and billed with an estimate."""
    upstream.set_faults("small", "hang")
    upstream.set_faults("medium", "hang")
    router = VerifyingRouter((("small", "medium"),))
    with verifying(upstream.base_url, router=router) as gateway:
        body = BODY | {"stream": stream, "model": "switchcraft:verified"}
        with connected(str(gateway.http.base_url), post_bytes(CHAT, body)):
            wait_for(lambda: upstream.stats()["in_flight"] == 2, "both calls are made")
        wait_for(lambda: upstream.stats()["cancelled"] == 2, "both calls are cancelled")
        record = last_record(gateway)
        assert (record["status"], record["ending"]) == (499, "client_left")
        assert failures(record) == {"small": "cancelled", "medium": "cancelled"}
        check_costs(gateway)
