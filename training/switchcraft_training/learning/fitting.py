"""Fits the verifiers' calibrations to a sample, and chooses the price of verified answers.

Every figure of a fit comes from sessions that it has not seen: the sessions are divided into folds,
and each fold is judged with the calibrations of the others. The operating point of a fold is chosen
on the others, too. A spike showed that more is not needed: with 200 to 2,000 queries labelled by a
teacher, or by truth, a line for the verifier's log-odds was as good as lines for every arm
(`python -m benchmarks.learning`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import minimize

from router_service.measurement.simulation import (
    STEPS_PER_UNIT,
    JudgedAnswers,
    Simulation,
    candidate_sets,
    quantize,
)
from router_service.measurement.statistics import interval_of
from router_service.policies.verified import Verified
from router_service.predictor.model import (
    Calibration,
    IdentityCalibration,
    Platt,
    Temperature,
    logit,
    sigmoid,
)
from router_service.verifier.graphs import VerifierSpec
from switchcraft_training.data.table import Floats
from switchcraft_training.learning.judging import FAMILIAR, UNFAMILIAR, Lessons, Rows

FOLDS: Final = 5
"""Parts of the sessions that are held back in turn."""
PRIOR: Final = 20.0
"""How many requests the shipped calibration weighs: with few sessions, it stays as it is."""
PRICES: Final = tuple(float(f"{price:.3g}") for price in np.geomspace(0.3, 60.0, 12))
"""Prices of a correct answer that are tried, in units of the teacher's expected cost."""
TOLERANCE: Final = 0.005
"""How much less a rule may agree with the teacher than the present default does."""
DRAWS: Final = 1_000
"""Resamples of the sessions for an interval."""
WANTED_HALF_WIDTH: Final = 0.03
"""Half of the width of an interval that counts as narrow."""


class Line(NamedTuple):
    """A map of a probability's log-odds, after the shipped calibration."""

    slope: float
    shift: float

    def after(self, calibration: Calibration) -> Calibration:
        """Return the map of both; raises ValueError for a calibration that is no line."""
        match calibration:
            case Platt(slopes=slopes, intercepts=intercepts):
                return Platt(
                    slopes=tuple(self.slope * slope for slope in slopes),
                    intercepts=tuple(self.slope * each + self.shift for each in intercepts),
                )
            case Temperature(temperature=temperature):
                return Platt(slopes=(self.slope / temperature,), intercepts=(self.shift,))
            case IdentityCalibration():
                return Platt(slopes=(self.slope,), intercepts=(self.shift,))
        raise ValueError(f"a line cannot follow the calibration {calibration.method!r}")


UNCHANGED: Final = Line(1.0, 0.0)

Lines = Mapping[int, Line]
"""The line of each verifier, `FAMILIAR` and `UNFAMILIAR`."""


def fit_lines(lessons: Lessons, rows: Rows) -> dict[int, Line]:
    """Fit each verifier's line to some of the requests.

    The teacher's own answers teach nothing: they are its calls by definition.
    """
    found = {}
    teacher = lessons.columns[lessons.teacher]
    sets = candidate_sets(lessons.judged.arms)
    arms = np.array([arm for each in sets for arm in each])
    members = set(lessons.columns)
    is_known = np.repeat([members.issuperset(each) for each in sets], [len(s) for s in sets])
    labels_of = dict(zip(lessons.columns, lessons.is_right.T, strict=True))
    learned = [arm for arm in lessons.columns if arm != teacher]
    for kind in (FAMILIAR, UNFAMILIAR):
        kept = rows[(lessons.judged.folds[rows] == kind) & ~np.isnan(lessons.is_right[rows, 0])]
        places = np.flatnonzero(np.isin(arms, learned) & is_known)
        if not len(kept) or not len(places):
            found[kind] = UNCHANGED
            continue
        judged = lessons.judged.p_correct[np.ix_(kept, places)] / STEPS_PER_UNIT
        labels = np.column_stack([labels_of[int(arms[place])][kept] for place in places])
        # Each request weighs as much as one answer, however many sets of answers it has.
        found[kind] = fit_line(logit(judged).ravel(), labels.ravel(), 1 / len(places))
    return found


def fit_line(logits: Floats, labels: Floats, weight: float) -> Line:
    """Fit a line to labels of 0 and 1, of which each has a weight; it begins as `UNCHANGED`."""

    def loss(line: Floats) -> tuple[float, Floats]:
        slope, shift = line
        z = slope * logits + shift
        off = weight * (sigmoid(z) - labels)
        kept = PRIOR * np.array([slope - 1.0, shift])
        value = weight * float((np.logaddexp(0, z) - labels * z).sum())
        gradient = np.array([off @ logits, off.sum()]) + kept
        return value + PRIOR * ((slope - 1.0) ** 2 + shift**2) / 2, gradient

    found = minimize(
        loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=[(0.05, None), (None, None)]
    )
    return Line(float(found.x[0]), float(found.x[1]))


def apply_lines(judged: JudgedAnswers, rows: Rows, lines: Lines) -> JudgedAnswers:
    """Return judged answers of which some rows have other calibrations."""
    p_correct = judged.p_correct.copy()
    for kind, (slope, shift) in lines.items():
        kept = rows[judged.folds[rows] == kind]
        moved = sigmoid(slope * logit(p_correct[kept] / STEPS_PER_UNIT) + shift)
        p_correct[kept] = quantize(moved)
    return replace(judged, p_correct=p_correct)


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """What a rule does with the sample, (requests,) each: agreement, cost in USD, seconds."""

    agrees: Floats
    cost_usd: Floats
    seconds: Floats

    @classmethod
    def of_column(cls, lessons: Lessons, columns: Rows) -> Effect:
        """Return the outcome of asking one member for each request; `columns` are (requests,)."""
        rows = np.arange(len(lessons))
        layers = (lessons.is_teachers, lessons.cost_usd, lessons.seconds)
        return cls(*(layer[rows, columns] for layer in layers))

    def take(self, rows: Rows, other: Effect) -> Effect:
        """Return these outcomes, with those of another rule for some requests."""
        changed = []
        for name in ("agrees", "cost_usd", "seconds"):
            layer = getattr(self, name).copy()
            layer[rows] = getattr(other, name)[rows]
            changed.append(layer)
        return Effect(*changed)


class Figures(NamedTuple):
    """What a rule does on average, with 95% intervals over sessions."""

    agreement: float
    agreement_interval: tuple[float, float]
    cost_usd: float
    cost_share: float
    """Cost relative to the teacher's."""
    cost_share_interval: tuple[float, float]
    seconds: float

    @property
    def half_width(self) -> float:
        """Half of the width of the agreement's interval."""
        low, high = self.agreement_interval
        return (high - low) / 2


def figures_of(lessons: Lessons, outcome: Effect) -> Figures:
    """Return a rule's figures; the intervals resample whole sessions."""
    sessions = int(lessons.sessions.max()) + 1
    drawn = np.random.default_rng(0).multinomial(sessions, np.full(sessions, 1 / sessions), DRAWS)

    def sums(layer: Floats) -> Floats:
        by_session = np.bincount(lessons.sessions, layer, sessions)
        return np.concatenate([[by_session.sum()], drawn @ by_session])

    n = sums(np.ones(len(lessons)))
    agreement = sums(outcome.agrees) / n
    share = sums(outcome.cost_usd) / sums(lessons.cost_usd[:, lessons.teacher])
    return Figures(
        agreement=float(agreement[0]),
        agreement_interval=interval_of(agreement[1:]),
        cost_usd=float(outcome.cost_usd.mean()),
        cost_share=float(share[0]),
        cost_share_interval=interval_of(share[1:]),
        seconds=float(outcome.seconds.mean()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What was fitted, and what it does with sessions that it has not seen."""

    lines: Lines
    """The new calibrations; unchanged if they are no better on held-back sessions."""
    price_usd: float
    """The operating point, chosen on all sessions."""
    by_price: Mapping[float, Effect]
    """Verified answers with calibrations of other sessions, by price in USD."""
    learned: Effect
    """The same, at the price that the other sessions choose."""
    log_loss: tuple[float, float]
    """Of the verifier's judgements of single answers: shipped, and fitted to other sessions."""


def fit(lessons: Lessons, spec: VerifierSpec, costs_usd: Sequence[float], present: Effect) -> Fit:
    """Fit the calibrations and the operating point, and measure both on held-back sessions.

    `costs_usd` are the arms' expected costs, and `present` is what today's default rule does.
    """
    costs = np.tile(costs_usd, (2, 1))
    unit_usd = costs_usd[lessons.columns[lessons.teacher]]
    prices = [float(f"{unit_usd * price:.3g}") for price in PRICES]
    rows = np.arange(len(lessons))
    sessions = int(lessons.sessions.max()) + 1
    order = np.random.default_rng(0).permutation(sessions)
    folds = (order % min(FOLDS, max(2, sessions)))[lessons.sessions]
    judged = lessons.judged
    for fold in np.unique(folds):
        judged = apply_lines(judged, rows[folds == fold], fit_lines(lessons, rows[folds != fold]))
    losses = _log_loss(lessons, lessons.judged), _log_loss(lessons, judged)
    lines: Lines = fit_lines(lessons, rows)
    if not losses[1] < losses[0]:  # the shipped calibration is as good for these requests
        judged, lines = lessons.judged, dict.fromkeys(lines, UNCHANGED)
    by_price = {price: _simulate(lessons, judged, spec, costs, price) for price in prices}
    learned = next(iter(by_price.values()))
    for fold in np.unique(folds):
        chosen = choose_price(by_price, present, rows[folds != fold])
        learned = learned.take(rows[folds == fold], by_price[chosen])
    return Fit(
        lines=lines,
        price_usd=choose_price(by_price, present, rows),
        by_price=by_price,
        learned=learned,
        log_loss=losses,
    )


def choose_price(by_price: Mapping[float, Effect], present: Effect, rows: Rows) -> float:
    """Return the cheapest price whose answers agree with the teacher as often as today's do.

    If none does, it is the one that agrees most.
    """
    wanted = float(present.agrees[rows].mean()) - TOLERANCE
    enough = [price for price, each in by_price.items() if each.agrees[rows].mean() >= wanted]
    if not enough:
        return max(by_price, key=lambda price: float(by_price[price].agrees[rows].mean()))
    return min(enough, key=lambda price: float(by_price[price].cost_usd[rows].mean()))


def simulate_rule(
    lessons: Lessons, spec: VerifierSpec, costs_usd: Sequence[float], rule: Verified
) -> Effect:
    """Return what a verified rule does with the shipped calibrations."""
    costs = np.tile(costs_usd, (2, 1))
    return _simulate(lessons, lessons.judged, spec, costs, rule.price_usd, floor=rule.floor)


def _simulate(
    lessons: Lessons,
    judged: JudgedAnswers,
    spec: VerifierSpec,
    costs_usd: Floats,
    price_usd: float,
    floor: float | None = None,
) -> Effect:
    answers = Simulation(judged, spec.gain_features).answer(
        costs_usd,
        price_usd,
        lessons.columns,
        floor=spec.floor if floor is None else floor,
        streams_text_from=spec.streams_text_from,
    )
    return Effect(*answers.outcome(lessons.is_teachers, lessons.cost_usd, lessons.seconds))


def _log_loss(lessons: Lessons, judged: JudgedAnswers) -> float:
    """Return the mean log loss of the judgements of single answers, except the teacher's."""
    rows = np.flatnonzero(~np.isnan(lessons.is_right[:, 0]))
    losses = []
    for member, column in enumerate(lessons.columns):
        if member == lessons.teacher or not len(rows):
            continue
        p = judged.judge(rows, np.full((len(rows), 1), column))[:, 0].clip(1e-4, 1 - 1e-4)
        right = lessons.is_right[rows, member]
        losses.append(-(right * np.log(p) + (1 - right) * np.log(1 - p)).mean())
    return float(np.mean(losses)) if losses else float("nan")
