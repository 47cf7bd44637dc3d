"""The operators' dashboard: traffic, arms, latency, errors."""

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
    selected,
    shares,
    states,
    taken,
)

TITLE = "Switchcraft: overview"
OPEN = {"0": ("asked", "green"), "1": ("left alone", "red")}
BUDGET = Query(f"max({selected('switchcraft_latency_budget_seconds')})", "budget")
# The objective of 1%, and the rate that spends 2% of a month's budget in an hour.
BURNING = {0.01: "yellow", 0.144: "red"}
REQUESTS = "switchcraft_requests_total"
DECISIONS = "switchcraft_decisions_total"
STAGES = "switchcraft_stage_seconds"
UPSTREAMS = "switchcraft_upstream_seconds"
BREAKERS = f"max by (deployment) ({selected('switchcraft_breaker_open')})"


def rows() -> dict[str, list[Panel]]:
    """Return the panels by the rows that they are in."""
    return {
        "Now": _now(),
        "Traffic": [_by_model(), _by_status(), _under_way()],
        "Arms": [_arms(), _arms_over_time(), _fallbacks()],
        "Latency": _latency(),
        "Errors": _errors(),
    }


def _now() -> list[Panel]:
    return [
        _requests_now(),
        _failed_now(),
        _late_now(),
        _left_alone_now(),
        taken(
            "Last reload",
            "Whether every gateway took up the last configuration and the last publication.",
        ),
        _alerts_now(),
    ]


def _requests_now() -> Panel:
    return number(
        "Requests",
        "Chat requests that end, refused ones included.",
        "reqps",
        Query(per_second(REQUESTS)),
    )


def _failed_now() -> Panel:
    return number(
        "Failed, last hour",
        "Share of requests that ended by 5xx, by an upstream's 429 or by a broken stream. The"
        " objective is 1%; 14.4% for an hour spend 2% of a month's budget.",
        "percentunit",
        Query(selected("job:switchcraft_failures:ratio1h")),
        bounds=BURNING,
    )


def _late_now() -> Panel:
    return number(
        "Late decisions, last hour",
        "Share of decisions that took longer than router.latency_budget_s; 1% may.",
        "percentunit",
        Query(selected("job:switchcraft_late_decisions:ratio1h")),
        bounds=BURNING,
    )


def _left_alone_now() -> Panel:
    return number(
        "Deployments left alone",
        "Deployments whose breaker is open in at least one gateway.",
        "none",
        Query(f"sum({BREAKERS})"),
        bounds={1: "red"},
    )


def _alerts_now() -> Panel:
    firing = 'ALERTS{alertname=~"Switchcraft.+", alertstate="firing", job=~"$job|"}'
    return number(
        "Alerts",
        "Alerts that fire, of all severities.",
        "none",
        Query(f"count({firing}) or vector(0)"),
        bounds={1: "red"},
    )


def _by_model() -> Panel:
    return rates(
        "Requests by model",
        "By the model that answered; none where a request was refused before one was chosen.",
        REQUESTS,
        "model",
        is_stacked=True,
    )


def _by_status() -> Panel:
    return rates(
        "Requests by status",
        "What clients got; 499 where they left first.",
        REQUESTS,
        "status",
        is_stacked=True,
    )


def _under_way() -> Panel:
    return graph(
        "Under way",
        "Requests that were let in and are not answered to their end, and those of them that"
        " wait for a thread to decide.",
        "none",
        Query(f"sum({selected('switchcraft_requests_in_flight')})", "in flight"),
        Query(f"sum({selected('switchcraft_decisions_queued')})", "waiting to be decided"),
    )


def _arms() -> Panel:
    return bars(
        "Share of decisions by arm",
        "Over the time that is shown: what the router chose. Fallbacks may have answered.",
        "percentunit",
        Query(shares(in_range(DECISIONS, "arm"), in_range(DECISIONS)), "{{arm}}"),
    )


def _arms_over_time() -> Panel:
    return graph(
        "Share of decisions by arm, over time",
        "What the router chose.",
        "percentunit",
        Query(shares(per_second(DECISIONS, "arm"), per_second(DECISIONS)), "{{arm}}"),
        is_stacked=True,
    )


def _fallbacks() -> Panel:
    return rates(
        "Fallbacks",
        "Requests that ended at another model than the chosen one.",
        "switchcraft_fallbacks_total",
        "chosen, model",
        legend="{{chosen}} to {{model}}",
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
        "From a read request to its decision, beside router.latency_budget_s.",
        "s",
        *quantiles("switchcraft_decision_seconds", 0.5, 0.95, 0.99),
        BUDGET,
    )


def _time_by_stage() -> Panel:
    return graph(
        "Time by stage",
        "The mean that a request spends in each stage of the gateway's own.",
        "s",
        Query(mean(STAGES, "stage"), "{{stage}}"),
        is_stacked=True,
    )


def _slow_stages() -> Panel:
    return graph(
        "Time by stage, 95th percentile",
        "Where the queue leads, threads or replicas lack.",
        "s",
        Query(quantile(0.95, STAGES, "stage"), "{{stage}}"),
    )


def _upstreams(name: str, share: float) -> Panel:
    return graph(
        f"Upstreams, {name}",
        "From the request to the upstream until the end of its answer.",
        "s",
        Query(quantile(share, UPSTREAMS, "model"), "{{model}}"),
    )


def _first_token() -> Panel:
    return graph(
        "Time to first token, 95th percentile",
        "From the request to the upstream until a streamed answer's first output.",
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
        "Share of requests, in the windows that alerts go by.",
        "percentunit",
        Query(selected("job:switchcraft_failures:ratio5m"), "5 minutes"),
        Query(selected("job:switchcraft_failures:ratio1h"), "1 hour"),
        Query(selected("job:switchcraft_failures:ratio6h"), "6 hours"),
        bound=0.01,
    )


def _failed_tries() -> Panel:
    tries = "switchcraft_upstream_attempts_total"
    failed = per_second(tries, "deployment, outcome", 'outcome!="answered"')
    return graph(
        "Tries that failed",
        "Tries of a deployment by outcome; a request may have several.",
        "reqps",
        Query(failed, "{{deployment}}: {{outcome}}"),
    )


def _breakers() -> Panel:
    return states(
        "Breakers",
        "Which deployments are left alone by at least one gateway.",
        Query(BREAKERS, "{{deployment}}"),
        OPEN,
    )


def _shed() -> Panel:
    return rates(
        "Refused for want of capacity",
        "By reason; too_many_requests is a key's own limit.",
        "switchcraft_shed_requests_total",
        "reason",
    )


def _refused_callers() -> Panel:
    return rates(
        "Refused for who asked",
        "By OpenAI's error code.",
        "switchcraft_refused_callers_total",
        "code",
    )


def _broken_answers() -> Panel:
    return graph(
        "Answers that did not end",
        "Streams that broke after their first byte, and clients that left.",
        "reqps",
        Query(per_second("switchcraft_broken_streams_total", "model"), "{{model}} broke"),
        Query(per_second("switchcraft_client_disconnects_total"), "the client left"),
    )
