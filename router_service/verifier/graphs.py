"""The verifier: how probable it is that each candidate answer is correct, and whether to ask more.

Two graphs of decision trees do this. The first estimates from `answer_features` whether a candidate
is correct. The second estimates what asking one more arm gains, with everything that may follow
from it. Both estimates are probabilities. A price says what one more correct answer is worth, so an
arm is asked only if its expected gain is worth its cost.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from router_service.apis.conversation import Conversation
from router_service.core.resources import Cache
from router_service.core.values import Strict, request_value
from router_service.predictor.model import IDENTITY, Calibration, Floats, Graph, Probability
from router_service.verifier.answer_features import (
    CANDIDATE_FEATURES,
    Beliefs,
    Candidates,
    candidate_features,
    clipped_logit,
)

MAX_JUDGED = 3
"""Candidates up to which verifiers are trained. After as many, no further gain can be estimated."""

SURELY_CORRECT = 0.9995
"""No arm is asked after a candidate with this probability: the gain could not be measured."""


MAX_LETTERS = 2_000
"""Letters of a text that tell its script."""


class MeasuredRequests(Strict):
    """Limits of the requests with which a verifier was measured; all others are far off."""

    tools: int = Field(ge=0, description="The most tools that a measured request has offered.")
    scripts: tuple[str, ...] = Field(
        description="Scripts of the measured queries, such as `LATIN`, by their Unicode names."
    )

    def include(self, conversation: Conversation) -> bool:
        """Return whether a request is within the limits, and has no attachments.

        A request whose user has written no word is not.
        """
        latest = conversation.deciding_turn
        script = None if latest is None else script_of(conversation.turns[latest].text)
        return (
            script in self.scripts
            and len(conversation.tools) <= self.tools
            and not any(turn.attachments for turn in conversation.turns)
        )


def script_of(text: str) -> str | None:
    """Return the script of most letters in a text, such as `CYRILLIC`; None without letters."""
    letters = [each for each in text[: 4 * MAX_LETTERS] if each.isalpha()][:MAX_LETTERS]
    scripts = Counter(
        "LATIN" if each.isascii() else unicodedata.name(each, "").partition(" ")[0]
        for each in letters
    )
    return scripts.most_common(1)[0][0] if scripts else None


class UnfamiliarGraphs(Strict):
    """The graphs of a verifier that judge the answers to unfamiliar requests.

    They have learned from queries in the context that agents send: system prompts, further tools
    and earlier turns. They read no features of the request, and the arms' reliabilities instead of
    the router's probabilities, because a router that has not learned from such context is wrong
    about it.
    """

    graph: str = Field(description="File of the graph, as for all other requests.")
    gain_graph: str = Field(description="File of the gain graph, as for all other requests.")
    candidate_features: tuple[str, ...] = Field(
        description="What the first graph reads, in this order."
    )
    calibration: Calibration = Field(
        default=IDENTITY, description="Map from the first graph's output to a probability."
    )
    measured: MeasuredRequests = Field(
        description="What the verifier was measured with; other requests are far off."
    )


class VerifierSpec(Strict):
    """Description of an artifact's verifier: its graphs, their inputs, and its operating point."""

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
    unfamiliar: UnfamiliarGraphs | None = Field(
        default=None,
        description="Graphs for unfamiliar requests; without them, the same ones judge all"
        " requests.",
    )
    price_usd: float = Field(
        gt=0, allow_inf_nan=False, description="Price of the policy `verified` without a number."
    )
    floor: Probability = Field(
        default=0.0,
        description="Probability of a correct answer below which policies with a name ask another"
        " arm, even if that is not worth its cost.",
    )
    streams_text_from: Probability | None = Field(
        default=None,
        description="Probability, predicted by the router, that a request asks for no tool call,"
        " from which the first answer is delivered unverified if it is text. Without it, text is"
        " verified like calls.",
    )

    @model_validator(mode="after")
    def _check_names(self) -> VerifierSpec:
        own = self.unfamiliar.candidate_features if self.unfamiliar else ()
        unknown = {*self.candidate_features, *own} - {*CANDIDATE_FEATURES}
        unknown |= {*self.gain_features} - {*GAIN_FEATURES}
        if unknown:
            raise ValueError(
                f"this version cannot compute the features {sorted(unknown)}; if an earlier one"
                " could, their meaning has changed since: train the verifier again with"
                " `switchcraft-train add-verifier`"
            )
        if self.calibration.arms not in {None, 1}:
            raise ValueError("the calibration of a verifier must be for one output")
        return self

    @property
    def files(self) -> frozenset[str]:
        """The names of all graphs' files."""
        own = frozenset((self.graph, self.gain_graph))
        more = self.unfamiliar
        return own if more is None else own | {more.graph, more.gain_graph}

    def expects_text(self, p_no_call: float | None) -> bool:
        """Return whether the first answer is delivered unverified if it is text.

        `p_no_call` is the probability that the request asks for no tool call, if it is known.
        """
        if self.streams_text_from is None or p_no_call is None:
            return False
        return p_no_call >= self.streams_text_from


Columns = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class ArmBeliefs:
    """What is known of the arms before one of them is asked, for some requests.

    `probabilities` and their log-odds `logits` are (requests, arms), and `reliabilities` are
    log-odds, (arms,). `pool`, (requests, 2), has the largest and the mean log-odds of all of the
    artifact's arms, even if some of them cannot be asked.
    """

    probabilities: Floats
    logits: Floats
    reliabilities: Floats
    pool: Floats

    @classmethod
    def of(cls, probabilities: Floats, reliabilities: Floats) -> ArmBeliefs:
        """Return the beliefs for probabilities, (requests, arms), and reliabilities, (arms,)."""
        logits = clipped_logit(probabilities)
        pool = np.column_stack([logits.max(axis=1), logits.mean(axis=1)])
        return cls(probabilities, logits, clipped_logit(reliabilities), pool)

    def take(self, rows: Columns) -> ArmBeliefs:
        """Return some of the requests."""
        return ArmBeliefs(
            self.probabilities[rows], self.logits[rows], self.reliabilities, self.pool[rows]
        )

    def select_arms(self, columns: Sequence[int]) -> ArmBeliefs:
        """Return some of the arms; `pool` still describes all of them."""
        chosen = list(columns)
        return ArmBeliefs(
            self.probabilities[:, chosen],
            self.logits[:, chosen],
            self.reliabilities[chosen],
            self.pool,
        )


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What is known of some requests when the next arm is chosen; all have as many candidates.

    `costs` are the expected costs of the arms divided by the price of a correct answer, (arms,).
    `askable`, (requests, arms), says which arms may still be asked. `candidates`, (requests,
    candidates), are the columns of the arms that have answered. `p_correct`, (requests,
    candidates), are the probabilities that their answers are correct, and `is_same`, (requests,
    candidates, candidates), says which of their answers are the same.
    """

    beliefs: ArmBeliefs
    costs: Floats
    askable: Flags
    candidates: Columns
    p_correct: Floats
    is_same: Flags

    def take(self, rows: Columns) -> State:
        """Return some of the requests."""
        return State(
            self.beliefs.take(rows),
            self.costs,
            self.askable[rows],
            self.candidates[rows],
            self.p_correct[rows],
            self.is_same[rows],
        )

    def best_places(self) -> Columns:
        """Return the place of each request's best candidate: the cheapest of the most probable."""
        is_top = self.p_correct == self.p_correct.max(axis=1, keepdims=True)
        # An arm outside the pool costs infinity; it must still come before the less probable ones.
        costs = np.minimum(self.costs[self.candidates], _LARGEST)
        places: Columns = np.where(is_top, costs, np.inf).argmin(axis=1)
        return places


_LARGEST = float(np.finfo(np.float64).max)

GAIN_FEATURES = (
    "candidates", "probability", "reliability", "cost", "best_pool_logit", "mean_pool_logit",
    "cheapest_other_cost", "best_other_value", "best_other_probability", "log_cheapest_cost",
    "best_p", "rival_p", "agreeing", "best_logit", "logit_lead", "reliability_lead",
    "probability_lead", "worst_p", "best_candidate_logit",
)  # fmt: skip
"""Names of what the gain graph reads of an arm. The meaning of a name never changes."""

_NO_OTHER = 9.0
"""Feature for the cost of an arm that does not exist, in units of a correct answer's price."""


def gain_features(state: State) -> Floats:
    """Return `GAIN_FEATURES` of asking each arm, (requests, arms, features)."""
    beliefs, askable = state.beliefs, state.askable
    probabilities, costs = beliefs.probabilities, state.costs
    requests, arms = askable.shape
    cheapest = np.where(askable, costs, np.inf).min(axis=1)
    compared = np.empty((3, requests, arms))
    compared[0], compared[1], compared[2] = -costs, probabilities - costs, probabilities
    cheapest_other, best_other_value, best_other_probability = _largest_other(
        compared, askable, (-_NO_OTHER, 0.0, 0.0)
    )
    features: list[Floats | float] = [
        float(state.candidates.shape[1]),
        probabilities,
        beliefs.reliabilities,
        costs,
        *beliefs.pool.T[:, :, None],
        -cheapest_other,
        best_other_value,
        best_other_probability,
        np.log(np.maximum(cheapest, 1e-9))[:, None],
    ]
    if state.candidates.shape[1]:
        rows, place = np.arange(requests), state.best_places()
        best, best_p = state.candidates[rows, place], state.p_correct[rows, place]
        is_rival = ~state.is_same[rows, place]
        is_rival[rows, place] = False
        best_logits = beliefs.logits[rows, best][:, None]
        features += [
            best_p[:, None],
            np.where(is_rival, state.p_correct, 0.0).max(axis=1)[:, None],
            (~is_rival).sum(axis=1)[:, None].astype(np.float64),
            best_logits,
            beliefs.logits - best_logits,
            beliefs.reliabilities - beliefs.reliabilities[best][:, None],
            probabilities - best_p[:, None],
            state.p_correct.min(axis=1)[:, None],
            beliefs.logits[rows[:, None], state.candidates].max(axis=1)[:, None],
        ]
    found = np.zeros((requests, arms, len(GAIN_FEATURES)))
    for number, values in enumerate(features):
        found[:, :, number] = values
    return found


def _largest_other(values: Floats, askable: Flags, defaults: Sequence[float]) -> Floats:
    """Return the largest value of the other askable arms for each arm.

    Values and results are (tables, requests, arms). Without another arm, the result is the table's
    default, (tables,).
    """
    ordered = np.full((*values.shape[:2], values.shape[2] + 1), -np.inf)
    ordered[:, :, 1:] = np.where(askable, values, -np.inf)
    counted = ordered[:, :, 1:].copy()
    ordered.sort(axis=2)
    largest, second = ordered[:, :, -1:], ordered[:, :, -2:-1]
    found = np.where(counted == largest, second, largest)
    return np.where(found == -np.inf, np.array(defaults)[:, None, None], found)


class GainModel:
    """What asking one more arm gains, and whether that is worth its cost; for many requests.

    May be shared by threads.
    """

    def __init__(self, graph: Graph, features: Sequence[str]) -> None:
        """Use a graph that reads these `GAIN_FEATURES`, in this order."""
        self._graph = graph
        self._places = [GAIN_FEATURES.index(name) for name in features]

    def gains(self, state: State) -> Floats:
        """Return what asking each arm gains, (requests, arms); negative infinity if not askable.

        Without candidates, this is the probability of a correct answer in the end. With candidates,
        it is the increase of this probability. The cost of the arm itself is not subtracted, but
        the cost of arms that may be asked after it is.
        """
        rows = gain_features(state)[state.askable][:, self._places].astype(np.float32)
        gains = np.full(state.askable.shape, -np.inf)
        gains[state.askable] = self._graph.evaluate({"features": rows})[:, 0]
        return gains

    def choose_arms(
        self, state: State, *, must_ask: bool = False, floor: float = 0.0
    ) -> ArmChoices:
        """Return the arm to ask next, which is `NO_ARM` if the best candidate should be accepted.

        That is so if no arm is worth its cost, none may be asked, or a candidate is surely correct.
        Without candidates, or with `must_ask`, an arm is asked at any cost. If no candidate reaches
        `floor`, an arm is asked, too: the gain says that none helps, so the arm with the best
        probability for its cost is tried.
        """
        must_ask = must_ask or state.candidates.shape[1] == 0
        is_open: Flags = np.asarray(state.askable.any(axis=1))
        if not must_ask:
            is_open = is_open & (state.p_correct.max(axis=1) < SURELY_CORRECT)
        chosen = np.full(len(is_open), NO_ARM)
        found = ArmChoices(chosen, chosen.copy(), np.zeros(len(is_open)))
        if not is_open.any():
            return found
        rows = np.flatnonzero(is_open)
        state = state if len(rows) == len(is_open) else state.take(rows)
        gains = self.gains(state)
        best = (gains - state.costs).argmax(axis=1)
        gained = gains[np.arange(len(rows)), best]
        is_worth = (gained > state.costs[best]) | must_ask
        if not must_ask and floor > 0:
            is_low = ~is_worth & (state.p_correct.max(axis=1) < floor)
            values = np.where(state.askable, state.beliefs.probabilities - state.costs, -np.inf)
            best = np.where(is_low, values.argmax(axis=1), best)
            gained = gains[np.arange(len(rows)), best]
            is_worth |= is_low
        found.asked[rows[is_worth]] = best[is_worth]
        found.best[rows], found.gain[rows] = best, gained
        return found


NO_ARM = -1
"""Column of no arm."""

FIRST_STEPS_BYTES = 2**20
"""Largest memory of the first steps that a verifier remembers."""
FIRST_STEP_BYTES = 1024
"""Memory of one of them with its key."""


class ArmChoices(NamedTuple):
    """Which arm to ask next, (requests,) each.

    `asked` is `NO_ARM` if the best candidate should be accepted. `best` is the arm that was the
    best one to ask, and `gain` what asking it gains; `NO_ARM` and 0 if nothing was estimated.
    """

    asked: Columns
    best: Columns
    gain: Floats


@request_value(frozen=True, slots=True)
class NextStep:
    """What to do with the candidates: accept one, or ask the arms of further columns at once."""

    accept: int | None
    ask: tuple[int, ...]
    p_correct: Mapping[int, float]
    gain: float
    """Expected increase of the probability of a correct answer; 0 if a candidate is accepted."""
    left_out: int | None = None
    """The arm that was the best one to ask, if a candidate is accepted and another arm is left."""
    left_out_gain: float = 0.0
    """What asking that arm would gain."""


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What shapes a step besides gains and costs."""

    is_last: bool = False
    """Whether no arm can be asked after this step, for example because of a time limit. Then the
    first step asks two arms at once if the second is worth its cost."""
    waits: Floats | None = None
    """The part of the arms' costs for the time that their answers take, (arms,). With it, the first
    step asks two arms at once if the second is probably needed, and costs less than the time that
    this saves."""
    floor: float = 0.0
    """Probability below which no candidate is accepted while another arm may be asked."""
    excluded: Collection[int] = ()
    """Columns of arms that limits exclude; what asking one would gain is estimated all the same."""
    refused: Collection[int] = ()
    """Columns of candidates that should not be accepted. Instead, another arm is asked at any cost.
    If none may be asked, the best of the other candidates is accepted, if there is one."""


class Verifier:
    """The verifier of an artifact; may be shared by threads."""

    def __init__(
        self, directory: Path, spec: VerifierSpec, graphs: UnfamiliarGraphs | None = None
    ) -> None:
        """Load both graphs: those of a specification, or `graphs` for unfamiliar requests.

        Raises ArtifactError.
        """
        self.spec = spec
        reliabilities = np.array(spec.reliabilities)
        self._reliable_logits = clipped_logit(reliabilities)
        self._of_any: Beliefs | None = None
        """What is known of every request, if the router's view of it is not read."""
        if graphs is not None:
            self._of_any = Beliefs.of((), reliabilities, self._reliable_logits)
        loaded = spec if graphs is None else graphs
        self._calibration = loaded.calibration
        self._graph = Graph(directory / loaded.graph)
        self._gain_model = GainModel(Graph(directory / loaded.gain_graph), spec.gain_features)
        self._candidate_places = [
            CANDIDATE_FEATURES.index(name) for name in loaded.candidate_features
        ]
        self._first_steps: Cache[Hashable, NextStep] = Cache(FIRST_STEPS_BYTES)
        """Steps without candidates, by everything that they depend on."""

    def beliefs(self, features: Sequence[float], probabilities: Sequence[float]) -> Beliefs:
        """Return what is known of a request before an arm is asked.

        `features` and `probabilities` are the router's.
        """
        if self._of_any is not None:
            return self._of_any
        return Beliefs.of(features, np.array(probabilities), self._reliable_logits)

    def p_correct(self, beliefs: Beliefs, candidates: Candidates) -> dict[int, float]:
        """Return the probability that each candidate is correct, by the column of its arm.

        An answer that cannot be read, because it exceeds a limit, is at most as probable as the
        router expected: its features look like those of an answer without calls.
        """
        found = self.judge([(beliefs, candidates)]).tolist()
        judged = zip(candidates.answers.items(), found, strict=True)
        return {
            column: min(p, float(beliefs.probabilities[column])) if answer.calls is None else p
            for (column, answer), p in judged
        }

    def judge(self, requests: Iterable[tuple[Beliefs, Candidates]]) -> Floats:
        """Return the probability that each candidate of some requests is correct, in their order.

        The graph runs once for all of them.
        """
        judged = [each for each in requests if each[1].answers]
        if not judged:
            return np.empty(0)
        ends = list(accumulate(len(candidates.answers) for _, candidates in judged))
        of_request = len(judged[0][0].features)
        inputs = np.empty((ends[-1], of_request + len(self._candidate_places)), np.float32)
        for (beliefs, candidates), end in zip(judged, ends, strict=True):
            rows = inputs[end - len(candidates.answers) : end]
            rows[:, :of_request] = beliefs.features
            rows[:, of_request:] = candidate_features(beliefs, candidates)[
                :, self._candidate_places
            ]
        raw = self._graph.evaluate({"features": inputs})
        return self._calibration.apply(raw.astype(np.float64))[:, 0]

    def choose_step(
        self,
        beliefs: Beliefs,
        candidates: Candidates,
        costs: Floats,
        askable: Sequence[int],
        terms: StepTerms = StepTerms(),
    ) -> NextStep:
        """Return the next step for the candidates in hand; there must be one, or an askable arm.

        The answers to unfamiliar requests are mostly steps of an agent. If several candidates make
        the calls that are accepted, the cheapest arm's answer is, so that a tool loop stays with
        that arm. The first step always asks. Afterwards, an arm is
        asked if its expected gain exceeds its cost. `costs` are those of all arms, divided by the
        price of a correct answer, (arms,).
        """
        if candidates.answers:
            return self._choose_step(beliefs, candidates, costs, askable, terms)
        # A conversation that is known has the same first step again, and so have all unfamiliar
        # requests of a pool.
        waits = None if terms.waits is None else terms.waits.tobytes()
        known = beliefs.probabilities.tobytes(), costs.tobytes(), tuple(askable)
        key = (*known, terms.is_last, waits, terms.floor)
        step = self._first_steps.get(key)
        if step is None:
            step = self._choose_step(beliefs, candidates, costs, askable, terms)
            self._first_steps.put(key, step, FIRST_STEP_BYTES)
        return step

    def _choose_step(
        self,
        beliefs: Beliefs,
        candidates: Candidates,
        costs: Floats,
        askable: Sequence[int],
        terms: StepTerms,
    ) -> NextStep:
        p_correct = self.p_correct(beliefs, candidates)
        columns = list(p_correct)
        is_askable = np.zeros((1, len(costs)), dtype=np.bool_)
        is_askable[0, list(askable)] = True
        is_same = [
            [c == other or candidates.relations[c, other].is_same for other in columns]
            for c in columns
        ]
        state = State(
            beliefs=ArmBeliefs(
                beliefs.probabilities[None],
                beliefs.logits[None],
                beliefs.reliable_logits,
                np.array([beliefs.pool]),
            ),
            costs=costs,
            askable=is_askable,
            candidates=np.array([columns], dtype=np.int64),
            p_correct=np.array([[*p_correct.values()]]),
            is_same=np.array([is_same], dtype=np.bool_).reshape(1, len(columns), len(columns)),
        )
        best = columns[state.best_places()[0]] if columns else None
        choice = self._gain_model.choose_arms(
            state, must_ask=best in terms.refused, floor=terms.floor
        )
        arms, first, gain = choice.asked, int(choice.asked[0]), float(choice.gain[0])
        if first == NO_ARM:
            allowed = [column for column in columns if column not in terms.refused]
            if best in terms.refused and allowed:
                best = max(allowed, key=lambda column: p_correct[column])
            if self._of_any is not None:
                best = _cheapest_with_calls_of(best, allowed, candidates, costs)
            left_out = int(choice.best[0])
            if not askable and terms.excluded and len(columns) < MAX_JUDGED:
                is_askable[0, list(terms.excluded)] = True
                gains = self._gain_model.gains(state)
                left_out = int((gains - costs).argmax())
                gain = float(gains[0, left_out])
            if left_out == NO_ARM:
                return NextStep(best, (), p_correct, 0.0)
            return NextStep(best, (), p_correct, 0.0, left_out, gain)
        is_last, waits = terms.is_last, terms.waits
        if not columns and (is_last or waits is not None):
            # The first answer is not known yet, so it counts as probable as the router expects.
            is_askable[0, first] = False
            expected = replace(
                state,
                candidates=arms[None],
                p_correct=state.beliefs.probabilities[:, arms],
                is_same=np.ones((1, 1, 1), dtype=np.bool_),
            )
            second = int(self._gain_model.choose_arms(expected, must_ask=not is_last).asked[0])
            if second != NO_ARM and not is_last and waits is not None:
                is_needed = 1 - float(beliefs.probabilities[first])
                saved = is_needed * waits[second] - max(0.0, waits[second] - waits[first])
                if saved <= (1 - is_needed) * (costs[second] - waits[second]):
                    second = NO_ARM
            if second != NO_ARM:
                return NextStep(None, (first, second), p_correct, gain)
        return NextStep(None, (first,), p_correct, gain)


def _cheapest_with_calls_of(
    best: int | None, allowed: Sequence[int], candidates: Candidates, costs: Floats
) -> int | None:
    """Return the cheapest of the allowed candidates that make the same calls as the best one.

    Texts are not compared: two of them count as the same, whatever they say.
    """
    if best is None or not candidates.answers[best].calls:
        return best
    same = [
        other for other in allowed if other == best or candidates.relations[best, other].is_same
    ]
    return min(same, key=lambda column: float(costs[column]), default=best)
