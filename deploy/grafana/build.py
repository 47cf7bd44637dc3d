"""Generate the dashboards: `python -m deploy.grafana.build`.

The JSON in `dashboards/` is committed, so that Grafana can read it directly.
"""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana import health, money, overview
from deploy.grafana.panels import DATASOURCE, Panel

FOLDER = Path(__file__).parent / "dashboards"


def dashboards() -> dict[str, str]:
    """Return the JSON of each dashboard by file name."""
    return {
        "overview.json": _dashboard("switchcraft-overview", overview.TITLE, overview.rows()),
        # Starts at midnight, because savings are usually read per day.
        "money.json": _dashboard(
            "switchcraft-money", money.TITLE, money.rows(), shown_from="now/d"
        ),
        "router-health.json": _dashboard("switchcraft-router", health.TITLE, health.rows()),
    }


def main() -> None:
    """Write all dashboards."""
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text)


def _dashboard(
    uid: str, title: str, rows: dict[str, list[Panel]], *, shown_from: str = "now-6h"
) -> str:
    builder = (
        Dashboard(title)
        .uid(uid)
        .tags(["switchcraft"])
        .refresh("1m")
        .time(shown_from, "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_job())
    )
    for name, panels in rows.items():
        builder = builder.with_row(Row(name))
        for panel in panels:
            builder = builder.with_panel(panel)
    dashboard = builder.build()
    for number, built in enumerate(dashboard.panels or [], start=1):
        built.id_val = number
    return JSONEncoder(indent=1, sort_keys=True).encode(dashboard) + "\n"


def _job() -> QueryVariable:
    return (
        QueryVariable("job")
        .label("Job")
        .datasource(DATASOURCE)
        .query("label_values(switchcraft_build_info, job)")
        .refresh(VariableRefresh.ON_DASHBOARD_LOAD)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


if __name__ == "__main__":
    main()
