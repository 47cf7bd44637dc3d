"""Whether a client can use an answer: facts about calls, texts and what else answers contain."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from router_service.apis.conversation import Json
from router_service.apis.registry import APIS, parse_answer
from router_service.apis.writing import portable_name
from router_service.checker.usability import AnswerTerms, why_unusable
from router_service.requests.parsing import Endpoint, ParsedRequest
from tests.apis import CHAT, MESSAGES, RESPONSES

CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Json = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
REQUEST: Json = {
    "model": "m",
    "messages": [{"role": "user", "content": "Weather in Oslo?"}],
    "tools": [TOOL],
}
RESPONSES_REQUEST: Json = {
    "model": "m",
    "input": "Weather in Oslo?",
    "tools": [{"type": "function", "name": "get_weather", "parameters": CITY}],
}
ARGUMENTS = "arguments that are not one JSON object"
NOT_OFFERED = "which the request does not offer"
EMPTY = "neither text nor calls"


def call(arguments: Json, name: str = "get_weather") -> Json:
    """Return a function call of Chat Completions."""
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(finish_reason: str | None = None, **message: Json) -> Json:
    """Return an answer of Chat Completions."""
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


def response(*output: Json, **fields: Json) -> Json:
    """Return an answer of Responses."""
    return {"object": "response", "id": "r", "status": "completed", "output": output, **fields}


def terms_of(request: Json) -> AnswerTerms | None:
    """Return what a request lets its answer contain, as the gateway reads it."""
    api = RESPONSES if "input" in request else MESSAGES if "max_tokens" in request else CHAT
    endpoint = Endpoint.of(APIS.named(api.name))
    return ParsedRequest(endpoint, json.dumps(request).encode()).terms


def problem_of(answer: Json, request: Json = REQUEST) -> str:
    """Return why a client cannot use an answer, or an empty text."""
    terms = terms_of(request)
    assert terms is not None
    return why_unusable(parse_answer(json.loads(json.dumps(answer))), terms) or ""


@pytest.mark.parametrize(
    "text",
    [
        *('{"city":"Oslo"}', "{}", "", "  ", ' {"city":"Oslo"}\n', '{"city":"\\ud800"}'),
        *('{"n":1e400}', '{"n":12345678901234567890123}', f'{{"n":{"9" * 5_000}}}'),
        *('{"a":' * 20 + "1" + "}" * 20, '{"a":' * 50_000 + "1" + "}" * 50_000),
        f'{{"a":"{"x" * 60_000}"}}',
    ],
    ids=lambda text: text[:24],
)
def test_one_json_object_can_be_used(text: str) -> None:
    """Some models write nothing for no arguments; what only the gateway cannot read is usable."""
    assert problem_of(chat(tool_calls=[call(text)])) == ""
    assert problem_of(chat(function_call={"name": "get_weather", "arguments": text})) == ""
    item = {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": text}
    assert problem_of(response(item), RESPONSES_REQUEST) == ""


@pytest.mark.parametrize(
    "text",
    ['{"city":"Os', "{", '"Oslo"', "[]", "null", "1", "{}{}", '{"city":NaN}', "{'city':'Oslo'}",
     '```json\n{"city":"Oslo"}\n```', '{"a":"' + "x" * 60_000],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_other_arguments_of_a_function_cannot_be_used(text: str) -> None:
    """The arguments of a call are one JSON object, in every API; a text beside it does not help."""
    calls = [call('{"city":"Oslo"}'), call(text)]
    assert ARGUMENTS in problem_of(chat(content="Wait.", tool_calls=calls))
    assert ARGUMENTS in problem_of(chat("length", tool_calls=calls))
    assert ARGUMENTS in problem_of(chat(function_call=calls[1]["function"]))
    item = {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": text}
    assert ARGUMENTS in problem_of(response(item), RESPONSES_REQUEST)
    custom = {"type": "custom", "id": "1", "custom": {"name": "get_weather", "input": text}}
    assert ARGUMENTS in problem_of(chat(tool_calls=[custom]))


LONG = "mcp__" + "x" * 70
SERVER_TOOL = {"type": "web_search_20250305", "name": "web_search"}
CUSTOM = {"type": "custom", "custom": {"name": "run"}}
ONE_OF_TWO = {
    "tools": [TOOL, {"type": "function", "function": {"name": "delete"}}],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [TOOL]},
    },
}


@pytest.mark.parametrize(
    ("request_fields", "name", "arguments", "problem"),
    [
        ({}, "forecast", "{}", NOT_OFFERED),
        ({"tools": []}, "get_weather", "{}", NOT_OFFERED),
        ({"tool_choice": "none"}, "get_weather", '{"city":"Oslo"}', NOT_OFFERED),
        ({"tools": None, "functions": [{"name": "old"}]}, "old", "{}", ""),
        ({"tools": [{"function": {"name": "a.b"}}]}, "a_b", "{}", ""),
        ({"tools": [{"function": {"name": LONG}}]}, portable_name(LONG), "{}", ""),
        (ONE_OF_TWO, "get_weather", "{}", ""),
        (ONE_OF_TWO, "delete", "{}", NOT_OFFERED),
        # The provider, or a part that could not be read, may offer further tools.
        ({"tools": [TOOL, SERVER_TOOL]}, "other", "{}", ""),
        ({"tools": [TOOL, SERVER_TOOL]}, "get_weather", "{", ARGUMENTS),
        ({"tools": [TOOL, CUSTOM]}, "get_weather", "ls -l", ARGUMENTS),
    ],
)
def test_only_offered_functions_can_be_called(
    request_fields: Mapping[str, Json], name: str, arguments: str, problem: str
) -> None:
    """Names may be those that an upstream needs; custom tools have no JSON arguments."""
    found = problem_of(chat(tool_calls=[call(arguments, name)]), REQUEST | request_fields)
    assert problem in found if problem else not found


NO_TOOLS = {"tools": None}


@pytest.mark.parametrize(
    ("answer", "request_fields", "is_empty"),
    [
        (chat(content=""), {}, True),
        (chat("stop", content=" \n", tool_calls=[]), {}, True),
        (chat(content=None, reasoning_content="Hm."), {}, True),
        (chat(content=[{"type": "thinking", "thinking": "Hm."}]), {}, True),
        (chat("stop", content=""), NO_TOOLS, True),
        # Text, and what stands for it.
        (chat(content="Which Oslo?"), {}, False),
        (chat(content=None, refusal="I cannot help."), {}, False),
        (chat("content_filter", content=""), {}, False),
        (chat(content=None, audio={"id": "a", "data": ""}), {}, False),
        # The request itself may have ended the answer.
        (chat("length", content=""), NO_TOOLS, False),
        (chat("stop", content=""), {"stop": ["\n"]}, False),
        (chat("stop", content=""), {"messages": [{"role": "assistant", "content": "So"}]}, False),
    ],
)
def test_answer_has_text_or_calls(
    answer: Json, request_fields: Mapping[str, Json], is_empty: bool
) -> None:
    """White space and reasoning are no text; a refusal is, and so is what a client asked for."""
    assert (EMPTY in problem_of(answer, REQUEST | request_fields)) is is_empty
