"""The shipped dashboards, as Grafana reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
FILES = sorted(FOLDER.glob("*/*.json"))
PROMETHEUS = [path for path in FILES if path.parent.name == "dashboards"]


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of a panel, with its variables."""

    dashboard: str
    panel: str
    expr: str
    legend: str

    def filled(self, variables: Mapping[str, str]) -> str:
        """Return the query with its variables replaced, as Grafana sends it."""
        expr = self.expr
        for name, value in variables.items():
            expr = expr.replace(f"${name}", value)
        assert "$" not in expr, f"{self.panel}: {expr}"
        return expr


def panels(text: str) -> list[dict[str, Any]]:
    """Return a dashboard's panels, including those in rows."""
    listed: list[dict[str, Any]] = json.loads(text)["panels"]
    return listed


def queries() -> list[PanelQuery]:
    """Return every query of every panel and annotation of every dashboard for Prometheus."""
    trees = [(path.stem, json.loads(path.read_text())) for path in PROMETHEUS]
    shown = [
        PanelQuery(name, panel["title"], target["expr"], target["legendFormat"])
        for name, tree in trees
        for panel in tree["panels"]
        for target in panel.get("targets", ())
    ]
    marked = [
        PanelQuery(name, marks["name"], marks["expr"], marks["titleFormat"])
        for name, tree in trees
        for marks in tree["annotations"].get("list", ())
    ]
    return shown + marked


def query(dashboard: str, panel: str) -> PanelQuery:
    """Return the only query of a panel."""
    (found,) = [q for q in queries() if (q.dashboard, q.panel) == (dashboard, panel)]
    return found
