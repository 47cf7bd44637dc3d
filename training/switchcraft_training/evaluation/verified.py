"""Figures of verified answers: what the verifier's decisions achieve, next to simpler rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import Interval, Measure
from router_service.measurement.rules import Bench, Entry, Kind, best_single, oracle, route, sweep
from router_service.measurement.simulation import VerifiedAnswers
from router_service.measurement.statistics import auc_measure, interval_of, mean_measure, resamples
from router_service.policies.verified import Verified
from router_service.verifier.answer_features import CANDIDATE_FEATURES
from router_service.verifier.graphs import NO_ARM
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.metrics import calibration_measure
from switchcraft_training.models.corruptions import Corruption
from switchcraft_training.verification import JudgedCorruption, VerifierStudy, outcome

NO_ANSWERS = (
    "Verification was not measured, because the source has outcomes without answers, and a verifier"
    " learns from recorded answers."
)
NO_VERIFIER = (
    "Verification was not measured, because the run trained no verifier. Set `verifier: true`, or"
    " use `switchcraft-train add-verifier`."
)

LIKELY = 0.85
"""Probability above which an answer passes for correct, in the table of changed answers."""

Decided = tuple[tuple[int, ...], int]
"""The arms that a rule asks for a query, in their order, and the arm whose answer it accepts."""


def answers_of(rule: Iterable[Decided]) -> VerifiedAnswers:
    """Return the answers of a rule without judgements, from what it does with each query."""
    pairs = list(rule)
    most = max((len(arms) for arms, _ in pairs), default=0)
    asked = np.full((len(pairs), most), NO_ARM)
    for row, (arms, _) in enumerate(pairs):
        asked[row, : len(arms)] = arms
    accepted = np.array([arm for _, arm in pairs], dtype=np.int64)
    return VerifiedAnswers(asked, accepted, np.full((len(pairs), 0, most), np.nan))


def decided(answers: VerifiedAnswers, query: int) -> Decided:
    """Return the arms that were asked for a query, and the one whose answer was accepted."""
    arms = answers.asked[query, : answers.counts[query]].tolist()
    return tuple(arms), int(answers.accepted[query])


@dataclass(frozen=True, slots=True)
class VerifiedRow:
    """Results of one rule that may ask several arms.

    `candidates` is the number of arms that were asked for a query. `added_s` are the seconds of all
    candidates except the first, and `added_p95_s` their 95th percentile, or None if latencies were
    not recorded. `is_later` is the share of
    queries whose accepted answer was not the first one.
    """

    entry: Entry
    candidates: Measure
    added_s: Measure | None
    added_s_interval: Interval | None
    added_p95_s: float | None
    is_later: Measure


@dataclass(frozen=True, slots=True)
class JudgementQuality:
    """How well the verifier's probabilities separate right candidates from wrong ones.

    `asked` says which arms the candidates are from. Standard errors treat the candidates of one
    query as independent.
    """

    asked: str
    candidates: int
    queries: int
    auc: Measure
    calibration_error: Measure


@dataclass(frozen=True, slots=True)
class CorruptionQuality:
    """How well the verifier tells correct answers from the same answers with one change.

    `before` is the mean probability of the correct answers, and `after` that of the changed ones.
    The verifier judges each answer without other candidates. `likely` is the share of changed
    answers whose probability is above `LIKELY`.
    """

    kind: str
    answers: int
    before: float
    after: float
    auc: Measure
    likely: Measure


@dataclass(frozen=True, slots=True)
class AcceptedGroup:
    """Accepted answers of some queries: how many are wrong, and what the verifier expected.

    `avoidable` counts wrong answers to queries that another arm of the pool answered correctly.
    """

    name: str
    accuracy: Measure
    expected: float
    wrong: float
    avoidable: float


@dataclass(frozen=True, slots=True)
class VerifiedFigures:
    """All figures of a verifier study.

    `frontier` are the rows of all prices, and `operating` is the one of the policy `verified`.
    `others` are simpler rules, bounds, and `verified` with a price chosen on other folds. `once` is
    the router that chooses one arm, with all its rules. `budget_share` is the cost, relative to the
    best single model, within which prices and thresholds are chosen.
    """

    best_single: str
    budget_share: float
    operating: VerifiedRow
    frontier: tuple[VerifiedRow, ...]
    others: tuple[VerifiedRow, ...]
    singles: tuple[Entry, ...]
    once: tuple[Entry, ...]
    oracle: Entry
    quality: tuple[JudgementQuality, ...]
    corruptions: tuple[CorruptionQuality, ...]
    categories: tuple[AcceptedGroup, ...]
    agreement: tuple[AcceptedGroup, ...]


def verified_figures(study: VerifierStudy) -> VerifiedFigures:
    """Compute all figures of a study."""
    comparison = _Comparison(study)
    table, evidence = study.table, study.evidence
    rows = {
        price: comparison.measure(str(Verified(price)), answers)
        for price, answers in {**study.by_price, study.price_usd: study.operating}.items()
    }
    chosen = study.operating
    categories = [example.category for example in table.examples]
    agreements = [comparison.agreement(chosen, query) for query in range(len(table))]
    return VerifiedFigures(
        best_single=table.arms[comparison.best],
        budget_share=study.cost_share,
        operating=rows[study.price_usd],
        frontier=tuple(rows.values()),
        others=tuple(comparison.others()),
        singles=tuple(
            comparison.bench.measure("single", arm, table.correct[:, i], table.cost_usd[:, i])
            for i, arm in enumerate(table.arms)
        ),
        once=sweep(table, evidence.probabilities, evidence.expected_costs_usd),
        oracle=comparison.bench.measure("oracle", "oracle", *table.pick(oracle(table))),
        quality=(
            *_qualities("asked by the policy", table, chosen),
            *_qualities("cheapest models", table, evidence.cheapest),
        ),
        corruptions=_corruptions(evidence.corrupted),
        categories=_groups(categories, table, chosen),
        agreement=tuple(sorted(_groups(agreements, table, chosen), key=lambda group: group.name)),
    )


@dataclass(frozen=True)
class _Comparison:
    """The rules that a verified policy is compared with, on the same queries.

    Parameters of a rule are chosen on the other folds. Recorded costs give the order of the arms.
    """

    study: VerifierStudy

    @cached_property
    def table(self) -> Table:
        return self.study.table

    @cached_property
    def bench(self) -> Bench:
        return Bench.of(self.table)

    @cached_property
    def best(self) -> int:
        return best_single(self.table)

    @cached_property
    def order(self) -> list[int]:
        """All arms, cheapest first."""
        order: list[int] = np.argsort(self.table.cost_usd.mean(axis=0), kind="stable").tolist()
        return order

    def measure(self, name: str, answers: VerifiedAnswers, kind: Kind = "router") -> VerifiedRow:
        """Measure what a rule did with every query."""
        table = self.table
        correct, cost_usd, _ = outcome(answers, table)
        added_s: Floats | None = None
        if not np.isnan(table.seconds).all():
            seconds = np.nan_to_num(table.seconds)
            _, _, all_s = answers.outcome(table.correct, table.cost_usd, seconds)
            added_s = all_s - seconds[np.arange(len(table)), answers.asked[:, 0]]
        is_later = answers.accepted != answers.asked[:, 0]
        draws = resamples(len(table))
        return VerifiedRow(
            entry=self.bench.measure(kind, name, correct, cost_usd),
            candidates=mean_measure(answers.counts.astype(np.float64)),
            added_s=None if added_s is None else mean_measure(added_s),
            added_s_interval=None if added_s is None else interval_of(draws.means(added_s)),
            added_p95_s=None if added_s is None else float(np.percentile(added_s, 95)),
            is_later=mean_measure(is_later.astype(np.float64)),
        )

    def others(self) -> list[VerifiedRow]:
        """Measure all rules."""
        best = self.table.arms[self.best]
        evidence = self.study.evidence
        rows = [self.measure(best, self._every(lambda _: ((self.best,), self.best)), "single")]
        all_rules = sweep(self.table, evidence.probabilities, evidence.expected_costs_usd)
        affordable = [entry for entry in all_rules if entry.cost_share <= self.study.cost_share]
        for entries in filter(None, (affordable, all_rules)):
            entry = max(entries, key=lambda entry: (entry.accuracy.value, -entry.cost_usd.value))
            arms = route(evidence.probabilities, evidence.expected_costs_usd, entry.name)
            once = answers_of(((arm,), arm) for arm in arms.tolist())
            rows.append(self.measure(f"choose once, {entry.name}", once))
        simple = {"schema check": self._first_that_fits, "two agree": self._two_agree}
        rows += [self.measure(name, self._every(rule), "baseline") for name, rule in simple.items()]
        by_price = [answers for _, answers in sorted(self.study.by_price.items())]
        priced = self._priced(by_price)
        rows.append(self.measure("verified, price from other folds", priced))
        return [*rows, self.measure("perfect verifier", self._every(self._perfect), "oracle")]

    def agreement(self, answers: VerifiedAnswers, query: int) -> str:
        """Describe how many candidates of a query agree with the accepted answer."""
        asked = answers.asked[query, : answers.counts[query]].tolist()
        accepted = int(answers.accepted[query])
        if len(asked) == 1:
            return "1 candidate"
        agreeing = sum(self._is_same(query, accepted, arm) for arm in asked)
        return f"{len(asked)} candidates, {agreeing} with the accepted calls"

    def _every(self, decide: Callable[[int], Decided]) -> VerifiedAnswers:
        return answers_of(decide(query) for query in range(len(self.table)))

    def _is_same(self, query: int, one: int, other: int) -> bool:
        relations = self.study.evidence.candidates[query].relations
        return one == other or relations[one, other].is_same

    def _until(self, arms: Sequence[int], is_enough: Callable[[int], bool]) -> Decided:
        """Ask arms in this order, and accept the first answer that is good enough, or the last."""
        last = next((n for n, arm in enumerate(arms) if is_enough(arm)), len(arms) - 1)
        return tuple(arms[: last + 1]), arms[last]

    def _first_that_fits(self, query: int) -> Decided:
        """Ask by rising cost until an answer fits its schema; words violate none."""

        def fits(arm: int) -> bool:
            answer = self.study.evidence.candidates[query].answers[arm]
            features = dict(zip(CANDIDATE_FEATURES, answer.features, strict=False))
            is_valid = features["fits_schema"] and not features["unknown_tools"]
            return answer.calls is not None and bool(not answer.calls or is_valid)

        return self._until(self.order, fits)

    def _two_agree(self, query: int) -> Decided:
        """Accept if the two cheapest arms agree; otherwise ask the best single model."""
        two = self.order[:2]
        if self._is_same(query, two[0], two[-1]):
            return tuple(two), two[0]
        return tuple(dict.fromkeys([*two, self.best])), self.best

    def _perfect(self, query: int) -> Decided:
        """Ask by rising cost until an answer is correct."""
        correct = self.table.correct[query]
        top = correct.max()
        return self._until(self.order, lambda arm: bool(correct[arm] == top > 0))

    def _priced(self, rules: Sequence[VerifiedAnswers]) -> VerifiedAnswers:
        """Return each fold's decisions by the price that is the operating point of other folds.

        That is the most expensive rule within the study's `cost_share`, or the cheapest one.
        """
        table = self.table
        costs_usd = [outcome(rule, table)[1] for rule in rules]
        picked_rule = np.zeros(len(table), dtype=np.int64)
        for fold in np.unique(table.folds):
            others = table.folds != fold if (table.folds != fold).any() else table.folds == fold
            budget_usd = self.study.cost_share * self.bench.best_cost_usd[others].mean()
            means_usd = [float(cost[others].mean()) for cost in costs_usd]
            affordable = [usd for usd in means_usd if usd <= budget_usd]
            chosen_usd = max(affordable, default=min(means_usd))
            picked_rule[table.folds == fold] = means_usd.index(chosen_usd)
        return answers_of(
            decided(rules[rule], query) for query, rule in enumerate(picked_rule.tolist())
        )


def _qualities(asked: str, table: Table, answers: VerifiedAnswers) -> list[JudgementQuality]:
    """Measure the probabilities of all candidates after one, two and three of them."""
    found = []
    correct = np.take_along_axis(table.correct, np.maximum(answers.asked, 0), 1)
    for step in range(answers.judged.shape[1]):
        is_judged = ~np.isnan(answers.judged[:, step])
        labels, judged = correct[is_judged][:, None], answers.judged[:, step][is_judged][:, None]
        # Without a right and a wrong candidate, no AUC can be computed.
        if len(labels) and 0 < labels.mean() < 1:
            found.append(
                JudgementQuality(
                    asked=asked,
                    candidates=step + 1,
                    queries=int(is_judged.any(axis=1).sum()),
                    auc=auc_measure(labels, judged),
                    calibration_error=calibration_measure(labels, judged),
                )
            )
    return found


def _corruptions(judged: Sequence[JudgedCorruption]) -> tuple[CorruptionQuality, ...]:
    """Measure the judgements of each kind of change, in the order of their kinds."""
    found = []
    for kind in Corruption:
        of_kind = [each for each in judged if each.kind is kind]
        if not of_kind:
            continue
        before = np.array([each.before for each in of_kind])
        after = np.array([each.after for each in of_kind])
        labels = np.repeat([1.0, 0.0], len(of_kind))[:, None]
        found.append(
            CorruptionQuality(
                kind=str(kind),
                answers=len(of_kind),
                before=float(before.mean()),
                after=float(after.mean()),
                auc=auc_measure(labels, np.concatenate([before, after])[:, None]),
                likely=mean_measure((after > LIKELY).astype(np.float64)),
            )
        )
    return tuple(found)


def _groups(
    names: Sequence[str], table: Table, answers: VerifiedAnswers
) -> tuple[AcceptedGroup, ...]:
    """Measure the accepted answers of each group of queries, most wrong answers first."""
    correct, _, _ = outcome(answers, table)
    top = table.correct.max(axis=1)
    groups = []
    for name in sorted(set(names)):
        rows: NDArray[np.bool_] = np.array([each == name for each in names])
        groups.append(
            AcceptedGroup(
                name=name,
                accuracy=mean_measure(correct[rows]),
                expected=float(answers.p_correct[rows].mean()),
                wrong=float((1 - correct[rows]).sum()),
                avoidable=float((top - correct)[rows].sum()),
            )
        )
    return tuple(sorted(groups, key=lambda group: -group.wrong))
