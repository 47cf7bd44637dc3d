"""Glaive's file: conversations as texts, and the paper's two cleanings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.core.errors import DataError
from switchcraft_training.datasets import glaive
from switchcraft_training.records import Json, Judged
from tests.training.datasets.published import calls_of, read, said, write_array

OFFERS = (
    "SYSTEM: You are a helpful assistant with access to the following functions. "
    "Use them if required -\n"
)
OFFERS_NONE = "SYSTEM: You are a helpful assistant, with no access to any external functions.\n"
END = " <|endoftext|>\n\n\n"


def function(name: str, required: tuple[str, ...] = (), **properties: Json) -> str:
    """Return a function as `system` holds it: JSON over several lines."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return json.dumps({"name": name, "description": "", "parameters": schema}, indent=4)


STRING = {"type": "string"}
NOTE = function("note", ("text",), text=STRING, tag=STRING, options={"type": "object"})
CLOCK = function("get_current_time")
SYSTEM = OFFERS + NOTE + "\n\n" + CLOCK + "\n"


def asks(text: str) -> str:
    """Return a user's turn."""
    return f"USER: {text}\n\n\n"


def says(text: str) -> str:
    """Return an assistant's turn."""
    return f"ASSISTANT: {text}{END}"


def calls(name: str, arguments: str) -> str:
    """Return an assistant's turn that calls, its arguments spelled like this."""
    return says(f'<functioncall> {{"name": "{name}", "arguments": {arguments}}}')


def returns(text: str) -> str:
    """Return what a function returned."""
    return f"FUNCTION RESPONSE: {text}\n\n\n"


def read_chat(tmp_path: Path, chat: str, system: str = SYSTEM) -> list[Judged]:
    """Return the records of one conversation."""
    path = write_array(tmp_path / glaive.FILE, {"system": system, "chat": chat})
    rows, faults = read(glaive.read_source, path)
    assert faults == []
    return rows


def arguments_of(tmp_path: Path, written: str, system: str = SYSTEM) -> dict[str, Json]:
    """Return the arguments that a call of `note` expects, written like this."""
    [judged] = read_chat(tmp_path, asks("Note it.") + calls("note", written), system)
    [(_, arguments)] = calls_of(judged)
    return arguments


def test_each_turn_that_calls_is_a_record(tmp_path: Path) -> None:
    """It has the conversation so far, and the turns in words are part of that alone."""
    chat = (
        asks("Hi.")
        + says("Hello, what shall I do?")
        + asks("Note a USER: b\nand the time.")
        + calls("note", """'{"text": "a USER: b"}'""")
        + returns('{"id": 1}')
        + calls("get_current_time", "'{}'")
        + returns('{"time": "10:00"}')
        + says("It is 10:00.")
    )
    first, second = read_chat(tmp_path, chat)
    so_far = [
        "user: Hi.",
        "assistant: Hello, what shall I do?",
        "user: Note a USER: b\nand the time.",
    ]
    assert said(first) == so_far
    assert calls_of(first) == [("note", {"text": "a USER: b"})]
    made = 'assistant: note({"text":"a USER: b"})'
    assert said(second) == [*so_far, made, 'tool: {"id": 1}']
    assert calls_of(second) == [("get_current_time", {})]
    call, result = second.example.request["messages"][-2:]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert first.example.conversation == second.example.conversation
    assert (first.example.id, second.example.id) == tuple(
        f"{first.example.conversation}:{number}" for number in (3, 5)
    )
    assert first.example.tool_names == ("note", "get_current_time")


def test_a_conversation_without_functions_or_calls_has_no_records(tmp_path: Path) -> None:
    """Neither is a fault: the dataset has many of both."""
    chat = asks("Hi.") + says("Hello.")
    system = (OFFERS_NONE, SYSTEM)
    path = write_array(tmp_path / "g.json", *({"system": s, "chat": chat} for s in system))
    with_one = {"system": SYSTEM, "chat": asks("Hi.") + calls("get_current_time", "'{}'")}
    assert read(glaive.read_source, path) == ([], [])
    write_array(path, {"system": OFFERS_NONE, "chat": chat}, with_one)
    assert len(read(glaive.read_source, path)[0]) == 1


def test_a_file_of_json_lines_is_read_too(tmp_path: Path) -> None:
    """A conversation's name does not depend on the file's layout, nor on its place there."""
    conversation = {"system": SYSTEM, "chat": asks("Hi.") + calls("get_current_time", "'{}'")}
    other = {"system": OFFERS_NONE, "chat": asks("Hi.") + says("Hello.")}
    lines = tmp_path / "lines.json"
    lines.write_text("\n".join(map(json.dumps, (other, conversation))))
    array = write_array(tmp_path / "array.json", conversation)
    assert read(glaive.read_source, lines) == read(glaive.read_source, array)


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
def test_quotes_around_arguments_are_read_as_they_come(
    written: str, arguments: Json, tmp_path: Path
) -> None:
    """Single, double, escaped, missing, and apostrophes inside."""
    assert arguments_of(tmp_path, written) == arguments


@pytest.mark.parametrize("written", ["None", "null", "'{}'", "''", "'None'", "{}"])
def test_a_placeholder_for_no_arguments_is_an_empty_object(written: str, tmp_path: Path) -> None:
    """The paper's first cleaning: a function that takes no arguments is called with none."""
    [judged] = read_chat(tmp_path, asks("When?") + calls("get_current_time", written))
    assert calls_of(judged) == [("get_current_time", {})]


def test_a_call_may_have_no_arguments_at_all(tmp_path: Path) -> None:
    """A call that is a name alone has none."""
    [judged] = read_chat(
        tmp_path, asks("When?") + says('<functioncall> {"name": "get_current_time"}')
    )
    assert calls_of(judged) == [("get_current_time", {})]


def test_an_argument_none_becomes_what_its_schema_has_for_it(tmp_path: Path) -> None:
    """Left out where it may be, else the default, else what is empty of its type."""
    defaults = {"type": "string", "default": "plain"}
    schema = function(
        "note", ("text", "options", "tags"), text=defaults, tag=STRING, options={"type": "object"},
        tags={"type": "array", "items": STRING},
    )  # fmt: skip
    written = """'{"text": null, "tag": null, "options": null, "tags": null}'"""
    expected = {"text": "plain", "options": {}, "tags": []}
    assert arguments_of(tmp_path, written, OFFERS + schema) == expected


def test_an_empty_text_for_an_optional_parameter_is_removed(tmp_path: Path) -> None:
    """The paper's second cleaning; a required one keeps its empty text."""
    assert arguments_of(tmp_path, """'{"text": "", "tag": ""}'""") == {"text": ""}


def test_words_before_a_call_belong_to_its_turn(tmp_path: Path) -> None:
    """So do an assistant's turns that follow one another, several calls among them."""
    call = '<functioncall> {"name": "get_current_time", "arguments": \'{}\'}'
    chat = (
        asks("Twice, please.")
        + says("One moment.")
        + says(f"I look. {call}")
        + says(call)
        + returns("1")
        + returns("2")
        + calls("get_current_time", "'{}'")
    )
    first, second = read_chat(tmp_path, chat)
    assert said(first) == ["user: Twice, please."]
    assert calls_of(first) == [("get_current_time", {})] * 2
    assert said(second)[1:] == [
        "assistant: One moment.\nI look. get_current_time({}) get_current_time({})",
        "tool: 1",
        "tool: 2",
    ]


def test_a_function_without_parameters_takes_none(tmp_path: Path) -> None:
    """Its schema is that of an empty object."""
    bare = json.dumps({"name": "ping", "description": "Ping.", "parameters": {}})
    [judged] = read_chat(tmp_path, asks("Ping.") + calls("ping", "'{}'"), OFFERS + bare)
    [tool] = judged.example.request["tools"]
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}


GOOD = {"system": SYSTEM, "chat": asks("Hi.") + calls("get_current_time", "'{}'")}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"system": SYSTEM}, "KeyError: 'chat'"),
        (GOOD | {"system": OFFERS + '{"name": "a", }'}, "JSONDecodeError"),
        (GOOD | {"system": OFFERS + CLOCK + "and"}, "JSONDecodeError"),
        (GOOD | {"chat": "Hi."}, "the chat does not start with a turn"),
        (GOOD | {"chat": calls("get_current_time", "'{}'")}, "before the first user message"),
        (GOOD | {"chat": asks("Hi.") + says("<functioncall> now()")}, "not a call"),
        (GOOD | {"chat": asks("Hi.") + calls("note", "'[1]'")}, "the arguments are not an object"),
        (GOOD | {"chat": asks("Hi.") + calls("note", """'{"text": }'""")}, "neither JSON nor"),
        (GOOD | {"chat": asks("Hi.") + calls("note", """'{"text": null}'""")}, "'text' is None"),
        (
            GOOD | {"chat": asks("Hi.") + calls("note", """'{"other": 1}'""")},
            "the arguments ['other'], which it does not take",
        ),
        (
            GOOD | {"chat": asks("Hi.") + calls("other", "'{}'")},
            "calls 'other', which is not offered",
        ),
        (GOOD | {"chat": asks("Hi.") + returns("1")}, "a tool result has no matching call"),
        (GOOD | {"chat": GOOD["chat"] + asks("And?")}, "1 calls have no result"),
    ],
)
def test_a_conversation_that_does_not_parse_gives_no_record(
    bad: Json, reason: str, tmp_path: Path
) -> None:
    """It is one fault with its number in the file, whatever of it could have been read."""
    path = write_array(tmp_path / "g.json", bad, GOOD)
    rows, [fault] = read(glaive.read_source, path)
    assert len(rows) == 1
    assert fault.startswith("1: row 1 of the array: ")
    assert reason in fault


def test_without_a_quarantine_the_first_fault_ends_the_reading(tmp_path: Path) -> None:
    """Readers refuse on their own."""
    path = write_array(tmp_path / "g.json", GOOD | {"chat": "Hi."}, GOOD)
    with pytest.raises(DataError, match="row 1 of the array: ValueError: the chat does not start"):
        list(glaive.read_source(path))
