"""Costs predicted from a request's length, compared with the mean cost of the profile.

    python benchmarks/expected_cost.py --data ../shared/data --out runs/expected_cost.json

All costs and probabilities are held-out predictions, from five folds that keep near-duplicates
together. All contenders use the same probabilities, by trees on structural features:

    constant   the arm's mean cost, as in the artifact's profile
    line       linear regression of the arm's costs on the tokens of the whole request
    packed     linear regression on the tokens of the packed request
    ratio      the mean cost times the request's tokens over their mean
    trees      trees on tokens and structural features, nearly all the information in a request
    recorded   the actual cost of the answer, known only in hindsight

Cost matters only if several arms pass the policy, so only the order of the arms matters. `ratio`
keeps the order of `constant` and chooses the same arms. On the reference pool, regression and
trees choose worse than the constant, by 0.3 to 0.6 points at equal cost: arms of nearly equal cost
swap places, which saves little and loses accuracy. Even the recorded cost gains nothing, and on
the 7-8B models no difference exceeds its interval. The artifact therefore uses the constant.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import orjson
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, r2_score
from tokenizers import Tokenizer

from benchmarks.stamp import stamp
from router_service.apis.conversation import Json, parse_conversation
from router_service.artifact import SHIPPED, TOKENIZER
from router_service.measurement.rules import best_single, cheapest_single, route
from router_service.measurement.statistics import Estimate
from router_service.policies.drift import DRIFTS
from router_service.policies.threshold import THETAS
from router_service.predictor.features import FEATURES, extract
from router_service.predictor.packing import Packer
from switchcraft_training.checking import paraphrase_check
from switchcraft_training.config import RunConfig, SourceConfig, load_config
from switchcraft_training.data.outcomes import tabulate_outcomes
from switchcraft_training.data.splits import Split, fold_table, group_table
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import load_dataset, open_source
from switchcraft_training.evaluation.frontier import aiq
from switchcraft_training.evaluation.metrics import bootstrap, paired_interval, ratio_interval
from switchcraft_training.records import Example

FOLDS = 5
USD_PER_HOUR = 1.20
"""Price of the GPU on which the latency was recorded."""
RULES = (
    *("theta=0.5", "theta=0.7", "theta=0.8", "theta=0.9"),
    *("drift=0.02", "drift=0.05", "drift=0.1", "drift=0.2"),
)
MEASURED = (*(f"theta={theta:g}" for theta in THETAS), *(f"drift={delta:g}" for delta in DRIFTS))
CONSTANT = "constant"
LOCAL = SourceConfig(format="bfcl", path=Path("bfcl-v3-8b"))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs known before the answer: tokens (queries,) and structural features (queries, k)."""

    raw_tokens: Floats
    packed_tokens: Floats
    counts: Floats


Fit = Callable[[Inputs, Floats, Sequence[int], Sequence[int]], Floats]
"""Function of inputs, costs (queries, arms), rows to fit and rows to predict to costs (rows,
arms)."""


def constant(inputs: Inputs, costs_usd: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    """Predict the mean."""
    del inputs
    return np.tile(costs_usd[list(seen)].mean(0), (len(left), 1))


def line(inputs: Inputs, costs_usd: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    """Predict by linear regression on the tokens of the whole request."""
    return _line(inputs.raw_tokens[:, None], costs_usd, seen, left)


def packed(inputs: Inputs, costs_usd: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    """Predict by linear regression on the tokens of the packed request."""
    return _line(inputs.packed_tokens[:, None], costs_usd, seen, left)


def _line(tokens: Floats, costs_usd: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    model = LinearRegression().fit(tokens[list(seen)], costs_usd[list(seen)])
    expected: Floats = np.maximum(model.predict(tokens[list(left)]), 0.0)
    return expected


def ratio(inputs: Inputs, costs_usd: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    """Predict the mean in proportion to tokens."""
    relative = inputs.raw_tokens[list(left)] / inputs.raw_tokens[list(seen)].mean()
    expected: Floats = constant(inputs, costs_usd, seen, left) * relative[:, None]
    return expected


def trees(inputs: Inputs, targets: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    """Predict costs or correctness by trees on tokens and structural features."""
    known = np.column_stack([inputs.raw_tokens, inputs.packed_tokens, inputs.counts])
    model = ExtraTreesRegressor(200, min_samples_leaf=5, max_features=0.3, random_state=0)
    scale = targets[list(seen)].mean(0)  # Costs of arms differ by a factor of a hundred.
    predicted = model.fit(known[list(seen)], targets[list(seen)] / scale).predict(known[list(left)])
    return np.asarray(predicted * scale)


def recorded(inputs: Inputs, costs_usd: Floats, seen: Sequence[int], left: Sequence[int]) -> Floats:
    """Return the actual cost."""
    del inputs, seen
    return costs_usd[list(left)]


CONTENDERS: Mapping[str, Fit] = {
    CONSTANT: constant,
    "line": line,
    "packed": packed,
    "ratio": ratio,
    "trees": trees,
    "recorded": recorded,
}


def main() -> None:
    """Print tables of both pools, and write them as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    config = load_config(Path("configs/reference-pool.yaml")).model_copy(
        update={"auxiliary_arms": "none", "also": ()}
    )
    pools = {
        "reference pool": reference_pool(config, arguments.data),
        "7-8B models": local_pool(config, arguments.data),
    }
    figures = {name: measure(name, table, config) for name, table in pools.items()}
    if arguments.out:
        row = {"pools": figures, **stamp("scikit-learn")}
        arguments.out.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


def reference_pool(config: RunConfig, data: Path) -> Table:
    """Read the pool whose costs come from tokens and list prices."""
    return load_dataset(config, data).measured(config.arms)


def local_pool(config: RunConfig, data: Path) -> Table:
    """Read the pool whose costs are GPU seconds, for queries with timings of every arm."""
    source = open_source(LOCAL, data, paraphrase_check(config.checking.paraphrases))
    examples, arms = list(source.examples()), source.arms()
    table = tabulate_outcomes(examples, arms, source.outcomes)
    table = replace(table, cost_usd=table.seconds / 3600 * USD_PER_HOUR)
    table = table.take(np.flatnonzero(~np.isnan(table.correct + table.seconds).any(axis=1)))
    return group_table(table)


def measure(name: str, table: Table, config: RunConfig) -> dict[str, Json]:
    """Print a pool's tables and return their figures."""
    start = time.perf_counter()
    inputs = read_inputs(table.examples, config)
    splits = fold_table(table, FOLDS, seed=0)
    rows = [row for split in splits for row in split.test]
    correct, costs_usd = table.correct, table.cost_usd
    probabilities = left_out(trees, inputs, correct, splits)
    expected = {key: left_out(fit, inputs, costs_usd, splits) for key, fit in CONTENDERS.items()}
    outcomes = table.take(rows)
    print(f"\n{name}: {len(rows):,} queries, {len(table.arms)} arms")
    figures = {
        "queries": len(rows),
        "prediction": prediction(outcomes, expected),
        "routing": routing(outcomes, probabilities, expected),
        "frontier": frontier(outcomes, probabilities, expected),
    }
    print(f"{time.perf_counter() - start:.0f} s")
    return figures


def read_inputs(examples: Sequence[Example], config: RunConfig) -> Inputs:
    """Return each request's tokens, whole and packed, and its structural features."""
    path = str(SHIPPED / TOKENIZER)
    tokenizer, packer = Tokenizer.from_file(path), Packer(config.packing, Tokenizer.from_file(path))
    tokenizer.no_truncation()
    conversations = [parse_conversation(example.request) for example in examples]
    texts = [json.dumps([e.request["messages"], e.request["tools"]]) for e in examples]
    return Inputs(
        raw_tokens=np.array([len(tokenizer.encode(text).ids) for text in texts], dtype=float),
        packed_tokens=np.array([len(packer.pack(c).token_ids) for c in conversations], dtype=float),
        counts=np.array([extract(c, list(FEATURES)) for c in conversations]),
    )


def left_out(fit: Fit, inputs: Inputs, targets: Floats, splits: Sequence[Split]) -> Floats:
    """Predict each fold's test rows from the other folds, in the order of the folds."""
    parts = [fit(inputs, targets, (*s.train, *s.validation), s.test) for s in splits]
    return np.concatenate(parts)


def prediction(outcomes: Table, expected: Mapping[str, Floats]) -> dict[str, Json]:
    """Print relative error and R2 of predicted costs, as means and ranges over arms."""
    print(f"{'cost':<10} {'mean error, % of mean cost':>28} {'R2: mean (worst to best arm)':>32}")
    figures: dict[str, Json] = {}
    actual = outcomes.cost_usd
    for name, costs in expected.items():
        pairs = list(zip(actual.T, costs.T, strict=True))
        error = [mean_absolute_error(a, c) for a, c in pairs]
        fit = [r2_score(a, c) for a, c in pairs]
        relative = np.mean(np.array(error) / actual.mean(0))
        print(
            f"{name:<10} {relative:>28.1%} {np.mean(fit):>14.3f} ({min(fit):.3f} to {max(fit):.3f})"
        )
        figures[name] = {
            arm: {"mean_absolute_error_usd": e, "r2": r}
            for arm, e, r in zip(outcomes.arms, error, fit, strict=True)
        }
    return figures


def routing(
    outcomes: Table, probabilities: Floats, expected: Mapping[str, Floats]
) -> dict[str, Json]:
    """Print each rule's accuracy and cost with each contender, compared with the constant."""
    print(f"{'rule':<10} {'cost':<10} {'accuracy':>8} {'points vs. constant':>24}", end=" ")
    print(f"{'USD/1,000':>10} {'cost, % of constant':>26}")
    figures: dict[str, Json] = {}
    for rule in RULES:
        base = outcomes.pick(route(probabilities, expected[CONSTANT], rule))
        for name, costs in expected.items():
            got, paid = outcomes.pick(route(probabilities, costs, rule))
            low, high = paired_interval(got, base[0])
            least, most = ratio_interval(paid, base[1]) or (np.nan, np.nan)
            ahead, share = (got - base[0]).mean(), paid.mean() / base[1].mean()
            figures[f"{rule} {name}"] = {
                "accuracy": got.mean(),
                "difference": [ahead, low, high],
                "usd_per_1k": paid.mean() * 1e3,
                "cost_ratio": [share, least, most],
            }
            print(
                f"{rule:<10} {name:<10} {got.mean():>8.1%}"
                f" {f'{ahead * 100:+.2f} [{low * 100:+.2f}, {high * 100:+.2f}]':>24}"
                f" {paid.mean() * 1e3:>10.4f}"
                f" {f'{share:.1%} [{least:.1%}, {most:.1%}]':>26}"
            )
    return {key: _floats(value) for key, value in figures.items()}


def frontier(
    outcomes: Table, probabilities: Floats, expected: Mapping[str, Floats]
) -> dict[str, Json]:
    """Print accuracy at equal cost: the mean height of each frontier over the constant's.

    The range is from the cost of the cheapest single model to that of the best one (to the most
    expensive one if the cheapest is the best), over the rules of the sweep
    (`switchcraft_training.evaluation.field.aiq`).
    """
    singles = outcomes.cost_usd.mean(0)
    low = float(singles[cheapest_single(outcomes)])
    high = float(singles[best_single(outcomes)])
    high = high if high > low else float(singles.max())
    base = _sweep(outcomes, probabilities, expected[CONSTANT])
    print("accuracy at equal cost, points over constant, mean over the frontier:")
    figures: dict[str, Json] = {}
    for name, costs in expected.items():
        both = np.hstack([base, _sweep(outcomes, probabilities, costs)])
        found = bootstrap(both, partial(_gain, low=low, high=high))
        if found is not None:
            print(f"{name:<10} {_points(found)}")
            figures[name] = [found.value, *found.interval]
    return figures


def _sweep(outcomes: Table, probabilities: Floats, costs_usd: Floats) -> Floats:
    """Return each rule's costs, then its correct answers, (queries, 2 x rules)."""
    ends = [outcomes.pick(route(probabilities, costs_usd, rule)) for rule in MEASURED]
    return np.column_stack([*(paid for _, paid in ends), *(got for got, _ in ends)])


def _gain(means: Floats, low: float, high: float) -> float:
    base, other = (part.reshape(2, -1).T for part in np.split(means, 2))
    return aiq(other, low, high) - aiq(base, low, high)


def _points(found: Estimate) -> str:
    low, high = found.interval
    return f"{found.value * 100:+.2f} [{low * 100:+.2f}, {high * 100:+.2f}]"


def _floats(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _floats(inner) for key, inner in value.items()}
    return [float(each) for each in value] if isinstance(value, list) else float(value)


if __name__ == "__main__":
    main()
