"""Queries with the outcomes of arms: read from a decision log, stored, and used for training."""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.comparison import IsParaphrase
from router_service.checker.toolbox import Call, ExpectedCall
from router_service.core.decision_record import CandidateRecord, LoggedDecision
from router_service.core.errors import SwitchcraftError
from switchcraft_training.checking import check_answer
from switchcraft_training.data.splits import row_digest
from switchcraft_training.datasets.rows import (
    ROW_ERRORS,
    example_from_json,
    example_to_json,
    expected_from_json,
    expected_to_json,
    read_lines,
    to_json_line,
    write_lines,
)
from switchcraft_training.decisions.log import DecisionLog, read_log
from switchcraft_training.records import Answer, Example, Expected, Outcome

logger = logging.getLogger(__name__)

DATASET: Final = "decisions"
CATEGORY: Final = "traffic"

WEAKLY_CORRECT: Final = 0.25
"""Assumed probability that a call with negative weak evidence is still correct.

The value is not measured. Weak evidence must weigh less than a verdict, because it can be wrong: a
tool's error may be the tool's own fault, and a repeated call may be a change of mind. Weak evidence
is also one-sided, because it never confirms a call. A router that learns from it therefore
underrates the arms that are asked most.
"""


class DecisionUse(StrEnum):
    """How a decision is used for training, or the reason why it is not."""

    JUDGED = "judged by feedback"
    CHECKED = "checked against the expected calls"
    WEAK = "labelled by weak evidence"
    UNJUDGED = "without a verdict"
    NO_CONTENT = "without content"
    UNREADABLE = "with content that is not a readable request with tools"
    UNFINISHED = "without a complete answer"
    UNKNOWN_ARM = "answered by a model that is not an arm"
    UNCHECKABLE = "with expected calls that cannot be checked"


LABELLED: Final = (DecisionUse.JUDGED, DecisionUse.CHECKED, DecisionUse.WEAK)
"""The uses that give a label, which says whether an arm's answer is correct."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query with the outcome of each judged answer to it.

    `expected` holds the expected calls, or is None if only verdicts on answers are known. `calls`
    is the number of calls that the query requires, or None if that number is unknown.
    """

    example: Example
    expected: Expected | None
    calls: int | None
    outcomes: tuple[Outcome, ...]

    def to_json(self) -> Mapping[str, Json]:
        """Return the row that `from_json` reads."""
        expected: Mapping[str, Json] = {"expected": None, "any_call": False}
        if self.expected is not None:
            expected = expected_to_json(self.expected)
        outcomes = [
            {name: value for name, value in asdict(outcome).items() if name != "example_id"}
            for outcome in self.outcomes
        ]
        example = example_to_json(self.example)
        return {**example, **expected, "calls": self.calls, "outcomes": outcomes}

    @classmethod
    def from_json(cls, row: Mapping[str, Json]) -> Query:
        """Return the query of a row that `to_json` returned."""
        return cls(
            example=example_from_json(row),
            expected=None if row["expected"] is None else expected_from_json(row),
            calls=row["calls"],
            outcomes=tuple(Outcome(row["id"], **outcome) for outcome in row["outcomes"]),
        )


def summarize(uses: Counter[DecisionUse], queries: int) -> str:
    """Return in one line how many decisions give labels, and why the rest do not."""
    labelled = sum(uses[use] for use in LABELLED)
    summary = f"{labelled:,} of {uses.total():,} decisions give labels for {queries:,} queries"
    rest = ", ".join(f"{n:,} {use}" for use, n in sorted(uses.items()) if use not in LABELLED)
    return f"{summary}; left out: {rest}" if rest else summary


def read_example(decision: LoggedDecision) -> Example:
    """Return a decision's request; raises ValueError if it was not logged or cannot be read."""
    try:
        example = logged_example(decision)
        # The results are not used: parsing only checks that later stages can read the request.
        _ = (row_digest(example), example.query, example.tool_names)
        parse_conversation(example.request)
    except (*ROW_ERRORS, SwitchcraftError) as exc:
        raise ValueError(f"the content is not a readable request with tools: {exc}") from exc
    return example


def logged_example(decision: LoggedDecision) -> Example:
    """Return a request that `read_example` has returned before, without checking it again."""
    if decision.content is None:
        raise ValueError("it was not logged")
    logged = decision.content.request
    request = {"messages": list(logged["messages"]), "tools": list(logged.get("tools") or ())}
    return Example(decision.id, CATEGORY, request, DATASET, decision.conversation)


def read_answer(decision: LoggedDecision, arm: str) -> Answer:
    """Return a decision's answer as an answer of `arm`.

    If the answer's calls cannot be decoded, its problem is a malformed call.
    """
    candidates = decision.candidates or ()
    # The latency of a verified answer includes that of the other candidates.
    seconds = next((c.seconds for c in candidates if c.is_accepted), decision.latency_s)
    return _to_answer(decision, decision.id, arm, seconds)


def rejected_answers(decision: LoggedDecision) -> Iterator[Answer]:
    """Yield the complete answers of candidates that were not accepted."""
    for candidate in decision.candidates or ():
        content = candidate.content
        if candidate.is_accepted or content is None:
            continue
        if content.calls is None and content.text is None:
            continue
        yield _to_answer(candidate, decision.id, candidate.arm, candidate.seconds)


def _to_answer(
    logged: LoggedDecision | CandidateRecord, query: str, arm: str, seconds: float | None
) -> Answer:
    calls = None if logged.content is None else logged.content.calls
    return Answer(
        example_id=query,
        arm=arm,
        calls=None if calls is None else tuple(Call(c.name, c.arguments) for c in calls),
        problem="malformed_call" if calls is None else None,
        input_tokens=logged.prompt_tokens,
        output_tokens=logged.completion_tokens,
        seconds=seconds,
    )


def read_expected(log: DecisionLog, decision: LoggedDecision, example: Example) -> Expected | None:
    """Return the expected calls that feedback on a decision contains, or None without them.

    Raises ValueError if an expected call uses a tool that the request does not offer.
    """
    feedback = log.feedback.get(decision.id)
    if feedback is None or feedback.expected is None:
        return None
    unoffered = {call.name for call in feedback.expected} - set(example.tool_names)
    if unoffered:
        raise ValueError(f"feedback expects calls of {sorted(unoffered)}, which are not offered")
    return Expected(
        tuple(
            ExpectedCall(call.name, {name: (value,) for name, value in call.arguments.items()})
            for call in feedback.expected
        )
    )


def check_decision(
    decision: LoggedDecision,
    example: Example,
    expected: Expected,
    alike: IsParaphrase | None = None,
) -> float | None:
    """Return the checker's verdict on a decision's answer: 1.0 if it is correct, else 0.0.

    Return None if the gateway did not receive the complete answer, or if the client's tool
    definitions do not allow checking. `alike` compares paraphrases.
    """
    content = decision.content
    if content is None or (content.calls is None and content.text is None):
        return None
    try:
        answer = read_answer(decision, decision.arm)
        return float(check_answer(example, expected, answer, alike).correct)
    except (*ROW_ERRORS, SwitchcraftError):
        return None


def judge_decision(log: DecisionLog, decision: LoggedDecision) -> float:
    """Return an answer's correctness according to its feedback, or NaN without usable feedback."""
    feedback = log.feedback.get(decision.id)
    if feedback is None:
        return math.nan
    if feedback.correct is not None:
        return float(feedback.correct)
    try:
        example = read_example(decision)
        expected = read_expected(log, decision, example)
    except ValueError:
        return math.nan
    correct = None if expected is None else check_decision(decision, example, expected)
    return math.nan if correct is None else correct


def is_contradicted(log: DecisionLog, decision: LoggedDecision) -> float:
    """Return 1.0 if weak evidence speaks against a delivered answer, and else 0.0.

    Return NaN if the log has no weak evidence at all, because the gateway may not search for it.
    """
    return float(decision.id in log.evidence) if log.evidence else math.nan


def iterate_queries(
    log: DecisionLog,
    uses: Counter[DecisionUse],
    *,
    weak_evidence: bool = False,
    alike: IsParaphrase | None = None,
) -> Iterator[Query]:
    """Yield the labelled queries of a log; decisions with equal messages and tools are merged.

    A verdict applies to the arm that answered, which after a fallback is not the chosen arm. A
    client's verdict takes precedence over the checker's verdict, and the checker's verdict over
    weak evidence. Weak evidence is ignored unless `weak_evidence` is set. If the expected calls are
    known, the checker also judges the rejected candidates of verified answers. Otherwise, only the
    accepted answer has a label, which overrates arms: the verifier accepts what is probably
    correct. `alike` compares paraphrases. Queries without a label are omitted. The queries are in
    the order of their first decisions. `uses` counts the decisions by use; it is complete after the
    last query.

    A decision is read twice: once to group the decisions, and once for its query. Only one query at
    a time is in memory.
    """
    for rows in group_by_query(log, uses):
        has_feedback = log.feedback.has(log.decisions.hashes[rows])
        if not (weak_evidence or has_feedback.any()):
            uses[DecisionUse.UNJUDGED] += len(rows)
            continue
        expected = last_expected(log, rows[has_feedback])
        query = logged_example(log.decisions[int(rows[0])])
        calls = None if expected is None else len(expected.calls)
        attempts: Counter[str] = Counter()
        outcomes: list[Outcome] = []
        for row in rows.tolist():
            decision = log.decisions[row]
            use, correct = label_decision(
                log, decision, expected, alike, weak_evidence=weak_evidence
            )
            uses[use] += 1
            arm = answering_arm(log, decision)
            judged: list[tuple[Answer, float]] = []
            if correct is not None and arm is not None:
                answer = read_answer(decision, arm)
                judged.append((answer, correct))
                if calls is None and use is DecisionUse.JUDGED and correct == 1:
                    calls = len(answer.calls or ())
            if expected is not None:
                with suppress(*ROW_ERRORS, SwitchcraftError):  # the tools cannot be checked
                    for answer in rejected_answers(decision):
                        verdict = check_answer(query, expected, answer, alike)
                        judged.append((answer, float(verdict.correct)))
            for answer, correct in judged:
                outcome = Outcome(
                    example_id=query.id,
                    arm=answer.arm,
                    correct=correct,
                    input_tokens=answer.input_tokens,
                    output_tokens=answer.output_tokens,
                    seconds=answer.seconds,
                    attempt=attempts[answer.arm],
                )
                attempts[answer.arm] += 1
                outcomes.append(outcome)
        if outcomes:
            yield Query(query, expected, calls, tuple(outcomes))


def last_expected(log: DecisionLog, rows: NDArray[np.int64]) -> Expected | None:
    """Return the last expected calls that use only offered tools, among decisions of one query."""
    for row in rows[::-1].tolist():
        decision = log.decisions[row]
        with suppress(ValueError):
            expected = read_expected(log, decision, logged_example(decision))
            if expected is not None:
                return expected
    return None


def label_decision(
    log: DecisionLog,
    decision: LoggedDecision,
    expected: Expected | None,
    alike: IsParaphrase | None,
    *,
    weak_evidence: bool,
) -> tuple[DecisionUse, float | None]:
    """Return how a decision is used, and whether its answer is correct, if that is known."""
    feedback = log.feedback.get(decision.id)
    if feedback is not None and feedback.correct is not None:
        return DecisionUse.JUDGED, float(feedback.correct)
    if expected is not None:
        correct = check_decision(decision, logged_example(decision), expected, alike)
        return DecisionUse.UNCHECKABLE if correct is None else DecisionUse.CHECKED, correct
    if feedback is not None:
        return DecisionUse.UNCHECKABLE, None
    if weak_evidence and decision.id in log.evidence:
        return DecisionUse.WEAK, WEAKLY_CORRECT
    return DecisionUse.UNJUDGED, None


def answering_arm(log: DecisionLog, decision: LoggedDecision) -> str | None:
    """Return the arm that answered; None if a fallback answered whose model is no arm's."""
    return log.arms_by_model.get(decision.model) if decision.is_fallback else decision.arm


def group_by_query(log: DecisionLog, uses: Counter[DecisionUse]) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of usable decisions by query, and count the unusable ones in `uses`."""
    rows, keys = array("q"), bytearray()
    for row, decision in enumerate(log.decisions):
        if decision.ending != "complete" or decision.status >= 400:
            uses[DecisionUse.UNFINISHED] += 1
        elif answering_arm(log, decision) is None:
            uses[DecisionUse.UNKNOWN_ARM] += 1
        elif decision.content is None:
            uses[DecisionUse.NO_CONTENT] += 1
        else:
            try:
                keys += row_digest(read_example(decision))
            except ValueError:
                uses[DecisionUse.UNREADABLE] += 1
                continue
            rows.append(row)
    _, first, numbers = np.unique(
        np.array(memoryview(keys)).view("S16"), return_index=True, return_inverse=True
    )
    # Groups in the order of their first decisions.
    order = np.argsort(first[numbers], kind="stable")
    usable = np.array(rows)
    ends = np.flatnonzero(np.diff(first[numbers][order], append=-1)) + 1
    start = 0
    for end in ends.tolist():
        yield usable[order[start:end]]
        start = end


def write_queries(queries: Iterable[Query], path: Path) -> int:
    """Write queries to a file, and return the number of queries.

    Each line is a row as in `switchcraft_training.datasets.rows`, with two more fields, `calls` and
    `outcomes`. A row's `expected` is null if only verdicts are known. The file appears only after
    all lines are written. Raises DataError if it cannot be written.
    """
    return write_lines((to_json_line(query.to_json()) for query in queries), path)


@dataclass(frozen=True, slots=True)
class Traffic:
    """An `OutcomeSource` of queries from a decision log, with the outcomes of arms."""

    queries: Sequence[Query]

    @classmethod
    def of_log(cls, path: Path, *, weak_evidence: bool, alike: IsParaphrase | None) -> Traffic:
        """Read a decision log and log a summary; raises DataError if a line is invalid."""
        uses: Counter[DecisionUse] = Counter()
        log = read_log(path)
        found = tuple(iterate_queries(log, uses, weak_evidence=weak_evidence, alike=alike))
        logger.info("%s: %s", path, summarize(uses, len(found)))
        return cls(found)

    @classmethod
    def of_rows(cls, path: Path) -> Traffic:
        """Read a file that `write_queries` wrote; raises DataError if a line is invalid."""
        return cls(tuple(read_lines(path, Query.from_json)))

    def arms(self) -> list[str]:
        """Return the arms with at least one judged answer."""
        return sorted({outcome.arm for query in self.queries for outcome in query.outcomes})

    def examples(self) -> list[Example]:
        """Return the queries."""
        return [query.example for query in self.queries]

    def calls(self) -> dict[str, int]:
        """Return the number of calls that each query requires, if known."""
        return {query.example.id: query.calls for query in self.queries if query.calls is not None}

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Yield the outcome of every judged answer of an arm."""
        for query in self.queries:
            yield from (outcome for outcome in query.outcomes if outcome.arm == arm)
