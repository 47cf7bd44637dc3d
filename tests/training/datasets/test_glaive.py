"""Glaive's file: conversations as texts, and the paper's two cleaning steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.apis.conversation import Json
from switchcraft_training.datasets import glaive
from switchcraft_training.records import Judged
from tests.training.datasets.published import calls_of, messages_of, read, write_array

OFFERS = (
    "SYSTEM: You are a helpful assistant with access to the following functions. "
    "Use them if required -\n"
)
END = " <|endoftext|>\n\n\n"


def function(name: str, required: tuple[str, ...] = (), **properties: Json) -> str:
    """Return a function as in `system`: JSON on several lines."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return json.dumps({"name": name, "description": "", "parameters": schema}, indent=4)


STRING = {"type": "string"}
NOTE = function("note", ("text",), text=STRING, tag=STRING, options={"type": "object"})
CLOCK = function("get_current_time")
SYSTEM = OFFERS + NOTE + "\n\n" + CLOCK + "\n"


def user_turn(text: str) -> str:
    """Return a user's turn."""
    return f"USER: {text}\n\n\n"


def assistant_turn(text: str) -> str:
    """Return an assistant's turn."""
    return f"ASSISTANT: {text}{END}"


def call_turn(name: str, arguments: str) -> str:
    """Return an assistant's turn with a call and these literal arguments."""
    return assistant_turn(f'<functioncall> {{"name": "{name}", "arguments": {arguments}}}')


def result_turn(text: str) -> str:
    """Return a turn with a function's result."""
    return f"FUNCTION RESPONSE: {text}\n\n\n"


def read_chat(tmp_path: Path, chat: str, system: str = SYSTEM) -> list[Judged]:
    """Return the rows of one conversation."""
    path = write_array(tmp_path / glaive.FILE, {"system": system, "chat": chat})
    rows, faults = read(glaive.read_source, path)
    assert faults == []
    return rows


def arguments_of(tmp_path: Path, written: str, system: str = SYSTEM) -> dict[str, Json]:
    """Return the expected arguments of a call of `note` that is written like this."""
    [judged] = read_chat(tmp_path, user_turn("Note it.") + call_turn("note", written), system)
    [(_, arguments)] = calls_of(judged)
    return arguments


def test_each_turn_with_calls_is_an_example(tmp_path: Path) -> None:
    """The request has the conversation so far, including the turns without calls."""
    chat = (
        user_turn("Hi.")
        + assistant_turn("Hello, what shall I do?")
        + user_turn("Note a USER: b\nand the time.")
        + call_turn("note", """'{"text": "a USER: b"}'""")
        + result_turn('{"id": 1}')
        + call_turn("get_current_time", "'{}'")
        + result_turn('{"time": "10:00"}')
        + assistant_turn("It is 10:00.")
    )
    first, second = read_chat(tmp_path, chat)
    so_far = [
        "user: Hi.",
        "assistant: Hello, what shall I do?",
        "user: Note a USER: b\nand the time.",
    ]
    assert messages_of(first) == so_far
    assert calls_of(first) == [("note", {"text": "a USER: b"})]
    made = 'assistant: note({"text":"a USER: b"})'
    assert messages_of(second) == [*so_far, made, 'tool: {"id": 1}']
    assert calls_of(second) == [("get_current_time", {})]
    call, result = second.example.request["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert first.example.conversation == second.example.conversation
    assert (first.example.id, second.example.id) == tuple(
        f"{first.example.conversation}:{number}" for number in (3, 5)
    )
    assert first.example.tool_names == ("note", "get_current_time")


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("""'{"text": "a"}'""", {"text": "a"}),
        ("""{"text": "a"}""", {"text": "a"}),
        ("""'{"text": "a"}""", {"text": "a"}),
        ("""{"text": "a"}'""", {"text": "a"}),
        ('''"{\\"text\\": \\"a\\"}"''', {"text": "a"}),
        ("""'{\\"text\\": \\"a\\"}'""", {"text": "a"}),
        ("""'{"text": "it's"}'""", {"text": "it's"}),
        ("""'{"text": "it\\'s"}'""", {"text": "it's"}),
        ("""'{"text": "say \\"a\\""}'""", {"text": 'say "a"'}),
        ("""'{"text": "one\ntwo"}'""", {"text": "one\ntwo"}),
        ("""'{"text": "}"}'""", {"text": "}"}),
        ("""{'text': 'a', "tag": "b"}""", {"text": "a", "tag": "b"}),
        ("""'{\n  "text": "a"\n}'""", {"text": "a"}),
    ],
)
def test_arguments_in_any_quotes_are_read(written: str, arguments: Json, tmp_path: Path) -> None:
    """Single, double, escaped and missing quotes, and apostrophes inside."""
    assert arguments_of(tmp_path, written) == arguments


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        # Forms of published rows: 3871, 17357, 34221, 57572, 65421, 81082, 81297 and 26684.
        (call_turn("get-current-time", "'{}'"), "'get-current-time', which is not offered"),
        (assistant_turn('<functioncall> AI to=note code{"text": "a"}'), "not a call with a name"),
        (assistant_turn('<functioncall> {"name": "note", "arguments": \'{"te'), "not a call with"),
        (call_turn("note", """'{"text": "a"}}'"""), "neither JSON nor a Python literal"),
        (call_turn("note", "'text is a'"), "neither JSON nor a Python literal"),
        (
            assistant_turn("""<functioncall> {"name": "note", "parameters": '{"text": "a"}'}"""),
            "not a call with a name and arguments",
        ),
        (call_turn("note", """'[{"text": "a"}]'"""), "the arguments are not an object"),
        (call_turn("note", """'{"text": "a", "options": {"n": Infinity}}'"""), "neither JSON nor"),
    ],
)
def test_rows_with_broken_calls_are_set_aside(turn: str, reason: str, tmp_path: Path) -> None:
    """Nothing is guessed or changed, and the next row is read."""
    chats = (user_turn("Hi.") + turn, user_turn("When?") + call_turn("get_current_time", "'{}'"))
    path = write_array(tmp_path / "g.json", *({"system": SYSTEM, "chat": c} for c in chats))
    rows, [fault] = read(glaive.read_source, path)
    assert len(rows) == 1
    assert fault.startswith("1: row 1 of the array: ")
    assert reason in fault


@pytest.mark.parametrize("written", ["None", "null", "'{}'", "''", "'None'", "{}"])
def test_placeholder_for_arguments_is_an_empty_object(written: str, tmp_path: Path) -> None:
    """The paper's first cleaning step: a call with `None` as arguments has no arguments."""
    [judged] = read_chat(tmp_path, user_turn("When?") + call_turn("get_current_time", written))
    assert calls_of(judged) == [("get_current_time", {})]


def test_none_argument_becomes_default_or_empty_value(tmp_path: Path) -> None:
    """Optional arguments are dropped; required ones get the default or an empty value."""
    defaults = {"type": "string", "default": "plain"}
    schema = function(
        "note", ("text", "options", "tags"), text=defaults, tag=STRING, options={"type": "object"},
        tags={"type": "array", "items": STRING},
    )  # fmt: skip
    written = """'{"text": null, "tag": null, "options": null, "tags": null}'"""
    expected = {"text": "plain", "options": {}, "tags": []}
    assert arguments_of(tmp_path, written, OFFERS + schema) == expected


def test_empty_text_for_optional_parameter_is_removed(tmp_path: Path) -> None:
    """The paper's second cleaning step; a required parameter keeps its empty text."""
    assert arguments_of(tmp_path, """'{"text": "", "tag": ""}'""") == {"text": ""}


def test_consecutive_assistant_turns_are_joined(tmp_path: Path) -> None:
    """Text before a call, and several calls in a row, belong to one turn."""
    call = '<functioncall> {"name": "get_current_time", "arguments": \'{}\'}'
    chat = (
        user_turn("Twice, please.")
        + assistant_turn("One moment.")
        + assistant_turn(f"I look. {call}")
        + assistant_turn(call)
        + result_turn("1")
        + result_turn("2")
        + call_turn("get_current_time", "'{}'")
    )
    first, second = read_chat(tmp_path, chat)
    assert messages_of(first) == ["user: Twice, please."]
    assert calls_of(first) == [("get_current_time", {})] * 2
    assert messages_of(second)[1:] == [
        "assistant: One moment.\nI look. get_current_time({}) get_current_time({})",
        "tool: 1",
        "tool: 2",
    ]


GOOD = {"system": SYSTEM, "chat": user_turn("Hi.") + call_turn("get_current_time", "'{}'")}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"system": SYSTEM}, "KeyError: 'chat'"),
        (GOOD | {"system": OFFERS + '{"name": "a", }'}, "JSONDecodeError"),
        (GOOD | {"system": OFFERS + CLOCK + "and"}, "JSONDecodeError"),
        (GOOD | {"chat": "Hi."}, "the chat does not start with a turn"),
        (GOOD | {"chat": call_turn("get_current_time", "'{}'")}, "before the first user message"),
        (GOOD | {"chat": user_turn("Hi.") + assistant_turn("<functioncall> now()")}, "not a call"),
        (
            GOOD | {"chat": user_turn("Hi.") + call_turn("note", "'[1]'")},
            "the arguments are not an object",
        ),
        (
            GOOD | {"chat": user_turn("Hi.") + call_turn("note", """'{"text": }'""")},
            "neither JSON nor",
        ),
        (
            GOOD | {"chat": user_turn("Hi.") + call_turn("note", """'{"text": null}'""")},
            "'text' is None",
        ),
        (
            GOOD | {"chat": user_turn("Hi.") + call_turn("note", """'{"other": 1}'""")},
            "the arguments ['other'], which are not parameters",
        ),
        (
            GOOD | {"chat": user_turn("Hi.") + call_turn("other", "'{}'")},
            "calls 'other', which is not offered",
        ),
        (
            GOOD | {"chat": user_turn("Hi.") + result_turn("1")},
            "a tool result has no matching call",
        ),
        (GOOD | {"chat": GOOD["chat"] + user_turn("And?")}, "1 calls have no result"),
    ],
)
def test_invalid_conversation_gives_one_error_and_no_examples(
    bad: Json, reason: str, tmp_path: Path
) -> None:
    """The error has the conversation's number in the file."""
    path = write_array(tmp_path / "g.json", bad, GOOD)
    rows, [fault] = read(glaive.read_source, path)
    assert len(rows) == 1
    assert fault.startswith("1: row 1 of the array: ")
    assert reason in fault
