"""Dashboard of the router: decisions, drift, calibration and releases."""

from __future__ import annotations

from deploy.grafana.panels import (
    Panel,
    Query,
    bars,
    distribution,
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

TITLE = "Switchcraft: router health"
UP = {"1": ("up", "green"), "0": ("down", "red")}
DECISIONS = "switchcraft_decisions_total"
PROBABILITY = "switchcraft_chosen_probability"
REGRET = "switchcraft_expected_regret"
CALLS = "switchcraft_tool_calls_total"
LOOKUPS = "switchcraft_cache_lookups_total"
INPUT_DRIFT = selected("job_input:switchcraft_input_drift:distance")
ARM_DRIFT = selected("job:switchcraft_arm_drift:total_variation")
CALIBRATION_ERROR = selected("job:switchcraft_calibration_error:ratio1w")
RELEASED = per_second("switchcraft_release_requests_total", "release")


def rows() -> dict[str, list[Panel]]:
    """Return the panels by row."""
    return {
        "Now": _now(),
        "Decisions": _decisions(),
        "Drift": _drift(),
        "Calibration": [_predicted_and_observed(), _calibration_error(), _feedback()],
        "Answers": [_misfits(), _tool_calls(), _weak_evidence()],
        "Releases": _releases(),
        "Gateway": [_caches(), _log_lines_and_losses(), _reached()],
    }


def _now() -> list[Panel]:
    return [
        _artifact_now(),
        _input_drift_now(),
        _arm_drift_now(),
        _calibration_error_now(),
        taken(
            "Last configuration",
            "Whether every gateway accepted the last configuration.",
            'kind="config"',
        ),
        taken(
            "Last publication",
            "Whether every gateway accepted the last publication.",
            'kind="artifact"',
        ),
    ]


def _artifact_now() -> Panel:
    return number(
        "Artifact",
        "Artifact that decides; several names if gateways differ.",
        "none",
        Query(f"{selected('switchcraft_artifact_info')} == 1", "{{name}}"),
    )


def _input_drift_now() -> Panel:
    return number(
        "Input drift, now",
        "Largest difference between the distributions of request lengths in the last hour and in"
        " the week before; 0 is equal. By chance, 200 requests reach 0.2 once in four million"
        " hours.",
        "none",
        Query(f"max({INPUT_DRIFT})"),
        bounds={0.2: "red"},
    )


def _arm_drift_now() -> Panel:
    return number(
        "Arm drift, now",
        "Share of the last hour's decisions that would have to change arms to match the week"
        " before.",
        "percentunit",
        Query(ARM_DRIFT),
        bounds={0.25: "red"},
    )


def _calibration_error_now() -> Panel:
    return number(
        "Calibration error, now",
        "Difference between predicted and observed accuracy in a week of feedback.",
        "percentunit",
        Query(CALIBRATION_ERROR),
        bounds={0.05: "yellow", 0.1: "red"},
    )


def _decisions() -> list[Panel]:
    return [
        _reasons(),
        distribution(
            "Probability of the chosen arm",
            "Predicted probability that the chosen arm is correct.",
            "percentunit",
            PROBABILITY,
        ),
        _probability_by_arm(),
        _expected_regret(),
        _reasons_in_all(),
        _undecided(),
    ]


def _reasons() -> Panel:
    return rates(
        "Decisions by reason",
        "threshold and drift: the policy's choice; argmax: no arm was good enough; risk: the"
        " offered tools demand a higher probability; unread: a part of the request could not be"
        " read; unfamiliar: the most accurate arm, because the request is unlike the training"
        " data; explored: chosen at random; sticky: the conversation keeps its arm; switched: it"
        " changes its arm.",
        DECISIONS,
        "reason",
        is_stacked=True,
    )


def _probability_by_arm() -> Panel:
    return graph(
        "Mean probability by arm",
        "Mean predicted probability of each arm when it was chosen.",
        "percentunit",
        Query(mean(PROBABILITY, "arm"), "{{arm}}"),
    )


def _expected_regret() -> Panel:
    return graph(
        "Expected regret",
        "Probability of a correct answer that decisions traded for lower cost, mean and 95%.",
        "percentunit",
        Query(mean(REGRET), "mean"),
        Query(quantile(0.95, REGRET), "95%"),
    )


def _reasons_in_all() -> Panel:
    return bars(
        "Share of decisions by reason",
        "Sum over the selected time range.",
        "percentunit",
        Query(shares(in_range(DECISIONS, "reason"), in_range(DECISIONS)), "{{reason}}"),
    )


def _undecided() -> Panel:
    return rates(
        "Router failures",
        "Requests that a release failed to decide. They were answered without it.",
        "switchcraft_router_failures_total",
        "release",
    )


def _drift() -> list[Panel]:
    return [
        _input_drift(),
        _input_length(),
        _request_size(),
        _arm_drift(),
        _arm_shares("Arms, last hour", "1h"),
        _arm_shares("Arms, week before", "1w"),
    ]


def _input_drift() -> Panel:
    return graph(
        "Input drift",
        "Kolmogorov-Smirnov distance between the last hour and the week before.",
        "none",
        Query(INPUT_DRIFT, "{{input}}"),
        bound=0.2,
    )


def _input_length() -> Panel:
    return graph(
        "Length of the router's input",
        "Tokens after truncation to the artifact's budgets.",
        "none",
        *quantiles("switchcraft_packed_tokens", 0.5, 0.95),
    )


def _request_size() -> Panel:
    return graph(
        "Size of requests",
        "Body size of routed requests.",
        "bytes",
        *quantiles("switchcraft_request_bytes", 0.5, 0.95),
    )


def _arm_drift() -> Panel:
    return graph(
        "Arm drift",
        "Total variation between the arms' shares in the last hour and in the week before.",
        "percentunit",
        Query(ARM_DRIFT, "distance"),
        bound=0.25,
    )


def _arm_shares(title: str, window: str) -> Panel:
    return graph(
        title,
        "Share of decisions by arm.",
        "percentunit",
        Query(selected(f"job_arm:switchcraft_decisions:share{window}"), "{{arm}}"),
    )


def _predicted_and_observed() -> Panel:
    verdicts = in_range("switchcraft_calibration_decisions_total", "bin")
    predicted = in_range("switchcraft_calibration_predicted_total", "bin")
    correct = in_range("switchcraft_calibration_correct_total", "bin")
    return bars(
        "Predicted and observed accuracy",
        "Predicted and observed share of correct answers, by tenth of the probability, over the"
        " selected time range.",
        "percentunit",
        Query(ratio(predicted, verdicts), "{{bin}} predicted"),
        Query(ratio(correct, verdicts), "{{bin}} observed"),
    )


def _calibration_error() -> Panel:
    return graph(
        "Calibration error",
        "Expected calibration error over ten bins, in a week of feedback.",
        "percentunit",
        Query(CALIBRATION_ERROR, "error"),
        bound=0.1,
    )


def _feedback() -> Panel:
    return rates(
        "Feedback",
        "Verdicts of clients by arm; feedback with expected calls is judged later.",
        "switchcraft_feedback_total",
        "arm, verdict",
        legend="{{arm}}: {{verdict}}",
    )


def _misfits() -> Panel:
    misfits = per_second(CALLS, "model", 'fits=~"no|unknown_tool"')
    checked = per_second(CALLS, "model", 'fits!="unchecked"')
    return graph(
        "Calls that do not match their schema",
        "Share of tool calls that do not match their tool's schema, or name a tool that was not"
        " offered.",
        "percentunit",
        Query(ratio(misfits, checked), "{{model}}"),
        bound=0.1,
    )


def _tool_calls() -> Panel:
    return rates(
        "Tool calls",
        "Tool calls in answers, by whether they match their tool's schema.",
        CALLS,
        "fits",
        is_stacked=True,
    )


def _weak_evidence() -> Panel:
    return rates(
        "Weak evidence",
        "Calls that the next turn suggests were wrong; they may still be correct.",
        "switchcraft_weak_evidence_total",
        "arm, kind",
        legend="{{arm}}: {{kind}}",
    )


def _releases() -> list[Panel]:
    return [
        _release_failures(),
        _changes(),
        _publication(),
        _since_change(),
        _release_cost(),
    ]


def _release_failures() -> Panel:
    failures = per_second("switchcraft_release_failures_total", "release")
    return graph(
        "Failures by release",
        "Share of routed requests that failed because of the upstream or the gateway.",
        "percentunit",
        Query(ratio(failures, RELEASED), "{{release}}"),
    )


def _changes() -> Panel:
    reloads = in_range("switchcraft_reloads_total", "kind, outcome")
    withdrawals = in_range("switchcraft_canary_withdrawals_total", "bound")
    return bars(
        "Reloads and withdrawals",
        "Accepted and refused changes, and withdrawn canaries, over the selected time range.",
        "none",
        Query(reloads, "{{kind}} {{outcome}}"),
        Query(withdrawals, "canary withdrawn: {{bound}}"),
    )


def _publication() -> Panel:
    return graph(
        "Publication",
        "Number of the publication that each gateway serves; they differ if one lags behind.",
        "none",
        Query(selected("switchcraft_publication_serial"), "{{instance}}"),
    )


def _since_change() -> Panel:
    reloaded = selected("switchcraft_last_reload_timestamp_seconds")
    return graph(
        "Time since the last change",
        "Time since the last accepted or refused change, by kind.",
        "s",
        Query(f"time() - max by (kind) ({reloaded})", "{{kind}}"),
    )


def _release_cost() -> Panel:
    spent = per_second("switchcraft_release_cost_usd_total", "release")
    return graph(
        "Cost of 1,000 requests by release",
        "Mean cost of 1,000 routed requests.",
        "currencyUSD",
        Query(f"1000 * {ratio(spent, RELEASED)}", "{{release}}"),
    )


def _caches() -> Panel:
    hits = per_second(LOOKUPS, "cache", 'outcome="hit"')
    return graph(
        "Caches",
        "Share of cache lookups that were hits.",
        "percentunit",
        Query(ratio(hits, per_second(LOOKUPS, "cache")), "{{cache}}"),
    )


def _log_lines_and_losses() -> Panel:
    dropped = per_second("switchcraft_decision_log_dropped_total", "reason")
    return graph(
        "Log lines and losses",
        "Lines of the decision log, and lost lines, spans and store writes.",
        "reqps",
        Query(per_second("switchcraft_decision_log_lines_total", "type"), "{{type}}"),
        Query(dropped, "lost: {{reason}}"),
        Query(per_second("switchcraft_spans_dropped_total"), "spans lost"),
        Query(
            per_second("switchcraft_store_errors_total", "operation"), "store lost: {{operation}}"
        ),
    )


def _reached() -> Panel:
    state, log = selected("switchcraft_shared_state_up"), selected("switchcraft_decision_log_up")
    database = selected("switchcraft_database_unreachable_seconds")
    return states(
        "Shared state, database and decision log",
        "Whether each gateway reaches Redis and its database and can write its decision log.",
        Query(
            f'label_replace({state}, "what", "shared state", "", "")'
            f' or label_replace({database} == bool 0, "what", "database", "", "")'
            f' or label_replace({log}, "what", "decision log", "", "")',
            "{{instance}}: {{what}}",
        ),
        UP,
    )
