"""The verifier: how probable it is that each candidate answer is correct, and whether to ask more.

Two graphs of decision trees do this. The first estimates from `answer_features` whether a candidate
is correct. The second estimates what asking one more arm gains, with everything that may follow
from it. Both estimates are probabilities. A price says what one more correct answer is worth, so an
arm is asked only if its expected gain is worth its cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from router_service.core.answer_features import (
    CANDIDATE_FEATURES,
    Beliefs,
    Candidates,
    candidate_features,
    clipped_logit,
)
from router_service.core.model import IDENTITY, Calibration, Floats, Graph, Probability

SURELY_CORRECT = 0.9995
"""No arm is asked after a candidate with this probability: the gain could not be measured."""


class VerifierSpec(BaseModel):
    """Description of an artifact's verifier: its graphs, their inputs, and its operating point."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    graph: str = Field(
        description="File of the graph that estimates whether candidates are correct."
    )
    gain_graph: str = Field(
        description="File of the graph that estimates what asking an arm gains."
    )
    candidate_features: tuple[str, ...] = Field(
        description="What the first graph reads after the features of the request, in this order."
    )
    gain_features: tuple[str, ...] = Field(
        description="What the second graph reads, in this order."
    )
    reliabilities: tuple[Probability, ...] = Field(
        description="Share of the training queries that each arm answered correctly."
    )
    calibration: Calibration = Field(
        default=IDENTITY, description="Map from the first graph's output to a probability."
    )
    price_usd: float = Field(
        gt=0, allow_inf_nan=False, description="Price of the policy `verified` without a number."
    )
    streams_text_from: Probability | None = Field(
        default=None,
        description="Probability, predicted by the router, that a request asks for no tool call,"
        " from which the first answer is delivered unverified if it is text. Without it, text is"
        " verified like calls.",
    )

    @model_validator(mode="after")
    def _check_names(self) -> VerifierSpec:
        unknown = {*self.candidate_features} - {*CANDIDATE_FEATURES}
        unknown |= {*self.gain_features} - {*GAIN_FEATURES}
        if unknown:
            raise ValueError(f"this version cannot compute the features {sorted(unknown)}")
        if self.calibration.arms not in {None, 1}:
            raise ValueError("the calibration of a verifier must be for one output")
        return self

    def expects_text(self, p_no_call: float | None) -> bool:
        """Return whether the first answer is delivered unverified if it is text.

        `p_no_call` is the probability that the request asks for no tool call, if it is known.
        """
        if self.streams_text_from is None or p_no_call is None:
            return False
        return p_no_call >= self.streams_text_from


@dataclass(frozen=True, slots=True)
class State:
    """What is known when the next arm is chosen.

    `p_correct` is the probability that each candidate in hand is correct, by column. `costs` are
    the expected costs of all arms divided by the price of a correct answer, (arms,). `askable` are
    the columns of the arms that may still be asked.
    """

    beliefs: Beliefs
    p_correct: Mapping[int, float]
    candidates: Candidates
    costs: Floats
    askable: Sequence[int]


GAIN_FEATURES = (
    "candidates", "probability", "reliability", "cost", "best_pool_logit", "mean_pool_logit",
    "cheapest_other_cost", "best_other_value", "best_other_probability", "log_cheapest_cost",
    "best_p", "rival_p", "agreeing", "best_logit", "logit_lead", "reliability_lead",
    "probability_lead", "worst_p", "best_candidate_logit",
)  # fmt: skip
"""Names of what the gain graph reads of an arm. The meaning of a name never changes."""

_NO_OTHER = 9.0
"""Feature for the cost of an arm that does not exist, in units of a correct answer's price."""


def gain_features(state: State, columns: Sequence[int]) -> Floats:
    """Return `GAIN_FEATURES` of asking the arm of each of these columns, (columns, features)."""
    _, probabilities, reliabilities = state.beliefs
    logits, reliable = clipped_logit(probabilities), clipped_logit(reliabilities)
    in_hand, relations = state.p_correct, state.candidates.relations
    pool = (float(logits.max()), float(logits.mean()))
    log_cheapest = math.log(max(1e-9, min(float(state.costs[c]) for c in state.askable)))
    best = max(in_hand, key=in_hand.__getitem__, default=None)
    rows = []
    for column in columns:
        others = [other for other in state.askable if other != column]
        row = [
            len(in_hand),
            float(probabilities[column]),
            float(reliable[column]),
            float(state.costs[column]),
            *pool,
            min((float(state.costs[c]) for c in others), default=_NO_OTHER),
            max((float(probabilities[c] - state.costs[c]) for c in others), default=0.0),
            max((float(probabilities[c]) for c in others), default=0.0),
            log_cheapest,
        ]
        if best is None:
            row += [0.0] * (len(GAIN_FEATURES) - len(row))
        else:
            rest = [c for c in in_hand if c != best]
            rivals = [c for c in rest if not relations[best, c].is_same]
            row += [
                in_hand[best],
                max((in_hand[c] for c in rivals), default=0.0),
                1 + len(rest) - len(rivals),
                float(logits[best]),
                float(logits[column] - logits[best]),
                float(reliable[column] - reliable[best]),
                float(probabilities[column]) - in_hand[best],
                min(in_hand.values()),
                max(float(logits[c]) for c in in_hand),
            ]
        rows.append(row)
    return np.array(rows, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do with the candidates: accept one, or ask the arms of further columns at once."""

    accept: int | None
    ask: tuple[int, ...]
    p_correct: Mapping[int, float]
    gain: float
    """Expected increase of the probability of a correct answer; 0 if a candidate is accepted."""


class Verifier:
    """The verifier of an artifact; may be shared by threads."""

    def __init__(self, directory: Path, spec: VerifierSpec) -> None:
        """Load both graphs. Raises ArtifactError."""
        self.spec = spec
        self._reliabilities = np.array(spec.reliabilities)
        self._graph = Graph(directory / spec.graph)
        self._gain_graph = Graph(directory / spec.gain_graph)
        self._candidate_places = [
            CANDIDATE_FEATURES.index(name) for name in spec.candidate_features
        ]
        self._gain_places = [GAIN_FEATURES.index(name) for name in spec.gain_features]

    def beliefs(self, features: Sequence[float], probabilities: Sequence[float]) -> Beliefs:
        """Return what is known of a request before an arm is asked."""
        return Beliefs(features, np.array(probabilities), self._reliabilities)

    def p_correct(self, beliefs: Beliefs, candidates: Candidates) -> dict[int, float]:
        """Return the probability that each candidate is correct, by the column of its arm."""
        if not candidates.answers:
            return {}
        rows = candidate_features(beliefs, candidates)[:, self._candidate_places]
        inputs = np.hstack([np.tile(beliefs.features, (len(rows), 1)), rows]).astype(np.float32)
        raw = self._graph.evaluate({"features": inputs}).astype(np.float64)
        found = self.spec.calibration.apply(raw)[:, 0].tolist()
        return dict(zip(candidates.answers, found, strict=True))

    def gains(self, state: State, columns: Sequence[int]) -> Floats:
        """Return what asking the arm of each of these columns gains, (columns,).

        Without candidates, this is the probability of a correct answer in the end. With candidates,
        it is the increase of this probability. The cost of the arm itself is not subtracted, but
        the cost of arms that may be asked after it is.
        """
        rows = gain_features(state, columns)[:, self._gain_places].astype(np.float32)
        return self._gain_graph.evaluate({"features": rows}).astype(np.float64)[:, 0]

    def choose_step(
        self,
        beliefs: Beliefs,
        candidates: Candidates,
        costs: Floats,
        askable: Sequence[int],
        *,
        is_last: bool = False,
    ) -> NextStep:
        """Return the next step for the candidates in hand; there must be one, or an askable arm.

        The first step always asks. Afterwards, an arm is asked if its expected gain exceeds its
        cost. `costs` are those of all arms, divided by the price of a correct answer, (arms,). If
        `is_last`, no arm can be asked after this step, for example because of a time limit. Then
        the first step asks two arms at once if the second is worth its cost.
        """
        p_correct = self.p_correct(beliefs, candidates)
        best = max(p_correct, key=lambda c: (p_correct[c], -costs[c]), default=None)
        if not askable or (best is not None and p_correct[best] >= SURELY_CORRECT):
            return NextStep(best, (), p_correct, 0.0)
        gains = self.gains(State(beliefs, p_correct, candidates, costs, askable), askable)
        place = int((gains - costs[list(askable)]).argmax())
        first, gain = askable[place], float(gains[place])
        if best is not None and gain <= costs[first]:
            return NextStep(best, (), p_correct, 0.0)
        others = [column for column in askable if column != first]
        if best is None and is_last and others:
            # The first answer is not known yet, so it counts as probable as the router expects.
            expected = {first: float(beliefs.probabilities[first])}
            more = self.gains(State(beliefs, expected, candidates, costs, others), others)
            second = int((more - costs[others]).argmax())
            if more[second] > costs[others[second]]:
                return NextStep(None, (first, others[second]), p_correct, gain)
        return NextStep(None, (first,), p_correct, gain)
