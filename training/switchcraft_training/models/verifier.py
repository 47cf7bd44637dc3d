"""Training of the verifier: two ensembles of boosted trees, and their ONNX graphs.

The first estimates whether a candidate answer is correct. It learns from sampled sets of one to
three candidates for each query, and from correct answers in which one thing was changed. The second
estimates what asking one more arm gains, and is fitted backwards: first for the last step, where
only the answers themselves matter, then for each earlier step, where a later step may follow
(fitted value iteration; Ernst et al., 2005). Costs are in units of a correct answer's price, and
training uses many prices, so that one graph serves every price.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import GroupKFold

from router_service.apis.conversation import parse_conversation
from router_service.checker.toolbox import Call
from router_service.measurement.simulation import MAX_CANDIDATES
from router_service.predictor.model import Calibration, Floats
from router_service.verifier.answer_features import (
    CANDIDATE_FEATURES,
    Beliefs,
    Candidates,
    Question,
    candidate_features,
    clipped_logit,
    read_answer,
)
from router_service.verifier.graphs import (
    GAIN_FEATURES,
    ArmBeliefs,
    State,
    VerifierSpec,
    gain_features,
)
from switchcraft_training.evaluation.calibration import fit_platt
from switchcraft_training.models.branches import round_down
from switchcraft_training.models.corruptions import WEIGHTS, CorruptedAnswer
from switchcraft_training.models.export import ML_OPSET, OPSET
from switchcraft_training.progress import track
from switchcraft_training.records import Example

log = logging.getLogger(__name__)

GRAPH = "verifier.onnx"
GAIN_GRAPH = "verifier-gain.onnx"

CHEAP_ARMS_FIRST = 0.7
"""Exponent of an arm's rank by cost: cheap arms are sampled more often, as they are asked first."""

CORRUPTED_WEIGHT = 0.05
"""Weight of a corrupted answer, where a recorded answer that is judged alone has 1. The calibration
is fitted on recorded answers only."""

MADE_UP_WEIGHT = 0.5

HELD_OUT_FOLDS = 3
MIN_LEAF_ROWS = 100
MIN_GAIN_LEAF_ROWS = 600
"""The same transitions occur at all prices, so that 600 rows are about 70 transitions."""

LABEL_SHARE = 0.7
"""Share of the label in what an accepted candidate is worth. The verifier's probability has less
noise, but it hardly knows where a more accurate arm corrects the others."""

LOWEST_PRICE, HIGHEST_PRICE = 0.05, 60.0
"""Prices of a correct answer that the second graph is trained for, in units of the mean cost of the
most accurate arm."""


@dataclass(frozen=True, slots=True)
class FitEffort:
    """How much work a fit takes; the defaults are those of the pool of December 2025.

    Of more than `queries`, a random sample is used: 150,000 would need 13 million rows of features.
    `rounds` are the trees of the first ensemble, and `gain_rounds` those of the second one. `sets`
    are the sampled sets of two candidates, and of three, for each query. `prices` are those that
    the second graph is trained for, and `transitions` the sampled steps from one set of candidates
    to a larger one, for each price.
    """

    queries: int = 20_000
    rounds: int = 120
    sets: int = 12
    prices: int = 9
    transitions: int = 24_000
    gain_rounds: int = 100


FULL_EFFORT = FitEffort()

Rows = NDArray[np.float32]
CandidateSet = tuple[int, ...]


def read_candidates(
    examples: Sequence[Example], answers: Sequence[Mapping[int, tuple[Call, ...] | None]]
) -> list[Candidates]:
    """Return each query's recorded answers as candidates; `answers` have calls by column.

    The value None is an answer that cannot be parsed, and no calls is an answer in words.
    """
    read = []
    for example, calls in zip(
        track(examples, "candidates", len(examples), "queries"), answers, strict=True
    ):
        question = Question(parse_conversation(example.request), example.request["tools"])
        found = {column: read_answer(question, made) for column, made in calls.items()}
        read.append(Candidates.of(question, found))
    return read


@dataclass(frozen=True)
class VerifierData:
    """Queries with the answers of every arm, and the router's predictions for them.

    `probabilities` and `correct` are (queries, arms); the router has not learned from the queries
    that it predicts. `costs_usd` are the arms' expected costs, (arms,). Near-duplicates have equal
    `groups`, (queries,).
    """

    features: Floats
    probabilities: Floats
    candidates: Sequence[Candidates]
    correct: Floats
    costs_usd: Floats
    groups: NDArray[np.int64]
    corrupted: Sequence[Sequence[CorruptedAnswer]] = ()
    """For each query, correct answers in which one thing was changed; empty without any."""
    known_reliabilities: Floats | None = None
    """The arms' `reliabilities`, if these queries do not tell them."""
    is_made_up: NDArray[np.bool_] | None = None
    """Queries to which some answers were made up, (queries,), because nobody recorded them. They
    have half the weight of others, and do not tell what asking an arm gains."""

    @cached_property
    def reliabilities(self) -> Floats:
        """The share of queries that each arm answered correctly, (arms,)."""
        if self.known_reliabilities is not None:
            return self.known_reliabilities
        shares: Floats = self.correct.mean(axis=0)
        return shares

    def take(self, rows: NDArray[np.int64]) -> VerifierData:
        """Return some of the queries."""
        return replace(
            self,
            features=self.features[rows],
            probabilities=self.probabilities[rows],
            candidates=[self.candidates[row] for row in rows],
            correct=self.correct[rows],
            groups=self.groups[rows],
            corrupted=[self.corrupted[row] for row in rows] if self.corrupted else (),
            is_made_up=None if self.is_made_up is None else self.is_made_up[rows],
        )


@dataclass(frozen=True, slots=True)
class TrainedVerifier:
    """A fitted verifier: both ensembles, the calibration of the first, the arms' reliabilities."""

    correctness: HistGradientBoostingClassifier
    gain: HistGradientBoostingRegressor
    calibration: Calibration
    reliabilities: tuple[float, ...]

    def export(self, directory: Path, price_usd: float) -> VerifierSpec:
        """Write both graphs to a directory, and return their description."""
        save_boosted_trees(self.correctness, directory / GRAPH, is_probability=True)
        save_boosted_trees(self.gain, directory / GAIN_GRAPH, is_probability=False)
        return VerifierSpec(
            graph=GRAPH,
            gain_graph=GAIN_GRAPH,
            candidate_features=CANDIDATE_FEATURES,
            gain_features=GAIN_FEATURES,
            reliabilities=self.reliabilities,
            calibration=self.calibration,
            price_usd=price_usd,
        )


def fit_verifier(data: VerifierData, seed: int, effort: FitEffort = FULL_EFFORT) -> TrainedVerifier:
    """Fit a verifier on the queries of `data`."""
    if len(data.correct) > effort.queries:
        rng = np.random.default_rng(seed)
        data = data.take(np.sort(rng.choice(len(data.correct), effort.queries, replace=False)))
    sampled = list(_sample_sets(data, seed, effort.sets))
    rows = np.vstack([_rows(data, query, data.candidates[query].only(c)) for query, c in sampled])
    labels = np.concatenate([data.correct[query, list(chosen)] for query, chosen in sampled])
    sizes = np.array([len(chosen) for _, chosen in sampled])
    made_up = np.zeros(len(data.correct), bool) if data.is_made_up is None else data.is_made_up
    of_sets = np.where(made_up[[query for query, _ in sampled]], MADE_UP_WEIGHT, 1.0)
    weights = np.repeat(of_sets / sizes, sizes)
    groups = np.repeat(data.groups[[query for query, _ in sampled]], sizes)
    negatives = [(query, each) for query, made in enumerate(data.corrupted) for each in made]
    if negatives:
        alone = [(query, Candidates({made.column: made.answer}, {})) for query, made in negatives]
        rows = np.vstack([rows, *(_rows(data, query, candidates) for query, candidates in alone)])
        labels = np.concatenate([labels, np.zeros(len(negatives))])
        own = [CORRUPTED_WEIGHT * WEIGHTS.get(made.kind, 1.0) for _, made in negatives]
        weights = np.concatenate([weights, own])
        groups = np.concatenate([groups, data.groups[[query for query, _ in negatives]]])
    recorded = int(sizes.sum())
    # Candidates of other folds' queries are judged by a model that has not seen these queries.
    held_out = np.empty(len(rows))
    for number, (train, test) in enumerate(GroupKFold(HELD_OUT_FOLDS).split(rows, groups=groups)):
        log.info("fitting a verifier: part %d of %d", number + 1, HELD_OUT_FOLDS)
        model = _fit_correctness(rows, labels, weights, train, seed, effort.rounds)
        held_out[test] = model.predict_proba(rows[test])[:, 1]
    held_out, known = held_out[:recorded, None], labels[:recorded, None]
    calibration = fit_platt(known, held_out)
    judged = calibration.apply(held_out)[:, 0]
    starts = np.cumsum([0, *sizes])
    p_correct = {
        key: dict(zip(key[1], judged[start : start + len(key[1])].tolist(), strict=True))
        for key, start in zip(sampled, starts[:-1], strict=True)
        if not made_up[key[0]]
    }
    everything = np.arange(len(rows))
    return TrainedVerifier(
        correctness=_fit_correctness(rows, labels, weights, everything, seed, effort.rounds),
        gain=_fit_gain(data, p_correct, seed, effort),
        calibration=calibration,
        reliabilities=tuple(data.reliabilities.tolist()),
    )


def _sample_sets(data: VerifierData, seed: int, sets: int) -> Iterator[tuple[int, CandidateSet]]:
    """Yield queries with sets of arms: all single arms, and sampled larger sets."""
    rng = np.random.default_rng(seed)
    arms = len(data.costs_usd)
    ranks = np.argsort(np.argsort(data.costs_usd, kind="stable"))
    weights = 1 / (1 + ranks) ** CHEAP_ARMS_FIRST
    for query in range(len(data.correct)):
        chosen = {(arm,) for arm in range(arms)}
        for size in range(2, min(MAX_CANDIDATES, arms) + 1):
            for _ in range(sets):
                drawn = rng.choice(arms, size, replace=False, p=weights / weights.sum())
                chosen.add(tuple(sorted(drawn.tolist())))
        yield from ((query, arms) for arms in sorted(chosen))


def _rows(data: VerifierData, query: int, candidates: Candidates) -> Rows:
    """Return what the first graph reads of each candidate, (candidates, features)."""
    reliable_logits = clipped_logit(data.reliabilities)
    beliefs = Beliefs.of(data.features[query], data.probabilities[query], reliable_logits)
    own = candidate_features(beliefs, candidates)
    return np.hstack([np.tile(data.features[query], (len(own), 1)), own]).astype(np.float32)


def _fit_correctness(
    rows: Rows, labels: Floats, weights: Floats, chosen: NDArray[np.int64], seed: int, rounds: int
) -> HistGradientBoostingClassifier:
    model = HistGradientBoostingClassifier(
        max_iter=rounds,
        learning_rate=0.06,
        max_leaf_nodes=15,
        min_samples_leaf=_leaf_rows(len(chosen), MIN_LEAF_ROWS),
        l2_regularization=5,
        max_features=0.4,
        random_state=seed,
    )
    # A label between 0 and 1, the share of an arm's attempts, counts as both with its weight.
    right, wrong = chosen[labels[chosen] > 0], chosen[labels[chosen] < 1]
    return model.fit(
        rows[np.concatenate([right, wrong])],
        np.repeat([1, 0], [len(right), len(wrong)]),
        np.concatenate([labels[right] * weights[right], (1 - labels[wrong]) * weights[wrong]]),
    )


PCorrect = Mapping[tuple[int, CandidateSet], Mapping[int, float]]
"""Held-out probabilities of the candidates of sampled sets, by column."""


def _fit_gain(
    data: VerifierData, p_correct: PCorrect, seed: int, effort: FitEffort
) -> HistGradientBoostingRegressor:
    """Fit what asking an arm gains, from the last step to the first."""
    rng = np.random.default_rng(seed)
    arms = len(data.costs_usd)
    best_usd = data.costs_usd[data.reliabilities.argmax()]
    prices_usd = best_usd * np.geomspace(LOWEST_PRICE, HIGHEST_PRICE, effort.prices)
    all_rows: list[Rows] = []
    all_gains: list[Floats] = []
    later: HistGradientBoostingRegressor | None = None
    for size in reversed(range(min(MAX_CANDIDATES, arms))):
        steps = [
            (query, tuple(c for c in larger if c != column), column, larger)
            for query, larger in p_correct
            if len(larger) == size + 1
            for column in larger
        ]
        steps = [step for step in steps if not step[1] or (step[0], step[1]) in p_correct]
        if len(steps) > effort.transitions:
            picked = rng.choice(len(steps), effort.transitions, replace=False)
            steps = [steps[place] for place in picked]
        asked = np.array([column for _, _, column, _ in steps])
        before = _States.of(data, [(query, present) for query, present, _, _ in steps], p_correct)
        after = _States.of(data, [(query, larger) for query, _, _, larger in steps], p_correct)
        in_hand = before.worth if size else np.zeros(len(steps))
        rows, gains = [], []
        what = f"gain of candidate {size + 1}"
        for price_usd in track(prices_usd, what, len(prices_usd), "prices"):
            costs = data.costs_usd / price_usd
            rows.append(gain_features(before.at(costs))[np.arange(len(steps)), asked])
            gains.append(after.worth + _further(after.at(costs), later) - in_hand)
        all_rows.append(np.vstack(rows).astype(np.float32))
        all_gains.append(np.concatenate(gains))
        later = _fit_regressor(all_rows[-1], all_gains[-1], seed, effort)
    return _fit_regressor(np.vstack(all_rows), np.concatenate(all_gains), seed, effort)


def _further(state: State, later: HistGradientBoostingRegressor | None) -> Floats | float:
    """Return what asking further is worth after each set of candidates."""
    if later is None:
        return 0.0
    gains = np.full(state.askable.shape, -np.inf)
    rows = gain_features(state)[state.askable].astype(np.float32)
    gains[state.askable] = later.predict(rows)
    further: Floats = np.maximum((gains - state.costs).max(axis=1), 0.0)
    return further


@dataclass(frozen=True, slots=True)
class _States:
    """The states of sampled sets of candidates, which have the same size, without costs.

    `worth`, (sets,), estimates from 0 to 1 whether the likeliest candidate is correct. It is a
    weighted mean of the verifier's probability and the label, whose weight is `LABEL_SHARE`.
    """

    free: State
    """The states as if no arm cost anything."""
    worth: Floats

    @classmethod
    def of(
        cls, data: VerifierData, sets: Sequence[tuple[int, CandidateSet]], p_correct: PCorrect
    ) -> _States:
        queries = np.array([query for query, _ in sets], dtype=np.int64)
        candidates = np.array([columns for _, columns in sets], dtype=np.int64)
        candidates = candidates.reshape(len(sets), -1)
        askable = np.ones((len(sets), len(data.costs_usd)), dtype=np.bool_)
        np.put_along_axis(askable, candidates, values=False, axis=1)
        known = [[p_correct[key][column] for column in key[1]] for key in sets]
        is_same = [
            [
                [c == other or data.candidates[query].relations[c, other].is_same for other in each]
                for c in each
            ]
            for query, each in sets
        ]
        size = candidates.shape[1]
        p_correct_of = np.array(known).reshape(len(sets), size)
        worth = np.zeros(len(sets))
        if size:
            rows, best = np.arange(len(sets)), p_correct_of.argmax(axis=1)
            is_correct = data.correct[queries, candidates[rows, best]]
            worth = (1 - LABEL_SHARE) * p_correct_of[rows, best] + LABEL_SHARE * is_correct
        free = State(
            beliefs=ArmBeliefs.of(data.probabilities[queries], data.reliabilities),
            costs=np.zeros(len(data.costs_usd)),
            askable=askable,
            candidates=candidates,
            p_correct=p_correct_of,
            is_same=np.array(is_same, dtype=np.bool_).reshape(len(sets), size, size),
        )
        return cls(free, worth)

    def at(self, costs: Floats) -> State:
        """Return the states at these costs, in units of the price of a correct answer."""
        return replace(self.free, costs=costs)


def _fit_regressor(
    rows: Rows, targets: Floats, seed: int, effort: FitEffort
) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        max_iter=effort.gain_rounds,
        learning_rate=0.08,
        max_leaf_nodes=15,
        min_samples_leaf=_leaf_rows(len(rows), MIN_GAIN_LEAF_ROWS),
        l2_regularization=5,
        random_state=seed,
    ).fit(rows, targets)


def _leaf_rows(rows: int, usual: int) -> int:
    """Return the least number of rows in a leaf: fewer if there are few rows to learn from."""
    return max(1, min(usual, rows // 20))


def _with_split(nodes: NDArray[np.void]) -> NDArray[np.void]:
    """Return a tree's nodes; a tree of one leaf gets a split, because a graph's trees need one."""
    if len(nodes) > 1:
        return nodes
    grown = np.repeat(nodes, 3)
    for field, value in (("is_leaf", 0), ("feature_idx", 0), ("left", 1), ("right", 2)):
        grown[field][0] = value
    grown["num_threshold"][0] = 0.0
    return grown


def save_boosted_trees(
    model: HistGradientBoostingClassifier | HistGradientBoostingRegressor,
    path: Path,
    *,
    is_probability: bool,
) -> None:
    """Write an ensemble as a graph from `features`, (batch, features), to (batch, 1)."""
    trees = [_with_split(each.nodes) for stage in model._predictors for each in stage]
    starts = np.cumsum([0, *(len(tree) for tree in trees[:-1])])
    nodes = np.concatenate(trees)
    first = np.repeat(starts, [len(tree) for tree in trees])
    is_leaf = nodes["is_leaf"].astype(bool)
    # Inner nodes and leaves have tables of their own; `place` is a node's row in its table.
    place = np.where(is_leaf, np.cumsum(is_leaf), np.cumsum(~is_leaf)) - 1
    inner = nodes[~is_leaf]
    left, right = (inner[side].astype(np.int64) + first[~is_leaf] for side in ("left", "right"))
    attributes: dict[str, Any] = {
        "aggregate_function": 1,
        "n_targets": 1,
        "tree_roots": place[starts],
        "nodes_featureids": inner["feature_idx"].astype(np.int64),
        "nodes_splits": numpy_helper.from_array(round_down(inner["num_threshold"])),
        "nodes_modes": numpy_helper.from_array(np.zeros(len(inner), dtype=np.uint8)),
        "nodes_truenodeids": place[left],
        "nodes_trueleafs": is_leaf[left].astype(np.int64),
        "nodes_falsenodeids": place[right],
        "nodes_falseleafs": is_leaf[right].astype(np.int64),
        "leaf_targetids": np.zeros(is_leaf.sum(), dtype=np.int64),
        "leaf_weights": numpy_helper.from_array(nodes["value"][is_leaf].astype(np.float32)),
    }
    baseline = np.asarray(model._baseline_prediction, dtype=np.float32).reshape(1)
    graph_nodes = [
        helper.make_node("TreeEnsemble", ["features"], ["sum"], domain="ai.onnx.ml", **attributes),
        helper.make_node("Add", ["sum", "baseline"], ["score"]),
        helper.make_node("Sigmoid" if is_probability else "Identity", ["score"], ["output"]),
    ]
    graph = helper.make_graph(
        graph_nodes,
        "verifier",
        [
            helper.make_tensor_value_info(
                "features", TensorProto.FLOAT, ["batch", model.n_features_in_]
            )
        ],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(baseline, "baseline")],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    proto = helper.make_model(graph, opset_imports=opsets)
    proto.ir_version = 10
    onnx.save(proto, str(path))
