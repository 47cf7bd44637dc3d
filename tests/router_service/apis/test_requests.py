"""Requests in one API and what another API gets of them."""

from __future__ import annotations

import copy

import pytest

from router_service.apis.api import Target
from router_service.apis.conversation import Json
from router_service.apis.foreign import seal
from router_service.apis.parts import Thinking
from router_service.apis.request_translation import obstacles, read_request
from router_service.apis.writing import written_tools
from router_service.core.errors import InvalidRequestError
from tests import apis
from tests.apis import Api

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES
OPENAI = Target(CHAT, "gpt-5", provider="openai", supports_reasoning=True)
OTHER = Target(CHAT, "qwen", provider="deepseek", supports_reasoning=True)
MISTRAL = Target(CHAT, "mistral-large", provider="mistral")
RESPONDING = Target(RESPONSES, "gpt-5", provider="openai", supports_reasoning=True)
CLAUDE = Target(MESSAGES, "claude-opus-4-8", provider="anthropic", supports_reasoning=True)
OLD_CLAUDE = Target(MESSAGES, "claude-haiku-4-5", provider="anthropic", supports_reasoning=True)

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
USER: Json = {"role": "user", "content": "hi"}


def chat(*messages: Json, **fields: Json) -> dict[str, Json]:
    """Return a body of Chat Completions."""
    return {"model": "m", "messages": list(messages or [USER]), **fields}


def responses(*items: Json, **fields: Json) -> dict[str, Json]:
    """Return a body of Responses."""
    return {"model": "m", "input": list(items or [USER]), **fields}


def messages(*items: Json, **fields: Json) -> dict[str, Json]:
    """Return a body of Messages."""
    return {"model": "m", "max_tokens": 100, "messages": list(items or [USER]), **fields}


def said(role: str, *content: Json, **fields: Json) -> Json:
    """Return a message with a list of content."""
    return {"role": role, "content": list(content), **fields}


def text(value: str) -> Json:
    """Return a text as a part of content."""
    return {"type": "text", "text": value}


def tool_use(call_id: str = "a", name: str = "f", **arguments: Json) -> Json:
    """Return a call of Messages."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def tool_result(call_id: str = "a", content: Json = "1", **fields: Json) -> Json:
    """Return a call's result of Messages."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def called(call_id: str = "a", name: str = "f", arguments: str = "{}") -> Json:
    """Return a call of Chat Completions."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def calling(*calls: Json, content: Json = None) -> Json:
    """Return a message of Chat Completions with calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def returned(call_id: str = "a", content: str = "1") -> Json:
    """Return a call's result of Chat Completions."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def function(name: str, **fields: Json) -> Json:
    """Return a tool of Chat Completions."""
    return {"type": "function", "function": {"name": name, **fields}}


ITEM: Json = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "a", "output": "1"}


def translated(body: dict[str, Json], source: Api, target: Target) -> dict[str, Json]:
    """Return the body for the target; the request has no obstacle."""
    request = read_request(body, source)
    assert obstacles(request, source, target.api) == ()
    return target.api.write_request(request, target)


IMAGE = {"type": "base64", "media_type": "image/png", "data": "AA=="}
CALLS_IN_MESSAGES: list[Json] = [
    USER,
    said("assistant", text("I look."), tool_use("a", "f", x=1), tool_use("b", "g")),
    said(
        "user",
        tool_result("b", "no", is_error=True),
        tool_result("a", [text("one"), {"type": "image", "source": IMAGE}]),
        text("go on"),
    ),
]
CALLS_IN_CHAT: list[Json] = [
    USER,
    calling(called("a", "f", '{"x":1}'), called("b", "g"), content="I look."),
    returned("a", "one"),
    returned("b", "Error:\n\nno"),
]


def test_parallel_calls_of_messages_become_one_tool_message_each() -> None:
    """Chat gets the results in the order of the calls, then the images, then the user's text.

    Mistral gets ids of nine characters, the same for a call and its result.
    """
    body = translated(messages(*CALLS_IN_MESSAGES), MESSAGES, OPENAI)
    note = text("The result of the tool call a contains the following:")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    more = [said("user", note, image), {"role": "user", "content": "go on"}]
    assert body["messages"] == [*CALLS_IN_CHAT, *more]
    short = translated(messages(*CALLS_IN_MESSAGES), MESSAGES, MISTRAL)["messages"]
    ids = [call["id"] for call in short[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in short if message["role"] == "tool"]
    assert {len(each) for each in ids} == {9}
    shown = said("user", tool_result("a", [{"type": "image", "source": IMAGE}]))
    loop = messages(USER, said("assistant", tool_use()), shown)
    result = translated(loop, MESSAGES, OPENAI)["messages"][2]
    assert result["content"] == "The result follows in the next message."


BILLING = text("x-anthropic-billing-header: cc_version=1; cch=0;")
SYSTEM_IN_MIDDLE = messages(
    USER,
    {"role": "system", "content": "be brief", "output_config": {"effort": "low"}},
    system=[BILLING, text("You are helpful.") | {"cache_control": {"type": "ephemeral"}}],
)
REMINDER = "<system-reminder>\nbe brief\n</system-reminder>"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (OPENAI, [USER, {"role": "system", "content": "be brief"}]),
        (OTHER, [{"role": "user", "content": f"hi\n\n{REMINDER}"}]),
    ],
)
def test_system_messages_in_the_middle_stay_there(target: Target, expected: list[Json]) -> None:
    """OpenAI gets them as they are, others as a text of the user, because templates reject them."""
    body = translated(SYSTEM_IN_MIDDLE, MESSAGES, target)
    assert body["messages"] == [{"role": "system", "content": "You are helpful."}, *expected]
    assert body["reasoning_effort"] == "low"


def test_developer_messages_become_system_texts_and_reminders_for_claude() -> None:
    """Instructions at the beginning are the system prompt; later ones stay in their place.

    Messages requires a message, even if there are only instructions.
    """
    first, later = ({"role": "developer", "content": each} for each in ("first", "be brief"))
    body = translated(responses(first, USER, later, instructions="zero"), RESPONSES, CLAUDE)
    assert body["system"][0]["text"] == "zero\n\nfirst"
    assert [block["text"] for block in body["messages"][0]["content"]] == ["hi", REMINDER]
    request = read_request(chat({"role": "system", "content": "Say hi."}), CHAT)
    alone = CLAUDE.api.write_request(request, CLAUDE)
    assert alone["messages"][0]["content"] == [text("Say hi.")]
    assert "system" not in alone


PLAIN = {"type": "text", "media_type": "text/plain", "data": "hi"}


NAMED = {"type": "function", "function": {"name": "f"}}
ALONE = {"disable_parallel_tool_use": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": NAMED}, {"type": "tool", "name": "f"}),
        ({"parallel_tool_calls": False}, {"type": "auto", **ALONE}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"type": "any", **ALONE}),
    ],
)
def test_choices_of_tools_are_translated(fields: dict[str, Json], expected: Json) -> None:
    """Chat's tool_choice and parallel_tool_calls are one field of Messages, and read back."""
    body = chat(tools=[function("f", parameters=SCHEMA), function("g")], **fields)
    there = translated(body, CHAT, CLAUDE)
    assert there.get("tool_choice") == expected
    assert there["tools"][0] == {"name": "f", "input_schema": SCHEMA}
    assert there["tools"][1]["input_schema"] == {"type": "object", "properties": {}}
    back = translated(there, MESSAGES, OPENAI)
    wanted = "auto" if "parallel_tool_calls" in fields else None
    assert back.get("tool_choice") == fields.get("tool_choice", wanted)


GRAMMAR = {"syntax": "lark", "definition": "start: /a/"}
PATCH: Json = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit.",
    "format": {"type": "grammar", **GRAMMAR},
}
PATCHED = responses(
    USER,
    {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** a"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    tools=[PATCH],
)


def test_custom_tools_become_functions_with_one_text() -> None:
    """Claude calls a function in place of a custom tool, and is told its grammar."""
    body = translated(PATCHED, RESPONSES, CLAUDE)
    assert body["messages"][1]["content"][0]["input"] == {"input": "*** a"}
    tool = body["tools"][0]
    assert tool["input_schema"]["required"] == ["input"]
    assert "lark" in tool["description"]
    assert "start: /a/" in tool["description"]


def test_tools_that_the_client_finds_are_offered() -> None:
    """Codex searches its own tools; what it has found can be called from then on."""
    inner = {"type": "function", "name": "spawn", "parameters": SCHEMA, "defer_loading": True}
    namespace = {"type": "namespace", "name": "agents", "description": "d", "tools": [inner]}
    search = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
    asked = {"type": "tool_search_call", "call_id": "s", "execution": "client"}
    body = responses(
        USER,
        asked | {"arguments": {"query": "agent"}},
        {"type": "tool_search_output", "call_id": "s", "tools": [namespace]},
        ITEM | {"namespace": "agents", "name": "spawn"},
        OUTPUT,
        tools=[search],
    )
    there = translated(body, RESPONSES, CLAUDE)
    assert [tool["name"] for tool in there["tools"]] == ["tool_search", "agents__spawn"]
    blocks = [block for message in there["messages"] for block in message["content"]]
    names = [block["name"] for block in blocks if block["type"] == "tool_use"]
    assert names == ["tool_search", "agents__spawn"]
    tools = written_tools(read_request(body, RESPONSES))
    assert tools["tool_search"].is_search
    assert tools["agents__spawn"].namespace == "agents"


ADAPTIVE = {"type": "adaptive", "display": "omitted"}


@pytest.mark.parametrize(
    ("source", "body", "target", "expected"),
    [
        (CHAT, chat(reasoning_effort="high"), CLAUDE, {"thinking": ADAPTIVE, "max_tokens": 8192}),
        (
            CHAT,
            chat(reasoning_effort="low", max_completion_tokens=4000, temperature=0.5),
            OLD_CLAUDE,
            {
                "thinking": {"type": "enabled", "budget_tokens": 2048},
                "max_tokens": 4000,
                "temperature": None,
            },
        ),
        (CHAT, chat(reasoning_effort="low", max_tokens=1000), OLD_CLAUDE, {"thinking": None}),
        (CHAT, chat(temperature=0.2, top_p=0.9), OLD_CLAUDE, {"temperature": 0.2, "top_p": None}),
        (CHAT, chat(max_tokens=9), OTHER, {"max_tokens": 9, "max_completion_tokens": None}),
        (
            CHAT,
            chat(reasoning_effort="high", verbosity="low"),
            RESPONDING,
            {"reasoning": {"effort": "high"}, "text": {"verbosity": "low"}, "store": False},
        ),
        (
            MESSAGES,
            messages(thinking={"type": "enabled", "budget_tokens": 2000}, max_tokens=50_000),
            Target(CHAT, "gpt-5", provider="azure", max_output_tokens=9, supports_reasoning=True),
            {"reasoning_effort": "low", "max_completion_tokens": 9},
        ),
        (
            MESSAGES,
            messages(thinking={"type": "adaptive"}, output_config={"effort": "max"}),
            OTHER,
            {"reasoning_effort": "high"},
        ),
        (
            MESSAGES,
            messages(thinking={"type": "adaptive", "display": "summarized"}),
            RESPONDING,
            {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]},
        ),
    ],
)
def test_parameters_are_translated(
    source: Api, body: dict[str, Json], target: Target, expected: dict[str, Json]
) -> None:
    """Limits, sampling and effort have their names in the target, or are left out."""
    written = translated(body, source, target)
    assert {name: written.get(name) for name in expected} == expected


def test_structured_output_is_translated_in_all_directions() -> None:
    """The schema of the answer is kept; without optional properties it is strict at OpenAI."""
    closed = {**SCHEMA, "required": ["city"], "additionalProperties": False}

    def formatted(schema: Json) -> dict[str, Json]:
        form = {"type": "json_schema", "schema": schema}
        return translated(messages(output_config={"format": form}), MESSAGES, OPENAI)

    there = formatted(closed)
    form = {"name": "answer", "schema": closed, "strict": True}
    assert there["response_format"] == {"type": "json_schema", "json_schema": form}
    responding = translated(there, CHAT, RESPONDING)
    assert responding["text"]["format"] == {"type": "json_schema", **form}
    back = translated(responding, RESPONSES, CLAUDE)
    assert back["output_config"]["format"] == {"type": "json_schema", "schema": closed}
    assert not formatted(SCHEMA)["response_format"]["json_schema"]["strict"]


def thought(signature: str) -> Json:
    """Return a block of thinking."""
    return {"type": "thinking", "thinking": "hm", "signature": signature}


def test_reasoning_comes_back_to_the_provider_that_made_it() -> None:
    """A proof survives a client of another API, and no other provider gets it."""
    encrypted = seal(Thinking("hm", "gAAA", origin=RESPONSES.name), MESSAGES.name)
    body = messages(USER, said("assistant", thought(encrypted), text("yes")), USER)
    assert translated(body, MESSAGES, RESPONDING)["input"][1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "gAAA",
    }
    assert translated(body, MESSAGES, OTHER)["messages"][1]["reasoning_content"] == "hm"
    assert "reasoning_content" not in translated(body, MESSAGES, OPENAI)["messages"][1]
    request = read_request(body, MESSAGES)
    kept = RESPONDING.api.write_request(request, RESPONDING, lambda proof: proof == "gAAA")
    assert [item["role"] for item in kept["input"]] == ["user", "assistant", "user"]


def test_a_signature_survives_codex() -> None:
    """Claude gets its own thinking back from a client of Responses, hidden or not.

    Anthropic rejects a budget in a loop without its thinking, which goes on without thinking.
    """
    shown = seal(Thinking("hm", "sig", origin=MESSAGES.name), RESPONSES.name)
    hidden = seal(Thinking("", "data", is_hidden=True, origin=MESSAGES.name), RESPONSES.name)
    summary = [{"type": "summary_text", "text": "hm"}]
    thoughts = (
        {"type": "reasoning", "summary": summary, "encrypted_content": shown},
        {"type": "reasoning", "summary": [], "encrypted_content": hidden},
    )
    fields: dict[str, Json] = {"reasoning": {"effort": "high"}}
    fields["tools"] = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    body = responses(USER, *thoughts, ITEM, OUTPUT, **fields)
    there = translated(body, RESPONSES, OLD_CLAUDE)
    redacted = {"type": "redacted_thinking", "data": "data"}
    assert there["messages"][1]["content"][:2] == [thought("sig"), redacted]
    assert there["thinking"]["type"] == "enabled"
    without = responses(USER, ITEM, OUTPUT, **fields)
    assert "thinking" not in translated(without, RESPONSES, OLD_CLAUDE)
    assert "thinking" in translated(without, RESPONSES, CLAUDE)


SPOKEN: Json = {"role": "assistant", "content": "a"}
EMPTY: Json = {"role": "user", "content": ""}
BLANK = "messages[2].content (empty)"


@pytest.mark.parametrize(
    ("body", "source", "target", "expected"),
    [
        (chat(n=2), CHAT, MESSAGES, "n"),
        (chat(stop=["a"]), CHAT, RESPONSES, "stop"),
        (chat(response_format={"type": "json_object"}), CHAT, MESSAGES, "response_format"),
        (chat(USER, SPOKEN), CHAT, MESSAGES, "messages[-1].role"),
        (chat(USER, SPOKEN, EMPTY), CHAT, MESSAGES, BLANK),
        (responses(USER, SPOKEN, EMPTY), RESPONSES, MESSAGES, "input[2].content (empty)"),
        (responses(previous_response_id="r"), RESPONSES, CHAT, "previous_response_id"),
        (responses(tools=[{"type": "web_search"}]), RESPONSES, CHAT, "tools[0]"),
        (responses({"type": "item_reference", "id": "x"}), RESPONSES, CHAT, "input[0]"),
        (messages(tools=[{"type": "bash_20250124", "name": "bash"}]), MESSAGES, CHAT, "tools[0]"),
        (messages(said("user", {"type": "new"})), MESSAGES, CHAT, "messages[0].content[0]"),
        (messages(new_field={"a": 1}), MESSAGES, CHAT, "new_field"),
    ],
)
def test_what_cannot_be_translated_is_named(
    body: dict[str, Json], source: Api, target: Api, expected: str
) -> None:
    """An obstacle is named by its path in the client's body, and only for foreign targets."""
    request = read_request(body, source)
    assert expected in obstacles(request, source, target)
    assert obstacles(request, source, source) == ()


BAD_IMAGE = {"type": "image_url", "image_url": {"url": "data:oops"}}
TWO_TOOLS = [{"name": "f", "input_schema": {}}, {"name": "f", "input_schema": SCHEMA}]


@pytest.mark.parametrize(
    ("client", "body", "param"),
    [
        (CHAT, chat(said("user", BAD_IMAGE)), "messages[0].content[0].image_url.url"),
        (CHAT, chat(USER, returned()), "messages[1].tool_call_id"),
        (CHAT, chat(USER, calling(called())), "messages[1].tool_calls[0].id"),
        (CHAT, chat(USER, calling(called(), called()), returned()), "messages[1].tool_calls[1].id"),
        (CHAT, chat(USER, calling(called()), returned(), returned()), "messages[3].tool_call_id"),
        (CHAT, {"model": "m", "messages": []}, "messages"),
        (CHAT, chat(tools={}), "tools"),
        (CHAT, chat(max_tokens=0), "max_tokens"),
        (CHAT, {"model": "m", "messages": [{"content": "a"}]}, "messages[0].role"),
        (RESPONSES, responses(USER, OUTPUT), "input[1].call_id"),
        (MESSAGES, {"model": "m", "messages": [USER]}, "max_tokens"),
        (MESSAGES, messages(said("user", tool_use())), "messages[0].content[0]"),
        (MESSAGES, messages(USER, said("assistant", tool_result())), "messages[1].content[0]"),
        (
            MESSAGES,
            messages(USER, said("user", tool_result())),
            "messages[1].content[0].tool_use_id",
        ),
        (
            MESSAGES,
            messages(USER, said("assistant", {"type": "thinking", "thinking": "a"})),
            "messages[1].content[0].signature",
        ),
        (MESSAGES, messages(tools=TWO_TOOLS), "tools"),
    ],
)
def test_malformed_requests_name_what_is_wrong(
    client: Api, body: dict[str, Json], param: str
) -> None:
    """The error has the path of the malformed value, so that the client finds it."""
    with pytest.raises(InvalidRequestError) as caught:
        read_request(body, client)
    assert caught.value.param == param
    assert param in caught.value.message
    assert "None" not in caught.value.message  # JSON has no such value


def without_thinking(api: Api, body: dict[str, Json], *foreign: str) -> dict[str, Json] | None:
    """Return a body without the reasoning with these proofs; the given one stays as it is."""
    before = copy.deepcopy(body)
    changed = api.without_foreign_thinking(body, lambda proof: proof in foreign)
    assert body == before
    return changed


def test_foreign_thinking_is_removed_from_messages_and_nothing_else() -> None:
    """The upstream gets its own thinking; a message that had only foreign thinking is left out.

    No provider accepts the gateway's own signature.
    """
    mine = said("assistant", thought("mine"), text("a"))
    hidden = {"type": "redacted_thinking", "data": "theirs"}
    others = said("assistant", thought("theirs"), text("b")), said("assistant", hidden)
    changed = without_thinking(MESSAGES, messages(USER, mine, USER, *others), "theirs")
    assert changed is not None
    assert changed["messages"] == [USER, mine, USER, said("assistant", text("b"))]
    assert without_thinking(MESSAGES, changed, "theirs") is None
    sealed = messages(USER, said("assistant", thought("switchcraft.chat."), tool_use()))
    changed = without_thinking(MESSAGES, sealed)
    assert changed is not None
    assert changed["messages"][1] == said("assistant", tool_use())


def test_a_tool_loop_without_its_thinking_continues_without_a_budget() -> None:
    """If a budget is set, Anthropic demands the thinking of the current loop only."""
    loop = (USER, said("assistant", thought("theirs"), tool_use()), said("user", tool_result()))
    edits = [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]
    fields: dict[str, Json] = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    fields["context_management"] = {"edits": edits}
    changed = without_thinking(MESSAGES, messages(*loop, **fields), "theirs")
    assert changed is not None
    assert "thinking" not in changed
    assert changed["context_management"] == {"edits": edits[1:]}
    later = messages(*loop, said("assistant", text("a")), USER, **fields)
    changed = without_thinking(MESSAGES, later, "theirs")
    assert changed is not None
    assert changed["thinking"] == fields["thinking"]


def test_tools_that_may_not_be_called_are_left_out() -> None:
    """A list of allowed tools has the same effect as offering only them."""
    allowed = {"mode": "required", "tools": [function("f"), function("h")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    tools = [function("f"), function("g"), function("h")]
    there = translated(chat(tools=tools, tool_choice=choice), CHAT, CLAUDE)
    assert [tool["name"] for tool in there["tools"]] == ["f", "h"]
    assert there["tool_choice"] == {"type": "any"}


def test_deferred_tools_are_offered_once_they_are_referenced() -> None:
    """Claude Code's deferred tools are hidden until a result refers to them."""
    deferred = {"name": "Fetch", "input_schema": SCHEMA, "defer_loading": True}
    tools = [{"name": "ToolSearch", "input_schema": SCHEMA}, deferred]
    assert len(translated(messages(USER, tools=tools), MESSAGES, OPENAI)["tools"]) == 1
    found = tool_result("a", [{"type": "tool_reference", "tool_name": "Fetch"}])
    loop = (USER, said("assistant", tool_use("a", "ToolSearch")), said("user", found))
    body = translated(messages(*loop, tools=tools), MESSAGES, OPENAI)
    assert len(body["tools"]) == 2
    assert body["messages"][-1]["content"] == "The tool Fetch can be called now."


def test_text_documents_become_text_for_openai() -> None:
    """Every model reads a plain-text document as text."""
    block = {"type": "document", "source": PLAIN, "title": "a.txt", "context": "old"}
    body = translated(messages(said("user", block)), MESSAGES, OPENAI)
    assert body["messages"][0]["content"] == 'old\n\n<document title="a.txt">\nhi\n</document>'


def test_custom_tools_stay_custom_at_openai() -> None:
    """Both of OpenAI's APIs have custom tools, with different forms of the grammar."""
    body = translated(PATCHED, RESPONSES, OPENAI)
    assert body["tools"][0]["custom"]["format"] == {"type": "grammar", "grammar": GRAMMAR}
    call = body["messages"][1]["tool_calls"][0]
    assert call["custom"] == {"name": "apply_patch", "input": "*** a"}
    assert translated(body, CHAT, RESPONDING)["tools"] == [PATCH]


def test_foreign_reasoning_is_removed_from_openais_requests() -> None:
    """OpenAI rejects an item whose id it knows if the reasoning before it is missing.

    Chat Completions has no proof, so that the upstream decides about all reasoning.
    """
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "theirs"}
    body = responses(USER, reasoning, {**ITEM, "id": "fc_1"}, OUTPUT)
    changed = without_thinking(RESPONSES, body, "theirs")
    assert changed is not None
    assert changed["input"] == [USER, ITEM, OUTPUT]
    assert without_thinking(RESPONSES, body) is None
    body = chat(USER, SPOKEN | {"reasoning_content": "hm"}, USER)
    changed = without_thinking(CHAT, body, "")
    assert changed is not None
    assert changed["messages"][1] == SPOKEN
    assert without_thinking(CHAT, body) is None
