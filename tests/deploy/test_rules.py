"""Recording rules and alerts, checked by Prometheus' own tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy import alerts
from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.deploy.prometheus import CONFIG, DEPLOY, RULES, run
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

RUNBOOK = DEPLOY / "RUNBOOK.md"
CASES = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))


def _alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def test_shipped_files_are_valid(promtool: Path) -> None:
    """Promtool accepts the configuration and the rules."""
    run(promtool, "check", "rules", RULES)
    run(promtool, "check", "config", "--syntax-only", CONFIG)


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_at_their_limits(promtool: Path, cases: Path) -> None:
    """Alerts fire when they should, with the expected text, and are silent just below the limit."""
    run(promtool, "test", "rules", cases)


def test_every_alert_has_a_test() -> None:
    """Each alert has a case in which it fires."""
    tests = [test for path in CASES for test in yaml.safe_load(path.read_text())["tests"]]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == _alerts().keys()


@pytest.fixture(scope="module")
def shown(sandbox: Sandbox) -> str:
    """Return the metrics of a new gateway."""
    settings = Settings.sandbox(sandbox.base_url, ["small"])
    with served(create_app(settings, FakeRouter())) as url:
        return httpx.get(f"{url}/metrics").text


def test_prometheus_reads_the_metrics(promtool: Path, shown: str) -> None:
    """Promtool accepts what a gateway exports, and finds no fault in the names."""
    run(promtool, "check", "metrics", text=shown)


def test_counters_of_alerts_are_exported_before_the_first_event(shown: str) -> None:
    """A new gateway exports every counter that an alert uses, as 0.

    If a counter first appeared with the value 1, Prometheus would see no increase.
    """
    exprs = " ".join(alert["expr"] for alert in _alerts().values())
    counted = set(re.findall(r"increase\((switchcraft_\w+)", exprs))
    families = text_string_to_metric_families(shown)
    assert counted <= {sample.name for family in families for sample in family.samples}
    assert counted


def test_every_alert_is_in_the_runbook() -> None:
    """Each alert links to its section of the runbook, and each section belongs to an alert.

    The address is absolute, because people open it from a message.
    """
    sections = re.findall(r"^### (Switchcraft\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(_alerts())
    for name, alert in _alerts().items():
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert anchor == name.lower()
        assert alerts.runbook_address(page) == page
