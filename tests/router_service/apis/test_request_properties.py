"""Properties of translated requests, for generated conversations and for arbitrary JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from router_service.apis.api import Target
from router_service.apis.conversation import Json
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    OutputFormat,
    Request,
    Result,
    Text,
    ToolChoice,
    ToolUse,
)
from router_service.apis.request_translation import obstacles, read_request
from tests import apis
from tests.apis import Api, UpstreamApi
from tests.bedrock import problems_of_request
from tests.router_service.apis.sdk_schemas import VALIDATORS

FAST = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    phases=[Phase.generate, Phase.shrink],
)
TARGETS: dict[UpstreamApi, Target] = {
    apis.CHAT: Target(apis.CHAT, "gpt-5", provider="openai", supports_reasoning=True),
    apis.RESPONSES: Target(apis.RESPONSES, "gpt-5", provider="openai", supports_reasoning=True),
    apis.MESSAGES: Target(
        apis.MESSAGES, "claude-opus-4-8", provider="anthropic", supports_reasoning=True
    ),
    apis.CONVERSE: Target(
        apis.CONVERSE, "us.amazon.nova-2-lite-v1:0", provider="bedrock", supports_reasoning=True
    ),
}
IDS = {
    apis.CHAT: re.compile(r".{1,40}", re.DOTALL),
    apis.RESPONSES: re.compile(r".{1,64}", re.DOTALL),
    apis.MESSAGES: re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    apis.CONVERSE: re.compile(r"[a-zA-Z0-9_-]{1,64}"),
}

texts = st.text(min_size=1, max_size=12).filter(lambda text: bool(text.strip()))
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,20}", fullmatch=True)
schemas = st.sampled_from(
    [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}, {}, None]
)
arguments = st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=2)
images = st.sampled_from(
    [
        Media("image", url="https://example.com/a.png"),
        Media("image", data="iVBORw0=", media_type="image/png"),
        Media("document", data="some text", media_type="text/plain", name="a.txt"),
        Media("document", data="JVBERi0=", media_type="application/pdf", name="a.pdf"),
    ]
)


@st.composite
def requests(draw: st.DrawFn, images: st.SearchStrategy[Media] = images) -> Request:
    """Return a request with calls in any number of rounds, each with its result."""
    messages = [Message("system", (Text(draw(texts)),))] if draw(st.booleans()) else []
    messages.append(Message("user", tuple(draw(st.lists(texts.map(Text) | images, min_size=1)))))
    ids = draw(st.lists(st.text(min_size=1, max_size=70), unique=True, max_size=6))
    while ids:
        count = draw(st.integers(1, len(ids)))
        used, ids = ids[:count], ids[count:]
        calls = [
            ToolUse(call_id, draw(names), orjson.dumps(draw(arguments)).decode())
            for call_id in used
        ]
        said = [Text(draw(texts))] if draw(st.booleans()) else []
        messages.append(Message("assistant", (*said, *calls)))
        results = [
            Result(
                call_id,
                tuple(draw(st.lists(texts.map(Text) | images, max_size=2))),
                is_error=draw(st.booleans()),
            )
            for call_id in used
        ]
        messages.append(Message("user", tuple(results)))
        if draw(st.booleans()):
            messages.append(Message("user", (Text(draw(texts)),)))
    tools = draw(
        st.lists(
            st.builds(OfferedTool, names, st.text(max_size=5), schemas, st.none() | st.booleans()),
            unique_by=lambda tool: tool.name,
            max_size=3,
        )
    )
    choices = [None, ToolChoice("auto"), ToolChoice("none"), ToolChoice("required")]
    choices += [ToolChoice("required", (tool.name,)) for tool in tools]
    form = OutputFormat({"type": "object", "properties": {}}, "answer")
    return Request(
        "model",
        tuple(messages),
        stream=draw(st.booleans()),
        tools=tuple(tools),
        tool_choice=draw(st.sampled_from(choices)) if tools else None,
        is_parallel=draw(st.none() | st.booleans()) if tools else None,
        max_tokens=draw(st.none() | st.integers(1, 200_000)),
        temperature=draw(st.none() | st.sampled_from([0, 0.5, 1])),
        output_format=draw(st.sampled_from([None, form])),
        effort=draw(st.sampled_from([None, "low", "medium", "high"])),
    )


def calls_and_results(body: dict[str, Json], dialect: UpstreamApi) -> Iterator[tuple[str, str]]:
    """Yield the kind and the id of every call and result of a body, in order."""
    for item in body["input" if dialect is apis.RESPONSES else "messages"]:
        if dialect is apis.RESPONSES:
            if "call_id" in item:
                yield "result" if item["type"].endswith("_output") else "call", item["call_id"]
        elif dialect is apis.CHAT:
            yield from (("call", call["id"]) for call in item.get("tool_calls", ()))
            if item["role"] == "tool":
                yield "result", item["tool_call_id"]
        elif dialect is apis.CONVERSE:
            kinds = {"toolUse": "call", "toolResult": "result"}
            for block in item["content"]:
                yield from ((kinds[n], v["toolUseId"]) for n, v in block.items() if n in kinds)
        else:
            for block in item["content"]:
                if block["type"] == "tool_use":
                    yield "call", block["id"]
                elif block["type"] == "tool_result":
                    yield "result", block["tool_use_id"]


def problems_of(body: dict[str, Json], target: UpstreamApi) -> list[str]:
    """Return what the vendor's own description says against a body."""
    if not isinstance(target, Api):
        return problems_of_request(body)
    return [str(error) for error in VALIDATORS[target].iter_errors(body)]


@pytest.mark.parametrize(("target", "source"), apis.PAIRS)
@FAST
@given(request=requests())
def test_translated_requests_are_valid_and_complete(
    target: UpstreamApi, source: Api, request: Request
) -> None:
    """A translated request fits the vendor's types, and no call, result, text or image is lost."""
    original = source.write_request(request, TARGETS[source])
    read = read_request(original, source)
    if found := obstacles(read, source, target):
        assert found == (f"{source.fields.messages} (image by URL)",)
        return
    body = target.write_request(read, TARGETS[target])
    assert problems_of(body, target) == []

    found = list(calls_and_results(body, target))
    ids = [call_id for kind, call_id in found if kind == "call"]
    assert len(set(ids)) == len(ids) == sum(kind == "result" for kind, _ in found)
    assert all(IDS[target].fullmatch(call_id) for call_id in ids)
    is_open: set[str] = set()
    for kind, call_id in found:
        if kind == "call":
            is_open.add(call_id)
        else:
            is_open.remove(call_id)

    text = orjson.dumps(body).decode()
    for message in request.messages:
        for part in message.parts:
            inner = part.content if isinstance(part, Result) else (part,)
            for each in inner:
                if isinstance(each, Text):
                    assert orjson.dumps(each.text).decode()[1:-1] in text
                elif isinstance(each, Media):
                    assert (each.url or each.data or "-") in text
