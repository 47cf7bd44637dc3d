"""The policy `verified` on recorded answers: what it would have asked, accepted and cost.

The verifier's judgements of every set of candidates are computed once, in training. They then give
the policy's decisions for any part of the pool, at any prices. They are numbers only: no text of a
query, and no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router_service.predictor.model import Floats, Graph
from router_service.verifier.graphs import (
    MAX_JUDGED,
    NO_ARM,
    ArmBeliefs,
    Columns,
    Flags,
    GainModel,
    State,
)

MAX_CANDIDATES = MAX_JUDGED
"""Largest number of candidates of one query: verifiers are trained for as many."""

STEPS_PER_UNIT = 10_000
"""A probability is stored as a whole number of these steps; rounding it moves it by 0.00005."""


def candidate_sets(arms: int) -> tuple[tuple[int, ...], ...]:
    """Return every set of one to three arms, by size and then as `itertools` orders them."""
    sizes = range(1, min(MAX_CANDIDATES, arms) + 1)
    return tuple(each for size in sizes for each in combinations(range(arms), size))


def count_judgements(arms: int) -> int:
    """Return the number of candidates in all sets of `candidate_sets`."""
    return sum(size * comb(arms, size) for size in range(1, MAX_CANDIDATES + 1))


@lru_cache(maxsize=8)
def _first_places(arms: int) -> tuple[Columns, ...]:
    """Return for each size where a set's judgements begin, by its ascending columns."""
    found = [np.full((arms,) * size, -1, dtype=np.int64) for size in range(1, MAX_CANDIDATES + 1)]
    place = 0
    for each in candidate_sets(arms):
        found[len(each) - 1][each] = place
        place += len(each)
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedAnswers:
    """What a verified policy did with each query.

    `asked`, (queries, candidates), are the columns of the arms in the order in which they were
    asked, and then `NO_ARM`. `accepted`, (queries,), is the column of the accepted answer.
    `judged`, (queries, steps, candidates), has the probability of every candidate after each of the
    steps, in the order of `asked`, and otherwise NaN.
    """

    asked: Columns
    accepted: Columns
    judged: Floats

    @property
    def is_asked(self) -> Flags:
        """Whether a place of `asked` has an arm, (queries, candidates)."""
        flags: Flags = self.asked != NO_ARM
        return flags

    @property
    def counts(self) -> Columns:
        """The number of arms that were asked, (queries,)."""
        counts: Columns = self.is_asked.sum(axis=1)
        return counts

    @property
    def p_correct(self) -> Floats:
        """The probability of each accepted answer when it was accepted, (queries,)."""
        rows = np.arange(len(self.accepted))
        places = (self.asked == self.accepted[:, None]).argmax(axis=1)
        accepted: Floats = self.judged[rows, self.counts - 1, places]
        return accepted

    def outcome(
        self, correct: Floats, cost_usd: Floats, seconds: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return correctness, cost in USD and seconds, (queries,) each; candidates are added up.

        The arguments are those of every arm's answer, (queries, arms).
        """
        picked = correct[np.arange(len(self.accepted)), self.accepted]
        return picked, self._total(cost_usd), self._total(seconds)

    def _total(self, layer: Floats) -> Floats:
        values = np.take_along_axis(layer, np.maximum(self.asked, 0), 1)
        totals: Floats = np.where(self.is_asked, values, 0.0).sum(axis=1)
        return totals


@dataclass(frozen=True, slots=True, eq=False)
class JudgedAnswers:
    """A verifier's held-out judgements of the arms' recorded answers, for some queries.

    `p_correct`, (queries, judgements), has the probability of every candidate of every one of
    `candidate_sets`, in steps of 1/10,000. `is_same`, (queries, pairs of arms), says whether two
    arms gave the same answer, and `is_text`, (queries, arms), whether an arm answered without a
    call. `probabilities`, (queries, arms), are the router's, as the verifier read them.
    `p_no_call`, (queries,), is the probability that the query asks for no call; NaN if unknown.

    `folds`, (queries,), is the fold of the verifier that judged each query. `reliabilities`,
    (folds, arms), and `gain_graphs`, a file for each fold, are those of its verifier.
    """

    p_correct: NDArray[np.uint16]
    is_same: Flags
    is_text: Flags
    probabilities: NDArray[np.float32]
    p_no_call: NDArray[np.float32]
    folds: Columns
    reliabilities: Floats
    gain_graphs: tuple[bytes, ...]

    @property
    def arms(self) -> int:
        """Number of arms."""
        return int(self.probabilities.shape[1])

    def take(self, rows: Columns) -> JudgedAnswers:
        """Return some of the queries."""
        return JudgedAnswers(
            **{name: getattr(self, name)[rows] for name in _BY_QUERY},
            reliabilities=self.reliabilities,
            gain_graphs=self.gain_graphs,
        )

    @classmethod
    def join(cls, parts: Sequence[JudgedAnswers], rows: Sequence[Columns]) -> JudgedAnswers:
        """Return the queries of all parts in the order of their rows; each part is a fold."""
        order = np.argsort(np.concatenate(rows))
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])[order]
            for name in _BY_QUERY
        }
        joined["folds"] = np.repeat(np.arange(len(parts)), [len(each) for each in rows])[order]
        return cls(
            **joined,
            reliabilities=np.vstack([part.reliabilities for part in parts]),
            gain_graphs=tuple(graph for part in parts for graph in part.gain_graphs),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `from_arrays` restores the judgements."""
        return {
            **{name: getattr(self, name) for name in (*_BY_QUERY, "reliabilities")},
            "gain_graphs": np.frombuffer(b"".join(self.gain_graphs), dtype=np.uint8),
            "gain_graph_bytes": np.array([len(graph) for graph in self.gain_graphs]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> JudgedAnswers:
        """Return the judgements that `arrays` described. Raises KeyError."""
        ends = np.cumsum(arrays["gain_graph_bytes"])[:-1]
        graphs = np.split(arrays["gain_graphs"], ends)
        return cls(
            **{name: arrays[name] for name in (*_BY_QUERY, "reliabilities")},
            gain_graphs=tuple(graph.tobytes() for graph in graphs),
        )

    def judge(self, rows: Columns, asked: Columns) -> Floats:
        """Return the probabilities of sets of candidates, (rows, candidates), in the given order.

        `asked`, (rows, candidates), are the columns of the candidates.
        """
        order = asked.argsort(axis=1)
        ascending = np.take_along_axis(asked, order, 1)
        first = _first_places(self.arms)[asked.shape[1] - 1][tuple(ascending.T)]
        places = first[:, None] + order.argsort(axis=1)
        found: Floats = self.p_correct[rows[:, None], places] / STEPS_PER_UNIT
        return found

    def same(self, rows: Columns, asked: Columns) -> Flags:
        """Return which candidates gave the same answer, (rows, candidates, candidates)."""
        low = np.minimum(asked[:, :, None], asked[:, None, :])
        high = np.maximum(asked[:, :, None], asked[:, None, :])
        # The place of a pair among `combinations(range(arms), 2)`.
        pairs = low * (2 * self.arms - low - 1) // 2 + high - low - 1
        is_one = low == high
        same: Flags = self.is_same[rows[:, None, None], np.where(is_one, 0, pairs)] | is_one
        return same


_BY_QUERY = ("p_correct", "is_same", "is_text", "probabilities", "p_no_call", "folds")


def quantize(p_correct: Floats) -> NDArray[np.uint16]:
    """Return probabilities in the steps in which `JudgedAnswers` has them."""
    return np.rint(p_correct * STEPS_PER_UNIT).astype(np.uint16)


@dataclass(frozen=True, eq=False)
class Simulation:
    """The policy `verified` on judged answers, for any of the arms and at any prices.

    `gain_features` are what the gain graphs read.
    """

    judged: JudgedAnswers
    gain_features: tuple[str, ...]

    @cached_property
    def _folds(self) -> list[tuple[Columns, ArmBeliefs, GainModel]]:
        """The rows, beliefs and gain model of each fold."""
        judged, found = self.judged, []
        for fold, graph in enumerate(judged.gain_graphs):
            rows = np.flatnonzero(judged.folds == fold)
            probabilities = judged.probabilities[rows].astype(np.float64)
            beliefs = ArmBeliefs.of(probabilities, judged.reliabilities[fold])
            found.append((rows, beliefs, GainModel(Graph(graph), self.gain_features)))
        return found

    def answer(
        self,
        costs_usd: Floats,
        price_usd: float,
        arms: Sequence[int] | None = None,
        *,
        floor: float = 0.0,
        max_candidates: int = MAX_CANDIDATES,
        streams_text_from: float | None = None,
    ) -> VerifiedAnswers:
        """Answer every query as the gateway would with the policy `verified` at this price.

        `costs_usd` are the arms' expected costs in each fold, (folds, arms). `arms` are the columns
        of those that may be asked (default: all), and the columns of the result are theirs. `floor`
        is the verifier's for a policy with a name, and 0 for a price. If the
        probability that a query asks for no call is at least `streams_text_from`, and the first arm
        answers without a call, this answer is accepted without verification.
        """
        columns = np.arange(self.judged.arms) if arms is None else np.array(arms)
        queries, size = len(self.judged.folds), min(max_candidates, len(columns))
        asked = np.full((queries, size), NO_ARM)
        judged = np.full((queries, size, size), np.nan)
        accepted = np.full(queries, NO_ARM)
        for fold, (members, beliefs, model) in enumerate(self._folds):
            known = beliefs.select_arms(columns.tolist())
            costs = costs_usd[fold, columns] / price_usd
            open_ = np.arange(len(members))
            for step in range(size + 1):
                if not len(open_):
                    break
                rows, in_hand = members[open_], asked[members[open_], :step]
                askable = np.full((len(open_), len(columns)), step < size)
                np.put_along_axis(askable, in_hand, values=False, axis=1)
                state = State(
                    beliefs=known.take(open_),
                    costs=costs,
                    askable=askable,
                    candidates=in_hand,
                    p_correct=self.judged.judge(rows, columns[in_hand])
                    if step
                    else np.empty((len(rows), 0)),
                    is_same=self.judged.same(rows, columns[in_hand]),
                )
                chosen = model.choose_arms(state, floor=floor).asked
                if step:
                    judged[rows, step - 1, :step] = state.p_correct
                    best = in_hand[np.arange(len(rows)), state.best_places()]
                if step == 1 and streams_text_from is not None:
                    is_text = self.judged.is_text[rows, columns[in_hand[:, 0]]]
                    is_text &= self.judged.p_no_call[rows] >= streams_text_from
                    chosen = np.where(is_text, NO_ARM, chosen)
                is_done = chosen == NO_ARM
                if step:
                    accepted[rows[is_done]] = best[is_done]
                open_ = open_[~is_done]
                if step < size:
                    asked[members[open_], step] = chosen[~is_done]
        return VerifiedAnswers(asked, accepted, judged)
