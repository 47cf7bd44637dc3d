"""Answers of Amazon Bedrock's Converse API, and the API's place beside those of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from router_service.apis.answer_errors import AnswerError, ForeignAnswerError
from router_service.apis.converse.answer_reader import MAX_HIDDEN_CHARACTERS, ConverseReader
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
from router_service.apis.registry import parse_answer, read_usage
from router_service.apis.usage import Usage
from router_service.core.errors import Failure
from router_service.serving.app import create_app
from router_service.settings import Settings
from router_service.settings.litellm import ModelInfo
from router_service.upstream.streams import failure_of_error, is_of_another_api
from tests.apis import APIS, CHAT, CONVERSE
from tests.bedrock import problems_of_answer, problems_of_event
from tests.dialect_answers import CASES, events, whole
from tests.fakes import PROBABILITIES, FakeRouter

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


def read(sent: Sequence[Any], reader: ConverseReader | None = None) -> Answer:
    """Return the answer of a stream."""
    reader = reader or ConverseReader()
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


@pytest.mark.parametrize("reason", ["malformed_tool_use", "malformed_model_output"])
def test_answers_that_the_provider_calls_malformed_are_refused(reason: str) -> None:
    """Another deployment may answer better."""
    with pytest.raises(ForeignAnswerError, match=reason):
        read([START, {"messageStop": {"stopReason": reason}}])
    with pytest.raises(ForeignAnswerError, match=reason):
        ConverseReader().whole(message({"text": "It"}, reason=reason))


def test_usage_includes_the_cache() -> None:
    """AWS counts what it reads from a cache and writes to it besides the input."""
    usage = {**USAGE, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 10}
    expected = Usage(113, 2, cached_tokens=100, cache_write_tokens=10)
    assert read_usage(message({"text": "It"}) | {"usage": usage}) == expected
    last = {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}
    assert read([START, delta(0, text="It"), END[0], last]).usage == expected
    assert read_usage(message() | {"usage": {"inputTokens": -1, "outputTokens": 2}}) is None


def test_texts_need_no_start_and_blocks_no_end() -> None:
    """AWS starts only calls. Empty texts have nothing but an end."""
    sent = [START, stop(0), start(1), delta(1, text=""), delta(1, text="It"), delta(2, text="!")]
    assert read([*sent, *END]).parts == (Text("It"), Text("!"))


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


def test_encrypted_reasoning_is_limited() -> None:
    """It is kept in memory until its block ends."""
    piece = delta(0, reasoningContent={"redactedContent": "x" * (MAX_HIDDEN_CHARACTERS // 2)})
    with pytest.raises(ForeignAnswerError, match="too much"):
        read([START, piece, piece, piece])
    odd = [delta(0, reasoningContent={"redactedContent": text}) for text in ("c2Vj", "%")]
    with pytest.raises(ForeignAnswerError, match="not base64"):
        read([START, *odd, *END])


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
        ([START, START], "starts twice"),
        ([START, start(0, image={"format": "png"})], "image"),
        ([START, start(0, toolUse={"toolUseId": "a"})], "without a name"),
        ([START, delta(0, toolUse={"input": "{}"})], "unexpected delta of the type 'toolUse'"),
        ([START, delta(0, text="It"), delta(0, reasoningContent={"text": "Hm"})], "different"),
        ([START, {"contentBlockDelta": {"delta": {"text": "It"}}}], "place of its block"),
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


def test_prompts_that_are_too_long() -> None:
    """Bedrock has only a message for them."""
    body = {"message": "Input is too long for requested model."}
    assert CONVERSE.is_error_body(body)
    error = CONVERSE.read_error(body, 400)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert (
        CONVERSE.read_error({"Message": "Signature expired."}, 403).message == "Signature expired."
    )


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


def test_only_deployments_speak_it() -> None:
    """Neither routes, nor settings, nor the lists of clients' APIs have it."""
    assert CONVERSE in APIS.of_upstreams
    assert CONVERSE.name not in APIS.names
    assert len(APIS) == len(list(APIS)) == len(APIS.names) == len(APIS.of_upstreams) - 1
    assert APIS.at("/converse") is CONVERSE
    assert APIS.below("/converse") is None
    with pytest.raises(KeyError):
        APIS.named("converse")
    assert ModelInfo(supported_endpoints=("/v1/converse",)).apis == ()
    assert ModelInfo(mode="converse").apis == ()
    settings = Settings.sandbox("http://127.0.0.1:9/v1", list(PROBABILITIES))
    assert all(CONVERSE not in d.apis for model in settings.models for d in model.deployments)
    document = orjson.dumps(create_app(settings, FakeRouter()).openapi()).lower()
    assert b"converse" not in document
