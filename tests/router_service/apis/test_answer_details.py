"""What differs between the APIs, and between servers of the same API, in answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from router_service.apis.answer_errors import ForeignAnswerError
from router_service.apis.answer_translation import (
    PROGRESS_CHARACTERS,
    AnswerTranslator,
)
from router_service.apis.foreign import unseal
from router_service.apis.parts import Message, OfferedTool, Request, Thinking, ToolUse
from tests import apis
from tests.apis import PAIRS, Api, UpstreamApi
from tests.dialect_answers import CASES, Content, Sdks, decode, events, whole

CHAT, RESPONSES, MESSAGES, CONVERSE = apis.CHAT, apis.RESPONSES, apis.MESSAGES, apis.CONVERSE
REQUEST = Request("switchcraft", ())


@pytest.fixture(scope="module")
def sdks() -> Sdks:
    """Return the vendors' clients."""
    return Sdks()


def translate(
    sent: Sequence[Any], source: UpstreamApi, target: Api, request: Request = REQUEST
) -> bytes:
    """Return the translated bytes of a whole stream."""
    translator = AnswerTranslator(source, target, request, model="gpt-x", created_s=1)
    return b"".join(map(translator.feed, sent)) + translator.end()


def translate_whole(
    value: Any,  # noqa: ANN401 - JSON
    source: UpstreamApi,
    target: Api,
    request: Request = REQUEST,
) -> dict[str, Any]:
    """Return a whole answer in the target's format."""
    translator = AnswerTranslator(source, target, request, model="gpt-x", created_s=1)
    written: dict[str, Any] = orjson.loads(translator.whole(value))
    return written


def chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an event of Chat Completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "chatcmpl-9", "object": "chat.completion.chunk", "choices": [choice]}


def piece(index: int, arguments: str, name: str = "", call_id: str = "") -> dict[str, Any]:
    """Return an event with a part of a call."""
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name:
        call |= {
            "id": call_id or f"call_{index}",
            "function": {"name": name, "arguments": arguments},
        }
    return chunk(tool_calls=[call])


def blocks(data: bytes) -> list[dict[str, Any]]:
    """Return the blocks of a streamed message, which must not overlap."""
    found: list[dict[str, Any]] = []
    is_open = False
    for event in decode(data):
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(found)
                found.append({**event["content_block"], "json": ""})
                is_open = True
            case "content_block_delta":
                assert event["index"] == len(found) - 1
                for name in ("text", "thinking", "signature"):
                    if name in event["delta"]:
                        found[-1][name] += event["delta"][name]
                found[-1]["json"] += event["delta"].get("partial_json", "")
            case "content_block_stop":
                is_open = False
    assert not is_open
    return found


def items(data: bytes) -> list[dict[str, Any]]:
    """Return the output of a streamed response: of its last event, and of each item's."""
    sent = decode(data)
    done = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    output: list[dict[str, Any]] = sent[-1]["response"]["output"]
    assert [item["id"] for item in output] == [item["id"] for item in done]
    return output


def test_overlapping_calls_become_blocks_in_sequence(sdks: Sdks) -> None:
    """Messages cannot mix the deltas of two calls, so the second call waits for the first."""
    sent = [
        piece(0, '{"city":', "get_weather"),
        piece(1, '{"city":"Ber', "get_weather"),
        piece(0, '"Oslo"}'),
        chunk(content="Both."),
        piece(1, 'gen"}'),
        chunk("tool_calls"),
    ]
    data = translate(sent, CHAT, MESSAGES)
    kinds = [(block["type"], block["json"]) for block in blocks(data)]
    assert kinds == [
        ("tool_use", '{"city":"Oslo"}'),
        ("tool_use", '{"city":"Bergen"}'),
        ("text", ""),
    ]
    assert sdks.read_stream(data, MESSAGES).text == "Both."


PATCH = OfferedTool("apply_patch", is_custom=True)
TOOLS = (
    PATCH,
    OfferedTool("git__log", namespace="git"),
    OfferedTool("tool_search", is_search=True),
)


@pytest.mark.parametrize("arguments", ['{"input":"*** Begin\\nPatch"}', "*** Begin\nPatch"])
def test_functions_that_stand_for_custom_tools(arguments: str) -> None:
    """The client gets the free text of its custom tool, also if the model left out the wrapping."""
    request = Request("m", (), tools=TOOLS)
    content = Content(calls=(("call_1", "apply_patch", arguments),), stop="calls")
    expected = {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin\nPatch"}
    [item] = items(translate(events(content, CHAT), CHAT, RESPONSES, request))
    assert expected.items() <= item.items()
    [item] = translate_whole(whole(content, CHAT), CHAT, RESPONSES, request)["output"]
    assert expected.items() <= item.items()
    if arguments.startswith("{"):
        [call] = translate_whole(whole(content, MESSAGES), MESSAGES, CHAT, request)["choices"][0][
            "message"
        ]["tool_calls"]
        assert call["custom"] == {"name": "apply_patch", "input": "*** Begin\nPatch"}


def test_tools_in_namespaces_and_searches(sdks: Sdks) -> None:
    """Codex groups tools in namespaces, and has a tool that searches for tools."""
    request = Request("m", (), tools=TOOLS)
    calls = (("call_1", "git__log", '{"n":1}'), ("call_2", "tool_search", '{"query":"git"}'))
    data = translate(events(Content(calls=calls), CHAT), CHAT, RESPONSES, request)
    log, search = items(data)
    assert (log["name"], log["namespace"], log["arguments"]) == ("log", "git", '{"n":1}')
    assert (search["type"], search["execution"]) == ("tool_search_call", "client")
    assert search["arguments"] == {"query": "git"}
    with pytest.raises(AssertionError, match="tool_search_call"):
        sdks.read_stream(data, RESPONSES)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("is_hidden", [False, True])
def test_proofs_survive_another_api(source: UpstreamApi, target: Api, is_hidden: bool) -> None:
    """A client returns proofs that its API does not know, and they are recognized."""
    text = "" if is_hidden else "Hm."
    value = whole(CASES["thinking"], source)
    detail = {"type": "reasoning.encrypted", "data": "abc"}
    match source:
        case apis.CHAT:
            message = value["choices"][0]["message"]
            message["reasoning_content"] = text or None
            if not is_hidden:
                detail = {"type": "reasoning.text", "signature": "abc"}
            message["reasoning_details"] = [detail]
        case apis.RESPONSES:
            summary = [{"type": "summary_text", "text": text}] if text else []
            value["output"][0] |= {"summary": summary, "encrypted_content": "abc"}
        case apis.MESSAGES:
            value["content"][0] = {"type": "thinking", "thinking": text, "signature": "abc"}
            if is_hidden:
                value["content"][0] = {"type": "redacted_thinking", "data": "abc"}
        case apis.CONVERSE:
            shown = {"reasoningText": {"text": text, "signature": "abc"}}
            block = {"reasoningContent": {"redactedContent": "abc"} if is_hidden else shown}
            value["output"]["message"]["content"][0] = block
    written = orjson.dumps(translate_whole(value, source, target)).decode()
    [carried] = re.findall(r'"(?:signature|data|encrypted_content)":"([^"]+)"', written)
    assert carried.startswith("switchcraft.")
    expected = Thinking(text, "abc", is_hidden=is_hidden, origin=source.name)
    assert unseal(text, carried, target.name) == expected


def test_thinking_is_not_shown_to_clients_that_do_not_expect_it() -> None:
    """A client of Messages that has not asked for thinking gets only the text."""
    request = Request("m", (), accepts_thinking=False)
    data = translate(events(CASES["thinking"], CHAT), CHAT, MESSAGES, request)
    assert [block["type"] for block in blocks(data)] == ["text"]
    value = translate_whole(whole(CASES["thinking"], RESPONSES), RESPONSES, MESSAGES, request)
    assert [block["type"] for block in value["content"]] == ["text"]


@pytest.mark.parametrize("call_id", ["functions.get_weather:0", "x" * 65, "a b"])
def test_call_ids_that_the_target_rejects(call_id: str) -> None:
    """The id is replaced by the one that a request would have, in streams and whole answers."""
    content = Content(calls=((call_id, "f", "{}"),), stop="calls")
    [block] = blocks(translate(events(content, CHAT), CHAT, MESSAGES))
    [same] = translate_whole(whole(content, CHAT), CHAT, MESSAGES)["content"]
    assert block["id"] == same["id"] == MESSAGES.fit_call_id(call_id) != call_id


def test_call_ids_are_unique_in_a_conversation() -> None:
    """Some servers count calls from 0 in every answer, or give no ids."""
    earlier = Message("assistant", (ToolUse("call_0", "f", "{}"),))
    request = Request("m", (earlier,))
    sent = [piece(0, "{}", "f"), piece(1, "{}", "f", "call_0"), chunk("tool_calls")]
    ids = {block["id"] for block in blocks(translate(sent, CHAT, MESSAGES, request))}
    assert len(ids) == 2
    assert "call_0" not in ids
    # The same answer in every turn, even with the same id: each turn adds one call.
    for client in (MESSAGES, RESPONSES):
        calls: list[ToolUse] = []
        for _ in range(4):
            request = Request("m", (Message("assistant", tuple(calls)),))
            sent = [piece(0, "{}", "f", "call_0"), chunk("tool_calls")]
            made = translate(sent, CHAT, client, request)
            [call] = blocks(made) if client is MESSAGES else items(made)
            calls.append(ToolUse(call.get("call_id", call["id"]), "f", "{}"))
        assert len({call.id for call in calls}) == 4
    legacy = chunk(function_call={"name": "f", "arguments": "{}"})
    [item] = items(translate([legacy, chunk("function_call")], CHAT, RESPONSES))
    assert item["call_id"].startswith("call_")


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (MESSAGES, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
        (RESPONSES, {"type": "web_search_call", "id": "ws_1"}),
        (RESPONSES, {"type": "local_shell_call", "id": "sh_1"}),
        (CHAT, {"type": "image_url"}),
        (CONVERSE, {"image": {"format": "png", "source": {"bytes": "iVBORw0="}}}),
    ],
)
def test_parts_that_the_target_cannot_express(source: UpstreamApi, part: Any) -> None:  # noqa: ANN401
    """Nothing is lost silently: an answer with such a part raises an error that names it."""
    target = CHAT if source is not CHAT else MESSAGES
    start = events(CASES["text"], source)[0]
    value = whole(CASES["text"], source)
    match source:
        case apis.CHAT:
            sent = chunk(content=[part])
            value["choices"][0]["message"]["content"] = [part]
        case apis.RESPONSES:
            sent = {"type": "response.output_item.added", "output_index": 0, "item": part}
            value["output"].append(part)
        case apis.MESSAGES:
            sent = {"type": "content_block_start", "index": 0, "content_block": part}
            value["content"].append(part)
        case apis.CONVERSE:
            start_of_part = {"contentBlockIndex": 0, "start": {"image": {"format": "png"}}}
            sent = {"contentBlockStart": start_of_part}
            value["output"]["message"]["content"].append(part)
    for refused in (
        lambda: translate([start, sent], source, target),
        lambda: translate_whole(value, source, target),
    ):
        with pytest.raises(ForeignAnswerError, match=part.get("type", "image")):
            refused()


class TestQuirks:
    """Servers deviate from the API that they imitate."""

    def test_arguments_as_an_object(self) -> None:
        """Some servers send arguments as an object instead of its text."""
        function = {"name": "f", "arguments": {"city": "Oslo"}}
        sent = [chunk(tool_calls=[{"index": 0, "id": "c", "function": function}]), chunk("stop")]
        [item] = items(translate(sent, CHAT, RESPONSES))
        assert item["arguments"] == '{"city":"Oslo"}'

    def test_content_in_parts(self) -> None:
        """Mistral's reasoning models write content as a list."""
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
        sent = [chunk(content=[thought]), chunk(content=[{"type": "text", "text": "Yes."}])]
        found = blocks(translate([*sent, chunk("stop")], CHAT, MESSAGES))
        assert [block.get("thinking", block.get("text")) for block in found] == ["Hm.", "Yes."]

    def test_reasoning_details_without_plain_reasoning(self) -> None:
        """OpenRouter's details have the text if no other field has it."""
        detail = {"type": "reasoning.text", "text": "Hm.", "signature": "abc"}
        sent = [chunk(reasoning_details=[detail]), chunk(content="Yes."), chunk("stop")]
        thought, _ = blocks(translate(sent, CHAT, MESSAGES))
        assert (thought["thinking"], thought["signature"]) == ("Hm.", "switchcraft.chat.abc")

    @pytest.mark.parametrize("kept", [(".done", ".completed"), (".completed",)])
    def test_responses_without_deltas(self, sdks: Sdks, kept: tuple[str, ...]) -> None:
        """A server without deltas has everything in the last event of each item, or of all."""
        for name in ("thinking", "one call", "parallel calls"):
            sent = [
                event
                for event in events(CASES[name], RESPONSES)
                if event["type"].endswith((".created", *kept))
            ]
            read = sdks.read_stream(translate(sent, RESPONSES, MESSAGES), MESSAGES)
            expected = CASES[name]
            assert (read.thinking, read.text, read.calls) == (
                expected.thinking,
                expected.text,
                expected.calls,
            )

    def test_several_summaries(self) -> None:
        """Summaries of one reasoning item are separated by a blank line."""
        item = {"type": "reasoning", "id": "rs_1", "summary": []}
        kind = "response.reasoning_summary_text.delta"
        start = events(CASES["text"], RESPONSES)
        sent = [
            start[0],
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": kind, "output_index": 0, "summary_index": 0, "delta": "One."},
            {"type": kind, "output_index": 0, "summary_index": 1, "delta": "Two."},
            {"type": "response.completed", "response": {"output": []}},
        ]
        [block] = blocks(translate(sent, RESPONSES, MESSAGES))
        assert block["thinking"] == "One.\n\nTwo."


def test_a_long_call_shows_its_progress() -> None:
    """A client of Messages gets empty pieces while the arguments of a call are held back."""
    translator = AnswerTranslator(CHAT, MESSAGES, REQUEST, model="m", created_s=1)
    translator.feed(piece(0, '{"city":"', "f"))
    written = b"".join(translator.feed(piece(0, "x" * 10)) for _ in range(100))
    deltas = [event["delta"]["partial_json"] for event in decode(written)]
    assert deltas == [""] * (1009 // PROGRESS_CHARACTERS)
