"""The dashboard of what answers cost, and of what routing saves."""

from __future__ import annotations

from deploy.grafana.panels import (
    Panel,
    Query,
    bars,
    graph,
    in_range,
    number,
    per_second,
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
    """Return the panels by the rows that they are in."""
    return {
        "In the time that is shown": _sums(),
        "Spend": [_spend(), _spent_by_model(), _thousand_by_model()],
        "Savings": [_share_saved(), _routed_and_baseline(), _saved_by_model()],
        "Tokens": [_tokens_by_kind(), _tokens_by_model(), _tokens_cached()],
    }


def _sums() -> list[Panel]:
    return [_spent(), _saved(), _saved_of_baseline(), _thousand(), _unpriced(), _estimated()]


def _spent() -> Panel:
    return number(
        "Spent",
        "At list price, where tokens and price are known; see answers without a price.",
        "currencyUSD",
        Query(in_range(COST)),
    )


def _saved() -> Panel:
    return number(
        "Saved",
        "What routed requests would have cost at router.baseline_model's price for the same"
        " tokens, less what they cost.",
        "currencyUSD",
        Query(f"{in_range(BASELINE)} - {in_range(ROUTED)}"),
    )


def _saved_of_baseline() -> Panel:
    return number(
        "Saved, of the baseline's price",
        "The same as a share of what the baseline model would have cost.",
        "percentunit",
        Query(f"1 - {ratio(in_range(ROUTED), in_range(BASELINE))}"),
    )


def _thousand() -> Panel:
    return number(
        "Per thousand requests",
        "What a thousand requests cost that a model was asked for.",
        "currencyUSD",
        Query(f"1000 * {ratio(in_range(COST), in_range(REQUESTS, where=ASKED))}"),
    )


def _unpriced() -> Panel:
    return number(
        "Answers without a price",
        "Good answers whose cost is unknown, for want of usage or of a price: what was spent is"
        " more than is shown.",
        "none",
        Query(in_range("switchcraft_unpriced_answers_total") + " or vector(0)"),
        bounds={1: "yellow"},
    )


def _estimated() -> Panel:
    return number(
        "Estimated",
        "Share of the cost whose tokens the gateway counted, for the answer broke off or said"
        " no usage.",
        "percentunit",
        Query(ratio(in_range(COST, where='source="gateway"'), in_range(COST))),
        bounds={0.05: "yellow"},
    )


def _spend() -> Panel:
    return graph(
        "Spend by model",
        "At the present rate.",
        "currencyUSD",
        Query(_per_hour(COST, "model"), "{{model}}, an hour"),
        is_stacked=True,
    )


def _spent_by_model() -> Panel:
    return bars(
        "Spend by model, in all",
        "Over the time that is shown.",
        "currencyUSD",
        Query(in_range(COST, "model"), "{{model}}"),
    )


def _thousand_by_model() -> Panel:
    cost, requests = in_range(COST, "model"), in_range(REQUESTS, "model", ASKED)
    return bars(
        "A thousand requests by model",
        "What a thousand requests to a model cost, over the time that is shown.",
        "currencyUSD",
        Query(f"1000 * {ratio(cost, requests)}", "{{model}}"),
    )


def _share_saved() -> Panel:
    return graph(
        "Share saved",
        "Of the baseline model's price: the last day, and the week before it, by which the"
        " alert goes.",
        "percentunit",
        Query(selected("job:switchcraft_savings:ratio1d"), "last day"),
        Query(selected("job:switchcraft_savings:ratio1w"), "week before"),
    )


def _routed_and_baseline() -> Panel:
    return graph(
        "Routed, and the baseline",
        "What routed requests cost, and would have cost at the baseline model's price.",
        "currencyUSD",
        Query(_per_hour(ROUTED), "routed, an hour"),
        Query(_per_hour(BASELINE), "baseline, an hour"),
    )


def _saved_by_model() -> Panel:
    return bars(
        "Saved by model",
        "By the model that answered, over the time that is shown.",
        "currencyUSD",
        Query(f"{in_range(BASELINE, 'model')} - {in_range(ROUTED, 'model')}", "{{model}}"),
    )


def _tokens_by_kind() -> Panel:
    return graph(
        "Tokens by kind",
        "Cached ones are part of the prompt, reasoning ones of the completion.",
        "short",
        Query(per_second(TOKENS, "kind"), "{{kind}}, a second"),
    )


def _tokens_by_model() -> Panel:
    return graph(
        "Tokens by model",
        "Prompt and completion, a second.",
        "short",
        Query(per_second(TOKENS, "model", 'kind=~"prompt|completion"'), "{{model}}"),
        is_stacked=True,
    )


def _tokens_cached() -> Panel:
    cached = per_second(TOKENS, "model", 'kind="cached"')
    prompt = per_second(TOKENS, "model", 'kind="prompt"')
    return graph(
        "Read from the upstream's cache",
        "Share of the prompt's tokens that the upstream had cached.",
        "percentunit",
        Query(ratio(cached, prompt), "{{model}}"),
    )


def _per_hour(counter: str, by: str = "") -> str:
    return f"3600 * {per_second(counter, by)}"
