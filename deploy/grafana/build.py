"""Generate the dashboards: `python -m deploy.grafana.build`.

The JSON in `dashboards/` is committed, so that Grafana can read it directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    CustomVariable,
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana import health, money, overview, rollout, spend
from deploy.grafana.panels import DATASOURCE, Annotation, Panel

FOLDER = Path(__file__).parent


def dashboards() -> dict[str, str]:
    """Return the JSON of each dashboard by the path of its file.

    The folder is that of its data source: `dashboards` is for Prometheus.
    """
    return {
        "dashboards/overview.json": _dashboard(
            "switchcraft-overview", overview.TITLE, overview.rows()
        ),
        # Starts at midnight, because savings are usually read per day.
        "dashboards/money.json": _dashboard(
            "switchcraft-money", money.TITLE, money.rows(), shown_from="now/d"
        ),
        "dashboards/rollout.json": _dashboard(
            "switchcraft-rollout",
            rollout.TITLE,
            rollout.rows(),
            variables=[*_prometheus(), _before()],
            annotations=rollout.marks(),
        ),
        "dashboards/router-health.json": _dashboard(
            "switchcraft-router", health.TITLE, health.rows()
        ),
        "postgresql/spend.json": _dashboard(
            "switchcraft-spend",
            spend.TITLE,
            spend.rows(),
            shown_from="now/M",
            variables=[DatasourceVariable("datasource").label("Data source").type(spend.TYPE)],
        ),
    }


def main() -> None:
    """Write all dashboards."""
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text)


def _dashboard(
    uid: str,
    title: str,
    rows: dict[str, list[Panel]],
    *,
    shown_from: str = "now-6h",
    variables: Sequence[Builder[VariableModel]] | None = None,
    annotations: Sequence[Annotation] = (),
) -> str:
    builder = (
        Dashboard(title)
        .uid(uid)
        .tags(["switchcraft"])
        .refresh("1m")
        .time(shown_from, "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
    )
    for variable in _prometheus() if variables is None else variables:
        builder = builder.with_variable(variable)
    for annotation in annotations:
        builder = builder.annotation(annotation)
    for name, panels in rows.items():
        builder = builder.with_row(Row(name))
        for panel in panels:
            builder = builder.with_panel(panel)
    dashboard = builder.build()
    for number, built in enumerate(dashboard.panels or [], start=1):
        built.id_val = number
    return JSONEncoder(indent=1, sort_keys=True).encode(dashboard) + "\n"


def _prometheus() -> list[Builder[VariableModel]]:
    """Return the variables of dashboards that query Prometheus."""
    return [
        DatasourceVariable("datasource").label("Data source").type("prometheus"),
        QueryVariable("job")
        .label("Job")
        .datasource(DATASOURCE)
        .query("label_values(switchcraft_build_info, job)")
        .refresh(VariableRefresh.ON_DASHBOARD_LOAD)
        .sort(VariableSort.ALPHABETICAL_ASC),
    ]


def _before() -> CustomVariable:
    options = [VariableOption(text=each, value=each) for each in rollout.BEFORE]
    return (
        CustomVariable("before")
        .label("Before")
        .description("How long before the selected time range the stable release is compared with.")
        .values(",".join(rollout.BEFORE))
        .options(options)
        .current(VariableOption(text="1d", value="1d"))
    )


if __name__ == "__main__":
    main()
