"""What is drawn from a log, and whose answer counts as right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.apis.conversation import parse_conversation
from router_service.checker.toolbox import Call
from router_service.core.decision_record import AnswerContent, LoggedCall, LoggedComparison
from router_service.policies.costs import Price
from router_service.policies.verified import Verified
from router_service.router import Router
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import ArmAnswer, VerificationState
from switchcraft_training.learning.judging import Lessons, NoLessonsError, read_lessons
from switchcraft_training.learning.sampling import Member, Position, SampledRequest, draw_sample
from switchcraft_training.records import Answer
from tests.training.decisions.cases import (
    BOOK,
    call,
    content,
    decision,
    negative_evidence,
    write_log,
    wrong,
)

MEMBERS = [
    Member(arm, arm, Price(input_usd_per_mtok=usd, output_usd_per_mtok=usd))
    for arm, usd in (("grok-4.1-fast", 0.2), ("claude-sonnet-4.5", 3.0))
]
CHEAP, TEACHER = (member.model for member in MEMBERS)


def test_sessions_and_positions_take_turns(tmp_path: Path) -> None:
    """A session with a hundred requests gets no more than one with two, and loops are drawn."""
    lines = []
    for session, count in (("long", 100), ("short", 2), ("other", 2)):
        for n in range(count):
            logged = content(f"Book a table, {session} {n}", (call("Oslo"),))
            if n % 2:
                result = {"role": "tool", "tool_call_id": "a", "content": "full"}
                messages = [*logged.request["messages"], result]
                logged = logged.model_copy(
                    update={"request": {**logged.request, "messages": messages}}
                )
            lines.append(decision(f"{session}{n}", conversation=session, content=logged))
    sample = draw_sample(write_log(tmp_path, lines), 6)
    assert Counter(each.session for each in sample) == {"long": 2, "short": 2, "other": 2}
    assert Counter(each.position for each in sample) == {
        Position.BEGIN: 3,
        Position.LOOP: 3,
    }


def test_answers_of_comparisons_are_in_the_log(tmp_path: Path) -> None:
    """Neither the delivered answer nor the compared one is asked again; feedback is kept."""
    folder = write_log(
        tmp_path,
        [
            decision("a", content=content("Book in Oslo", (call("Oslo"),))),
            wrong("a"),
            negative_evidence("a"),
        ],
    )
    compared = LoggedComparison(
        created=2.0,
        decision_id="a",
        model="small",
        is_same=False,
        cost_usd=0.1,
        seconds=3.0,
        prompt_tokens=7,
        completion_tokens=5,
        content=AnswerContent(calls=(call("Rome"),)),
    )
    (folder / "decisions-2.jsonl").write_text(compared.model_dump_json() + "\n")
    (found,) = draw_sample(folder, 10)
    assert found.recorded.keys() == {"large", "small"}
    small = found.recorded["small"]
    assert (small.input_tokens, small.output_tokens, small.latency_s) == (7, 5, 3.0)
    assert small.message["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert (found.verdict, found.is_contradicted) == (0.0, True)


def answered(model: str, city: str | None) -> Answer:
    """Return an answer that books a table in a city, or says something."""
    calls = () if city is None else (Call("book", {"city": city}),)
    return Answer("a", model, calls, None, 100, 10, seconds=1.0)


def lessons(
    shipped: Router,
    cities: Sequence[str | None],
    delivered: str = "Oslo",
    *,
    verdict: float | None = None,
    is_contradicted: bool = False,
) -> Lessons:
    """Return the lessons of one request, to which the members give these answers."""
    request = SampledRequest(
        id="a",
        session="s",
        request={"messages": [{"role": "user", "content": "A table in Oslo"}], "tools": [BOOK]},
        delivered=AnswerContent(calls=(LoggedCall(name="book", arguments={"city": delivered}),)),
        verdict=verdict,
        is_contradicted=is_contradicted,
        recorded={},
    )
    models = (member.model for member in MEMBERS)
    answers = {model: answered(model, city) for model, city in zip(models, cities, strict=True)}
    found, _ = read_lessons([request], {"a": answers}, MEMBERS, TEACHER, shipped)
    return found


CASES: list[tuple[dict[str, object], list[float]]] = [
    ({}, [0, 1]),
    ({"verdict": 1.0}, [1, 0]),
    ({"verdict": 0.0}, [0, 1]),
    ({"is_contradicted": True}, [0, 1]),
]
"""What is known of the delivered answer, which the cheap model gave, and the expected `is_right` of
the cheap model and of the teacher."""


@pytest.mark.parametrize(("facts", "expected"), CASES)
def test_teacher_is_right_unless_the_client_says_otherwise(
    shipped: Router, facts: dict[str, object], expected: list[float]
) -> None:
    """A confirmed answer counts more than the teacher's."""
    found = lessons(shipped, ["Rome", "Oslo"], "Rome", **facts)  # pyrefly: ignore[bad-argument-type]
    assert found.is_right.tolist() == [expected]
    assert found.is_teachers.tolist() == [[0, 1]]


@pytest.mark.parametrize("facts", [{"verdict": 0.0}, {"is_contradicted": True}])
def test_nothing_is_learned_from_a_doubted_teacher(
    shipped: Router, facts: dict[str, object]
) -> None:
    """If its own answer was delivered and doubted, nobody knows what is right."""
    found = lessons(shipped, ["Rome", "Oslo"], "Oslo", **facts)  # pyrefly: ignore[bad-argument-type]
    assert np.isnan(found.is_right).all()
    assert found.is_teachers.tolist() == [[0, 1]]


def test_request_without_all_answers_is_left_out(shipped: Router) -> None:
    """The error says how many there are."""
    request = lessons(shipped, [None, "Oslo"]).requests[0]
    with pytest.raises(NoLessonsError, match="1 requests lack an answer"):
        read_lessons([request], {"a": {CHEAP: answered(CHEAP, "Oslo")}}, MEMBERS, TEACHER, shipped)


def test_judgements_are_those_of_the_gateway(shipped: Router) -> None:
    """The verifier's judgement of one answer is what the router says of the same candidate."""
    found = lessons(shipped, ["Rome", "Oslo"])
    body = found.requests[0].request
    conversation = parse_conversation(body)
    question, prediction = Question(conversation, body["tools"]), shipped.predict(conversation)

    def candidates() -> Iterator[ArmAnswer]:
        for arm, city in ((CHEAP, "Rome"), (TEACHER, "Oslo")):
            made = WrittenCall("", "book", f'{{"city": "{city}"}}')
            yield ArmAnswer(arm, ParsedAnswer((made,), ""))

    state = VerificationState(Verified(0.01), {CHEAP, TEACHER}, tuple(candidates()))
    step = shipped.next_step(question, prediction, state)
    judged = found.judged.judge(np.array([0]), np.array([found.columns]))
    expected = [step.p_correct[member.arm] for member in MEMBERS]
    assert judged[0] == pytest.approx(expected, abs=1e-4)
