"""Building blocks of the dashboards: common queries, and one style for each kind of panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

_LAST = common.ReduceDataOptions().calcs(["lastNotNull"])
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAKEN = {"1": ("taken", "green"), "0": ("refused", "red")}
Panel = Builder[dashboard.Panel]
# Grafana's panel builders share methods but no base class.
_Kind = TypeVar(
    "_Kind",
    timeseries.Panel,
    stat.Panel,
    bargauge.Panel,
    heatmap.Panel,
    statetimeline.Panel,
)


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and its legend."""

    expr: str
    legend: str = ""


class Annotation(dashboard_builders.AnnotationQuery):
    """Marks in all graphs of a dashboard, at the times when a query has a value."""

    def __init__(self, name: str, color: str, query: Query) -> None:
        """Mark with the query's legend."""
        super().__init__()
        self._internal = _Marks(query.legend)
        self.name(name).icon_color(color).expr(query.expr).datasource(DATASOURCE).enable(True)


class _Marks(dashboard.AnnotationQuery):
    """Annotation query with the title of its marks, which the SDK's model does not know."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "titleFormat": self.title, "step": "60s"}


def selected(series: str, where: str = "") -> str:
    """Return a selector of the dashboard's job."""
    return f'{series}{{job="$job"{", " + where if where else ""}}}'


def per_second(series: str, by: str = "", where: str = "") -> str:
    """Return a counter's current rate per second."""
    return f"sum{_by(by)}(rate({selected(series, where)}[$__rate_interval]))"


def in_range(series: str, by: str = "", where: str = "") -> str:
    """Return a counter's increase in the selected time range."""
    return f"sum{_by(by)}(increase({selected(series, where)}[$__range]))"


def quantile(share: float, histogram: str, by: str = "") -> str:
    """Return a current quantile of a histogram."""
    buckets = per_second(f"{histogram}_bucket", ", ".join(filter(None, ("le", by))))
    return f"histogram_quantile({share}, {buckets})"


def mean(histogram: str, by: str = "") -> str:
    """Return the current mean of a histogram."""
    return ratio(per_second(f"{histogram}_sum", by), per_second(f"{histogram}_count", by))


def ratio(part: str, whole: str) -> str:
    """Return a ratio that is absent, instead of NaN, if the denominator is 0."""
    return f"{part} / ({whole} > 0)"


def shares(parts: str, whole: str) -> str:
    """Return each part's share of the whole."""
    return f"{parts} / on () group_left () ({whole} > 0)"


def quantiles(histogram: str, *at: float) -> list[Query]:
    """Return a line for each quantile of a histogram, named in percent."""
    return [Query(quantile(share, histogram), f"{share:.0%}") for share in at]


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    bound: float | None = None,
    is_stacked: bool = False,
) -> timeseries.Panel:
    """Return a panel of lines over time; values above the bound are marked red."""
    panel = (
        _headed(timeseries.Panel(), title, description)
        .unit(unit)
        .axis_soft_min(0)
        .line_width(1)
        .fill_opacity(30 if is_stacked else 5)
        .show_points(VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .targets(_targets(queries))
    )
    if is_stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if bound is None:
        return panel
    style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    return panel.thresholds(_thresholds({bound: "red"})).thresholds_style(style)


def rates(
    title: str,
    description: str,
    counter: str,
    by: str,
    *,
    legend: str = "",
    is_stacked: bool = False,
) -> timeseries.Panel:
    """Return a panel of a counter's events per second, by one or several labels."""
    query = Query(per_second(counter, by), legend or f"{{{{{by}}}}}")
    return graph(title, description, "reqps", query, is_stacked=is_stacked)


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    bounds: Mapping[float, str] | None = None,
    words: Mapping[str, tuple[str, str]] | None = None,
) -> stat.Panel:
    """Return a panel of one number, coloured by bounds, or of a coloured word for each value."""
    panel = (
        _headed(stat.Panel(), title, description)
        .unit(unit)
        .no_value("no data")
        .span(4)
        .height(4)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(_LAST)
        .thresholds(_thresholds(bounds or {}))
        .targets(_targets([query], is_instant=True))
    )
    if query.legend:
        panel = panel.text_mode(BigValueTextMode.NAME)
    return panel if words is None else panel.mappings(_mappings(words))


def taken(title: str, description: str, where: str = "") -> stat.Panel:
    """Return a panel that shows whether all gateways accepted the last reload of a kind."""
    reloaded = selected("switchcraft_last_reload_successful", where)
    return number(title, description, "none", Query(f"min({reloaded})"), words=TAKEN)


def bars(title: str, description: str, unit: str, *queries: Query) -> bargauge.Panel:
    """Return a panel with a bar for each label, over the selected time range."""
    return (
        _headed(bargauge.Panel(), title, description)
        .unit(unit)
        .min(0)
        .orientation(VizOrientation.HORIZONTAL)
        .reduce_options(_LAST)
        .thresholds(_thresholds({}))
        .targets(_targets(queries, is_instant=True))
    )


def distribution(title: str, description: str, unit: str, histogram: str) -> heatmap.Panel:
    """Return a panel of a histogram's distribution over time."""
    expr = f"sum by (le) (increase({selected(f'{histogram}_bucket')}[$__rate_interval]))"
    target = _target(Query(expr, "{{le}}"), "A").format(PromQueryFormat.HEATMAP)
    return (
        _headed(heatmap.Panel(), title, description)
        .calculate(calculate=False)
        .unit(unit)
        .targets([target])
    )


def states(
    title: str, description: str, query: Query, words: Mapping[str, tuple[str, str]]
) -> statetimeline.Panel:
    """Return a panel of states over time."""
    panel = _headed(statetimeline.Panel(), title, description)
    return panel.mappings(_mappings(words)).targets(_targets([query]))


def _headed(panel: _Kind, title: str, description: str) -> _Kind:
    titled = panel.title(title).description(description)
    return titled.datasource(DATASOURCE).span(8).height(8)


def _mappings(words: Mapping[str, tuple[str, str]]) -> list[ValueMapping]:
    options = {
        value: ValueMappingResult(text=text, color=color) for value, (text, color) in words.items()
    }
    return [ValueMap(options=options)]


def _targets(
    queries: Sequence[Query], *, is_instant: bool = False
) -> list[Builder[variants.Dataquery]]:
    return [
        _target(query, chr(ord("A") + number), is_instant=is_instant)
        for number, query in enumerate(queries)
    ]


def _target(query: Query, ref: str, *, is_instant: bool = False) -> prometheus.Dataquery:
    target = prometheus.Dataquery().datasource(DATASOURCE).ref_id(ref).expr(query.expr)
    target = target.legend_format(query.legend or "__auto")
    return target.instant() if is_instant else target.range()


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _thresholds(bounds: Mapping[float, str]) -> ThresholdsConfig:
    steps = [Threshold(None, "green"), *(Threshold(at, color) for at, color in bounds.items())]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
