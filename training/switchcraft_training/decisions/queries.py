"""Queries with outcomes: from a decision log, as JSON lines, and as a training source."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from router_service.core.decision_log import LoggedDecision
from router_service.core.errors import SwitchcraftError
from router_service.core.messages import parse_conversation
from switchcraft_training.checking import IsParaphrase, check_answer
from switchcraft_training.data.splits import key_of
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
from switchcraft_training.records import (
    Answer,
    Call,
    Example,
    Expected,
    ExpectedCall,
    Json,
    Outcome,
)

DATASET: Final = "decisions"
CATEGORY: Final = "traffic"

WEAKLY_CORRECT: Final = 0.25
"""Assumed probability that a call with negative weak evidence is still correct.

The value is not measured. The evidence must not weigh as much as a verdict, because it is
one-sided: a tool's error may be the tool's own fault, and a repeated call a change of mind. Weak
evidence never confirms a call, so a router that learns from it underrates the arms that are asked
most.
"""


class Fate(StrEnum):
    """The result of converting a decision for training."""

    JUDGED = "judged by feedback"
    CHECKED = "checked against the expected calls"
    WEAK = "doubted by weak evidence"
    UNJUDGED = "without a verdict"
    NO_CONTENT = "without content"
    UNREADABLE = "with content that is no request for tools"
    UNFINISHED = "without a complete answer"
    UNKNOWN_ARM = "answered by a model that is no arm"
    UNCHECKABLE = "with expected calls that cannot be checked"


TEACHING: Final = (Fate.JUDGED, Fate.CHECKED, Fate.WEAK)


@dataclass(frozen=True, slots=True)
class Query:
    """A query with the outcomes of asking arms.

    `expected` is None if only verdicts are known. `calls` is the number of calls that the query
    requires, or None if that is unknown.
    """

    example: Example
    expected: Expected | None
    calls: int | None
    outcomes: tuple[Outcome, ...]


class Queries(NamedTuple):
    """The queries that a log teaches, and the number of decisions with each fate."""

    queries: tuple[Query, ...]
    fates: Counter[Fate]

    def summary(self) -> str:
        """Return a one-line summary: how many decisions are used, and why the others are not."""
        total, teaching = self.fates.total(), sum(self.fates[fate] for fate in TEACHING)
        left = ", ".join(f"{n:,} {fate}" for fate, n in sorted(self.fates.items())
                         if fate not in TEACHING)  # fmt: skip
        told = f"{teaching:,} of {total:,} decisions teach, {len(self.queries):,} queries"
        return f"{told}; left out: {left}" if left else told


@dataclass(frozen=True, slots=True)
class _Answered:
    """A decision whose request and answer can be read, and the arm that answered."""

    decision: LoggedDecision
    example: Example
    arm: str


def read_example(decision: LoggedDecision) -> Example:
    """Return a decision's request; raises ValueError if it is missing or cannot be read."""
    if decision.content is None:
        raise ValueError("has no content")
    given = decision.content.request
    try:
        request = {"messages": list(given["messages"]), "tools": list(given.get("tools") or ())}
        example = Example(decision.id, CATEGORY, request, DATASET, decision.conversation)
        # Parsed here to check it, so that no later stage encounters an unreadable request.
        _ = (key_of(example), example.query, example.tool_names, parse_conversation(request))
    except (*ROW_ERRORS, SwitchcraftError) as exc:
        raise ValueError(f"the content is no request for tools: {exc}") from exc
    return example


def read_answer(decision: LoggedDecision, arm: str, attempt: int = 0) -> Answer:
    """Return an arm's answer; calls that cannot be decoded count as a malformed call."""
    made = None if decision.content is None else decision.content.calls
    return Answer(
        example_id=decision.id,
        arm=arm,
        calls=None if made is None else tuple(Call(c.name, c.arguments) for c in made),
        problem="malformed_call" if made is None else None,
        input_tokens=decision.prompt_tokens,
        output_tokens=decision.completion_tokens,
        attempt=attempt,
        seconds=decision.latency_s,
    )


def read_expected(log: DecisionLog, decision: LoggedDecision, example: Example) -> Expected | None:
    """Return the calls in feedback; raises ValueError if one uses a tool that is not offered."""
    feedback = log.feedback.get(decision.id)
    if feedback is None or feedback.expected is None:
        return None
    unoffered = {call.name for call in feedback.expected} - set(example.tool_names)
    if unoffered:
        raise ValueError(f"expects calls of {sorted(unoffered)}, which are not offered")
    return Expected(
        tuple(
            ExpectedCall(call.name, {name: (value,) for name, value in call.arguments.items()})
            for call in feedback.expected
        )
    )


def checked(
    decision: LoggedDecision,
    example: Example,
    expected: Expected,
    alike: IsParaphrase | None = None,
) -> float | None:
    """Return the checker's verdict on an answer.

    None if the gateway did not receive the complete answer, or if the client's tool definitions do
    not allow checking.
    """
    said = decision.content
    if said is None or (said.calls is None and said.text is None):
        return None
    try:
        return float(
            check_answer(example, expected, read_answer(decision, decision.arm), alike).correct
        )
    except (*ROW_ERRORS, SwitchcraftError):
        return None


def read_queries(
    log: DecisionLog, *, weak_evidence: bool = False, alike: IsParaphrase | None = None
) -> Queries:
    """Gather the outcomes of arms from a log; queries equal in (messages, tools) are merged.

    A verdict applies to the arm that answered, which after a fallback is not the chosen one. A
    client's verdict takes precedence over the checker's. Both take precedence over weak evidence,
    which counts only if `weak_evidence` is set. `alike` compares paraphrases.
    """
    reader = _Reader(log, weak_evidence, alike)
    queries = tuple(reader.queries())
    return Queries(queries, reader.fates)


class _Reader:
    """Groups decisions by query, and counts the fate of each."""

    def __init__(self, log: DecisionLog, weak_evidence: bool, alike: IsParaphrase | None) -> None:
        self._log = log
        self._weak_evidence = weak_evidence
        self._alike = alike
        self._arms = log.arms_by_model()
        self.fates: Counter[Fate] = Counter()

    def queries(self) -> Iterator[Query]:
        """Yield the queries with at least one verdict, in the order in which they first appear."""
        for group in self._groups().values():
            query = self._query(group)
            if query.outcomes:
                yield query

    def _groups(self) -> Mapping[bytes, Sequence[_Answered]]:
        groups: dict[bytes, list[_Answered]] = {}
        for decision in self._log.decisions:
            answered = self._answered(decision)
            if isinstance(answered, Fate):
                self.fates[answered] += 1
            else:
                groups.setdefault(key_of(answered.example).row, []).append(answered)
        return groups

    def _answered(self, decision: LoggedDecision) -> _Answered | Fate:
        arm = self._arms.get(decision.model) if decision.is_fallback else decision.arm
        if decision.ending != "complete" or decision.status >= 400:
            return Fate.UNFINISHED
        if arm is None:
            return Fate.UNKNOWN_ARM
        if decision.content is None:
            return Fate.NO_CONTENT
        try:
            return _Answered(decision, read_example(decision), arm)
        except ValueError:
            return Fate.UNREADABLE

    def _query(self, group: Sequence[_Answered]) -> Query:
        expected, first = self._expected(group), group[0].example
        outcomes: list[Outcome] = []
        calls = None if expected is None else len(expected.calls)
        for answered in group:
            attempt = sum(outcome.arm == answered.arm for outcome in outcomes)
            answer = read_answer(answered.decision, answered.arm, attempt)
            correct, fate = self._verdict(answered, expected)
            self.fates[fate] += 1
            if correct is None:
                continue
            outcomes.append(_outcome(first.id, answer, correct))
            if calls is None and fate is Fate.JUDGED and correct == 1:
                calls = len(answer.calls or ())
        return Query(first, expected, calls, tuple(outcomes))

    def _expected(self, group: Sequence[_Answered]) -> Expected | None:
        """Return the last expected calls in feedback that use only offered tools."""
        for answered in reversed(group):
            try:
                expected = read_expected(self._log, answered.decision, answered.example)
            except ValueError:
                continue
            if expected is not None:
                return expected
        return None

    def _verdict(self, answered: _Answered, expected: Expected | None) -> tuple[float | None, Fate]:
        name = answered.decision.id
        feedback = self._log.feedback.get(name)
        if feedback is not None and feedback.correct is not None:
            return float(feedback.correct), Fate.JUDGED
        if expected is not None:
            correct = checked(answered.decision, answered.example, expected, self._alike)
            return correct, Fate.UNCHECKABLE if correct is None else Fate.CHECKED
        if feedback is not None:
            return None, Fate.UNCHECKABLE
        if self._weak_evidence and name in self._log.evidence:
            return WEAKLY_CORRECT, Fate.WEAK
        return None, Fate.UNJUDGED


def _outcome(query: str, answer: Answer, correct: float) -> Outcome:
    return Outcome(
        example_id=query,
        arm=answer.arm,
        correct=correct,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        seconds=answer.seconds,
        attempt=answer.attempt,
    )


_NOBODY_SAID: Final[Mapping[str, Json]] = {"expected": None, "any_call": False}


def write_queries(queries: Iterable[Query], path: Path) -> int:
    """Write queries to a file, which appears only when it is complete; return their number.

    Lines are rows as in `switchcraft_training.datasets.rows`, with `calls` and `outcomes`. A row's
    `expected` is null if only verdicts are known. Raises DataError if the file cannot be written.
    """
    return write_lines((to_json_line(_to_json(query)) for query in queries), path)


def read_queries_file(path: Path) -> Iterator[Query]:
    """Stream a file of queries; raises DataError at the first line that cannot be read."""
    return read_lines(path, _from_json)


def _to_json(query: Query) -> Mapping[str, Json]:
    expected = _NOBODY_SAID if query.expected is None else expected_to_json(query.expected)
    outcomes = [
        {name: value for name, value in asdict(outcome).items() if name != "example_id"}
        for outcome in query.outcomes
    ]
    return {
        **example_to_json(query.example),
        **expected,
        "calls": query.calls,
        "outcomes": outcomes,
    }


def _from_json(row: Mapping[str, Json]) -> Query:
    return Query(
        example=example_from_json(row),
        expected=None if row["expected"] is None else expected_from_json(row),
        calls=row["calls"],
        outcomes=tuple(Outcome(row["id"], **outcome) for outcome in row["outcomes"]),
    )


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Queries from a decision log with the outcomes of arms, as an `OutcomeSource`."""

    queries: Sequence[Query]

    @classmethod
    def of_log(cls, path: Path, *, weak_evidence: bool, alike: IsParaphrase | None) -> Traffic:
        """Read a decision log and log a summary; raises DataError if a line is invalid."""
        found = read_queries(read_log(path), weak_evidence=weak_evidence, alike=alike)
        logger.info("%s: %s", path, found.summary())
        return cls(found.queries)

    @classmethod
    def of_rows(cls, path: Path) -> Traffic:
        """Read the rows imported from a log; raises DataError if a line is invalid."""
        return cls(tuple(read_queries_file(path)))

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
