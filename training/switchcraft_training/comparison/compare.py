"""Our verdicts beside recorded ones: accuracies, disagreements, and what could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from switchcraft_training.checking import TEXT_PROBLEMS, Verdict, check_answer
from switchcraft_training.comparison.peer import PeerChecker, Question
from switchcraft_training.datasets.bfcl import Recording
from switchcraft_training.records import Answer, Judged


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An answer that one checker accepts and the other rejects."""

    dataset: str
    arm: str
    judged: Judged
    answer: Answer
    their_reason: str | None
    ours: Verdict

    @property
    def kind(self) -> str:
        """`FN` where ours accepts, `FP` where theirs does (paper, table of the checkers)."""
        return "FN" if self.ours.correct else "FP"


@dataclass(slots=True)
class Tally:
    """Counts over the answers of one model in one dataset.

    `theirs`: valid by the recorded verdict; `ours`: correct here; `rerun`, of the `peer` answers
    that the installed checker judges: those that it accepts, and `ours_on_peer` those that we do.
    """

    dataset: str
    arm: str
    answers: int = 0
    theirs: int = 0
    ours: int = 0
    false_negatives: int = 0
    false_positives: int = 0
    peer: int = 0
    rerun: int = 0
    ours_on_peer: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    @property
    def parsed(self) -> float:
        """The share of answers that were read as calls or as deliberate words."""
        unread = sum(n for problem, n in self.problems.items() if problem not in TEXT_PROBLEMS)
        return 1 - unread / self.answers if self.answers else 1.0


@dataclass(frozen=True, slots=True)
class Peer:
    """The installed checker with the questions that it can judge."""

    checker: PeerChecker
    questions: Mapping[str, Question]


def compare_arm(
    dataset: str, arm: str, recording: Recording, judged: Mapping[str, Judged], peer: Peer | None
) -> tuple[Tally, list[Disagreement]]:
    """Judge every answer of one model; raises DataError where an answer has no verdict."""
    tally, disagreements = Tally(dataset, arm), []
    verdicts = {(v.example_id, v.attempt): v for v in recording.verdicts(arm)}
    for answer in recording.answers(arm):
        entry, theirs = judged[answer.example_id], verdicts[answer.example_id, answer.attempt]
        ours = check_answer(*entry, answer)
        _count(tally, answer, theirs=theirs.valid, ours=ours.correct)
        if peer is not None:
            _count_peer(tally, answer, peer, ours=ours.correct)
        if theirs.valid != ours.correct:
            disagreements.append(Disagreement(dataset, arm, entry, answer, theirs.error_type, ours))
    return tally, disagreements


def _count(tally: Tally, answer: Answer, *, theirs: bool, ours: bool) -> None:
    tally.answers += 1
    tally.theirs += theirs
    tally.ours += ours
    tally.false_negatives += ours and not theirs
    tally.false_positives += theirs and not ours
    if answer.problem is not None:
        tally.problems[answer.problem] += 1


def _count_peer(tally: Tally, answer: Answer, peer: Peer, *, ours: bool) -> None:
    question = peer.questions.get(answer.example_id)
    if question is None:
        return
    tally.peer += 1
    tally.rerun += peer.checker.accepts(question, answer.calls or ())
    tally.ours_on_peer += ours
