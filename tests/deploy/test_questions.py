"""An operator's questions, answered by a real Prometheus with the dashboards' own queries."""

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import openai
import pytest

from router_service.sandbox.provider import run_in_thread
from switchcraft_training.cli import main
from tests.bodies import ASK, TOOLS
from tests.deploy.dashboards import queries, query
from tests.deploy.prometheus import Prometheus, running
from tests.drills.processes import ARMS, GatewayProcess, gateway, wait_until, write_config
from tests.publishing import make_artifact

pytestmark = pytest.mark.slow

VARIABLES = {"job": "switchcraft", "__rate_interval": "10s", "__range": "1h", "before": "1s"}
BASELINE = "claude-opus-4.5"
BASELINE_USD_PER_TOKEN = (5e-6, 25e-6)
"""Prices for prompt and completion, like those of the shipped artifact."""
POLICIES = ("theta=0", "theta=0", "drift=0")
"""The cheapest arm twice as often as the most probable one."""
NOT_HAPPENED = {
    "Accepted candidates over time",
    "Candidate answers by arm and outcome",
    "Candidates that the verifier accepted",
    "Cost of rejected candidates",
    "Fallbacks",
    "Latency that verification added",
    "Refused callers",
    "Rollbacks",
    "Weak evidence",
}
"""Panels without a value, because nothing of the kind happens here."""
WAIT_S = 60.0
METRICS_KEY = "sk-" + secrets.token_urlsafe(32)
"""Key that Prometheus sends."""


@dataclass
class Operator:
    """Operator who looks at the dashboards of one gateway."""

    prometheus: Prometheus
    gateway: GatewayProcess
    config: Path
    upstream_url: str
    key: str

    def publish(self, artifact: Path, *options: str) -> None:
        """Publish an artifact where the gateway looks for releases."""
        place = str(published(self.config))
        assert main(["publish", str(artifact), "--to", place, *options]) == 0

    def look(self, dashboard: str, panel: str) -> dict[str, float]:
        """Return the values that a panel shows."""
        return self.prometheus.ask(query(dashboard, panel).filled(VARIABLES))

    def number(self, dashboard: str, panel: str) -> float:
        """Return the only number that a panel shows; NaN while it shows none."""
        values = list(self.look(dashboard, panel).values())
        return values[0] if len(values) == 1 else math.nan

    def sees(self, dashboard: str, panel: str, least: float, most: float) -> None:
        """Return once a panel's number is within these limits."""
        wait_until(
            lambda: least <= self.number(dashboard, panel) <= most,
            f"{panel} is in {least} to {most}",
            WAIT_S,
        )

    def configure(self, **router: object) -> httpx.Response:
        """Write another configuration and reload it."""
        write_gateway(self.config, self.upstream_url, self.key, **router)
        return self.gateway.http.post("/admin/reload")


@dataclass
class Traffic:
    """Agent that sends one request after the other until the block ends."""

    operator: Operator
    text: str = "What is the weather in Oslo?"
    ids: list[str] = field(default_factory=list)
    """Ids of its decisions."""

    def __enter__(self) -> Self:
        """Start the agent."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the last answer."""
        self._end.set()
        self._thread.join(WAIT_S)

    def _ask(self) -> None:
        client = client_of(self.operator)
        number = 0
        while not self._end.wait(0.05):
            number += 1
            messages: Any = [{"role": "user", "content": f"{self.text} ({number % 40})"}]
            answer = client.chat.completions.with_raw_response.create(
                model="switchcraft",
                messages=messages,
                tools=TOOLS,
                extra_headers={"x-switchcraft-policy": POLICIES[number % len(POLICIES)]},
            )
            self.ids.append(answer.headers["x-switchcraft-decision-id"])


def client_of(operator: Operator) -> openai.OpenAI:
    """Return the agent's client."""
    return openai.OpenAI(base_url=f"{operator.gateway.url}/v1", api_key=operator.key, max_retries=0)


def published(config: Path) -> Path:
    """Return the folder of releases of a configuration."""
    return config.parent / "published"


def write_gateway(path: Path, upstream_url: str, key: str, **router: object) -> Path:
    """Write a configuration with an admin key, a metrics key and a baseline for savings."""
    sections: dict[str, Any] = {"keys": {"admin": key, "metrics": METRICS_KEY}}
    sections["decision_log"] = {"path": str(path.parent / "decisions")}
    sections["router"] = {"baseline_model": BASELINE, "latency_budget_s": 10.0, **router}
    sections["router"]["publication"] = str(published(path))
    return write_config(path, upstream_url, **sections)


@pytest.fixture(scope="module")
def operator(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Yield the operator of a gateway that Prometheus scraped before its first request."""
    folder, key = tmp_path_factory.mktemp("operator"), "sk-" + secrets.token_urlsafe(32)
    config = folder / "gateway.yaml"
    with run_in_thread() as upstream_url:
        write_gateway(config, upstream_url, key)
        artifact = make_artifact(folder, "december")
        assert main(["publish", str(artifact), "--to", str(published(config))]) == 0
        with (
            gateway(config, folder) as served,
            running(prometheus, folder, served.url.removeprefix("http://"), METRICS_KEY) as asked,
        ):
            served.http.headers["authorization"] = f"Bearer {key}"
            seen = "count_over_time(switchcraft_decisions_over_budget_total[1m]) >= 3"
            wait_until(lambda: asked.ask(seen), "Prometheus has seen the gateway", WAIT_S)
            yield Operator(asked, served, config, upstream_url, key)


def test_panels_answer_an_operators_questions(operator: Operator) -> None:
    """The panels' queries show the real shares, savings, latency, drift and reloads."""
    with Traffic(operator) as quiet:
        operator.sees("router-health", "Input drift, now", 0, 0.1)
        operator.sees("router-health", "Arm drift, now", 0, 0.2)
    send_unrouted_requests(operator)
    wait_until_all_are_scraped(operator, len(quiet.ids))
    http = operator.gateway.http
    decisions = [http.get(f"/v1/decisions/{identifier}").json() for identifier in quiet.ids]
    check_shares(operator, decisions)
    check_savings(operator, decisions)
    check_calibration(operator, decisions)
    operator.sees("overview", "Late decisions, last hour", 0, 0)
    operator.sees("overview", "Last reload", 1, 1)
    check_failed_reload(operator)
    with Traffic(operator, text="What is the weather in Oslo, and in Bergen? " * 40) as long:
        operator.sees("router-health", "Input drift, now", 0.5, 1)
        operator.sees("overview", "Late decisions, last hour", 0.9, 1)
        check_canary(operator, long)
        check_every_panel(operator)


def send_unrouted_requests(operator: Operator) -> None:
    """Send unrouted requests: a named model, no tools, an unknown model, and a failure."""
    client = client_of(operator)
    client.chat.completions.create(model=ARMS[0], messages=ASK)
    client.chat.completions.create(model="switchcraft", messages=ASK)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=ASK)
    faults = {"x-sandbox": "status=500"}
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=ARMS[1], messages=ASK, extra_headers=faults)


def wait_until_all_are_scraped(operator: Operator, routed: int) -> None:
    """Return once Prometheus has scraped all requests."""
    ended = "sum(switchcraft_requests_total)"
    wait_until(
        lambda: list(operator.prometheus.ask(ended).values()) == [routed + 4],
        "all requests are counted",
        WAIT_S,
    )


def check_shares(operator: Operator, decisions: list[dict[str, Any]]) -> None:
    """Check the share of each arm: each bar is the arm's share of the decisions."""
    sent = Counter(decision["arm"] for decision in decisions)
    shown = operator.look("overview", "Share of decisions by arm")
    assert len(sent) > 1
    for arm in ARMS:
        assert shown.get(f"arm={arm}", 0) == pytest.approx(sent[arm] / len(decisions), abs=0.02)
    served = {f"model={model}" for model in (*sent, ARMS[0], ARMS[1], "none")}
    wait_until(
        lambda: served <= operator.look("overview", "Requests by model").keys(),
        f"traffic is shown by model: {served}",
    )


def check_savings(operator: Operator, decisions: list[dict[str, Any]]) -> None:
    """Check today's savings: the baseline's price for the same tokens minus the cost."""
    prompt, completion = BASELINE_USD_PER_TOKEN
    baseline_usd = sum(
        d["prompt_tokens"] * prompt + d["completion_tokens"] * completion for d in decisions
    )
    paid_usd = sum(decision["actual_cost_usd"] for decision in decisions)
    # `increase` extrapolates to the ends of the range, by up to one scrape interval: hence 10%.
    shown = operator.number("money", "Saved")
    assert shown == pytest.approx(baseline_usd - paid_usd, rel=0.1)
    share = operator.number("money", "Saved, share of the baseline")
    assert share == pytest.approx(1 - paid_usd / baseline_usd, abs=0.02)


def check_calibration(operator: Operator, decisions: list[dict[str, Any]]) -> None:
    """Rate every second answer as correct, the others as wrong; check the calibration error."""
    said: defaultdict[int, float] = defaultdict(float)
    seen: defaultdict[int, int] = defaultdict(int)
    for number, decision in enumerate(decisions):
        is_correct = number % 2 == 0
        body = {"decision_id": decision["id"], "correct": is_correct}
        operator.gateway.http.post("/v1/feedback", json=body).raise_for_status()
        probability = decision["probabilities"][decision["arm"]]
        said[int(probability * 10)] += probability
        seen[int(probability * 10)] += is_correct
    error = sum(abs(said[tenth] - seen[tenth]) for tenth in said) / len(decisions)
    operator.sees("router-health", "Calibration error, now", error - 0.05, error + 0.05)


def check_failed_reload(operator: Operator) -> None:
    """Check a failed reload: it is shown, an alert fires, and the next reload ends it."""
    assert operator.configure(default_policy="no-such-policy").status_code == 409
    operator.sees("overview", "Last reload", 0, 0)
    firing = 'ALERTS{alertname="SwitchcraftReloadFailed", alertstate="firing"}'
    wait_until(lambda: operator.prometheus.ask(firing), "the alert fires", WAIT_S)
    assert operator.number("overview", "Alerts") >= 1
    assert operator.configure(latency_budget_s=1e-6).status_code == 200
    operator.sees("overview", "Last reload", 1, 1)
    wait_until(lambda: not operator.prometheus.ask(firing), "the alert is over", WAIT_S)


def check_canary(operator: Operator, traffic: Traffic) -> None:
    """Check a canary: its share of the requests, its feedback, and that it is as good."""
    artifact = make_artifact(operator.config.parent, "january")
    operator.publish(artifact, "--as", "canary", "--share", "0.5")
    operator.sees("rollout", "Canary's share of requests", 0.05, 0.6)
    operator.sees("rollout", "Canary's additional failures", 0, 0)
    operator.sees("rollout", "Rolled back", 0, 0)
    decisions = (operator.gateway.http.get(f"/v1/decisions/{id_}").json() for id_ in traffic.ids)
    tried = next(each for each in decisions if each["release"] == "canary")
    body = {"decision_id": tried["id"], "correct": True}
    operator.gateway.http.post("/v1/feedback", json=body).raise_for_status()
    wait_until(  # a late scrape leaves a gap
        lambda: (
            [name.rpartition("=")[2] for name in operator.look("rollout", "Stable artifact")]
            == ["december"]
        ),
        "the stable artifact is shown",
        WAIT_S,
    )


def check_every_panel(operator: Operator) -> None:
    """Check that no panel's query is refused, and that only the expected panels are empty."""
    silent = set(queries())

    def only_expected_are_empty() -> bool:
        # A late scrape leaves a gap, so a panel passes once it has shown a value.
        shown = {q for q in silent if operator.prometheus.ask(q.filled(VARIABLES))}
        silent.difference_update(shown)
        return {q.panel for q in silent} <= NOT_HAPPENED

    with suppress(AssertionError):
        wait_until(only_expected_are_empty, "every panel shows something", WAIT_S)
    assert not [q for q in silent if q.panel not in NOT_HAPPENED]
