"""Dashboards: readable, and limited to existing series."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from router_service.telemetry.metrics import Metrics
from tests.deploy.dashboards import FILES, PROMETHEUS, queries
from tests.deploy.prometheus import RULES, run

FROM_PROMETHEUS = {"job", "instance"}
VARIABLES = {"job": "switchcraft", "__rate_interval": "1m", "__range": "6h", "before": "1d"}


def _recorded() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["record"]: rule["expr"] for rule in rules if "record" in rule}


def _known_series() -> dict[str, set[str]]:
    """Return the labels of every series by its name, including those of rules."""
    known = {"up": FROM_PROMETHEUS, "ALERTS": {"alertname", "alertstate"} | FROM_PROMETHEUS}
    for series in Metrics.series().values():
        labels = FROM_PROMETHEUS | set(series.labels)
        ends = ("_bucket", "_sum", "_count") if series.kind == "histogram" else ("",)
        known |= {series.name + end: labels | {"le"} for end in ends}
    # By Prometheus' convention, a recorded name starts with its labels.
    return known | {name: set(name.partition(":")[0].split("_")) for name in _recorded()}


def _all_exprs() -> list[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule["expr"] for group in groups for rule in group["rules"]]
    return [q.expr for q in queries()] + rules


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafana_can_read_the_dashboards(path: Path) -> None:
    """Grafana's own model of a dashboard reads the JSON."""
    tree = json.loads(path.read_text())
    assert tree["schemaVersion"] >= 41
    assert Dashboard.from_json(tree).title == tree["title"]
    variables = {variable["name"]: variable for variable in tree["templating"]["list"]}
    if path in PROMETHEUS:
        assert variables["datasource"]["query"] == "prometheus"
        assert variables["job"]["datasource"]["uid"] == "${datasource}"
    else:
        assert variables["datasource"]["query"] == "grafana-postgresql-datasource"


def test_queries_use_existing_series() -> None:
    """Every series in a panel or a rule belongs to the gateway, to Prometheus or to a rule."""
    known = _known_series()
    for expr in _all_exprs():
        named = re.findall(r"[\w:]*switchcraft_\w+(?::\w+)?|\bup\b|\bALERTS\b", expr)
        assert named, expr
        assert set(named) <= known.keys(), expr


def test_queries_use_existing_labels() -> None:
    """Selectors, groupings and legends use only labels that the series have."""
    known = _known_series()
    for expr in _all_exprs():
        for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", expr):
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= known[name], expr
        assert _grouped(expr) <= _labels(expr, known), expr
    for q in queries():
        shown = set(re.findall(r"\{\{(\w+)\}\}", q.legend))
        assert shown <= _labels(q.expr, known), (q.expr, q.legend)


def test_queries_are_valid_promql(promtool: Path, tmp_path: Path) -> None:
    """Prometheus parses each panel's queries with their variables filled."""
    rules = [{"record": "asked", "expr": q.filled(VARIABLES)} for q in queries()]
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    run(promtool, "check", "rules", "--lint=none", path)


def _grouped(expr: str) -> set[str]:
    lists = re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", expr)
    return {label.strip() for names in lists for label in names.split(",") if label.strip()}


def _labels(expr: str, known: dict[str, set[str]]) -> set[str]:
    """Return the labels of all series in an expression, and those that it creates."""
    made = set(re.findall(r'label_replace\(.*?, "(\w+)"', expr))
    named = re.findall(r"[\w:]+", expr)
    return made.union(*(known[name] for name in named if name in known))
