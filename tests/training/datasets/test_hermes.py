"""Hermes' three files: tagged calls and results, in JSON, Python or a mixture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.apis.conversation import Json
from switchcraft_training.datasets import hermes
from tests.training.datasets.published import calls_of, messages_of, read, write_array

SINGLE, MULTI, GLAIVE = hermes.SUBSETS
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_flights",
            "description": "Find flights.",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string"}, "direct": {"type": "boolean"}},
                "required": ["to"],
            },
        },
    },
    {
        "name": "extract",
        "description": "",
        "parameters": {"properties": {"names": {"type": "array"}}},
    },
]
SYSTEM = (
    "You are a function calling AI model. You are provided with function signatures within "
    "<tools> </tools> XML tags.\n<tools>\n{tools}\n</tools>\nFor each function call return a json "
    "object within <tool_call> </tool_call> tags:\n<tool_call>\n"
    "{{'arguments': <args-dict>, 'name': <function-name>}}\n</tool_call>"
)
CALL = (
    "<tool_call>\n{'arguments': {'to': 'Rome', 'direct': True}, 'name': 'find_flights'}\n"
    "</tool_call>\n"
)
FLIGHT = ("find_flights", {"to": "Rome", "direct": True})


def row(*turns: tuple[str, str], tools: Json = TOOLS, in_system: bool = False) -> dict[str, Json]:
    """Return a row as published, with tools in their own field or in the system text."""
    system = ("system", SYSTEM.format(tools=tools if in_system else "[]"))
    return {
        "id": "u-1",
        "conversations": [{"from": who, "value": text} for who, text in (system, *turns)],
        "category": "Travel",
        "subcategory": "Flights",
        "task": "Search",
        **({} if in_system else {"tools": json.dumps(tools)}),
    }


ASK = ("human", "Flights to Rome?")


def test_folder_has_three_subsets(tmp_path: Path) -> None:
    """Each file is a category, and rows of different files have different ids."""
    for name in hermes.SUBSETS:
        write_array(tmp_path / name, row(ASK, ("gpt", CALL)))
    rows, faults = read(hermes.read_source, tmp_path)
    assert faults == []
    categories = ["func_calling_singleturn", "func_calling", "glaive_func_calling"]
    assert [judged.example.category for judged in rows] == categories
    assert [judged.example.id for judged in rows] == [f"{name}_u-1:1" for name in categories]
    assert all(calls_of(judged) == [FLIGHT] for judged in rows)
    assert messages_of(rows[0]) == ["user: Flights to Rome?"]


def test_each_turn_with_calls_is_an_example(tmp_path: Path) -> None:
    """Parallel calls stay together, and their results answer them in order."""
    results = (
        "<tool_response>\n{'n': 1}\n</tool_response>\n<tool_response>\n{'n': 2}\n</tool_response>"
    )
    turns = [
        ASK,
        ("gpt", f"I look.\n{CALL}{CALL}"),
        ("tool", results),
        ("gpt", "Two of them."),
        ("human", "Again!"),
        ("gpt", CALL),
        ("tool", "none"),
    ]
    path = write_array(tmp_path / MULTI, row(*turns))
    [first, second], faults = read(hermes.read_source, path)
    assert faults == []
    assert calls_of(first) == [FLIGHT, FLIGHT]
    made = 'find_flights({"to":"Rome","direct":true})'
    assert messages_of(second) == [
        "user: Flights to Rome?",
        f"assistant: I look. {made} {made}",
        "tool: {'n': 1}",
        "tool: {'n': 2}",
        "assistant: Two of them.",
        "user: Again!",
    ]
    assert first.example.conversation == second.example.conversation == "func_calling_u-1"


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS), "\n".join(map(json.dumps, TOOLS))])
def test_tools_in_system_text_are_read(tools: Json, tmp_path: Path) -> None:
    """The tools are a list or one object a line; empty tags before them are ignored."""
    path = write_array(tmp_path / GLAIVE, row(ASK, ("gpt", CALL), tools=tools, in_system=True))
    [judged], faults = read(hermes.read_source, path)
    assert faults == []
    assert judged.example.tool_names == ("find_flights", "extract")


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>\n{"arguments": {"names": ["it\'s"]}, "name": "extract"}\n</tool_call>',
        "<tool_call>{'name': 'extract', 'arguments': {'names': ['it\\'s']}}</tool_call>",
        '<tool_call>\n{"arguments": {"names": [\'it\\\'s\']}, "name": "extract"}\n</tool_call>',
        '<tool_call>\\n{"arguments": {"names": ["it\'s"]}, "name": "extract"}\\n</tool_call>',
        '<tool_call>\n{"arguments": {"names": ["it\'s"], "name": "extract"}}\n</tool_call>',
        '<tool_call>{"name": "extract", "arguments": "{\\"names\\": [\\"it\'s\\"]}"}</tool_call>',
        '<tool_call>\n{"arguments": {"names": ["it\'s"]}, "name": "extract"}\n',
    ],
)
def test_calls_in_every_published_form_are_read(call: str, tmp_path: Path) -> None:
    """Any quotes, escaped line breaks, a late closing brace, a missing closing tag."""
    path = write_array(tmp_path / SINGLE, row(ASK, ("gpt", call)))
    [judged], faults = read(hermes.read_source, path)
    assert faults == []
    assert calls_of(judged) == [("extract", {"names": ["it's"]})]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        # Published are 61 rows with a broken list in the system text, 76 rows that define one name
        # twice, and 10 rows with a response to no call.
        (row(ASK, tools="[{'name': 'f'", in_system=True) | {"tools": "[]"}, "JSONDecodeError"),
        (row(ASK, tools=[TOOLS[0], {"name": "find_flights"}]), "two different functions have"),
        (row(ASK, ("gpt", "It is."), ("tool", "1")), "a tool result has no matching call"),
        (
            row(ASK, ("gpt", "<tool_call>\nfind_flights()\n</tool_call>")),
            "neither JSON nor a Python",
        ),
        (row(ASK, ("gpt", "<tool_call>{'arguments': {}}</tool_call>")), "KeyError: 'name'"),
        (row(ASK, ("gpt", "<tool_call>{'arguments': {'name': 'x'}}</tool_call>")), "has no name"),
        (row(ASK, ("gpt", CALL.replace("find", "book"))), "'book_flights', which is not offered"),
        (row(ASK, ("tool", "1")), "a tool result has no matching call"),
        (row(ASK, ("gpt", CALL), ("human", "And?")), "1 calls have no result"),
        (row(("gpt", CALL)), "before the first user message"),
        (row(ASK, ("function", "1")), "unknown speaker 'function'"),
        (row(ASK, ("gpt", CALL), tools=[], in_system=True), "there are no tools"),
        (row(ASK) | {"tools": "[{]"}, "JSONDecodeError"),
    ],
)
def test_invalid_conversation_gives_one_error_and_no_examples(
    bad: Json, reason: str, tmp_path: Path
) -> None:
    """The error has the row's number in the file, and the next row is read."""
    path = write_array(tmp_path / MULTI, bad, row(ASK, ("gpt", CALL)))
    rows, [fault] = read(hermes.read_source, path)
    assert len(rows) == 1
    assert fault.startswith("1: row 1 of the array: ")
    assert reason in fault
