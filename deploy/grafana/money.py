"""Dashboard of cost and savings."""

from __future__ import annotations

from deploy.grafana.panels import (
    Panel,
    Query,
    bars,
    graph,
    in_range,
    number,
    per_second,
    quantiles,
    ratio,
    selected,
)

TITLE = "Switchcraft: money"
COST = "switchcraft_cost_usd_total"
ROUTED = "switchcraft_routed_cost_usd_total"
BASELINE = "switchcraft_baseline_cost_usd_total"
REQUESTS = "switchcraft_requests_total"
TOKENS = "switchcraft_tokens_total"
ASKED = 'model!="none"'


def rows() -> dict[str, list[Panel]]:
    """Return the panels by row."""
    return {
        "Selected time range": _sums(),
        "Spend": [_spend(), _spent_by_model(), _thousand_by_model()],
        "Savings": [_share_saved(), _routed_and_baseline(), _saved_by_model()],
        "Verified answers": [_candidates(), _rejected(), _added_latency()],
        "Conversations": [_conversation_costs(), _conversation_switches(), _conversation_caches()],
        "Tokens": [_tokens_by_kind(), _tokens_by_model(), _tokens_cached()],
    }


def _conversation_costs() -> Panel:
    return graph(
        "Cost of conversations",
        "What conversations cost, and what they would cost if their first arm had answered all.",
        "currencyUSD",
        Query(per_second("switchcraft_conversation_cost_usd_total"), "as routed"),
        Query(per_second("switchcraft_conversation_first_arm_cost_usd_total"), "first arm"),
    )


def _conversation_switches() -> Panel:
    return graph(
        "Changes of a conversation's arm",
        "Requests per second that another arm answered than the request before, by the new arm.",
        "reqps",
        Query(per_second("switchcraft_conversation_switches_total", "arm"), "{{arm}}"),
        is_stacked=True,
    )


def _conversation_caches() -> Panel:
    return graph(
        "Prompts expected in a provider's cache",
        "Requests per second for which the provider reported cached tokens (hit) or none (miss).",
        "reqps",
        Query(per_second("switchcraft_conversation_caches_total", "result"), "{{result}}"),
        is_stacked=True,
    )


def _candidates() -> Panel:
    return graph(
        "Candidate answers by arm and outcome",
        "Answers per second that arms gave to requests with the policy verified.",
        "reqps",
        Query(per_second("switchcraft_candidates_total", "arm, outcome"), "{{arm}}, {{outcome}}"),
        is_stacked=True,
    )


def _rejected() -> Panel:
    cost = per_second("switchcraft_rejected_cost_usd_total")
    return graph(
        "Cost of rejected candidates",
        "Share of the whole cost that was spent on candidate answers that were not delivered.",
        "percentunit",
        Query(ratio(cost, per_second(COST))),
    )


def _added_latency() -> Panel:
    return graph(
        "Latency that verification added",
        "Time from the first complete candidate answer until one was accepted.",
        "s",
        *quantiles("switchcraft_verification_added_seconds", 0.5, 0.95),
    )


def _sums() -> list[Panel]:
    return [_spent(), _saved(), _saved_of_baseline(), _thousand(), _unpriced(), _estimated()]


def _spent() -> Panel:
    return number(
        "Spent",
        "List price of all answers whose tokens and price are known.",
        "currencyUSD",
        Query(in_range(COST)),
    )


def _saved() -> Panel:
    return number(
        "Saved",
        "Cost of the routed requests' tokens at the price of router.baseline_model, minus their"
        " actual cost.",
        "currencyUSD",
        Query(f"{in_range(BASELINE)} - {in_range(ROUTED)}"),
    )


def _saved_of_baseline() -> Panel:
    return number(
        "Saved, share of the baseline",
        "The same, as a share of the cost at the baseline model's price.",
        "percentunit",
        Query(f"1 - {ratio(in_range(ROUTED), in_range(BASELINE))}"),
    )


def _thousand() -> Panel:
    return number(
        "Cost of 1,000 requests",
        "Mean cost of 1,000 requests that were sent to a model.",
        "currencyUSD",
        Query(f"1000 * {ratio(in_range(COST), in_range(REQUESTS, where=ASKED))}"),
    )


def _unpriced() -> Panel:
    return number(
        "Answers without a price",
        "Successful answers of unknown cost, because usage or price is missing. The actual spend"
        " is higher than shown.",
        "none",
        Query(in_range("switchcraft_unpriced_answers_total") + " or vector(0)"),
        bounds={1: "yellow"},
    )


def _estimated() -> Panel:
    return number(
        "Estimated",
        "Share of the cost for which the gateway counted the tokens, because the answer was"
        " incomplete or had no usage.",
        "percentunit",
        Query(ratio(in_range(COST, where='source="gateway"'), in_range(COST))),
        bounds={0.05: "yellow"},
    )


def _spend() -> Panel:
    return graph(
        "Spend by model",
        "USD per hour at the current rate.",
        "currencyUSD",
        Query(_per_hour(COST, "model"), "{{model}}, per hour"),
        is_stacked=True,
    )


def _spent_by_model() -> Panel:
    return bars(
        "Total spend by model",
        "Sum over the selected time range.",
        "currencyUSD",
        Query(in_range(COST, "model"), "{{model}}"),
    )


def _thousand_by_model() -> Panel:
    cost, requests = in_range(COST, "model"), in_range(REQUESTS, "model", ASKED)
    return bars(
        "Cost of 1,000 requests by model",
        "Mean cost of 1,000 requests to a model, over the selected time range.",
        "currencyUSD",
        Query(f"1000 * {ratio(cost, requests)}", "{{model}}"),
    )


def _share_saved() -> Panel:
    return graph(
        "Share saved",
        "Share of the baseline model's price that was saved on the last day and in the week"
        " before, which the alert compares.",
        "percentunit",
        Query(selected("job:switchcraft_savings:ratio1d"), "last day"),
        Query(selected("job:switchcraft_savings:ratio1w"), "week before"),
    )


def _routed_and_baseline() -> Panel:
    return graph(
        "Routed and baseline cost",
        "Cost of routed requests, and their cost at the baseline model's price.",
        "currencyUSD",
        Query(_per_hour(ROUTED), "routed, per hour"),
        Query(_per_hour(BASELINE), "baseline, per hour"),
    )


def _saved_by_model() -> Panel:
    return bars(
        "Saved by model",
        "By the model that answered, over the selected time range.",
        "currencyUSD",
        Query(f"{in_range(BASELINE, 'model')} - {in_range(ROUTED, 'model')}", "{{model}}"),
    )


def _tokens_by_kind() -> Panel:
    return graph(
        "Tokens by kind",
        "Cached tokens are part of the prompt, reasoning tokens part of the completion.",
        "short",
        Query(per_second(TOKENS, "kind"), "{{kind}}, per second"),
    )


def _tokens_by_model() -> Panel:
    return graph(
        "Tokens by model",
        "Prompt and completion tokens per second.",
        "short",
        Query(per_second(TOKENS, "model", 'kind=~"prompt|completion"'), "{{model}}"),
        is_stacked=True,
    )


def _tokens_cached() -> Panel:
    cached = per_second(TOKENS, "model", 'kind="cached"')
    prompt = per_second(TOKENS, "model", 'kind="prompt"')
    return graph(
        "Cached prompt tokens",
        "Share of prompt tokens that the upstream read from its cache.",
        "percentunit",
        Query(ratio(cached, prompt), "{{model}}"),
    )


def _per_hour(counter: str, by: str = "") -> str:
    return f"3600 * {per_second(counter, by)}"
