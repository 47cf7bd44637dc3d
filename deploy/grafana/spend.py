"""Dashboard of cost by key and model, from the gateway's PostgreSQL database.

Prometheus has no series by key, because there may be 100,000 keys. The table `usage` has the sums
of each key by day. Days are whole days in UTC.
"""

# ruff: noqa: S608 - queries are composed of constants of this file

from __future__ import annotations

from typing import TypeVar

from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.runtime import UnknownDataquery
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphDrawStyle,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DynamicConfigValue

from deploy.grafana.panels import Panel

TITLE = "Switchcraft: cost by key and model"
TYPE = "grafana-postgresql-datasource"
DATASOURCE = DataSourceRef(type_val=TYPE, uid="${datasource}")
TOP = 20
"""Number of keys that lists have."""
DAYS = (
    "step_s = 86400 AND start_s >= $__unixEpochFrom() / 86400 * 86400"
    " AND start_s <= $__unixEpochTo()"
)
MONTH = "date_trunc('month', now() AT TIME ZONE 'UTC')"
ALL, KEYS, TEAMS = "scope = ''", "scope LIKE 'key:%'", "scope LIKE 'team:%'"
COST = "sum(cost_nusd) / 1e9"
SAVED = "sum(baseline_nusd - compared_nusd) / 1e9"
PERIOD = f"""\
CASE budget_period
    WHEN 'day' THEN date_trunc('day', now() AT TIME ZONE 'UTC')
    WHEN 'week' THEN date_trunc('week', now() AT TIME ZONE 'UTC')
    WHEN 'month' THEN {MONTH}
    ELSE timestamp '1970-01-01'
  END"""
_Kind = TypeVar("_Kind", timeseries.Panel, stat.Panel, table.Panel)


class Sql(Builder[Dataquery]):
    """A query in SQL, whose macros Grafana replaces."""

    def __init__(self, text: str, form: str = "table") -> None:
        """Answer as a `table`, or as a `time_series` of the columns time, metric and value."""
        self._query = UnknownDataquery(
            {
                "datasource": DATASOURCE,
                "editorMode": "code",
                "format": form,
                "rawQuery": True,
                "rawSql": text,
                "refId": "A",
            }
        )

    def build(self) -> Dataquery:
        """Return the query."""
        return self._query


def rows() -> dict[str, list[Panel]]:
    """Return the panels by row."""
    return {
        "Selected days": _sums(),
        "Over time": [
            _by_day("Spend by key and day", f"The {TOP} keys that spent most.", _top("key:")),
            _by_day("Spend by team and day", "Requests of keys without a team are missing.",
                    _top("team:")),
            _by_day("Spend by model and day", "Models that answered.", _daily("model")),
        ],
        "Who spends": [_keys(), _teams()],
        "Budgets": [_budgets()],
        "Models and policies": [_models(), _policies(), _keys_and_models()],
    }  # fmt: skip


def _sums() -> list[Panel]:
    return [
        _number("Spent", "Cost at list prices.", "currencyUSD", COST),
        _number(
            "Saved",
            "What the routed requests would have cost with the baseline model, minus their cost.",
            "currencyUSD",
            SAVED,
        ),
        _number(
            "Saved, share of the baseline",
            "The same, as a share of the cost with the baseline model.",
            "percentunit",
            "sum(baseline_nusd - compared_nusd) / nullif(sum(baseline_nusd), 0)",
        ),
        _forecast(),
        _number(
            "Cached prompt tokens",
            "Share of prompt tokens that providers read from their caches.",
            "percentunit",
            "sum(cached_tokens) / nullif(sum(prompt_tokens), 0)",
        ),
        _number(
            "Requests without a price",
            "Answers of unknown cost. The actual spend is higher than shown.",
            "none",
            "sum(unpriced)",
        ),
    ]


def _number(title: str, description: str, unit: str, value: str) -> Panel:
    return _stat(title, description, unit, f"SELECT {value} FROM usage WHERE {ALL} AND {DAYS}")


def _forecast() -> Panel:
    return _stat(
        "Forecast for this month",
        "What has been spent this month, and the mean of the last seven days for each day that is"
        " left.",
        "currencyUSD",
        f"""\
WITH days AS (
  SELECT to_timestamp(start_s) AT TIME ZONE 'UTC' AS day, cost_nusd / 1e9 AS cost
  FROM usage
  WHERE {ALL} AND step_s = 86400 AND start_s >= extract(epoch FROM now()) - 32 * 86400
)
SELECT coalesce(sum(cost) FILTER (WHERE day >= {MONTH}), 0)
  + coalesce(sum(cost) FILTER (WHERE day >= now() AT TIME ZONE 'UTC' - interval '7 days'), 0) / 7
  * extract(epoch FROM {MONTH} + interval '1 month' - now() AT TIME ZONE 'UTC') / 86400
FROM days""",
    )


def _daily(column: str) -> str:
    return f"""\
SELECT to_timestamp(start_s) AS time, {column} AS metric, {COST} AS value
FROM usage WHERE {ALL} AND {DAYS}
GROUP BY start_s, {column} ORDER BY start_s"""


def _top(prefix: str) -> str:
    """Return a query of the daily spending of the keys or teams that spent most."""
    subjects = f"scope LIKE '{prefix}%' AND {DAYS}"
    return f"""\
SELECT to_timestamp(start_s) AS time, substr(scope, {len(prefix) + 1}) AS metric, {COST} AS value
FROM usage
WHERE step_s = 86400 AND scope IN (
  SELECT scope FROM usage WHERE {subjects} GROUP BY scope ORDER BY sum(cost_nusd) DESC LIMIT {TOP}
) AND {DAYS}
GROUP BY start_s, scope ORDER BY start_s"""


def _figures(group: str, source: str, where: str, *, limit: int = TOP) -> str:
    """Return a query of the usual figures of each group, the one that spent most first."""
    return f"""\
SELECT {group},
  sum(requests) AS requests,
  sum(errors) AS errors,
  {COST} AS cost,
  {SAVED} AS saved,
  1000 * {COST} / nullif(sum(requests), 0) AS "cost of 1,000",
  sum(prompt_tokens + completion_tokens) AS tokens,
  sum(cached_tokens) / nullif(sum(prompt_tokens), 0) AS cached
FROM {source} WHERE {where} AND {DAYS}
GROUP BY {", ".join(str(n + 1) for n in range(group.count(" AS ")))}
ORDER BY cost DESC LIMIT {limit}"""


def _keys() -> Panel:
    return _table(
        "Keys that spent most",
        "Cached is the share of prompt tokens that providers read from their caches.",
        _figures(
            "name AS key, team AS team, owner AS owner",
            "usage JOIN keys ON scope = 'key:' || name",
            "true",
        ),
    )


def _teams() -> Panel:
    return _table(
        "Teams that spent most",
        "The sums of their keys.",
        _figures("substr(scope, 6) AS team", "usage", TEAMS),
    )


def _models() -> Panel:
    return _table(
        "Models",
        "All candidates of verified answers count for the model that answered.",
        _figures("model AS model", "usage", ALL, limit=100),
        span=12,
    )


def _policies() -> Panel:
    return _table(
        "Policies", "Policies that chose the models.", _figures("policy AS policy", "usage", ALL),
        span=12,
    )  # fmt: skip


def _keys_and_models() -> Panel:
    return _table(
        "Keys and models",
        "Which key spent how much with which model.",
        _figures("substr(scope, 5) AS key, model AS model", "usage", KEYS, limit=5 * TOP),
    )


def _budgets() -> Panel:
    """Return each budget with what is left of it; a period that ends has a forecast."""
    subjects = " UNION ALL ".join(
        f"SELECT '{kind}' AS kind, name, budget_nusd, budget_period FROM {table_} WHERE {valid}"
        for kind, table_, valid in (
            ("key", "keys", "revoked_s IS NULL"),
            ("team", "teams", "deleted_s IS NULL"),
        )
    )
    return _table(
        "Budgets",
        "What is spent in the present period, and what will be at its end if the spending goes on"
        " as so far. A budget of total has no end.",
        f"""\
WITH budgets AS (
  SELECT kind, name, budget_nusd, budget_period, extract(epoch FROM {PERIOD})::bigint AS start_s
  FROM ({subjects}) AS subjects WHERE budget_nusd IS NOT NULL
)
SELECT kind, name, budget_nusd / 1e9 AS budget, budget_period AS period,
  coalesce(spent_nusd, 0) / 1e9 AS spent,
  coalesce(spent_nusd, 0)::float / nullif(budget_nusd, 0) AS used,
  coalesce(spent_nusd, 0) / 1e9
    * CASE budget_period WHEN 'day' THEN 86400 WHEN 'week' THEN 604800
        WHEN 'month' THEN extract(epoch FROM {MONTH} + interval '1 month' - {MONTH}) END
    / nullif(extract(epoch FROM now()) - budgets.start_s, 0) AS forecast
FROM budgets LEFT JOIN spending ON spending.subject = kind || ':' || name
  AND spending.period = budget_period AND spending.start_s = budgets.start_s
ORDER BY used DESC LIMIT 100""",
    )


def _by_day(title: str, description: str, text: str) -> Panel:
    return (
        _headed(timeseries.Panel(), title, description)
        .unit("currencyUSD")
        .draw_style(GraphDrawStyle.BARS)
        .fill_opacity(80)
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
        .span(8)
        .targets([Sql(text, "time_series")])
    )


def _stat(title: str, description: str, unit: str, text: str) -> Panel:
    return (
        _headed(stat.Panel(), title, description)
        .unit(unit)
        .no_value("no data")
        .graph_mode(BigValueGraphMode.NONE)
        .span(4)
        .height(4)
        .targets([Sql(text)])
    )


def _table(title: str, description: str, text: str, *, span: int = 24) -> Panel:
    panel = _headed(table.Panel(), title, description).span(span).targets([Sql(text)])
    for name in ("cost", "saved", "cost of 1,000", "budget", "spent", "forecast"):
        panel = panel.override_by_name(name, [DynamicConfigValue("unit", "currencyUSD")])
    for name in ("cached", "used"):
        panel = panel.override_by_name(name, [DynamicConfigValue("unit", "percentunit")])
    return panel.unit("short")


def _headed(panel: _Kind, title: str, description: str) -> _Kind:
    return panel.title(title).description(description).datasource(DATASOURCE).height(9)
