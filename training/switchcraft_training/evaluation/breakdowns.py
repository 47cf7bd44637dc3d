"""Breakdowns of a router's errors and of the arms' costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router_service.apis.conversation import parse_conversation
from router_service.artifact import Measure
from router_service.measurement.rules import Choices, best_single, oracle
from router_service.measurement.statistics import Estimate, mean_measure
from router_service.policies.costs import Price
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.evaluate import Entrant
from switchcraft_training.evaluation.metrics import bootstrap, paired_interval
from switchcraft_training.records import Example

TOOLS = (1, 3, 6, 10, 50)
TURNS = (1, 2, 4, 8, 20)
"""Upper bounds of the ranges of `TOOLS` and `TURNS` (paper, appendix on misrouted queries)."""
LEVELS = 20
"""The paper's attempts at each query (appendix on probabilistic correctness labels)."""
FIFTHS = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy, and mean cost of a query in USD."""

    accuracy: Measure
    cost_usd: Measure


@dataclass(frozen=True, slots=True)
class Category:
    """Scores of every arm, the router and the oracle in one category.

    `difference` is the router's accuracy minus the best single model's accuracy, both in this
    category. The best single model is chosen over all categories.
    """

    name: str
    n: int
    scores: Mapping[str, Score]
    difference: float
    difference_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class RoutingOutcome:
    """Number and share of queries with one of the four routing outcomes."""

    name: str
    meaning: str
    count: float
    share: Measure


@dataclass(frozen=True, slots=True)
class Routing:
    """The four routing outcomes (paper, section 4.7).

    The overhead is the extra cost of the choices that are correct, but not the cheapest correct
    ones.
    """

    outcomes: tuple[RoutingOutcome, ...]
    median_overhead_usd: float
    total_overhead_usd: float


@dataclass(frozen=True, slots=True)
class Bucket:
    """Shares of misrouted queries in one range of a property.

    `misrouted` counts every query whose chosen arm is wrong. `wrong_model` counts only those for
    which another arm is correct.
    """

    label: str
    misrouted: Measure
    wrong_model: Measure


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Shares of misrouted queries by one property, such as the number of tools."""

    by: str
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class AttemptShares:
    """How often repeated answers to a query were correct, in one group of (query, arm) pairs.

    `shares` has the share of the pairs at each of the `LEVELS` + 1 probabilities from 0 to 1.
    `mid` is the share of those that are neither always correct nor never.
    """

    name: str
    shares: tuple[float, ...]
    mid: Measure


@dataclass(frozen=True, slots=True)
class RepeatedAnswers:
    """Distribution of correctness over repeated answers, by arm and by category."""

    arms: tuple[AttemptShares, ...]
    categories: tuple[AttemptShares, ...]


@dataclass(frozen=True, slots=True)
class Confusion:
    """Numbers of queries by the router's choice (rows) and the oracle's choice (columns).

    `queries` counts all queries. `lost` counts those for which the router's choice is wrong and
    another arm is correct.
    """

    arms: tuple[str, ...]
    queries: tuple[tuple[float, ...], ...]
    lost: tuple[tuple[float, ...], ...]

    @property
    def has_lost(self) -> bool:
        """Whether `lost` counts any query."""
        return any(map(any, self.lost))


def by_category(table: Table, chosen: Choices, categories: Sequence[str]) -> tuple[Category, ...]:
    """Score the arms, the router and the oracle in each category, largest category first."""
    names = np.array(categories)
    counts = {str(name): int((names == name).sum()) for name in np.unique(names)}
    best = best_single(table)
    return tuple(
        _category(name, table.take(names == name), chosen[names == name], best)
        for name in sorted(counts, key=lambda name: (-counts[name], name))
    )


def _category(name: str, table: Table, chosen: Choices, best: int) -> Category:
    ours, paid = table.pick(chosen)
    theirs = table.correct[:, best]
    arms = {
        arm: _score(table.correct[:, i], table.cost_usd[:, i]) for i, arm in enumerate(table.arms)
    }
    ends = {"router": _score(ours, paid), "oracle": _score(*table.pick(oracle(table)))}
    return Category(
        name=name,
        n=len(chosen),
        scores={**arms, **ends},
        difference=float((ours - theirs).mean()),
        difference_interval=paired_interval(ours, theirs),
    )


def _score(correct: Floats, cost_usd: Floats) -> Score:
    return Score(mean_measure(correct), mean_measure(cost_usd))


def dataset_oracle(table: Table, categories: Sequence[str]) -> Entrant:
    """Return an entrant that uses the best single arm of each category, chosen in hindsight.

    No router that uses only a query's category is more accurate on these queries.
    """
    names = np.array(categories)
    choices = np.zeros(len(names), dtype=np.int64)
    for name in np.unique(names):
        choices[names == name] = best_single(table.take(names == name))
    return Entrant("oracle", "dataset oracle", choices)


def routing(table: Table, chosen: Choices) -> Routing:
    """Count the four routing outcomes; a query with fractional labels counts partly in several."""
    got, paid = table.pick(chosen)
    _, ideal_usd = table.pick(oracle(table))
    top = table.correct.max(axis=1)
    optimal = np.where((got == top) & (paid <= ideal_usd), got, 0.0)
    suboptimal = got - optimal
    overhead_usd = (paid - ideal_usd)[suboptimal > 0]
    parts = (
        ("correct, optimal", "the cheapest correct model was chosen", optimal),
        ("correct, suboptimal", "a correct but costlier model was chosen", suboptimal),
        ("wrong model", "a correct model exists, the chosen one failed", top - got),
        ("no correct model", "every model in the pool fails", 1 - top),
    )
    return Routing(
        outcomes=tuple(
            RoutingOutcome(name, meaning, float(part.sum()), mean_measure(part))
            for name, meaning, part in parts
        ),
        median_overhead_usd=float(np.median(overhead_usd)) if len(overhead_usd) else 0.0,
        total_overhead_usd=float(overhead_usd.sum()),
    )


def misroutes(table: Table, chosen: Choices, examples: Sequence[Example]) -> tuple[Breakdown, ...]:
    """Return the shares of misrouted queries by tools, turns, length and number of correct models.

    A query is misrouted if the chosen arm is wrong, whether or not another arm is correct.
    """
    turns = [parse_conversation(example.request).turns for example in examples]
    words = np.array([sum(len(turn.text.split()) for turn in chat) for chat in turns])
    fifths = sorted({int(q) for q in np.quantile(words, FIFTHS, method="lower")})
    solvers = (table.correct >= 0.5).sum(axis=1)
    properties: tuple[tuple[str, NDArray[np.int64], Sequence[int]], ...] = (
        ("number of tools", np.array([len(e.request["tools"]) for e in examples]), TOOLS),
        ("number of turns", np.array([len(chat) for chat in turns]), TURNS),
        ("length, words", words, fifths),
        ("number of correct models", solvers, range(len(table.arms) + 1)),
    )
    got, _ = table.pick(chosen)
    avoidable = table.correct.max(axis=1) - got
    breakdowns = []
    for name, values, upper_bounds in properties:
        bucket_of = np.searchsorted(upper_bounds, values)
        buckets = tuple(
            Bucket(
                label=range_label(upper_bounds, int(number)),
                misrouted=mean_measure(1 - got[bucket_of == number]),
                wrong_model=mean_measure(avoidable[bucket_of == number]),
            )
            for number in np.unique(bucket_of)  # empty ranges are omitted
        )
        breakdowns.append(Breakdown(name, buckets))
    return tuple(breakdowns)


def range_label(upper_bounds: Sequence[int], number: int) -> str:
    """Return the label of an integer range, for example `to 2`, `3-6`, `7` or `51+`."""
    if number == len(upper_bounds):
        return f"{upper_bounds[-1] + 1}+"
    last = upper_bounds[number]
    if number == 0:
        return f"{last}" if last <= 1 else f"to {last}"
    first = upper_bounds[number - 1] + 1
    return f"{last}" if first == last else f"{first}-{last}"


def confusion(table: Table, chosen: Choices) -> Confusion:
    """Count queries by the router's choice and the oracle's choice."""
    ideal = oracle(table)
    got, _ = table.pick(chosen)
    lost = table.correct.max(axis=1) - got
    shape = (len(table.arms), len(table.arms))
    matrices = np.zeros((2, *shape))
    np.add.at(matrices[0], (chosen, ideal), 1.0)
    np.add.at(matrices[1], (chosen, ideal), lost)
    queries, weighed = (tuple(map(tuple, matrix.tolist())) for matrix in matrices)
    return Confusion(table.arms, queries, weighed)


@dataclass(frozen=True, slots=True)
class TokenUse:
    """An arm's mean tokens and costs per query, over the queries with token counts.

    Output tokens include reasoning tokens. `reasoning_share` is the share of the queries for which
    the arm wrote any; both are None if they were not recorded. `expected_cost_usd` is the arm's
    cost if it wrote as many tokens as the average arm. `chattiness` is the arm's actual cost
    divided by `expected_cost_usd`.
    """

    arm: str
    price: Price
    input_tokens: Measure
    output_tokens: Measure
    reasoning_tokens: Measure | None
    reasoning_share: Measure | None
    input_cost_usd: float
    output_cost_usd: float
    input_share: float
    expected_cost_usd: float
    chattiness: Estimate | None

    @property
    def cost_usd(self) -> float:
        """The mean cost of a query."""
        return self.input_cost_usd + self.output_cost_usd


def repeated_answers(table: Table, categories: Sequence[str]) -> RepeatedAnswers | None:
    """Return how often repeated answers were correct; None if no arm was asked a query twice."""
    is_repeated = table.attempts > 1
    if not is_repeated.any():
        return None

    def shares(name: str, correct: Floats) -> AttemptShares:
        counts = np.bincount(np.rint(correct * LEVELS).astype(int), minlength=LEVELS + 1)
        mid = mean_measure(((correct > 0) & (correct < 1)).astype(float))
        return AttemptShares(name, tuple((counts / len(correct)).tolist()), mid)

    names = np.array(categories)
    by_arm = ((arm, table.correct[is_repeated[:, place], place])
              for place, arm in enumerate(table.arms))  # fmt: skip
    by_category = ((name, table.correct[names == name][is_repeated[names == name]])
                   for name in sorted(set(categories)))  # fmt: skip
    return RepeatedAnswers(
        *(tuple(shares(name, found) for name, found in each if len(found))
          for each in (by_arm, by_category))
    )  # fmt: skip


def token_use(table: Table, prices: Mapping[str, Price]) -> tuple[TokenUse, ...]:
    """Return each arm's tokens, with the cost of input and of output, by rising total cost.

    Arms without token counts are omitted. Arms that are paid by the hour are omitted too, because
    their tokens have no price.
    """
    counted = [table.arms[place] for place in np.flatnonzero(table.has_tokens.any(axis=0))]
    kept = [arm for arm in counted if not prices[arm].has_hourly_price]
    known = table.select_arms(kept)
    average_written = float(np.nanmean(known.output_tokens, axis=0).mean()) if kept else 0.0
    uses = []
    for column, arm in enumerate(kept):
        price, rows = prices[arm], known.has_tokens[:, column]
        read = mean_measure(known.input_tokens[rows, column])
        written = mean_measure(known.output_tokens[rows, column])
        thought = known.reasoning_tokens[rows, column]
        thought = thought[~np.isnan(thought)]
        input_cost_usd = price.cost_usd(read.value, 0, seconds=0)
        output_cost_usd = price.cost_usd(0, written.value, seconds=0)
        total_usd = input_cost_usd + output_cost_usd
        use = TokenUse(
            arm=arm,
            price=price,
            input_tokens=read,
            output_tokens=written,
            reasoning_tokens=mean_measure(thought) if thought.size else None,
            reasoning_share=mean_measure((thought > 0).astype(float)) if thought.size else None,
            input_cost_usd=input_cost_usd,
            output_cost_usd=output_cost_usd,
            input_share=input_cost_usd / total_usd if total_usd else 0.0,
            expected_cost_usd=price.cost_usd(read.value, average_written, seconds=0),
            chattiness=chattiness(known, column, price),
        )
        uses.append(use)
    return tuple(sorted(uses, key=lambda use: use.cost_usd))


def chattiness(table: Table, column: int, price: Price) -> Estimate | None:
    """Estimate an arm's actual cost divided by its expected cost; None if it costs nothing."""
    counted = table.has_tokens
    arms = counted.shape[1]
    columns = [
        np.where(counted, table.input_tokens, 0),
        np.where(counted, table.output_tokens, 0),
        counted.astype(np.float64),
    ]

    def ratio(means: Floats) -> float:
        total_in, total_out, share = means.reshape(3, arms)
        with np.errstate(invalid="ignore", divide="ignore"):
            read, written = total_in / share, total_out / share
        actual_usd = price.cost_usd(read[column], written[column], seconds=0)
        expected_usd = price.cost_usd(read[column], float(np.nanmean(written)), seconds=0)
        return actual_usd / expected_usd if expected_usd > 0 else float("nan")

    return bootstrap(np.hstack(columns), ratio)
