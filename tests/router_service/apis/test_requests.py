"""Requests in one API and what another API gets of them."""

from __future__ import annotations

import pytest

from router_service.apis.api import Target
from router_service.apis.conversation import Json
from router_service.apis.foreign import seal
from router_service.apis.parts import Thinking
from router_service.apis.request_translation import obstacles, read_request
from router_service.apis.writing import portable_name, written_tools
from tests import apis
from tests.apis import APIS, Api

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES
CONVERSE = apis.CONVERSE
OPENAI = Target(CHAT, "gpt-5", provider="openai", supports_reasoning=True)
OTHER = Target(CHAT, "qwen", provider="deepseek", supports_reasoning=True)
RESPONDING = Target(RESPONSES, "gpt-5", provider="openai", supports_reasoning=True)
CLAUDE = Target(MESSAGES, "claude-opus-4-8", provider="anthropic", supports_reasoning=True)
OLD_CLAUDE = Target(MESSAGES, "claude-haiku-4-5", provider="anthropic", supports_reasoning=True)

SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
PNG = "data:image/png;base64,iVBORw0="
LONG = "mcp__" + "x" * 90


def chat(*messages: Json, **fields: Json) -> dict[str, Json]:
    """Return a body of Chat Completions."""
    return {
        "model": "m",
        "messages": list(messages or [{"role": "user", "content": "hi"}]),
        **fields,
    }


def responses(*items: Json, **fields: Json) -> dict[str, Json]:
    """Return a body of Responses."""
    return {"model": "m", "input": list(items or [{"role": "user", "content": "hi"}]), **fields}


def messages(*items: Json, **fields: Json) -> dict[str, Json]:
    """Return a body of Messages."""
    items = items or ({"role": "user", "content": "hi"},)
    return {"model": "m", "max_tokens": 100, "messages": list(items), **fields}


def translated(body: dict[str, Json], source: Api, target: Target) -> dict[str, Json]:
    """Return the body for the target; the request has no obstacle."""
    request = read_request(body, source)
    assert obstacles(request, source, target.api) == ()
    return target.api.write_request(request, target)


USER: Json = {"role": "user", "content": "hi"}
CALLS_IN_MESSAGES: list[Json] = [
    USER,
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "a",
                "content": [
                    {"type": "text", "text": "one"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
                    },
                ],
            },
            {"type": "text", "text": "go on"},
        ],
    },
]
CALLS_IN_CHAT: list[Json] = [
    USER,
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "one"},
    {"role": "tool", "tool_call_id": "b", "content": "Error:\n\nno"},
]


def test_parallel_calls_of_messages_become_one_tool_message_each() -> None:
    """Chat gets the results in the order of the calls, then the images, then the user's text."""
    body = translated(messages(*CALLS_IN_MESSAGES), MESSAGES, OPENAI)
    assert body["messages"] == [
        *CALLS_IN_CHAT,
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The result of the tool call a contains the following:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
        {"role": "user", "content": "go on"},
    ]


def test_tool_messages_become_one_message_with_all_results() -> None:
    """Messages gets all results first, in one message directly after the calls."""
    body = translated(chat(*CALLS_IN_CHAT, {"role": "user", "content": "go on"}), CHAT, CLAUDE)
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    kinds = [block["type"] for block in body["messages"][2]["content"]]
    assert kinds == ["tool_result", "tool_result", "text"]
    assert body["messages"][1]["content"] == CALLS_IN_MESSAGES[1]["content"]
    # The called tools are not offered any more, but have to be defined.
    assert [tool["name"] for tool in body["tools"]] == ["f", "g"]
    assert body["tool_choice"] == {"type": "none"}


def test_ids_that_are_used_again_get_a_number() -> None:
    """Servers that number the calls of each answer anew can be followed by Anthropic."""
    again = [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "1"},
    ]
    body = translated(chat(USER, *again, *again), CHAT, CLAUDE)
    ids = [
        block.get("id") or block.get("tool_use_id")
        for message in body["messages"][1:]
        for block in message["content"]
    ]
    assert ids == ["call_0", "call_0", "call_0-2", "call_0-2"]


def test_mistral_gets_ids_of_nine_characters() -> None:
    """A call and its result get the same short id."""
    target = Target(CHAT, "mistral-large", provider="mistral")
    body = translated(messages(*CALLS_IN_MESSAGES), MESSAGES, target)
    calls = [call["id"] for call in body["messages"][1]["tool_calls"]]
    results = [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
    assert calls == results
    assert {len(call) for call in calls} == {9}


SYSTEM_IN_MIDDLE = messages(
    USER,
    {"role": "system", "content": "be brief", "output_config": {"effort": "low"}},
    system=[
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=0;"},
        {"type": "text", "text": "You are helpful.", "cache_control": {"type": "ephemeral"}},
    ],
)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (OPENAI, [USER, {"role": "system", "content": "be brief"}]),
        (
            OTHER,
            [
                {
                    "role": "user",
                    "content": "hi\n\n<system-reminder>\nbe brief\n</system-reminder>",
                }
            ],
        ),
    ],
)
def test_system_messages_in_the_middle_stay_there(target: Target, expected: list[Json]) -> None:
    """OpenAI gets them as they are, others as a text of the user, because templates reject them."""
    body = translated(SYSTEM_IN_MIDDLE, MESSAGES, target)
    assert body["messages"] == [{"role": "system", "content": "You are helpful."}, *expected]
    assert body["reasoning_effort"] == "low"


def test_developer_messages_become_system_texts_and_reminders_for_claude() -> None:
    """Instructions at the beginning are the system prompt; later ones stay in their place."""
    items: list[Json] = [
        {"role": "developer", "content": "first"},
        USER,
        {"role": "developer", "content": "later"},
    ]
    body = translated(responses(*items, instructions="zero"), RESPONSES, CLAUDE)
    assert [block["text"] for block in body["system"]] == ["zero\n\nfirst"]
    reminder = "<system-reminder>\nlater\n</system-reminder>"
    assert [block["text"] for block in body["messages"][0]["content"]] == ["hi", reminder]


def test_a_conversation_of_system_messages_only_has_a_user_message_for_claude() -> None:
    """Messages requires a message."""
    request = read_request(chat({"role": "system", "content": "Say hi."}), CHAT)
    body = CLAUDE.api.write_request(request, CLAUDE)
    assert body["messages"][0]["content"] == [{"type": "text", "text": "Say hi."}]
    assert "system" not in body


@pytest.mark.parametrize(
    ("source", "block", "target", "expected"),
    [
        (
            CHAT,
            {"type": "image_url", "image_url": {"url": PNG}},
            CLAUDE,
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="},
            },
        ),
        (
            CHAT,
            {"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}},
            RESPONDING,
            {"type": "input_image", "image_url": "https://a/b.png", "detail": "low"},
        ),
        (
            CHAT,
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBERi0="}},
            CLAUDE,
            {
                "type": "document",
                "title": "a.pdf",
                "source": {
                    "type": "base64",
                    "media_type": "application/pdf",
                    "data": "JVBERi0=",
                },
            },
        ),
        (
            RESPONSES,
            {
                "type": "input_file",
                "filename": "a.md",
                "file_data": "data:text/markdown;base64,aGk=",
            },
            CLAUDE,
            {
                "type": "document",
                "title": "a.md",
                "source": {"type": "text", "media_type": "text/plain", "data": "hi"},
            },
        ),
        (
            MESSAGES,
            {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}},
            OPENAI,
            {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
        ),
        (
            MESSAGES,
            {"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}},
            RESPONDING,
            {"type": "input_file", "file_url": "https://a/b.pdf"},
        ),
    ],
)
def test_files_are_translated(source: Api, block: Json, target: Target, expected: Json) -> None:
    """Images and documents keep their data or their address."""
    make = {CHAT: chat, RESPONSES: responses, MESSAGES: messages}[source]
    body = translated(make({"role": "user", "content": [block]}), source, target)
    written = body["input" if target.api is RESPONSES else "messages"][0]["content"]
    assert written == [expected]


def test_text_documents_become_text_for_openai() -> None:
    """Every model reads a plain-text document as text."""
    source = {"type": "text", "media_type": "text/plain", "data": "line"}
    block = {"type": "document", "source": source, "title": "a.txt", "context": "old"}
    body = translated(messages({"role": "user", "content": [block]}), MESSAGES, OPENAI)
    assert body["messages"][0]["content"] == 'old\n\n<document title="a.txt">\nline\n</document>'


FUNCTION: Json = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER_FUNCTION: Json = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"type": "tool", "name": "f"},
        ),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"parallel_tool_calls": True}, None),
    ],
)
def test_choices_of_tools_are_translated(fields: dict[str, Json], expected: Json) -> None:
    """Chat's tool_choice and parallel_tool_calls are one field of Messages, and read back."""
    body = chat(tools=[FUNCTION, OTHER_FUNCTION], **fields)
    there = translated(body, CHAT, CLAUDE)
    assert there.get("tool_choice") == expected
    assert there["tools"][0] == {"name": "f", "input_schema": SCHEMA}
    assert there["tools"][1]["input_schema"] == {"type": "object", "properties": {}}
    back = translated(there, MESSAGES, OPENAI)
    wanted = "auto" if "parallel_tool_calls" in fields and expected else None
    assert back.get("tool_choice") == fields.get("tool_choice", wanted)


def test_tools_that_may_not_be_called_are_left_out() -> None:
    """A list of allowed tools has the same effect as offering only them."""
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": name}} for name in ("f", "h")],
        },
    }
    h = {"type": "function", "function": {"name": "h"}}
    body = chat(tools=[FUNCTION, OTHER_FUNCTION, h], tool_choice=choice)
    there = translated(body, CHAT, CLAUDE)
    assert [tool["name"] for tool in there["tools"]] == ["f", "h"]
    assert there["tool_choice"] == {"type": "any"}


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
PATCH: Json = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": GRAMMAR}
PATCHED: list[Json] = [
    USER,
    {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** a"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
]


def test_custom_tools_become_functions_with_one_text() -> None:
    """Claude calls a function in place of a custom tool, and is told its grammar."""
    body = translated(responses(*PATCHED, tools=[PATCH]), RESPONSES, CLAUDE)
    assert body["messages"][1]["content"][0]["input"] == {"input": "*** a"}
    tool = body["tools"][0]
    assert tool["input_schema"]["required"] == ["input"]
    assert "lark" in tool["description"]
    assert "start: /a/" in tool["description"]


def test_custom_tools_stay_custom_at_openai() -> None:
    """Both of OpenAI's APIs have custom tools, with different forms of the grammar."""
    body = translated(responses(*PATCHED, tools=[PATCH]), RESPONSES, OPENAI)
    grammar = {"syntax": "lark", "definition": "start: /a/"}
    assert body["tools"][0]["custom"]["format"] == {"type": "grammar", "grammar": grammar}
    call = body["messages"][1]["tool_calls"][0]
    assert call["custom"] == {"name": "apply_patch", "input": "*** a"}
    back = translated(body, CHAT, RESPONDING)
    assert back["tools"] == [PATCH]


def test_tools_that_the_client_finds_are_offered() -> None:
    """Codex searches its own tools; what it has found can be called from then on."""
    inner = {"type": "function", "name": "spawn", "parameters": SCHEMA, "defer_loading": True}
    namespace = {"type": "namespace", "name": "agents", "description": "d", "tools": [inner]}
    search = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
    items: list[Json] = [
        USER,
        {
            "type": "tool_search_call",
            "call_id": "s",
            "execution": "client",
            "arguments": {"query": "agent"},
        },
        {"type": "tool_search_output", "call_id": "s", "tools": [namespace]},
        {
            "type": "function_call",
            "call_id": "f",
            "namespace": "agents",
            "name": "spawn",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "f", "output": "ok"},
    ]
    body = responses(*items, tools=[search])
    there = translated(body, RESPONSES, CLAUDE)
    assert [tool["name"] for tool in there["tools"]] == ["tool_search", "agents__spawn"]
    names = [
        block["name"]
        for message in there["messages"]
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    assert names == ["tool_search", "agents__spawn"]
    tools = written_tools(read_request(body, RESPONSES))
    assert tools["tool_search"].is_search
    assert tools["agents__spawn"].namespace == "agents"


def test_deferred_tools_are_offered_once_they_are_referenced() -> None:
    """Claude Code's deferred tools are hidden until a result refers to them."""
    deferred = {"name": "Fetch", "input_schema": SCHEMA, "defer_loading": True}
    search = {"name": "ToolSearch", "input_schema": SCHEMA}
    before = messages(USER, tools=[search, deferred])
    assert len(translated(before, MESSAGES, OPENAI)["tools"]) == 1
    after = messages(
        USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "tool_reference", "tool_name": "Fetch"}],
                }
            ],
        },
        tools=[search, deferred],
    )
    body = translated(after, MESSAGES, OPENAI)
    assert len(body["tools"]) == 2
    assert body["messages"][-1]["content"] == "The tool Fetch can be called now."


def test_long_names_are_shortened_and_found_again() -> None:
    """OpenAI accepts names of 64 characters. The answer's calls are looked up by the short name."""
    body = messages(USER, tools=[{"name": LONG, "input_schema": SCHEMA}])
    short = translated(body, MESSAGES, OPENAI)["tools"][0]["function"]["name"]
    assert len(short) <= 64
    assert short == portable_name(LONG)
    assert written_tools(read_request(body, MESSAGES))[short].name == LONG


@pytest.mark.parametrize(
    ("fields", "target", "expected"),
    [
        (
            {"reasoning_effort": "high"},
            CLAUDE,
            {"thinking": {"type": "adaptive", "display": "omitted"}, "max_tokens": 8192},
        ),
        (
            {"reasoning_effort": "low", "max_completion_tokens": 4000, "temperature": 0.5},
            OLD_CLAUDE,
            {
                "thinking": {"type": "enabled", "budget_tokens": 2048},
                "max_tokens": 4000,
                "temperature": None,
            },
        ),
        ({"reasoning_effort": "low", "max_tokens": 1000}, OLD_CLAUDE, {"thinking": None}),
        ({"reasoning_effort": "none"}, CLAUDE, {"thinking": {"type": "disabled"}}),
        (
            {"reasoning_effort": "high"},
            Target(MESSAGES, "claude-3-haiku", max_output_tokens=4096),
            {"thinking": None, "output_config": None, "max_tokens": 4096},
        ),
        ({"temperature": 0.2, "top_p": 0.9}, OLD_CLAUDE, {"temperature": 0.2, "top_p": None}),
        ({"temperature": 0.2}, CLAUDE, {"temperature": None}),
        ({"max_tokens": 9}, OTHER, {"max_tokens": 9, "max_completion_tokens": None}),
        ({"stop": "END"}, CLAUDE, {"stop_sequences": ["END"]}),
        (
            {"reasoning_effort": "high", "verbosity": "low"},
            RESPONDING,
            {"reasoning": {"effort": "high"}, "text": {"verbosity": "low"}, "store": False},
        ),
    ],
)
def test_parameters_are_translated(
    fields: dict[str, Json], target: Target, expected: dict[str, Json]
) -> None:
    """Limits, sampling and effort have their names in the target, or are left out."""
    request = read_request(chat(**fields), CHAT)
    body = target.api.write_request(request, target)
    assert {name: body.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "target", "expected"),
    [
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 50_000},
            Target(CHAT, "gpt-5", provider="azure", max_output_tokens=9, supports_reasoning=True),
            {"reasoning_effort": "low", "max_completion_tokens": 9},
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            OTHER,
            {"reasoning_effort": "high"},
        ),
        (
            {"thinking": {"type": "adaptive", "display": "summarized"}},
            RESPONDING,
            {
                "reasoning": {"summary": "auto"},
                "include": ["reasoning.encrypted_content"],
            },
        ),
        ({"temperature": 1}, OPENAI, {"temperature": None}),
        ({"stream": True}, OPENAI, {"stream_options": {"include_usage": True}}),
    ],
)
def test_parameters_of_messages_are_translated(
    fields: dict[str, Json], target: Target, expected: dict[str, Json]
) -> None:
    """Anthropic's budgets and efforts are OpenAI's efforts."""
    body = translated(messages(**fields), MESSAGES, target)
    assert {name: body.get(name) for name in expected} == expected


def test_structured_output_is_translated_in_all_directions() -> None:
    """The schema of the answer is kept; without optional properties it is strict at OpenAI."""
    closed = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    there = translated(
        messages(output_config={"format": {"type": "json_schema", "schema": closed}}),
        MESSAGES,
        OPENAI,
    )
    form = {"name": "answer", "schema": closed, "strict": True}
    assert there["response_format"] == {"type": "json_schema", "json_schema": form}
    responding = translated(there, CHAT, RESPONDING)
    assert responding["text"]["format"] == {"type": "json_schema", **form}
    back = translated(responding, RESPONSES, CLAUDE)
    assert back["output_config"]["format"] == {"type": "json_schema", "schema": closed}
    optional = messages(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert not translated(optional, MESSAGES, OPENAI)["response_format"]["json_schema"]["strict"]


def test_reasoning_comes_back_to_the_provider_that_made_it() -> None:
    """A proof survives a client of another API, and no other provider gets it."""
    encrypted = seal(Thinking("I think", "gAAA", origin=RESPONSES.name), MESSAGES.name)
    body = messages(
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I think", "signature": encrypted},
                {"type": "text", "text": "yes"},
            ],
        },
        USER,
    )
    assert translated(body, MESSAGES, RESPONDING)["input"][1] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I think"}],
        "encrypted_content": "gAAA",
    }
    assert translated(body, MESSAGES, OTHER)["messages"][1]["reasoning_content"] == "I think"
    assert "reasoning_content" not in translated(body, MESSAGES, OPENAI)["messages"][1]
    request = read_request(body, MESSAGES)
    kept = RESPONDING.api.write_request(request, RESPONDING, lambda proof: proof == "gAAA")
    assert [item["role"] for item in kept["input"]] == ["user", "assistant", "user"]


def test_a_signature_survives_codex() -> None:
    """Claude gets its own thinking back from a client of Responses, hidden or not."""
    shown = seal(Thinking("hm", "sig", origin=MESSAGES.name), RESPONSES.name)
    hidden = seal(Thinking("", "data", is_hidden=True, origin=MESSAGES.name), RESPONSES.name)
    summary = [{"type": "summary_text", "text": "hm"}]
    items: list[Json] = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": shown},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": hidden},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    body = responses(*items, reasoning={"effort": "high"}, tools=tools)
    there = translated(body, RESPONSES, OLD_CLAUDE)
    assert there["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "data"},
    ]
    assert there["thinking"]["type"] == "enabled"


def test_claude_does_not_think_by_budget_in_a_loop_without_its_thinking() -> None:
    """Anthropic rejects such a request, so that the loop goes on without thinking."""
    items: list[Json] = [
        USER,
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    body = responses(*items, reasoning={"effort": "high"}, tools=tools)
    assert "thinking" not in translated(body, RESPONSES, OLD_CLAUDE)
    assert "thinking" in translated(
        responses(*items, USER, tools=tools, reasoning={"effort": "high"}), RESPONSES, CLAUDE
    )


SPOKEN: Json = {"role": "assistant", "content": "a"}
BLANK = "messages[2].content (empty)"


@pytest.mark.parametrize(
    ("body", "source", "target", "expected"),
    [
        (chat(n=2), CHAT, MESSAGES, "n"),
        (chat(logprobs=True), CHAT, RESPONSES, "logprobs"),
        (chat(seed=1), CHAT, MESSAGES, "seed"),
        (chat(store=True), CHAT, MESSAGES, "store"),
        (chat(stop=["a"]), CHAT, RESPONSES, "stop"),
        (chat(stop=["\n"]), CHAT, MESSAGES, "stop"),
        (chat(temperature=1.5), CHAT, MESSAGES, "temperature"),
        (chat(response_format={"type": "json_object"}), CHAT, MESSAGES, "response_format"),
        (
            chat({"role": "user", "name": "bob", "content": "hi"}),
            CHAT,
            MESSAGES,
            "messages[0].name",
        ),
        (chat(tools=[{"type": "browser"}]), CHAT, MESSAGES, "tools[0]"),
        (chat(USER, {"role": "assistant", "content": "a"}), CHAT, MESSAGES, "messages[-1].role"),
        *[
            (chat(USER, SPOKEN, {"role": "user", "content": blank}), CHAT, target, BLANK)
            for target in (MESSAGES, CONVERSE)
            for blank in ("", " \n", [{"type": "text", "text": ""}])
        ],
        (messages(USER, SPOKEN, {"role": "user", "content": ""}), MESSAGES, CHAT, BLANK),
        (
            responses(USER, SPOKEN, {"role": "user", "content": ""}),
            RESPONSES,
            MESSAGES,
            "input[2].content (empty)",
        ),
        (responses(previous_response_id="r"), RESPONSES, CHAT, "previous_response_id"),
        (responses(background=True), RESPONSES, CHAT, "background"),
        (responses(store=True), RESPONSES, MESSAGES, "store"),
        (responses(tools=[{"type": "web_search"}]), RESPONSES, CHAT, "tools[0]"),
        (responses(tools=[{"type": "local_shell"}]), RESPONSES, MESSAGES, "tools[0]"),
        (
            responses({"type": "item_reference", "id": "x"}, USER),
            RESPONSES,
            CHAT,
            "input[0]",
        ),
        (
            responses({"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}),
            RESPONSES,
            MESSAGES,
            "input[0].content[0]",
        ),
        (messages(top_k=5), MESSAGES, CHAT, "top_k"),
        (messages(container="c"), MESSAGES, CHAT, "container"),
        (
            messages(mcp_servers=[{"type": "url", "url": "https://a", "name": "a"}]),
            MESSAGES,
            RESPONSES,
            "mcp_servers",
        ),
        (messages(stop_sequences=list("abcde")), MESSAGES, CHAT, "stop_sequences"),
        (messages(stop_sequences=["a"]), MESSAGES, RESPONSES, "stop_sequences"),
        (
            messages(tools=[{"type": "bash_20250124", "name": "bash"}]),
            MESSAGES,
            CHAT,
            "tools[0]",
        ),
        (
            messages(USER, {"role": "assistant", "content": "The answer is ("}),
            MESSAGES,
            CHAT,
            "messages[-1].role",
        ),
        (
            messages(
                {"role": "user", "content": [{"type": "new_block"}, {"type": "text", "text": "a"}]}
            ),
            MESSAGES,
            CHAT,
            "messages[0].content[0]",
        ),
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


@pytest.mark.parametrize(
    ("body", "source"),
    [
        (chat(n=1, logprobs=False, store=False, seed=None, metadata={"a": "b"}, user="u"), CHAT),
        (
            responses(store=False, background=False, include=["reasoning.encrypted_content"]),
            RESPONSES,
        ),
        (
            responses(client_metadata={"a": "b"}, prompt_cache_key="k", truncation="auto"),
            RESPONSES,
        ),
        (
            messages(
                metadata={"user_id": "u"},
                context_management={"edits": [{"type": "clear_thinking_20251015"}]},
                cache_control={"type": "ephemeral"},
                mcp_servers=[],
                service_tier="auto",
            ),
            MESSAGES,
        ),
    ],
)
def test_hints_and_defaults_are_no_obstacles(body: dict[str, Json], source: Api) -> None:
    """Fields that change no answer are left out."""
    request = read_request(body, source)
    assert [obstacles(request, source, target) for target in APIS] == [(), (), ()]
