"""Verified answers while the gateway shuts down, and with canary releases.

The gateway is a process that serves the shipped artifact, and copies of it without the verifier.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from router_service.requests.limits import SHUTTING_DOWN
from router_service.requests.planning import POLICY_HEADER
from tests.bodies import BODY, CHAT
from tests.drills.processes import START_TIMEOUT_S, gateway, write_config
from tests.gateways import record_of
from tests.serving import Sandbox, wait_for

VERIFIED = {POLICY_HEADER: "verified=1"}
"""A price at which a second arm is always asked."""


def ask(http: httpx.Client, text: str = "How warm is it?", **fields: object) -> httpx.Response:
    """Ask for a verified answer."""
    messages = [{"role": "user", "content": text}]
    return http.post(CHAT, json=BODY | {"messages": messages} | fields, headers=VERIFIED)


def test_shutdown_delivers_verified_answers(tmp_path: Path, upstream: Sandbox) -> None:
    """Requests in flight get their answers, at the latest shortly before the shutdown ends.

    The shutdown waits for a slow second candidate. If the second one hangs, the first is delivered.
    """
    config = write_config(
        tmp_path / "config.yaml", upstream.base_url, server={"shutdown_timeout_s": 2}
    )
    with gateway(config, tmp_path) as served, ThreadPoolExecutor() as pool:
        before = record_of(served.http, ask(served.http))
        first, second, *_ = [candidate["arm"] for candidate in before["candidates"]]
        upstream.set_faults(second, "hang")
        hanging = [pool.submit(ask, served.http, stream=stream) for stream in (False, True)]
        wait_for(lambda: upstream.stats()["in_flight"] == 2, "their second arms are asked")
        upstream.set_faults(second, "delay_s=0.5")
        slow = pool.submit(ask, served.http)
        wait_for(lambda: upstream.stats()["in_flight"] == 3, "all second arms are asked")
        asked = upstream.stats()["requests"]
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: served.http.get("/readyz").status_code == 503, "it drains")
        late = ask(served.http)
        assert (late.status_code, late.json()["error"]["code"]) == (503, SHUTTING_DOWN)
        assert (late.headers["connection"], late.headers["retry-after"]) == ("close", "1")
        answer = slow.result()
        assert answer.headers["x-switchcraft-candidates"] == str(len(before["candidates"]))
        for each in hanging:
            answer = each.result()
            assert (answer.status_code, answer.headers["x-switchcraft-model"]) == (200, first)
            assert answer.headers["x-switchcraft-candidates"] == "2"
            assert b'"finish_reason":"tool_calls"' in answer.content
        assert served.process.wait(START_TIMEOUT_S) == 0
    ended = upstream.stats()
    assert ended["cancelled"] == 2
    assert ended["requests"] == asked + len(before["candidates"]) - 2
