"""`switchcraft learn`: from a sample of an agent's conversations to a canary that saves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import yaml

from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.apis.conversation import Json, parse_conversation
from router_service.artifact import SHIPPED, Artifact
from router_service.checker.toolbox import Call
from router_service.cli.commands import app
from router_service.core.decision_record import AnswerContent, LoggedCall, LoggedComparison
from router_service.policies.costs import Price
from router_service.policies.verified import Verified
from router_service.predictor.model import logit, sigmoid
from router_service.router import Router
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import ArmAnswer, VerificationState
from switchcraft_training.cli import main
from switchcraft_training.errors import DataError
from switchcraft_training.labelling.run import CAPPED
from switchcraft_training.learning.fitting import Line
from switchcraft_training.learning.judging import (
    FAMILIAR,
    UNFAMILIAR,
    Lessons,
    NoLessonsError,
    read_lessons,
)
from switchcraft_training.learning.learned import LOST_ACCURACY, lost_accuracy, write_artifact
from switchcraft_training.learning.questions import CONCURRENCY
from switchcraft_training.learning.sampling import Member, SampledRequest, TurnPosition, draw_sample
from switchcraft_training.records import Answer
from tests.bodies import CHAT
from tests.serving import served, wait_for
from tests.training.decisions.cases import (
    BOOK,
    call,
    content,
    decision,
    negative_evidence,
    write_log,
    wrong,
)
from tests.training.runs import function_tool
from tests.training.upstreams import ModelUpstream, calling, gateway, published

NUMBER = {"type": "string", "description": "The order's number"}
REASON = {"type": "string", "enum": ["damaged", "late", "other"]}
TOOLS = [
    function_tool("find_order", {"number": NUMBER}, "Find an order by its number."),
    function_tool("refund_order", {"number": NUMBER, "reason": REASON}, "Refund an order."),
]
PRICES = {"cheap-1": (0.1, 0.4), "middle-1": (0.5, 2.0), "dear-1": (5.0, 25.0)}
WRONG = {"cheap-1": 10**9, "middle-1": 7, "dear-1": 10**9}
"""Each model is wrong about every so many orders; of so many, none is."""


def question(number: int) -> list[dict[str, Any]]:
    """Return the messages of a conversation's first request."""
    said = f"My order {number} arrived damaged, and I want a refund. Look it up first."
    return [{"role": "user", "content": said}]


def next_messages(number: int) -> list[dict[str, Any]]:
    """Return the messages after the first tool's result."""
    call = {"name": "find_order", "arguments": json.dumps({"number": str(number)})}
    return [
        *question(number),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"state": "delivered"}'},
    ]


def answer(body: dict[str, Any]) -> Mapping[str, Json]:
    """Return the next call of a conversation."""
    messages = body["messages"]
    number = int("".join(c for c in messages[0]["content"] if c.isdigit()))
    is_wrong = number % WRONG[body["model"]] == 0
    arguments = {"number": str(number + is_wrong)}
    if messages[-1]["role"] != "tool":
        return calling("find_order", json.dumps(arguments))
    arguments["reason"] = "late" if is_wrong else "damaged"
    return calling("refund_order", json.dumps(arguments))


@pytest.fixture
def upstream() -> ModelUpstream:
    """Return the provider."""
    return ModelUpstream(answer, prompt_tokens=400, completion_tokens=30)


@pytest.fixture
def config(upstream: ModelUpstream, tmp_path: Path) -> Iterator[Path]:
    """Yield the configuration of a gateway in front of the provider, with a published artifact."""
    published = tmp_path / "published"
    assert main(["publish", str(SHIPPED), "--to", str(published)]) == 0
    with served(upstream.app) as url:
        models = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"openai/{name}",
                    "api_base": f"{url}/v1",
                    "api_key": "key",
                    "input_cost_per_token": price[0] / 1e6,
                    "output_cost_per_token": price[1] / 1e6,
                },
            }
            for name, price in PRICES.items()
        ]
        path = tmp_path / "gateway.yaml"
        settings = {
            "model_list": models,
            "router": {"publication": str(published)},
            "decision_log": {"path": str(tmp_path / "log"), "content": True},
            "database": {"url": f"sqlite:///{tmp_path}/switchcraft.db"},
        }
        path.write_text(yaml.safe_dump(settings))
        yield path


def converse(http: httpx.Client, numbers: range) -> float:
    """Have conversations about orders, and return what they have cost in USD."""
    cost_usd = 0.0
    for number in numbers:
        for messages in (question(number), next_messages(number)):
            body = {"model": "switchcraft", "messages": messages, "tools": TOOLS}
            answer = http.post(CHAT, json=body)
            assert answer.status_code == 200, answer.text
            cost_usd += float(answer.headers["x-switchcraft-cost-usd"])
    return cost_usd


@pytest.fixture
def log(config: Path, tmp_path: Path) -> Path:
    """Record the log of 40 conversations."""
    with gateway(config) as url, httpx.Client(base_url=url) as http:
        converse(http, range(1001, 1041))
    return tmp_path / "log"


def learn(log: Path, config: Path, *options: str) -> int:
    """Run the command, and return its exit status."""
    status = app(
        ["learn", str(log), "--config", str(config), *options], result_action="return_value"
    )
    return int(status or 0)


def test_log_of_conversations_becomes_a_canary_that_saves(
    log: Path,
    config: Path,
    upstream: ModelUpstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The plan costs nothing; then the missing answers are asked, and the canary is cheaper."""
    before = Counter(upstream.asked)
    assert learn(log, config, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "80 requests of 40 sessions are drawn" in shown
    assert "dear-1 (teacher)" in shown
    assert upstream.asked == before

    assert learn(log, config, "--yes", "--publish") == 0
    found = re.search(r"figures are in (.*)", capsys.readouterr().out)
    assert found is not None
    report = orjson.loads(Path(found[1]).read_bytes())
    assert (report["requests"], report["sessions"]) == (80, 40)
    asked = upstream.asked - before
    assert (asked["cheap-1"], asked["dear-1"]) == (0, 80)  # the log has the cheap one's answers
    loop = report["agreement"]["after a tool's result: a call"]
    assert (loop["cheap-1"], loop["dear-1"]) == (1.0, 1.0)
    assert loop["middle-1"] < 1.0
    rules = report["rules"]
    assert rules["learned"]["agreement"] == rules["today's default"]["agreement"] == 1.0
    assert rules["learned"]["cost_usd"] < 0.7 * rules["today's default"]["cost_usd"]

    with gateway(config) as url, httpx.Client(base_url=url) as http:
        wait_for(lambda: published(http)["canary"], "the canary is loaded")
        stable_usd = converse(http, range(2001, 2011))
        assert main(["publish", "--to", str(tmp_path / "published"), "--promote"]) == 0
        wait_for(lambda: not published(http)["canary"], "the canary is promoted")
        assert converse(http, range(3001, 3011)) < 0.8 * stable_usd


def test_killed_run_goes_on(log: Path, config: Path, upstream: ModelUpstream) -> None:
    """Answers that were saved are not asked again, and the sample is the same."""
    before = Counter(upstream.asked)
    upstream.limit = before.total() + 30
    command = [sys.executable, "-m", "router_service.cli", "learn", str(log)]
    with subprocess.Popen([*command, "--config", str(config), "--yes"]) as process:
        wait_for(lambda: upstream.asked.total() > upstream.limit, "it asks")
        process.kill()
    upstream.limit = 1_000_000
    assert learn(log, config, "--yes") == 0
    asked = upstream.asked - before
    assert asked["dear-1"] >= 80  # the log has none of its answers
    in_flight = CONCURRENCY * len(PRICES)
    assert asked["dear-1"] <= 80 + in_flight


def test_budget_that_runs_out_ends_the_run(
    log: Path, config: Path, upstream: ModelUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so and writes nothing; with a larger budget, it goes on."""
    before = Counter(upstream.asked)
    assert learn(log, config, "--yes", "--budget", "0.12") == CAPPED
    shown = capsys.readouterr()
    assert "Stopped below the spending cap of 0.12 USD" in shown.err
    assert "The new artifact" not in shown.out
    first = (upstream.asked - before)["dear-1"]
    assert 0 < first < 80
    assert learn(log, config, "--yes") == 0
    assert "goes on" in capsys.readouterr().out
    assert (upstream.asked - before)["dear-1"] == 80


def test_log_without_content_is_refused(config: Path, tmp_path: Path) -> None:
    """The error says what to set."""
    values = yaml.safe_load(config.read_text())
    values["decision_log"]["content"] = False
    config.write_text(yaml.safe_dump(values))
    with gateway(config) as url, httpx.Client(base_url=url) as http:
        converse(http, range(1001, 1003))
    with pytest.raises(DataError, match=r"Set decision_log\.content: true"):
        app(
            ["learn", str(tmp_path / "log"), "--config", str(config)],
            result_action="return_value",
            exit_on_error=False,
        )


LINES = {FAMILIAR: Line(1.3, -0.4), UNFAMILIAR: Line(0.9, 0.2)}


def test_artifact_keeps_its_own_queries_accuracy(shipped: Router, tmp_path: Path) -> None:
    """It has both calibrations, the rule, and figures that cost no accuracy at the same cost."""
    made = write_artifact(LINES, "verified=0.004", shipped, tmp_path / "made")
    old = Artifact.load(SHIPPED).manifest
    assert made.verifier is not None
    assert old.verifier is not None
    assert made.verifier.unfamiliar is not None
    assert old.verifier.unfamiliar is not None
    p = np.array([[0.2], [0.9]])
    for kind, new, before in (
        (FAMILIAR, made.verifier.calibration, old.verifier.calibration),
        (UNFAMILIAR, made.verifier.unfamiliar.calibration, old.verifier.unfamiliar.calibration),
    ):
        slope, shift = LINES[kind]
        expected = sigmoid(slope * logit(before.apply(p)) + shift)
        assert new.apply(p) == pytest.approx(expected)
    assert made.policies["default"] == "verified=0.004"
    assert "default" not in made.policy_goals
    assert made.named_frontier
    assert lost_accuracy(old.named_frontier, made.named_frontier) <= LOST_ACCURACY
    router = Router.load(tmp_path / "made")
    assert str(router.policy()) == "verified=0.004"


def test_calibration_that_loses_accuracy_is_not_used(shipped: Router, tmp_path: Path) -> None:
    """A line that makes all answers look alike would ruin the artifact's own queries."""
    ruinous = {FAMILIAR: Line(0.05, 9.0), UNFAMILIAR: Line(1.0, 0.0)}
    made = write_artifact(ruinous, "verified=0.004", shipped, tmp_path / "made")
    old = Artifact.load(SHIPPED).manifest
    assert made.verifier is not None
    assert old.verifier is not None
    assert made.verifier.calibration == old.verifier.calibration
    assert made.files == old.files


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
        TurnPosition.BEGIN: 3,
        TurnPosition.LOOP: 3,
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
