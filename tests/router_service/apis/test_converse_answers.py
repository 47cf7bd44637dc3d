"""Answers of Amazon Bedrock's Converse API, and the API's place beside those of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from router_service.apis.answer_errors import AnswerError, ForeignAnswerError
from router_service.apis.converse.answer_reader import ConverseReader
from router_service.apis.parts import (
    Answer,
    Event,
    PartProved,
    PartStarted,
    Stop,
    Text,
    Thinking,
    build,
)
from router_service.apis.registry import parse_answer
from router_service.core.errors import Failure
from router_service.upstream.streams import failure_of_error, is_of_another_api
from tests.apis import APIS, CHAT, CONVERSE
from tests.bedrock import problems_of_answer, problems_of_event
from tests.dialect_answers import CASES, events, whole

START = {"messageStart": {"role": "assistant"}}
USAGE = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
END = [
    {"messageStop": {"stopReason": "end_turn"}},
    {"metadata": {"usage": USAGE, "metrics": {"latencyMs": 9}}},
]


def delta(number: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return an event that adds to a block."""
    return {"contentBlockDelta": {"contentBlockIndex": number, "delta": fields}}


def start(number: int, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return an event that starts a block."""
    return {"contentBlockStart": {"contentBlockIndex": number, "start": fields}}


def stop(number: int) -> dict[str, Any]:
    """Return an event that ends a block."""
    return {"contentBlockStop": {"contentBlockIndex": number}}


def read(sent: Sequence[Any]) -> Answer:
    """Return the answer of a stream."""
    reader = ConverseReader()
    found: list[Event] = [event for each in sent for event in reader.feed(each)]
    return build([*found, *reader.end()])


def message(*content: Any, reason: str = "end_turn", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a whole answer."""
    output = {"message": {"role": "assistant", "content": list(content)}}
    return {"output": output, "stopReason": reason, "usage": USAGE, "metrics": {}, **fields}


@pytest.mark.parametrize("name", CASES)
def test_the_cases_of_the_tests_are_answers_of_bedrock(name: str) -> None:
    """What the tests send is valid by AWS's description, except for a refusal's reason."""
    if CASES[name].stop != "refusal":
        assert problems_of_answer(whole(CASES[name], CONVERSE)) == []
        assert [p for e in events(CASES[name], CONVERSE) for p in problems_of_event(e)] == []


REASONS = {
    "end_turn": Stop.END,
    "tool_use": Stop.END,  # there is no call
    "max_tokens": Stop.LENGTH,
    "stop_sequence": Stop.SEQUENCE,
    "guardrail_intervened": Stop.FILTER,
    "refusal": Stop.REFUSAL,
}


@pytest.mark.parametrize("reason", REASONS)
def test_reasons_to_stop(reason: str) -> None:
    """Every reason has its meaning, in whole answers and in streams."""
    streamed = read([START, delta(0, text="It"), {"messageStop": {"stopReason": reason}}])
    value = ConverseReader().whole(message({"text": "It"}, reason=reason))
    assert streamed.stop == value.stop == REASONS[reason]


def test_reasoning_with_a_signature_and_encrypted_reasoning() -> None:
    """The signature may be all of it. Encrypted reasoning may arrive in pieces of base64."""
    signed = {"reasoningContent": {"signature": "c2ln"}}
    hidden = [
        delta(1, reasoningContent={"redactedContent": piece}) for piece in ("c2Vj", "cg==", "ZXQ=")
    ]
    sent = [START, delta(0, **signed), stop(0), *hidden, stop(1), delta(2, text="It")]
    answer = read([*sent, *END])
    assert answer.parts == (
        Thinking("", "c2ln", origin="converse"),
        Thinking("", "c2VjcmV0", is_hidden=True, origin="converse"),
        Text("It"),
    )
    value = message(
        {"reasoningContent": {"reasoningText": {"text": "", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
        {"text": "It"},
    )
    assert ConverseReader().whole(value).parts == answer.parts
    assert [*CONVERSE.find_proofs(value)] == ["c2ln", "c2VjcmV0"]
    events = ConverseReader()
    events.feed(START)
    assert [type(event) for event in events.feed(delta(0, **signed))] == [PartStarted, PartProved]


def test_tools_of_the_provider_are_left_out() -> None:
    """Their calls and results are not the client's. Cited texts are texts."""
    searched = {"toolUseId": "s", "name": "nova_grounding", "type": "server_tool_use"}
    value = message(
        {"toolUse": {**searched, "input": {"query": "Oslo"}}},
        {"toolResult": {"toolUseId": "s", "content": []}},
        {"citationsContent": {"content": [{"text": "It "}, {"text": "rains."}], "citations": []}},
    )
    assert ConverseReader().whole(value).parts == (Text("It rains."),)
    sent = [
        START,
        start(0, toolUse=searched),
        delta(0, toolUse={"input": "{}"}),
        stop(0),
        start(1, toolResult={"toolUseId": "s"}),
        delta(1, toolResult=[{"text": "Rain."}]),
        stop(1),
        delta(2, text="It rains."),
        delta(2, citation={"title": "Weather"}),
        stop(2),
    ]
    assert read([*sent, *END]).parts == (Text("It rains."),)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([delta(0, text="It")], "invalid place"),
        ([START, start(0, image={"format": "png"})], "image"),
        ([START, delta(0, toolUse={"input": "{}"})], "unexpected delta of the type 'toolUse'"),
        ([START, delta(0, text="It"), delta(0, reasoningContent={"text": "Hm"})], "different"),
        ([START, delta(0, text="It"), {"messageStop": {}}, END[1]], "before it was complete"),
        ([START, {"throttlingException": {"message": "Slow."}}], "unexpected event"),
    ],
)
def test_malformed_streams(sent: Sequence[Any], problem: str) -> None:
    """Each is the upstream's mistake, which the error describes."""
    with pytest.raises(ForeignAnswerError, match=problem):
        read(sent)


EXCEPTIONS = {
    "throttlingException": (429, Failure.ERROR_BODY),
    "validationException": (400, Failure.REFUSED),
    "serviceUnavailableException": (503, Failure.ERROR_BODY),
    "somethingNew": (500, Failure.ERROR_BODY),
}


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_within_a_stream(name: str) -> None:
    """The exception's name stands for a status, by which the gateway tries another deployment."""
    status, failure = EXCEPTIONS[name]
    value = {name: {"message": "Too many requests."}}
    assert CONVERSE.is_error(value)
    assert CONVERSE.read_error(value, 200) == AnswerError(status, "Too many requests.", name)
    assert failure_of_error(value, CONVERSE) is failure
    written = CHAT.write_error(CONVERSE.read_error(value, 200))["error"]
    assert written["message"] == "Too many requests."


def test_no_answer_is_taken_for_an_error_or_for_another_apis() -> None:
    """Answers and events of each API are recognized as its own."""
    for api in APIS.of_upstreams:
        for name in CASES:
            for value in (whole(CASES[name], api), *events(CASES[name], api)):
                assert not api.is_error(value)
                assert not is_of_another_api(value, api)
        others = [other for other in APIS.of_upstreams if other is not api]
        assert all(is_of_another_api(whole(CASES["text"], api), other) for other in others)
    assert not CONVERSE.recognizes({"metadata": {"user": "a"}})
    assert parse_answer({"output": {"message": {}}, "stopReason": 1}) is None
