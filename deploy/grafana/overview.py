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
    selected,
    shares,
    states,
)

TITLE = "Switchcraft: overview"
OPEN = {"0": ("asked", "green"), "1": ("left alone", "red")}
TAKEN = {"1": ("taken", "green"), "0": ("refused", "red")}
BUDGET = Query(f"max({selected('switchcraft_latency_budget_seconds')})", "budget")


def rows() -> dict[str, list[Panel]]:
    """Return the panels by the rows that they are in."""
    return {
        "Now": _now(),
        "Traffic": _traffic(),
        "Arms": _arms(),
        "Latency": _latency(),
        "Errors": _errors(),
    }


def _now() -> list[Panel]:
    return [
        number(
            "Requests",
            "Chat requests that end, refused ones included.",
            "reqps",
            Query(per_second("switchcraft_requests_total")),
        ),
        number(
            "Failed, last hour",
            "Share of requests that ended by 5xx, by an upstream's 429 or by a broken stream. The"
            " objective is 1%; 14.4% for an hour spend 2% of a month's budget.",
            "percentunit",
            Query("job:switchcraft_failures:ratio1h" + '{job="$job"}'),
            bounds={0.01: "yellow", 0.144: "red"},
        ),
        number(
            "Late decisions, last hour",
            "Share of decisions that took longer than router.latency_budget_s; 1% may.",
            "percentunit",
            Query("job:switchcraft_late_decisions:ratio1h" + '{job="$job"}'),
            bounds={0.01: "yellow", 0.144: "red"},
        ),
        number(
            "Deployments left alone",
            "Deployments whose breaker is open in at least one gateway.",
            "none",
            Query(f"sum(max by (deployment) ({selected('switchcraft_breaker_open')}))"),
            bounds={1: "red"},
        ),
        number(
            "Last reload",
            "Whether every gateway took up the last configuration and the last publication.",
            "none",
            Query(f"min({selected('switchcraft_last_reload_successful')})"),
            words=TAKEN,
        ),
        number(
            "Alerts",
            "Alerts that fire, of all severities.",
            "none",
            Query(
                'count(ALERTS{alertname=~"Switchcraft.+", alertstate="firing", job=~"$job|"})'
                " or vector(0)"
            ),
            bounds={1: "red"},
        ),
    ]


def _traffic() -> list[Panel]:
    return [
        graph(
            "Requests by model",
            "By the model that answered; none where a request was refused before one was chosen.",
            "reqps",
            [Query(per_second("switchcraft_requests_total", "model"), "{{model}}")],
            is_stacked=True,
        ),
        graph(
            "Requests by status",
            "What clients got; 499 where they left first.",
            "reqps",
            [Query(per_second("switchcraft_requests_total", "status"), "{{status}}")],
            is_stacked=True,
        ),
        graph(
            "Under way",
            "Requests that were let in and are not answered to their end, and those of them that"
            " wait for a thread to decide.",
            "none",
            [
                Query(f"sum({selected('switchcraft_requests_in_flight')})", "in flight"),
                Query(f"sum({selected('switchcraft_decisions_queued')})", "waiting to be decided"),
            ],
        ),
    ]


def _arms() -> list[Panel]:
    decisions = "switchcraft_decisions_total"
    return [
        bars(
            "Share of decisions by arm",
            "Over the time that is shown: what the router chose. Fallbacks may have answered.",
            "percentunit",
            [Query(shares(in_range(decisions, "arm"), in_range(decisions)), "{{arm}}")],
        ),
        graph(
            "Share of decisions by arm, over time",
            "What the router chose.",
            "percentunit",
            [
                Query(
                    shares(per_second(decisions, "arm"), per_second(decisions)),
                    "{{arm}}",
                )
            ],
            is_stacked=True,
        ),
        graph(
            "Fallbacks",
            "Requests that ended at another model than the chosen one.",
            "reqps",
            [
                Query(
                    per_second("switchcraft_fallbacks_total", "chosen, model"),
                    "{{chosen}} to {{model}}",
                )
            ],
        ),
    ]


def _latency() -> list[Panel]:
    decision, upstream = "switchcraft_decision_seconds", "switchcraft_upstream_seconds"
    to_first = "switchcraft_time_to_first_token_seconds"
    return [
        graph(
            "Time to decide",
            "From a read request to its decision, beside router.latency_budget_s.",
            "s",
            [
                *(Query(quantile(share, decision), f"{share:.0%}") for share in (0.5, 0.95, 0.99)),
                BUDGET,
            ],
        ),
        graph(
            "Time by stage",
            "The mean that a request spends in each stage of the gateway's own.",
            "s",
            [Query(mean("switchcraft_stage_seconds", "stage"), "{{stage}}")],
            is_stacked=True,
        ),
        graph(
            "Time by stage, 95th percentile",
            "Where the queue leads, threads or replicas lack.",
            "s",
            [Query(quantile(0.95, "switchcraft_stage_seconds", "stage"), "{{stage}}")],
        ),
        graph(
            "Upstreams, median",
            "From the request to the upstream until the end of its answer.",
            "s",
            [Query(quantile(0.5, upstream, "model"), "{{model}}")],
        ),
        graph(
            "Upstreams, 95th percentile",
            "From the request to the upstream until the end of its answer.",
            "s",
            [Query(quantile(0.95, upstream, "model"), "{{model}}")],
        ),
        graph(
            "Time to first token, 95th percentile",
            "From the request to the upstream until a streamed answer's first output.",
            "s",
            [Query(quantile(0.95, to_first, "model"), "{{model}}")],
        ),
    ]


def _errors() -> list[Panel]:
    return [
        graph(
            "Failed requests",
            "Share of requests, in the windows that alerts go by.",
            "percentunit",
            [
                Query("job:switchcraft_failures:ratio5m" + '{job="$job"}', "5 minutes"),
                Query("job:switchcraft_failures:ratio1h" + '{job="$job"}', "1 hour"),
                Query("job:switchcraft_failures:ratio6h" + '{job="$job"}', "6 hours"),
            ],
            bound=0.01,
        ),
        graph(
            "Tries that failed",
            "Tries of a deployment by outcome; a request may have several.",
            "reqps",
            [
                Query(
                    per_second(
                        "switchcraft_upstream_attempts_total",
                        "deployment, outcome",
                        'outcome!="answered"',
                    ),
                    "{{deployment}}: {{outcome}}",
                )
            ],
        ),
        states(
            "Breakers",
            "Which deployments are left alone by at least one gateway.",
            Query(
                f"max by (deployment) ({selected('switchcraft_breaker_open')})", "{{deployment}}"
            ),
            OPEN,
        ),
        graph(
            "Refused for want of capacity",
            "By reason; too_many_requests is a key's own limit.",
            "reqps",
            [Query(per_second("switchcraft_shed_requests_total", "reason"), "{{reason}}")],
        ),
        graph(
            "Refused for who asked",
            "By OpenAI's error code.",
            "reqps",
            [Query(per_second("switchcraft_refused_callers_total", "code"), "{{code}}")],
        ),
        graph(
            "Answers that did not end",
            "Streams that broke after their first byte, and clients that left.",
            "reqps",
            [
                Query(per_second("switchcraft_broken_streams_total", "model"), "{{model}} broke"),
                Query(per_second("switchcraft_client_disconnects_total"), "the client left"),
            ],
        ),
    ]
