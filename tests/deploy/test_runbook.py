"""The commands of the runbook, run against a gateway in the states that its alerts report."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.bodies import BODY, CHAT
from tests.drills.processes import (
    ARMS,
    GatewayProcess,
    RedisServer,
    free_port,
    gateway,
    write_config,
)
from tests.serving import Sandbox, wait_for

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text()
COMMANDS: dict[str, str] = dict(
    re.findall(
        r"^### Switchcraft(\w+)\n\n```sh\n(.*)\n```\n\n\*\*Means\*\* ", RUNBOOK, re.MULTILINE
    )
)
ADMIN = "runbook-admin-Kx81QzPw7dLm"

SHOWN = {
    "ErrorsBurnFast": r'"cause":"answered with status 500"',
    "ErrorsBurnSlow": r'"cause":"answered with status 500"',
    "LatencyBurnsFast": r'stage_seconds_sum\{stage="classify"\} \d+\.\d*[1-9]',
    "LatencyBurnsSlow": r'stage_seconds_sum\{stage="classify"\} \d+\.\d*[1-9]',
    "InputDrift": r'\d+ "key":"admin"',
    "ArmDrift": r'\d+ "arm":"',
    "CalibrationOff": r'feedback_total\{.*verdict="correct"\} 1\.0',
    "SavingsFallen": r'compared_cost_usd_total\{answered_by="baseline",.*\} 0\.\d*[1-9]',
    "Away": r"HTTP/1\.1 200 OK",
    "Down": r"HTTP/1\.1 200 OK",
    "BreakerOpen": r"circuit open for .* address=http://127\.0\.0\.1:.*answered with status 500",
    "NoArmLeft": r'"address":"http://127\.0\.0\.1:\d+/v1","cause":"answered with status 500"',
    "Sheds": r'refused_requests_total\{cause="overload",reason="overloaded"\} [1-9]',
    "BudgetSpent": r'\d+ "key":"spender"',
    "ReloadFailed": r'"last_refusal":\{.*rooter: is unknown',
    "SharedStateAway": r"shared state unreachable, using local state: cause=",
    "DatabaseAway": r'"place":".*/a\.db","state":"away",.*"cause":"the file was deleted',
    "CallsBreakSchema": r"tool_calls_total\{.*\} [1-9]",
    "DecisionLogDown": r"cannot write the decision log.*path=.*/file/log cause=Not a directory",
    "DecisionLogDrops": r'lost_records_total\{kind="decision_log",reason="failed"\} [1-9]',
    "SpansDropped": "trace collector accepts no spans",
}
"""What the command of an alert's section shows, if the alert's state is easy to reach."""

LOGGED = {
    "RouterFails": "requests/planning.py",
    "CanaryWithdrawn": "runtime/reloading.py",
}
"""The modules that write the log lines which the other commands look for."""


@pytest.fixture(scope="module")
def failing(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Yield a gateway with almost every problem that an alert reports."""
    folder = tmp_path_factory.mktemp("runbook")
    (folder / "file").touch()
    redis = RedisServer(folder)
    redis.start()
    sections: dict[str, dict[str, object]] = {
        "keys": {"admin": ADMIN},
        "router": {"baseline_model": ARMS[0], "forward_headers": ["x-sandbox"]},
        "server": {
            "redis_url": redis.url,
            "max_requests_in_flight": 1,
            "max_requests_in_flight_per_key": 1,
        },
        "upstreams": {"breaker": {"allowed_fails": 0, "cooldown_s": 3600, "max_cooldown_s": 3600}},
        "database": {"url": f"sqlite:///{folder / 'state' / 'a.db'}"},
        "decision_log": {"path": str(folder / "file" / "log")},
        "tracing": {"otlp_endpoint": f"http://127.0.0.1:{free_port()}"},
    }
    config = write_config(folder / "gateway.yaml", sandbox.base_url, **sections)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        try:
            with gateway(config, folder, key=ADMIN) as served:
                _break(served, config, redis)
                yield served
        finally:
            redis.kill()


def _break(served: GatewayProcess, config: Path, redis: RedisServer) -> None:
    http = served.http
    answer = http.post(CHAT, json=BODY)
    decision_id = answer.headers["x-switchcraft-decision-id"]
    feedback = {"decision_id": decision_id, "correct": True}
    # The record is saved in the background.
    wait_for(lambda: http.post("/v1/feedback", json=feedback).status_code == 200, "it is saved")
    account = {"name": "spender", "budget": {"usd": 0, "period": "total"}}
    spender = {"authorization": f"Bearer {http.post('/admin/keys', json=account).json()['secret']}"}
    wait_for(lambda: http.post(CHAT, json=BODY, headers=spender).status_code == 429, "it is spent")
    redis.kill()
    (served.log.parent / "state").rename(served.log.parent / "aside")
    slow = {"x-sandbox": "chunk_delay_s=60"}

    def is_overloaded() -> bool:
        # False while the slot of the request before is not free yet.
        with http.stream("POST", CHAT, json=BODY | {"stream": True}, headers=slow):
            return httpx.post(served.url + CHAT, json=BODY, headers=http.headers).status_code == 503

    wait_for(is_overloaded, "a request is refused")

    def has_no_arm_left() -> bool:
        http.post(CHAT, json=BODY, headers={"x-sandbox": "status=500"})
        circuits = served.status()["open_circuits"]
        assert isinstance(circuits, list)
        return len(circuits) == len(ARMS)

    wait_for(has_no_arm_left, "every circuit is open")
    config.write_text(config.read_text() + "rooter: {}\n")
    assert http.post("/admin/reload").status_code == 409
    assert http.get("/metrics").status_code == 200  # writes the log lines of requests that wait
    lines = ("trace collector", "shared state", "circuit open", "decision log", "the database")
    wait_for(lambda: all(line in served.log.read_text() for line in lines), "all is logged")


def run(command: str, served: GatewayProcess) -> str:
    """Run a command with the functions that the runbook defines; return what it prints."""
    (get,) = re.findall(r"^get\(\) \{.*\}$", RUNBOOK, re.MULTILINE)
    logs = f"logs() {{ cat '{served.log}'; }}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join((logs, get, command))],
        env={"PATH": os.environ["PATH"], "ADMIN": ADMIN, "GATEWAY": served.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("alert", SHOWN)
def test_first_command_shows_the_cause(failing: GatewayProcess, alert: str) -> None:
    """The command at the start of an alert's section prints what is wrong."""
    assert re.search(SHOWN[alert], run(COMMANDS[alert], failing))


@pytest.mark.parametrize("alert", LOGGED)
def test_command_looks_for_a_line_that_is_logged(alert: str) -> None:
    """The command finds the message that the module logs."""
    (wanted,) = re.findall(r"grep (?:-E )?'\"([^']*)'", COMMANDS[alert])
    source = (ROOT / "router_service" / LOGGED[alert]).read_text()
    messages = [json.dumps({"message": text}) for text in re.findall(r'"(.*?)"', source)]
    assert any(re.search(f'"{wanted}', message) for message in messages)
