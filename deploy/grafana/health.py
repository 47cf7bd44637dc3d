"""The router's dashboard: what it decides by, and whether it holds."""

from __future__ import annotations

from deploy.grafana.overview import TAKEN
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
    ratio,
    selected,
    shares,
    states,
)

TITLE = "Switchcraft: router health"
JOB = '{job="$job"}'
REGRET = "switchcraft_expected_regret"
CONFIG, ARTIFACT = 'kind="config"', 'kind="artifact"'
UP = {"1": ("up", "green"), "0": ("away", "red")}


def rows() -> dict[str, list[Panel]]:
    """Return the panels by the rows that they are in."""
    return {
        "Now": _now(),
        "Decisions": _decisions(),
        "Drift": _drift(),
        "Calibration": _calibration(),
        "Answers": _answers(),
        "Releases": _releases(),
        "Gateway": _gateway(),
    }


def _now() -> list[Panel]:
    reloaded = "switchcraft_last_reload_successful"
    return [
        number(
            "Artifact",
            "What decides; several names while gateways differ.",
            "none",
            Query(f"{selected('switchcraft_artifact_info')} == 1", "{{name}}"),
        ),
        number(
            "Input drift, now",
            "Largest difference between the distributions of lengths, in the last hour and in the"
            " week before: 0 is equal. By chance 200 requests are 0.2 apart once in four million"
            " hours.",
            "none",
            Query(f"max(job_input:switchcraft_input_drift:distance{JOB})"),
            bounds={0.2: "red"},
        ),
        number(
            "Arm drift, now",
            "Share of the last hour's decisions that would have to change arms to give the week"
            " before's shares.",
            "percentunit",
            Query(f"job:switchcraft_arm_drift:total_variation{JOB}"),
            bounds={0.25: "red"},
        ),
        number(
            "Calibration error, now",
            "By how much answers are correct more or less often than said, by the feedback of a"
            " week.",
            "percentunit",
            Query(f"job:switchcraft_calibration_error:ratio1w{JOB}"),
            bounds={0.05: "yellow", 0.1: "red"},
        ),
        number(
            "Last configuration",
            "Whether every gateway took up the last configuration.",
            "none",
            Query(f"min({selected(reloaded, CONFIG)})"),
            words=TAKEN,
        ),
        number(
            "Last publication",
            "Whether every gateway took up the last publication.",
            "none",
            Query(f"min({selected(reloaded, ARTIFACT)})"),
            words=TAKEN,
        ),
    ]


def _decisions() -> list[Panel]:
    decisions, probability = "switchcraft_decisions_total", "switchcraft_chosen_probability"
    return [
        graph(
            "Decisions by reason",
            "threshold and drift by the policy; argmax where no arm was sure enough; unread where a"
            " part of the request could not be read; explored by chance.",
            "reqps",
            [Query(per_second(decisions, "reason"), "{{reason}}")],
            is_stacked=True,
        ),
        distribution(
            "Probability of the chosen arm",
            "How sure the router was of what it chose.",
            "percentunit",
            probability,
        ),
        graph(
            "Mean probability by arm",
            "How sure the router was of each arm that it chose.",
            "percentunit",
            [Query(mean(probability, "arm"), "{{arm}}")],
        ),
        graph(
            "Expected regret",
            "Probability of a correct answer that decisions gave up to save cost, on average.",
            "percentunit",
            [Query(mean(REGRET), "mean"), Query(quantile(0.95, REGRET), "95%")],
        ),
        bars(
            "Decisions by reason, in all",
            "Over the time that is shown.",
            "percentunit",
            [
                Query(
                    shares(in_range(decisions, "reason"), in_range(decisions)),
                    "{{reason}}",
                )
            ],
        ),
        graph(
            "Without a decision",
            "Requests that a release could not decide; they were answered anyway.",
            "reqps",
            [Query(per_second("switchcraft_router_failures_total", "release"), "{{release}}")],
        ),
    ]


def _drift() -> list[Panel]:
    tokens, size = "switchcraft_packed_tokens", "switchcraft_request_bytes"
    return [
        graph(
            "Input drift",
            "Kolmogorov and Smirnov's distance between the last hour and the week before.",
            "none",
            [Query(f"job_input:switchcraft_input_drift:distance{JOB}", "{{input}}")],
            bound=0.2,
        ),
        graph(
            "Length of the router's input",
            "Tokens, after what exceeds the artifact's budgets was cut.",
            "none",
            [Query(quantile(share, tokens), f"{share:.0%}") for share in (0.5, 0.95)],
        ),
        graph(
            "Size of requests",
            "Bytes of routed requests' bodies.",
            "bytes",
            [Query(quantile(share, size), f"{share:.0%}") for share in (0.5, 0.95)],
        ),
        graph(
            "Arm drift",
            "Total variation between the last hour's shares and the week before's.",
            "percentunit",
            [Query(f"job:switchcraft_arm_drift:total_variation{JOB}", "distance")],
            bound=0.25,
        ),
        graph(
            "Arms, last hour",
            "Share of decisions.",
            "percentunit",
            [Query(f"job_arm:switchcraft_decisions:share1h{JOB}", "{{arm}}")],
        ),
        graph(
            "Arms, week before",
            "Share of decisions.",
            "percentunit",
            [Query(f"job_arm:switchcraft_decisions:share1w{JOB}", "{{arm}}")],
        ),
    ]


def _calibration() -> list[Panel]:
    verdicts = in_range("switchcraft_calibration_decisions_total", "bin")
    predicted = in_range("switchcraft_calibration_predicted_total", "bin")
    correct = in_range("switchcraft_calibration_correct_total", "bin")
    return [
        bars(
            "Said and seen",
            "By the tenth that the probability is in, over the time that is shown: how often"
            " answers were said to be correct, and how often they were.",
            "percentunit",
            [
                Query(ratio(predicted, verdicts), "{{bin}} said"),
                Query(ratio(correct, verdicts), "{{bin}} seen"),
            ],
        ),
        graph(
            "Calibration error",
            "Expected calibration error over ten bins, by the feedback of a week.",
            "percentunit",
            [Query(f"job:switchcraft_calibration_error:ratio1w{JOB}", "error")],
            bound=0.1,
        ),
        graph(
            "Feedback",
            "Verdicts of clients by arm; expected ones are judged later.",
            "reqps",
            [
                Query(
                    per_second("switchcraft_feedback_total", "arm, verdict"), "{{arm}}: {{verdict}}"
                )
            ],
        ),
    ]


def _answers() -> list[Panel]:
    calls = "switchcraft_tool_calls_total"
    misfits = per_second(calls, "model", 'fits=~"no|unknown_tool"')
    checked = per_second(calls, "model", 'fits!="unchecked"')
    return [
        graph(
            "Calls that break their schema",
            "Share of tool calls that break their tool's schema, or name no tool that was offered.",
            "percentunit",
            [Query(ratio(misfits, checked), "{{model}}")],
            bound=0.1,
        ),
        graph(
            "Tool calls",
            "In answers, by whether they fit their tool's schema.",
            "reqps",
            [Query(per_second(calls, "fits"), "{{fits}}")],
            is_stacked=True,
        ),
        graph(
            "Weak evidence",
            "Calls that the next turn spoke against; they may have been right.",
            "reqps",
            [
                Query(
                    per_second("switchcraft_weak_evidence_total", "arm, kind"), "{{arm}}: {{kind}}"
                )
            ],
        ),
    ]


def _releases() -> list[Panel]:
    requests, failures = "switchcraft_release_requests_total", "switchcraft_release_failures_total"
    spent = per_second("switchcraft_release_cost_usd_total", "release")
    return [
        graph(
            "Failures by release",
            "Share of routed requests that failed by the upstream's or the gateway's fault.",
            "percentunit",
            [
                Query(
                    ratio(per_second(failures, "release"), per_second(requests, "release")),
                    "{{release}}",
                )
            ],
        ),
        graph(
            "Shadow",
            "Decisions of the shadow release, by whether it agrees on the model.",
            "reqps",
            [Query(per_second("switchcraft_shadow_decisions_total", "agrees"), "{{agrees}}")],
            is_stacked=True,
        ),
        bars(
            "Reloads and withdrawals",
            "Changes that were taken up or refused, and canaries withdrawn, over the time that is"
            " shown.",
            "none",
            [
                Query(
                    in_range("switchcraft_reloads_total", "kind, outcome"), "{{kind}} {{outcome}}"
                ),
                Query(
                    in_range("switchcraft_canary_withdrawals_total", "bound"),
                    "canary withdrawn: {{bound}}",
                ),
            ],
        ),
        graph(
            "Publication",
            "The publication that each gateway serves: apart where one lags behind.",
            "none",
            [Query(selected("switchcraft_publication_serial"), "{{instance}}")],
        ),
        graph(
            "Since the last change",
            "Time since the last taking-up or refusal, by kind.",
            "s",
            [
                Query(
                    "time() - max by (kind)"
                    f" ({selected('switchcraft_last_reload_timestamp_seconds')})",
                    "{{kind}}",
                )
            ],
        ),
        graph(
            "Cost of a thousand by release",
            "Of routed requests.",
            "currencyUSD",
            [Query(f"1000 * {ratio(spent, per_second(requests, 'release'))}", "{{release}}")],
        ),
    ]


def _gateway() -> list[Panel]:
    state, log = selected("switchcraft_shared_state_up"), selected("switchcraft_decision_log_up")
    lookups = "switchcraft_cache_lookups_total"
    hits = per_second(lookups, "cache", 'outcome="hit"')
    return [
        graph(
            "Caches",
            "Share of lookups that were hits.",
            "percentunit",
            [Query(ratio(hits, per_second(lookups, "cache")), "{{cache}}")],
        ),
        graph(
            "Told and lost",
            "Lines of the decision log, and what was lost of it and of traces.",
            "reqps",
            [
                Query(per_second("switchcraft_decision_log_lines_total", "type"), "{{type}}"),
                Query(
                    per_second("switchcraft_decision_log_dropped_total", "reason"),
                    "lost: {{reason}}",
                ),
                Query(per_second("switchcraft_spans_dropped_total"), "spans lost"),
                Query(
                    per_second("switchcraft_store_errors_total", "operation"),
                    "store lost: {{operation}}",
                ),
            ],
        ),
        states(
            "Shared state and decision log",
            "What each gateway reaches.",
            Query(
                f'label_replace({state}, "what", "shared state", "", "")'
                f' or label_replace({log}, "what", "decision log", "", "")',
                "{{instance}}: {{what}}",
            ),
            UP,
        ),
    ]
