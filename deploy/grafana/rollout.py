"""Dashboard of one rollout: before it, the stable release, and the canary."""

from __future__ import annotations

from collections.abc import Callable

from deploy.grafana.panels import (
    Annotation,
    Panel,
    Query,
    bars,
    graph,
    in_range,
    number,
    per_second,
    quantile,
    ratio,
    selected,
    shares,
    states,
    taken,
)

TITLE = "Switchcraft: rollout"
BEFORE = ("1h", "6h", "1d", "1w")
"""How long before the selected time range the stable release is compared with."""
REQUESTS = "switchcraft_release_requests_total"
FAILURES = "switchcraft_release_failures_total"
COST = "switchcraft_release_cost_usd_total"
SECONDS = "switchcraft_release_seconds"
CORRECT = "switchcraft_release_expected_correct_total"
UNFAMILIAR = "switchcraft_release_unfamiliar_requests_total"
CANDIDATES = "switchcraft_release_candidates_total"
FEEDBACK = "switchcraft_release_feedback_total"
STABLE, CANARY = 'release="stable"', 'release="canary"'
ACCEPTED, JUDGED = 'outcome="accepted"', 'outcome=~"accepted|rejected"'
RATED = 'verdict=~"correct|wrong"'


def rows() -> dict[str, list[Panel]]:
    """Return the panels by row."""
    return {
        "Now": _now(),
        "Before, stable and canary, over the selected time range": _compared(),
        "Over time": _over_time(),
    }


def marks() -> list[Annotation]:
    """Return what is marked in all graphs: changes that were taken or refused, and rollbacks."""
    reloads = f"sum by (kind, outcome) (increase({selected('switchcraft_reloads_total')}[1m])) > 0"
    withdrawals = selected("switchcraft_canary_withdrawals_total")
    return [
        Annotation("Changes", "blue", Query(reloads, "{{kind}} {{outcome}}")),
        Annotation(
            "Rollbacks",
            "red",
            Query(
                f"sum by (bound) (increase({withdrawals}[1m])) > 0",
                "canary rolled back: {{bound}}",
            ),
        ),
    ]


def _now() -> list[Panel]:
    return [
        number(
            "Stable artifact",
            "Artifact of the stable release; several names while gateways differ.",
            "none",
            Query(f"{selected('switchcraft_artifact_info')} == 1", "{{name}}"),
        ),
        number(
            "Canary's share of requests",
            "Over the selected time range; no data without routed requests.",
            "percentunit",
            Query(ratio(in_range(REQUESTS, where=CANARY), in_range(REQUESTS))),
        ),
        number(
            "Canary's additional failures",
            "Share of the canary's requests that failed, minus that of the stable release. The"
            " canary is rolled back if the difference exceeds its limit by more than chance.",
            "percentunit",
            Query(f"{_share(FAILURES, CANARY)} - {_share(FAILURES, STABLE)}"),
            bounds={0.02: "red"},
        ),
        number(
            "Canary's relative cost",
            "Mean cost of the canary's requests, as a share of the stable release's.",
            "percentunit",
            Query(f"({_share(COST, CANARY)}) / ({_share(COST, STABLE)} > 0)"),
            bounds={1.2: "red"},
        ),
        number(
            "Rolled back",
            "Canaries that gateways rolled back in the selected time range.",
            "none",
            Query(in_range("switchcraft_canary_withdrawals_total")),
            bounds={0.5: "red"},
        ),
        taken(
            "Last publication",
            "Whether every gateway accepted the last publication.",
            'kind="artifact"',
        ),
    ]


def _compared() -> list[Panel]:
    return [
        _bars(
            "Failed requests",
            "Share of routed requests that failed because of the upstream or the gateway.",
            "percentunit",
            FAILURES,
        ),
        _bars(
            "Cost of 1,000 requests",
            "Mean cost of 1,000 routed requests, with all candidates of verified answers.",
            "currencyUSD",
            COST,
            factor="1000 * ",
        ),
        bars(
            "Latency, 95th percentile",
            "Time from a request's arrival to the end of its answer.",
            "s",
            *_before_and_now(_latency_in_range),
        ),
        _bars(
            "Expected accuracy",
            "Share of requests that are expected to get a correct answer: the verifier's estimates"
            " of verified answers, the router's predictions otherwise. Failures count as wrong.",
            "percentunit",
            CORRECT,
        ),
        _bars(
            "Unfamiliar requests",
            "Share of requests that are unlike the release's training data.",
            "percentunit",
            UNFAMILIAR,
        ),
        bars(
            "Candidates that the verifier accepted",
            "Share of the candidate answers that it judged; the others cost money and time.",
            "percentunit",
            *_before_and_now(
                lambda where, at: _part_in_range(CANDIDATES, ACCEPTED, JUDGED, where, at)
            ),
        ),
        bars(
            "Correct by feedback",
            "Share of clients' verdicts that say correct.",
            "percentunit",
            *_before_and_now(
                lambda where, at: _part_in_range(FEEDBACK, 'verdict="correct"', RATED, where, at)
            ),
        ),
        bars(
            "Requests",
            "Routed requests: the figures of a release with few requests vary by chance.",
            "none",
            *_before_and_now(lambda where, at: _sum_in_range(REQUESTS, where, at)),
        ),
    ]


def _over_time() -> list[Panel]:
    requests = per_second(REQUESTS, "release")
    accepted = per_second(CANDIDATES, "release", ACCEPTED)
    return [
        graph(
            "Share of requests over time",
            "Routed requests by release.",
            "percentunit",
            Query(shares(requests, per_second(REQUESTS)), "{{release}}"),
            is_stacked=True,
        ),
        _graph("Failed requests over time", "Share of requests that failed.", FAILURES),
        graph(
            "Cost of 1,000 requests over time",
            "Mean cost of 1,000 routed requests.",
            "currencyUSD",
            Query(f"1000 * {ratio(per_second(COST, 'release'), requests)}", "{{release}}"),
        ),
        graph(
            "Latency over time, 95th percentile",
            "Time from a request's arrival to the end of its answer.",
            "s",
            Query(quantile(0.95, SECONDS, "release"), "{{release}}"),
        ),
        _graph("Expected accuracy over time", "Share of requests expected to be correct.", CORRECT),
        _graph(
            "Unfamiliar requests over time",
            "Share of requests that are unlike the training data.",
            UNFAMILIAR,
        ),
        graph(
            "Accepted candidates over time",
            "Share of judged candidate answers that the verifier accepted.",
            "percentunit",
            Query(ratio(accepted, per_second(CANDIDATES, "release", JUDGED)), "{{release}}"),
        ),
        graph(
            "Router failures over time",
            "Requests per second that a release failed to decide. They were answered without it.",
            "reqps",
            Query(per_second("switchcraft_router_failures_total", "release"), "{{release}}"),
        ),
        states(
            "Stable artifact over time",
            "Artifact of the stable release.",
            Query(f"max by (name) ({selected('switchcraft_artifact_info')})", "{{name}}"),
            {"1": ("decides", "green"), "0": ("replaced", "text")},
        ),
    ]


def _share(series: str, where: str) -> str:
    """Return a counter of a release divided by the release's requests, over the time range."""
    return ratio(in_range(series, where=where), in_range(REQUESTS, where=where))


def _bars(title: str, description: str, unit: str, series: str, factor: str = "") -> Panel:
    def expr(where: str, at: str) -> str:
        mean = ratio(_sum_in_range(series, where, at), _sum_in_range(REQUESTS, where, at))
        return f"{factor}{mean}"

    return bars(title, description, unit, *_before_and_now(expr))


def _graph(title: str, description: str, series: str) -> Panel:
    share = ratio(per_second(series, "release"), per_second(REQUESTS, "release"))
    return graph(title, description, "percentunit", Query(share, "{{release}}"))


def _before_and_now(expr: Callable[[str, str], str]) -> list[Query]:
    """Return a query for the stable release before the time range, and for each release in it."""
    return [
        Query(expr(STABLE, " offset $before"), "before"),
        Query(expr(STABLE, ""), "stable"),
        Query(expr(CANARY, ""), "canary"),
    ]


def _sum_in_range(series: str, where: str, at: str) -> str:
    return f"sum(increase({selected(series, where)}[$__range]{at}))"


def _part_in_range(series: str, part: str, whole: str, where: str, at: str) -> str:
    return ratio(
        _sum_in_range(series, f"{where}, {part}", at),
        _sum_in_range(series, f"{where}, {whole}", at),
    )


def _latency_in_range(where: str, at: str) -> str:
    buckets = f"sum by (le) (increase({selected(f'{SECONDS}_bucket', where)}[$__range]{at}))"
    return f"histogram_quantile(0.95, {buckets}) >= 0"  # absent, instead of NaN, without requests
