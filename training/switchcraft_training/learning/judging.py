"""The models' answers to a sample: which are the teacher's, and what the verifier thinks of them.

The verifier judges with the service's code, so that what is fitted and measured is what decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from router_service.apis.conversation import parse_conversation
from router_service.checker.toolbox import Call
from router_service.measurement.simulation import (
    JudgedAnswers,
    candidate_sets,
    count_judgements,
    quantize,
)
from router_service.router import Router
from router_service.verifier.answer_features import (
    Beliefs,
    CandidateAnswer,
    Candidates,
    Question,
    read_answer,
    relate,
)
from router_service.verifier.graphs import Verifier
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.data.table import Floats
from switchcraft_training.learning.sampling import Member, SampledRequest
from switchcraft_training.records import Answer

FAMILIAR, UNFAMILIAR = 0, 1
"""The verifier that judges a request: its place among the `folds` of `JudgedAnswers`."""

Answers = Mapping[str, Mapping[str, Answer]]
"""Each request's answers, by the request's id and by the model."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Lessons:
    """A sample with the answers of all members, of which one is the teacher.

    All arrays are (requests, members) unless another shape is given. `sessions`, (requests,), are
    numbers. `judged` has all of the artifact's arms, of which the members' have judgements.
    """

    members: Sequence[Member]
    teacher: int
    """The teacher's column."""
    requests: Sequence[SampledRequest]
    sessions: Rows
    is_right: Floats
    """1 if a member's answer makes the expected calls, otherwise 0, (requests, members). The
    expected calls are those of the delivered answer if its client confirmed it, and otherwise the
    teacher's. NaN if a request has no expected calls."""
    is_teachers: Floats
    """1 if the answer makes the teacher's calls, and else 0."""
    teacher_calls: NDArray[np.bool_]
    """Whether the teacher's answer has calls, (requests,)."""
    cost_usd: Floats
    seconds: Floats
    chosen_once: Rows
    """The column that the artifact's policy that chooses once would ask, (requests,)."""
    judged: JudgedAnswers
    columns: Sequence[int]
    """The artifact's column of each member."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.requests)


@dataclass(frozen=True, slots=True)
class Unusable:
    """Requests of a sample that nothing is learned from, and why."""

    unanswered: int
    """A model gave no answer."""
    far_off: int
    """They are unlike all requests that the verifier was measured with, so that gateways do not
    verify their answers."""


class NoLessonsError(ValueError):
    """There is no request to which all models have answered."""


def read_lessons(
    requests: Iterable[SampledRequest],
    answers: Answers,
    members: Sequence[Member],
    teacher: str,
    router: Router,
) -> tuple[Lessons, Unusable]:
    """Let the verifiers of a router judge the answers to a sample.

    Raises NoLessonsError.
    """
    read: list[_Read] = []
    unanswered = far_off = 0
    for request in requests:
        found = answers.get(request.id, {})
        if any(member.model not in found for member in members):
            unanswered += 1
            continue
        conversation = parse_conversation(request.request)
        if router.is_far_off(conversation):
            far_off += 1
            continue
        read.append(_read(request, [found[member.model] for member in members], members, router))
    if not read:
        raise NoLessonsError(f"{unanswered} requests lack an answer, {far_off} are far off")
    column = next(c for c, member in enumerate(members) if member.model == teacher)
    numbers = {name: n for n, name in enumerate(dict.fromkeys(r.request.session for r in read))}
    arms = router.artifact.manifest.arms
    columns = [arms.index(member.arm) for member in members]
    lessons = Lessons(
        members=members,
        teacher=column,
        requests=[each.request for each in read],
        sessions=np.array([numbers[each.request.session] for each in read]),
        is_right=np.array([each.is_right(column) for each in read]),
        is_teachers=np.array([each.same_as(each.made[column]) for each in read]),
        teacher_calls=np.array([bool(each.made[column].calls) for each in read]),
        cost_usd=np.array([each.cost_usd for each in read]),
        seconds=np.array([each.seconds for each in read]),
        chosen_once=np.array([each.chosen_once for each in read]),
        judged=_judge(read, columns, router),
        columns=columns,
    )
    return lessons, Unusable(unanswered, far_off)


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """A request with what the verifier reads of the members' answers, in their order."""

    request: SampledRequest
    question: Question
    made: Sequence[CandidateAnswer]
    delivered: CandidateAnswer
    cost_usd: Sequence[float]
    seconds: Sequence[float]
    features: Sequence[float]
    probabilities: Sequence[float]
    """The router's, of all of the artifact's arms."""
    p_no_call: float | None
    is_familiar: bool
    chosen_once: int

    def same_as(self, reference: CandidateAnswer) -> list[float]:
        """Return for each member 1 if its answer makes the reference's calls, and else 0."""
        return [float(relate(self.question, each, reference).is_same) for each in self.made]

    def is_right(self, teacher: int) -> list[float]:
        """Return for each member 1 if its answer makes the right calls, and else 0."""
        verdict, request = self.request.verdict, self.request
        if verdict == 1:
            return self.same_as(self.delivered)
        is_delivered = relate(self.question, self.made[teacher], self.delivered).is_same
        is_doubted = verdict == 0 or (verdict is None and request.is_contradicted)
        if is_doubted and is_delivered:
            return [np.nan] * len(self.made)
        return self.same_as(self.made[teacher])


def _read(
    request: SampledRequest, answers: Sequence[Answer], members: Sequence[Member], router: Router
) -> _Read:
    body = request.request
    conversation = parse_conversation(body)
    question = Question(conversation, body["tools"])
    prediction = router.predict(conversation)
    able = [member.arm for member in members]
    decision = router.choose(conversation, prediction, arms=able)
    assumed = (*router.unmeasured.values(),)
    spec = router.artifact.manifest.verifier
    has_own = spec is not None and spec.unfamiliar is not None
    is_like_plain = not (router.is_unfamiliar(prediction) or question.results_so_far)
    made = [
        () if answer.calls is None and answer.problem in TEXT_PROBLEMS else answer.calls
        for answer in answers
    ]
    delivered = request.delivered.calls
    if delivered is not None:
        delivered = tuple(Call(each.name, dict(each.arguments)) for each in delivered)
    return _Read(
        request=request,
        question=question,
        made=[read_answer(question, calls) for calls in made],
        delivered=read_answer(question, delivered),
        cost_usd=[
            member.price.cost_usd(
                answer.input_tokens or 0, answer.output_tokens or 0, answer.seconds or 0.0
            )
            for member, answer in zip(members, answers, strict=True)
        ],
        seconds=[answer.seconds or 0.0 for answer in answers],
        features=prediction.features,
        probabilities=(*prediction.probabilities, *assumed),
        p_no_call=prediction.p_no_call,
        is_familiar=not has_own or (is_like_plain and not router.unmeasured),
        chosen_once=able.index(decision.arm),
    )


def _judge(read: Sequence[_Read], columns: Sequence[int], router: Router) -> JudgedAnswers:
    """Return the judgements of all sets of the members' answers."""
    artifact = router.artifact
    spec, directory = artifact.manifest.verifier, artifact.directory
    assert spec is not None  # noqa: S101 - for types; the caller has checked it
    verifiers = [Verifier(directory, spec), Verifier(directory, spec, spec.unfamiliar)]
    gain_graphs = [spec.gain_graph, (spec.unfamiliar or spec).gain_graph]
    arms = len(artifact.manifest.arms)
    sets, pairs = candidate_sets(arms), [*combinations(range(arms), 2)]
    known = frozenset(columns)
    judged_sets = [known.issuperset(each) for each in sets]
    is_judged = np.repeat(judged_sets, [len(each) for each in sets])
    wanted = [each for each, is_wanted in zip(sets, judged_sets, strict=True) if is_wanted]
    reliabilities = np.array(spec.reliabilities)
    p_correct = np.zeros((len(read), count_judgements(arms)), dtype=np.uint16)
    is_same = np.zeros((len(read), len(pairs)), dtype=np.bool_)
    is_text = np.zeros((len(read), arms), dtype=np.bool_)
    probabilities = np.empty((len(read), arms), dtype=np.float32)
    for row, each in enumerate(read):
        candidates = Candidates.of(each.question, dict(zip(columns, each.made, strict=True)))
        verifier = verifiers[FAMILIAR if each.is_familiar else UNFAMILIAR]
        beliefs: Beliefs = verifier.beliefs(each.features, each.probabilities)
        found = verifier.judge((beliefs, candidates.only(chosen)) for chosen in wanted)
        p_correct[row, is_judged] = quantize(found)
        for place, (first, second) in enumerate(pairs):
            if first in known and second in known:
                is_same[row, place] = candidates.relations[first, second].is_same
        for column in columns:
            is_text[row, column] = candidates.answers[column].calls == ()
        probabilities[row] = each.probabilities if each.is_familiar else reliabilities
    unknown = [np.nan if each.p_no_call is None else each.p_no_call for each in read]
    return JudgedAnswers(
        p_correct=p_correct,
        is_same=is_same,
        is_text=is_text,
        probabilities=probabilities,
        p_no_call=np.array(unknown, dtype=np.float32),
        folds=np.array([FAMILIAR if each.is_familiar else UNFAMILIAR for each in read]),
        reliabilities=np.tile(reliabilities, (2, 1)),
        gain_graphs=tuple((directory / name).read_bytes() for name in gain_graphs),
    )
