"""Properties of translated requests, for generated conversations and for arbitrary JSON."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

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
from router_service.core.errors import InvalidRequestError
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.bedrock import problems_of_request
from tests.router_service.apis.sdk_schemas import VALIDATORS

FAST = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    phases=[Phase.generate, Phase.shrink],
)
DIALECTS = list(APIS)
PAIRS = [(source, target) for source in APIS for target in APIS if source is not target]
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


def shown_text(part: Text | Media) -> str:
    """Return a part as text; of a file, its address or its data."""
    if isinstance(part, Text):
        return part.text
    if part.media_type == "text/plain":
        return f'<document title="{part.name}">\n{part.data}\n</document>'
    return part.url or part.data or ""


def meaning(request: Request) -> list[Any]:
    """Return who said, called and returned what, without ids and without limits of parts."""
    found: list[Any] = []
    places: dict[str, int] = {}

    def add(role: str, text: str) -> None:
        if found and found[-1][0] == role:
            found[-1] = (role, f"{found[-1][1]}\n\n{text}")
        else:
            found.append((role, text))

    for message in request.messages:
        for part in message.parts:
            match part:
                case Text():
                    add(message.role, shown_text(part))
                case Media():
                    add(message.role, shown_text(part))
                case ToolUse():
                    places[part.id] = len(places)
                    call = (part.name, orjson.loads(part.arguments))
                    found.append(("call", places[part.id], call))
                case Result():
                    joined = "\n\n".join(map(shown_text, part.content))
                    # Only Messages marks errors, so that the others say it.
                    joined = joined.removeprefix("Error:").lstrip("\n")
                    found.append(("result", places.pop(part.call_id), joined))
                case _:
                    raise AssertionError(part)
    assert not places
    return found


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


@pytest.mark.parametrize(("source", "target"), PAIRS)
@FAST
@given(request=requests())
def test_round_trips_keep_the_meaning(source: Api, target: Api, request: Request) -> None:
    """A request that is translated there and back says the same in the same order."""
    first = read_request(source.write_request(request, TARGETS[source]), source)
    second = read_request(target.write_request(first, TARGETS[target]), target)
    third = read_request(source.write_request(second, TARGETS[source]), source)
    inner = [p for m in first.messages for r in m.parts if isinstance(r, Result) for p in r.content]
    if apis.CHAT not in (source, target) or not any(isinstance(p, Media) for p in inner):
        assert meaning(third) == meaning(first)
    assert [call.name for call in _calls(third)] == [call.name for call in _calls(first)]
    assert [orjson.loads(call.arguments) for call in _calls(third)] == [
        orjson.loads(call.arguments) for call in _calls(first)
    ]
    # Without tools there is no choice; no choice is `auto`; and `none` needs no further limit.
    auto = ToolChoice("auto")
    if first.tools:
        assert (third.tool_choice or auto) == (first.tool_choice or auto)
    if first.tools and first.tool_choice != ToolChoice("none"):
        assert (third.is_parallel is False) == (first.is_parallel is False)
    assert third.stream == first.stream
    assert third.effort == first.effort or first.tool_choice is not None
    if first.tools:  # Messages needs definitions of called tools, even if none is offered
        assert [tool.name for tool in third.tools] == [tool.name for tool in first.tools]


def _calls(request: Request) -> list[ToolUse]:
    return [part for m in request.messages for part in m.parts if isinstance(part, ToolUse)]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "text", "user", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "text", "id", "content"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("source", DIALECTS)
@settings(FAST, max_examples=30)
@given(request=requests(), data=st.data())
def test_damaged_requests_are_refused_or_translated(
    source: Api, request: Request, data: st.DataObject
) -> None:
    """With any value in any place, only InvalidRequestError is raised; never another error."""
    body = source.write_request(request, TARGETS[source])
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.integers(0, 4)):
            place = place[key]
        else:
            place[key] = data.draw(values)
            break
    source.without_foreign_thinking(body, bool)
    with contextlib.suppress(InvalidRequestError):
        read = read_request(body, source)
        for target in APIS.of_upstreams:
            if not obstacles(read, source, target):
                orjson.dumps(target.write_request(read, TARGETS[target]))
