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
)

TITLE = "Switchcraft: money"
COST = "switchcraft_cost_usd_total"
ROUTED = "switchcraft_routed_cost_usd_total"
BASELINE = "switchcraft_baseline_cost_usd_total"
TOKENS = "switchcraft_tokens_total"


def rows() -> dict[str, list[Panel]]:
    """Return the panels by the rows that they are in."""
    return {
        "In the time that is shown": _sums(),
        "Spend": _spend(),
        "Savings": _savings(),
        "Tokens": _tokens(),
    }


def _sums() -> list[Panel]:
    requests = in_range("switchcraft_requests_total", where='model!="none"')
    estimated = in_range(COST, where='source="gateway"')
    return [
        number(
            "Spent",
            "At list price, where tokens and price are known; see answers without a price.",
            "currencyUSD",
            Query(in_range(COST)),
        ),
        number(
            "Saved",
            "What routed requests would have cost at router.baseline_model's price for the same"
            " tokens, less what they cost.",
            "currencyUSD",
            Query(f"{in_range(BASELINE)} - {in_range(ROUTED)}"),
        ),
        number(
            "Saved, of the baseline's price",
            "The same as a share of what the baseline model would have cost.",
            "percentunit",
            Query(f"1 - {ratio(in_range(ROUTED), in_range(BASELINE))}"),
        ),
        number(
            "Per thousand requests",
            "What a thousand requests cost that a model was asked for.",
            "currencyUSD",
            Query(f"1000 * {ratio(in_range(COST), requests)}"),
        ),
        number(
            "Answers without a price",
            "Good answers whose cost is unknown, for want of usage or of a price: what was spent is"
            " more than is shown.",
            "none",
            Query(in_range("switchcraft_unpriced_answers_total") + " or vector(0)"),
            bounds={1: "yellow"},
        ),
        number(
            "Estimated",
            "Share of the cost whose tokens the gateway counted, for the answer broke off or said"
            " no usage.",
            "percentunit",
            Query(ratio(estimated, in_range(COST))),
            bounds={0.05: "yellow"},
        ),
    ]


def _spend() -> list[Panel]:
    requests = in_range("switchcraft_requests_total", "model", 'model!="none"')
    return [
        graph(
            "Spend by model",
            "At the present rate.",
            "currencyUSD",
            [Query(f"3600 * {per_second(COST, 'model')}", "{{model}}, an hour")],
            is_stacked=True,
        ),
        bars(
            "Spend by model, in all",
            "Over the time that is shown.",
            "currencyUSD",
            [Query(in_range(COST, "model"), "{{model}}")],
        ),
        bars(
            "A thousand requests by model",
            "What a thousand requests to a model cost, over the time that is shown.",
            "currencyUSD",
            [Query(f"1000 * {ratio(in_range(COST, 'model'), requests)}", "{{model}}")],
        ),
    ]


def _savings() -> list[Panel]:
    return [
        graph(
            "Share saved",
            "Of the baseline model's price: the last day, and the week before it, by which the"
            " alert goes.",
            "percentunit",
            [
                Query("job:switchcraft_savings:ratio1d" + '{job="$job"}', "last day"),
                Query("job:switchcraft_savings:ratio1w" + '{job="$job"}', "week before"),
            ],
        ),
        graph(
            "Routed, and the baseline",
            "What routed requests cost, and would have cost at the baseline model's price.",
            "currencyUSD",
            [
                Query(f"3600 * {per_second(ROUTED)}", "routed, an hour"),
                Query(f"3600 * {per_second(BASELINE)}", "baseline, an hour"),
            ],
        ),
        bars(
            "Saved by model",
            "By the model that answered, over the time that is shown.",
            "currencyUSD",
            [Query(f"{in_range(BASELINE, 'model')} - {in_range(ROUTED, 'model')}", "{{model}}")],
        ),
    ]


def _tokens() -> list[Panel]:
    counted = 'kind=~"prompt|completion"'
    cached = per_second(TOKENS, "model", 'kind="cached"')
    prompt = per_second(TOKENS, "model", 'kind="prompt"')
    return [
        graph(
            "Tokens by kind",
            "Cached ones are part of the prompt, reasoning ones of the completion.",
            "short",
            [Query(per_second(TOKENS, "kind"), "{{kind}}, a second")],
        ),
        graph(
            "Tokens by model",
            "Prompt and completion, a second.",
            "short",
            [Query(per_second(TOKENS, "model", counted), "{{model}}")],
            is_stacked=True,
        ),
        graph(
            "Read from the upstream's cache",
            "Share of the prompt's tokens that the upstream had cached.",
            "percentunit",
            [Query(ratio(cached, prompt), "{{model}}")],
        ),
    ]
