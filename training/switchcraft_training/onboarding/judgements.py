"""What a verifier would say of the answers of an arm that joined, estimated from other arms'.

Most of its answers to the held-out queries do not exist. In each query, another arm stands in: one
that was as right or wrong there as the new arm is assumed to be. So the figures of verified answers
in the new pool can be estimated.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from router_service.measurement.simulation import (
    MAX_CANDIDATES,
    JudgedAnswers,
    candidate_sets,
    quantize,
)
from router_service.verifier.graphs import Columns
from switchcraft_training.data.table import Floats


def draw_labels(targets: Floats, seed: int) -> Floats:
    """Return labels 0 or 1 that are drawn with the probabilities `targets`, (queries,).

    The draws are stratified, so that the mean of the labels is that of the probabilities.
    """
    ends = np.cumsum(targets) + np.random.default_rng(seed).random()
    return np.diff(np.floor(ends), prepend=np.floor(ends[0] - targets[0]))


def rank_stand_ins(labels: Floats, correct: Floats) -> Columns:
    """Return the arms that may stand in for a new arm in each query, the best first.

    `labels`, (queries,), are those of the new arm, and `correct`, (queries, arms), those of the
    others. An arm with the same label comes first, and then the one that agrees in most queries.
    """
    differs = np.abs(correct - labels[:, None])
    ranked: Columns = (differs + differs.mean(axis=0)).argsort(axis=1)
    return ranked[:, :MAX_CANDIDATES]


def join_judgements(
    judged: JudgedAnswers, stand_ins: Columns, probabilities: Floats, accuracy: float
) -> JudgedAnswers:
    """Return the judgements with one more arm, whose answers are those of its stand-ins.

    If the stand-in is a candidate itself, the next one takes its place. `probabilities`,
    (queries,), are the router's for the new arm, and `accuracy` is what the verifier is told.
    """
    new, rows = judged.arms, np.arange(len(judged.folds))

    def with_stand_in(others: tuple[int, ...]) -> Columns:
        """Return these candidates and the stand-in, (queries, candidates)."""
        place = (~np.isin(stand_ins, others)).argmax(axis=1)
        fixed = np.tile(np.array(others, dtype=np.int64), (len(rows), 1))
        return np.column_stack([fixed, stand_ins[rows, place]])

    p_correct = []
    for each in candidate_sets(new + 1):
        asked = with_stand_in(each[:-1]) if new in each else np.tile(each, (len(rows), 1))
        p_correct.append(quantize(judged.judge(rows, asked)))
    is_same = []
    for one, other in combinations(range(new + 1), 2):
        asked = with_stand_in((one,)) if other == new else np.tile((one, other), (len(rows), 1))
        is_same.append(judged.same(rows, asked)[:, 0, 1])
    told = np.full((len(judged.reliabilities), 1), accuracy)
    return JudgedAnswers(
        p_correct=np.hstack(p_correct),
        is_same=np.column_stack(is_same),
        is_text=np.column_stack([judged.is_text, judged.is_text[rows, stand_ins[:, 0]]]),
        probabilities=np.column_stack([judged.probabilities, probabilities]).astype(np.float32),
        p_no_call=judged.p_no_call,
        folds=judged.folds,
        reliabilities=np.hstack([judged.reliabilities, told]),
        gain_graphs=judged.gain_graphs,
    )
