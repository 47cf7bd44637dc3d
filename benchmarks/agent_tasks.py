"""How much the cheapest model that is good enough saves on whole tasks of agents, and loses.

    python -m benchmarks.agent_tasks data/agents-2026

Pools are four random models that OpenHands ran on SWE-bench Verified. A model is chosen by its
success and cost on some of the tasks, and measured on the others. It is compared with the model
that is best on the tasks of the choice, which one would use otherwise, and with the one that is
best on all tasks, which nobody knows before. Standard errors are those of resampled tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.agent_task_table import TaskOutcomes, read_outcomes
from benchmarks.stamp import write_figures
from router_service.measurement.agent_tasks import cheapest_within
from router_service.predictor.model import Floats

BENCHMARK, HARNESS = "SWE-bench Verified", "OpenHands"
MODELS = 4
DIVISIONS, POOLS = 200, 200
"""Divisions of the tasks, and pools that are drawn for each."""
SHARES = (0.5, 0.8)
"""Shares of the tasks by which models are chosen."""
POINTS = (0, 1, 2, 5)
DEAREST = "the dearest by list price"


def tables(models: Sequence[TaskOutcomes]) -> tuple[Floats, Floats]:
    """Return success and cost in USD, (models, tasks) each; what was not recorded is NaN."""
    tasks = sorted({task for model in models for task in model.success})
    return (
        np.array([[model.success.get(task, np.nan) for task in tasks] for model in models]),
        np.array([[model.cost_usd.get(task, np.nan) for task in tasks] for model in models]),
    )


def measure(
    success: Floats,
    cost_usd: Floats,
    list_usd: Floats,
    share: float,
    rng: np.random.Generator,
    *,
    resamples: bool,
) -> Floats:
    """Return the mean results of random pools for one division of the tasks, (rules, 6).

    They are success and cost of the chosen model, of the best on the tasks of the choice, and of
    the best on all tasks, all of them on the other tasks. `resamples` draws the tasks of both parts
    with replacement.
    """
    order = rng.permutation(success.shape[1])
    count = round(share * len(order))
    chosen_on, others = order[:count], order[count:]
    if resamples:
        chosen_on, others = rng.choice(chosen_on, count), rng.choice(others, len(others))
    before = [np.nanmean(table[:, chosen_on], axis=1) for table in (success, cost_usd)]
    after = np.stack([np.nanmean(table[:, others], axis=1) for table in (success, cost_usd)], 1)
    overall = np.nanmean(success, axis=1)
    results = np.zeros((len(POINTS) + 1, 6))
    for _ in range(POOLS):
        pool = rng.choice(len(success), MODELS, replace=False)
        best, true_best = pool[before[0][pool].argmax()], pool[overall[pool].argmax()]
        usd = before[1][pool].tolist()
        rules = [pool[cheapest_within(before[0][pool].tolist(), usd, points)] for points in POINTS]
        rules.append(pool[list_usd[pool].argmax()])
        results += [[*after[chosen], *after[best], *after[true_best]] for chosen in rules]
    return results / POOLS


def comparisons(results: Floats) -> tuple[Floats, ...]:
    """Return points lost and percent of the cost, against each of the two best models."""
    success, usd, best, best_usd, true_best, true_best_usd = results
    return (
        100 * (best - success),
        100 * usd / best_usd,
        100 * (true_best - success),
        100 * usd / true_best_usd,
    )


def main() -> None:
    """Print the points lost and the share of the cost, by rule and by the tasks of the choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outcomes", type=Path, help="directory of recorded outcomes")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    options = parser.parse_args()
    models = [
        outcomes
        for outcomes in read_outcomes(options.outcomes)
        if (outcomes.source.benchmark, outcomes.source.harness) == (BENCHMARK, HARNESS)
    ]
    success, cost_usd = tables(models)
    prices = [model.price for model in models]
    list_usd = np.array([(price and price.output_usd_per_mtok) or 0.0 for price in prices])
    print(f"{len(models)} models, {success.shape[1]} tasks, pools of {MODELS}\n")
    print("| chosen on | rule | points below the best there | % of its cost |", end="")
    print(" points below the best on all tasks | % of its cost |\n|---|---|---|---|---|---|")
    rules = [f"the cheapest within {points} points" for points in POINTS] + [DEAREST]
    figures = {}
    for share in SHARES:
        rng = np.random.default_rng(1)
        divided, resampled = (
            np.array(
                [
                    measure(success, cost_usd, list_usd, share, rng, resamples=resamples)
                    for _ in range(DIVISIONS)
                ]
            ).transpose(1, 2, 0)
            for resamples in (False, True)
        )
        for rule, values, draws in zip(rules, divided, resampled, strict=True):
            pairs = zip(comparisons(values.mean(axis=1)), comparisons(draws), strict=True)
            cells = [f"{value:.1f} ± {drawn.std(ddof=1):.1f}" for value, drawn in pairs]
            figures[f"{share:.0%} {rule}"] = list(cells)
            print(f"| {share:.0%} of the tasks | {rule} |", " | ".join(cells), "|", flush=True)
    write_figures(options.out, figures)


if __name__ == "__main__":
    main()
