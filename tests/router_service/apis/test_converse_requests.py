"""Requests to Amazon Bedrock: valid by AWS's own description, and accepted by each vendor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from router_service.apis.api import Target
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    OutputFormat,
    Request,
    Result,
    Text,
    Thinking,
    ToolChoice,
    ToolUse,
)
from router_service.apis.request_translation import obstacles
from router_service.upstream.parameters import add_parameters
from tests import apis
from tests.bedrock import problems_of_request

CLAUDE, OLD_CLAUDE = "us.anthropic.claude-opus-4-8", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA, NOVA_2 = "us.amazon.nova-pro-v1:0", "global.amazon.nova-2-lite-v1:0"
GPT_OSS, LLAMA = "openai.gpt-oss-120b-1:0", "us.meta.llama4-maverick-17b-instruct-v1:0"
DEEPSEEK = "us.deepseek.r1-v1:0"

TOOL = OfferedTool("get_weather", "Weather of a city", {"type": "object", "properties": {}})
ASKED = Message("user", (Text("What is the weather in Oslo?"),))
CALL = ToolUse("tooluse_1", "get_weather", '{"city":"Oslo"}')
CALLED = Message("assistant", (CALL,))
RETURNED = Message("user", (Result("tooluse_1", (Text("Rain."),)),))
LOOP = (ASKED, CALLED, RETURNED)


def write(request: Request, model: str = CLAUDE, *, can_reason: bool = True) -> dict[str, Any]:
    """Return the body for a model, which must be valid by AWS's description."""
    target = Target(apis.CONVERSE, model, "bedrock", supports_reasoning=can_reason)
    body = apis.CONVERSE.write_request(request, target)
    assert problems_of_request(body) == []
    assert orjson.loads(orjson.dumps(body)) == body
    return body


def ask(*messages: Message, **fields: Any) -> Request:  # noqa: ANN401 - fields of a request
    """Return a request with a tool."""
    fields.setdefault("tools", (TOOL,))
    return Request("m", messages or (ASKED,), **fields)


def test_results_of_parallel_calls_are_in_one_message_before_other_content() -> None:
    """Bedrock demands it of every model."""
    calls = Message("assistant", (Text("I look."), CALL, replace(CALL, id="tooluse_2")))
    results = [Message("user", (Result(f"tooluse_{n}", (Text(str(n)),)),)) for n in (1, 2)]
    body = write(ask(ASKED, calls, *results, Message("user", (Text("And?"),))))
    kinds = [[next(iter(block)) for block in m["content"]] for m in body["messages"]]
    assert kinds[1:] == [
        ["text", "toolUse", "toolUse"],
        ["toolResult", "toolResult", "text", "cachePoint"],
    ]
    separate = write(ask(ASKED, calls, *results, Message("user", (Text("And?"),))), LLAMA)
    kinds = [[next(iter(block)) for block in m["content"]] for m in separate["messages"]]
    assert kinds == [
        ["text"],
        ["text"],
        ["text"],
        ["toolUse", "toolUse"],
        ["toolResult", "toolResult"],
        ["text"],
        ["text"],
    ]


@pytest.mark.parametrize("fields", [{"tool_choice": ToolChoice("none")}, {"tools": ()}])
def test_calls_that_cannot_be_repeated_become_texts(fields: dict[str, Any]) -> None:
    """Converse accepts calls only with tools, and a model may call every tool that is offered."""
    body = write(ask(*LOOP, **fields))
    assert "toolConfig" not in body
    texts = [[block["text"] for block in message["content"]] for message in body["messages"]]
    assert texts[1:] == [
        ['<tool_call name="get_weather">\n{"city":"Oslo"}\n</tool_call>'],
        ['<tool_result name="get_weather">', "Rain.", "</tool_result>"],
    ]


EFFORTS: list[tuple[str, str, dict[str, Any]]] = [
    (
        CLAUDE,
        "high",
        {
            "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "high"},
        },
    ),
    (CLAUDE, "none", {"thinking": {"type": "disabled"}}),
    (OLD_CLAUDE, "medium", {"thinking": {"type": "enabled", "budget_tokens": 8192}}),
    (NOVA_2, "xhigh", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}}),
    (GPT_OSS, "minimal", {"reasoning_effort": "low"}),
    (NOVA, "high", {}),
]


@pytest.mark.parametrize(("model", "effort", "expected"), EFFORTS)
def test_efforts_as_each_vendor_names_them(
    model: str, effort: str, expected: dict[str, Any]
) -> None:
    """A client's effort, or one that the configuration sets, becomes the vendor's field."""
    body = write(ask(effort=effort), model)
    assert body.get("additionalModelRequestFields", {}) == expected
    assert "additionalModelRequestFields" not in write(ask(effort=effort), model, can_reason=False)
    added = orjson.loads(
        add_parameters(b"{}", {"reasoning_effort": effort, "top_k": 5}, "/converse", model)
    )["additionalModelRequestFields"]
    thinking = added.get("thinking", {})
    if thinking.get("type") == "adaptive":
        thinking["display"] = "omitted"
    assert {**added, **expected} == added
    assert added.get("top_k", added.get("inferenceConfig", {}).get("topK")) == 5


def test_claude_thinks_only_where_it_may() -> None:
    """Not before a call that it must make, nor in a loop of calls that began without thinking."""
    must = {"tool_choice": ToolChoice("required"), "effort": "high"}
    for model in (CLAUDE, OLD_CLAUDE):
        assert "additionalModelRequestFields" not in write(ask(**must), model)
    assert "additionalModelRequestFields" not in write(ask(*LOOP, effort="high"), OLD_CLAUDE)
    assert "additionalModelRequestFields" in write(ask(*LOOP, effort="high"), CLAUDE)
    short = ask(effort="high", max_tokens=1500)
    thinking = write(short, OLD_CLAUDE)["additionalModelRequestFields"]["thinking"]
    assert thinking["budget_tokens"] == 1499
    too_short = write(ask(effort="high", max_tokens=500), OLD_CLAUDE)
    assert "additionalModelRequestFields" not in too_short


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        (OLD_CLAUDE, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5}),
        (OLD_CLAUDE, {"temperature": 1, "top_p": 0.9}, {"topP": 0.9}),
        (OLD_CLAUDE, {"temperature": 0.5, "effort": "low"}, {}),
        (CLAUDE, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 5}, {"maxTokens": 5}),
        (NOVA_2, {"temperature": 0, "effort": "high", "max_tokens": 5}, {}),
        (LLAMA, {"stop": ("END",)}, {"stopSequences": ["END"]}),
    ],
)
def test_limits_and_sampling(model: str, fields: Any, expected: object) -> None:  # noqa: ANN401
    """A model gets what it accepts."""
    body = write(ask(**fields), model)
    assert body.get("inferenceConfig", {}) == expected
    if "stop" in fields:
        assert body["additionalModelResponseFieldPaths"] == ["/stop_sequence"]


def test_reasoning_returns_to_the_model_that_wrote_it() -> None:
    """With its signature, or encrypted; without a signature only where that is accepted."""
    signed = Thinking("Hm.", "c2ln", origin="converse")
    hidden = Thinking("", "c2VjcmV0", is_hidden=True, origin="converse")
    unsigned = Thinking("Hm.", origin="converse")
    foreign = Thinking("Hm.", "c2ln", origin="messages")

    def blocks(*parts: Thinking, model: str = CLAUDE) -> list[Any]:
        said = Message("assistant", (*parts, CALL))
        content = write(ask(ASKED, said, RETURNED), model)["messages"][1]["content"]
        return [block["reasoningContent"] for block in content if "reasoningContent" in block]

    assert blocks(signed, hidden) == [
        {"reasoningText": {"text": "Hm.", "signature": "c2ln"}},
        {"redactedContent": "c2VjcmV0"},
    ]
    assert blocks(unsigned, foreign) == []
    assert blocks(unsigned, model=DEEPSEEK) == []
    assert blocks(unsigned, model=GPT_OSS) == [{"reasoningText": {"text": "Hm."}}]
    target = Target(apis.CONVERSE, CLAUDE, "bedrock")
    request = ask(ASKED, Message("assistant", (signed, CALL)), RETURNED)
    body = apis.CONVERSE.write_request(request, target, lambda proof: proof == "c2ln")
    assert "reasoningContent" not in orjson.dumps(body).decode()


@pytest.mark.parametrize(
    ("model", "places"),
    [
        (CLAUDE, ["system", "messages"]),
        (NOVA, ["system", "messages"]),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", []),
        (LLAMA, []),
    ],
)
def test_cache_points_are_for_models_that_have_them(model: str, places: list[str]) -> None:
    """Others refuse them, and Nova refuses them among the tools."""
    system = Message("system", (Text("Be short."),))
    body = write(ask(system, ASKED), model)
    found = [name for name in ("system", "messages") if "cachePoint" in str(body[name])]
    assert found == places
    tools = write(ask(), model)["toolConfig"]["tools"]
    assert ({"cachePoint": {"type": "default"}} in tools) == ("claude" in model and bool(places))
    assert "cachePoint" not in str(write(ask(system, ASKED, tools=()), model))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask(Message("user", (Text(" "),))), "messages"),
        (ask(Message("user", (Media("audio", data="AA==", media_type="audio/wav"),))), "audio"),
        (ask(output_format=OutputFormat()), "response_format"),
        (ask(Message("user", (Media("image", url="https://e.com/a.png"),))), "image by URL"),
    ],
)
def test_what_cannot_be_expressed_is_named(request_: Request, field: str) -> None:
    """Such a request goes to a model of another API."""
    found = obstacles(request_, apis.CHAT, apis.CONVERSE)
    assert any(field in each for each in found), found
