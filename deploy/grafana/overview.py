"""Dashboard for operators: traffic, arms, latency and errors."""

from __future__ import annotations

from deploy.grafana.panels import (
    Panel,
    Query,
    bars,
    graph,
    in_range,
    mean,
    number,
    per_second,
    quantile,
    quantiles,
    rates,
    ratio,
    selected,
    shares,
    states,
    taken,
)

TITLE = "Switchcraft: overview"
OPEN = {"0": ("closed", "green"), "1": ("open", "red")}
BUDGET = Query(f"max({selected('switchcraft_latency_budget_seconds')})", "budget")
# The objective of 1%, and the rate that spends 2% of a month's error budget in an hour.
BURNING = {0.01: "yellow", 0.144: "red"}
REQUESTS = "switchcraft_requests_total"
DECISIONS = "switchcraft_decisions_total"
STAGES = "switchcraft_stage_seconds"
UPSTREAMS = "switchcraft_upstream_seconds"
BREAKERS = f"max by (deployment) ({selected('switchcraft_breaker_open')})"


def rows() -> dict[str, list[Panel]]:
    """Return the panels by row."""
    return {
        "Now": _now(),
        "Traffic": [_by_model(), _by_status(), _under_way()],
        "Arms": [_arms(), _arms_over_time(), _fallbacks(), _unfamiliar()],
        "Latency": _latency(),
        "Errors": _errors(),
    }


def _now() -> list[Panel]:
    return [
        _requests_now(),
        _failed_now(),
        _late_now(),
        _open_circuits_now(),
        taken(
            "Last reload",
            "Whether every gateway accepted the last configuration and the last publication.",
        ),
        _alerts_now(),
    ]


def _requests_now() -> Panel:
    return number(
        "Requests",
        "Finished chat requests per second, including refused ones.",
        "reqps",
        Query(per_second(REQUESTS)),
    )


def _failed_now() -> Panel:
    return number(
        "Failed, last hour",
        "Share of requests that ended with 5xx, an upstream's 429 or a broken stream. The"
        " objective is 1%; an hour at 14.4% spends 2% of a month's error budget.",
        "percentunit",
        Query(selected("job:switchcraft_failures:ratio1h")),
        bounds=BURNING,
    )


def _late_now() -> Panel:
    return number(
        "Late decisions, last hour",
        "Share of decisions that took longer than router.latency_budget_s. The objective is 1%.",
        "percentunit",
        Query(selected("job:switchcraft_late_decisions:ratio1h")),
        bounds=BURNING,
    )


def _open_circuits_now() -> Panel:
    return number(
        "Open circuits",
        "Deployments whose circuit is open in at least one gateway.",
        "none",
        Query(f"sum({BREAKERS})"),
        bounds={1: "red"},
    )


def _alerts_now() -> Panel:
    firing = 'ALERTS{alertname=~"Switchcraft.+", alertstate="firing", job=~"$job|"}'
    return number(
        "Alerts",
        "Number of firing alerts of all severities.",
        "none",
        Query(f"count({firing}) or vector(0)"),
        bounds={1: "red"},
    )


def _by_model() -> Panel:
    return rates(
        "Requests by model",
        "By the model that answered; none if a request was refused before a model was chosen.",
        REQUESTS,
        "model",
        is_stacked=True,
    )


def _by_status() -> Panel:
    return rates(
        "Requests by status",
        "Status that clients received; 499 if they left first.",
        REQUESTS,
        "status",
        is_stacked=True,
    )


def _under_way() -> Panel:
    return graph(
        "In flight",
        "Accepted requests without a complete answer, and those of them that wait for a decision"
        " thread.",
        "none",
        Query(f"sum({selected('switchcraft_requests_in_flight')})", "in flight"),
        Query(f"sum({selected('switchcraft_decisions_queued')})", "waiting for a decision"),
    )


def _arms() -> Panel:
    return bars(
        "Share of decisions by arm",
        "Arms that the router chose in the selected time range. Fallbacks may have answered.",
        "percentunit",
        Query(shares(in_range(DECISIONS, "arm"), in_range(DECISIONS)), "{{arm}}"),
    )


def _arms_over_time() -> Panel:
    return graph(
        "Share of decisions by arm, over time",
        "Arms that the router chose.",
        "percentunit",
        Query(shares(per_second(DECISIONS, "arm"), per_second(DECISIONS)), "{{arm}}"),
        is_stacked=True,
    )


def _fallbacks() -> Panel:
    return rates(
        "Fallbacks",
        "Requests that another model than the chosen one answered.",
        "switchcraft_fallbacks_total",
        "chosen, model",
        legend="{{chosen}} to {{model}}",
    )


def _unfamiliar() -> Panel:
    return graph(
        "Unfamiliar requests",
        "Share of decisions about requests that are unlike the router's training data;"
        " router.unfamiliar says what happens to them.",
        "percentunit",
        Query(
            ratio(per_second("switchcraft_unfamiliar_requests_total"), per_second(DECISIONS)),
            "unfamiliar",
        ),
    )


def _latency() -> list[Panel]:
    return [
        _time_to_decide(),
        _time_by_stage(),
        _slow_stages(),
        _upstreams("median", 0.5),
        _upstreams("95th percentile", 0.95),
        _first_token(),
    ]


def _time_to_decide() -> Panel:
    return graph(
        "Time to decide",
        "Time from the parsed request to its decision, and router.latency_budget_s.",
        "s",
        *quantiles("switchcraft_decision_seconds", 0.5, 0.95, 0.99),
        BUDGET,
    )


def _time_by_stage() -> Panel:
    return graph(
        "Time by stage",
        "Mean time of a request in each stage of the gateway.",
        "s",
        Query(mean(STAGES, "stage"), "{{stage}}"),
        is_stacked=True,
    )


def _slow_stages() -> Panel:
    return graph(
        "Time by stage, 95th percentile",
        "If the queue dominates, add threads or replicas.",
        "s",
        Query(quantile(0.95, STAGES, "stage"), "{{stage}}"),
    )


def _upstreams(name: str, share: float) -> Panel:
    return graph(
        f"Upstreams, {name}",
        "Time from the request to the upstream to the end of its answer.",
        "s",
        Query(quantile(share, UPSTREAMS, "model"), "{{model}}"),
    )


def _first_token() -> Panel:
    return graph(
        "Time to first token, 95th percentile",
        "Time from the request to the upstream to the first output of a streamed answer.",
        "s",
        Query(quantile(0.95, "switchcraft_time_to_first_token_seconds", "model"), "{{model}}"),
    )


def _errors() -> list[Panel]:
    return [
        _failed_requests(),
        _failed_tries(),
        _breakers(),
        _shed(),
        _refused_callers(),
        _broken_answers(),
    ]


def _failed_requests() -> Panel:
    return graph(
        "Failed requests",
        "Share of requests, in the windows that the alerts use.",
        "percentunit",
        Query(selected("job:switchcraft_failures:ratio5m"), "5 minutes"),
        Query(selected("job:switchcraft_failures:ratio1h"), "1 hour"),
        Query(selected("job:switchcraft_failures:ratio6h"), "6 hours"),
        bound=0.01,
    )


def _failed_tries() -> Panel:
    tries = "switchcraft_upstream_attempts_total"
    failed = per_second(tries, "deployment, outcome", 'outcome!~"answered|cancelled"')
    return graph(
        "Failed attempts",
        "Failed attempts by deployment and outcome; a request may have several attempts.",
        "reqps",
        Query(failed, "{{deployment}}: {{outcome}}"),
    )


def _breakers() -> Panel:
    return states(
        "Breakers",
        "Deployments whose circuit is open in at least one gateway.",
        Query(BREAKERS, "{{deployment}}"),
        OPEN,
    )


def _shed() -> Panel:
    return rates(
        "Refused because of overload",
        "By reason; too_many_requests is the limit of a single key.",
        "switchcraft_shed_requests_total",
        "reason",
    )


def _refused_callers() -> Panel:
    return rates(
        "Refused callers",
        "Requests without a valid key or permission, by OpenAI's error code.",
        "switchcraft_refused_callers_total",
        "code",
    )


def _broken_answers() -> Panel:
    return graph(
        "Incomplete answers",
        "Streams that broke after their first byte, and clients that disconnected.",
        "reqps",
        Query(per_second("switchcraft_broken_streams_total", "model"), "{{model}} broke off"),
        Query(per_second("switchcraft_client_disconnects_total"), "client disconnected"),
    )
