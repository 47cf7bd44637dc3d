"""Rows as the datasets publish them: what each reader makes of them, and which it sets aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router_service.apis.conversation import Json
from switchcraft_training.datasets import confetti, glaive, hermes, xlam
from switchcraft_training.records import Judged
from tests.training.datasets.published import calls_of, messages_of, read, write_array

Publish = Callable[[Path, list[Json]], tuple[list[Judged], list[str]]]
"""Writes rows in a dataset's form, and reads them: the examples, and the errors."""


def published_glaive(folder: Path, rows: list[Json]) -> tuple[list[Judged], list[str]]:
    """Publish conversations of Glaive."""
    return read(glaive.read_source, write_array(folder / glaive.FILE, *rows))


def published_hermes(folder: Path, rows: list[Json]) -> tuple[list[Judged], list[str]]:
    """Publish conversations of one of the subsets of Hermes."""
    return read(hermes.read_source, write_array(folder / list(hermes.SUBSETS)[1], *rows))


def published_xlam(folder: Path, rows: list[Json]) -> tuple[list[Judged], list[str]]:
    """Publish questions of xLAM."""
    return read(xlam.read_source, write_array(folder / xlam.FILE, *rows))


def published_confetti(folder: Path, rows: list[Json]) -> tuple[list[Judged], list[str]]:
    """Publish turns of ConFETTI, each with its accepted calls as `truth`."""
    answers = folder / "data" / "possible_answer"
    answers.mkdir(parents=True)
    turns = [{key: value for key, value in row.items() if key != "truth"} for row in rows]
    truths = [{"id": row["id"], "ground_truth": row["truth"]} for row in rows if "truth" in row]
    (folder / "data" / confetti.FILE).write_text("\n".join(map(json.dumps, turns)))
    (answers / confetti.FILE).write_text("\n".join(map(json.dumps, truths)))
    return read(confetti.read_source, folder)


STRING = {"type": "string"}
OFFERS = (
    "SYSTEM: You are a helpful assistant with access to the following functions. "
    "Use them if required -\n"
)


def function(name: str, required: tuple[str, ...] = (), **properties: Json) -> str:
    """Return a function as Glaive's `system` has it: JSON on several lines."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return json.dumps({"name": name, "description": "", "parameters": schema}, indent=4)


NOTE = function("note", ("text",), text=STRING, tag=STRING, options={"type": "object"})
CLOCK = function("clock")


def chat(*turns: str, system: str = OFFERS + NOTE + "\n\n" + CLOCK + "\n") -> dict[str, Json]:
    """Return a conversation as Glaive publishes it; a turn begins with its speaker's letter."""
    speakers = {"U": "USER: {}", "A": "ASSISTANT: {} <|endoftext|>", "F": "FUNCTION RESPONSE: {}"}
    said = [speakers[turn[0]].format(turn[2:]) for turn in turns]
    return {"system": system, "chat": "\n\n\n".join(said) + "\n\n\n"}


def called(name: str, arguments: str) -> str:
    """Return a turn of Glaive's assistant with a call and these literal arguments."""
    return f'A <functioncall> {{"name": "{name}", "arguments": {arguments}}}'


NOW = called("clock", "'{}'")

FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find flights.",
        "parameters": {
            "type": "object",
            "properties": {"to": STRING, "direct": {"type": "boolean"}},
            "required": ["to"],
        },
    },
}
EXTRACT = {
    "name": "extract",
    "description": "",
    "parameters": {"properties": {"names": {"type": "array"}}},
}
SYSTEM = (
    "You are provided with function signatures within <tools> </tools> XML tags.\n"
    "<tools>\n{tools}\n</tools>\nReturn a json object within <tool_call> </tool_call> tags:\n"
    "<tool_call>\n{{'arguments': <args-dict>, 'name': <function-name>}}\n</tool_call>"
)
CALL = "<tool_call>\n{'arguments': {'to': 'Rome', 'direct': True}, 'name': 'find'}\n</tool_call>\n"
MADE = 'find({"to":"Rome","direct":true})'
FLIGHT = ("find", {"to": "Rome", "direct": True})
ASK = ("human", "Flights to Rome?")


def spoken(
    *turns: tuple[str, str], tools: Json = (FIND, EXTRACT), field: str | None = "tools"
) -> dict[str, Json]:
    """Return a row of Hermes, with tools in the field, or else in the system text."""
    offered = list(tools) if isinstance(tools, tuple) else tools
    system = ("system", SYSTEM.format(tools="[]" if field == "tools" else offered))
    said = [{"from": who, "value": text} for who, text in (system, *turns)]
    held = json.dumps(offered) if field == "tools" else field
    return {"id": "u-1", "conversations": said, "tools": held}


FORECAST = {
    "name": "weather.forecast",
    "description": "Forecast the weather.",
    "parameters": {
        "city": {"description": "The city.", "type": "str", "default": "Berlin"},
        "days": {"description": "How many days.", "type": "int"},
        "units": {"description": "Of which kind.", "type": "str, optional"},
        "hours": {"description": "", "type": "int", "required": False},
    },
}
PING = {"name": "ping", "description": "Ping.", "parameters": {}}
PINGED = {"name": "ping", "arguments": {}}


def asked(answers: Json, tools: Json = (FORECAST, PING, PING)) -> dict[str, Json]:
    """Return a row of xLAM, with tools and answers as JSON texts."""
    query = "What will the weather be?"
    return {"id": 7, "query": query, "answers": json.dumps(answers), "tools": json.dumps(tools)}


SEARCH = {
    "name": "Flight_search",
    "description": "Search a flight.",
    "parameters": {
        "type": "object",
        "properties": {"origin": STRING, "stops": {"type": "integer"}},
        "required": ["origin"],
    },
}
TRUTH = [{"Flight_search": {"origin": ["SAN"], "stops": [0, ""]}}]
FROM = {"role": "user", "content": "A flight from San Diego.", "content_type": "text"}
ORIGIN = {"origin": "SAN"}
OPENAI: list[Json] = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "x",
                "type": "function",
                "function": {"name": "Flight.search", "arguments": json.dumps(ORIGIN)},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "x", "content": "none"},
]
USED = {"toolUse": {"toolUseId": "x", "name": "Flight_search", "input": ORIGIN}}
RESULT = {"toolResult": {"toolUseId": "x", "content": [{"text": "none"}]}}
CONVERSE: list[Json] = [
    {"role": "assistant", "content": [USED]},
    {"role": "user", "content": [RESULT]},
]
AGAIN = {"role": "user", "content": [{"text": "Look again."}]}


def turn(*question: Json, truth: Json = TRUTH) -> dict[str, Json]:
    """Return a line of ConFETTI's file of turns, with its accepted calls."""
    row = {"id": "clean_0", "dialog_id": "0b28ca41_0", "question": list(question)}
    return {**row, "function": [SEARCH], "truth": truth}


SEARCHED = [
    "user: A flight from San Diego.",
    'assistant: Flight_search({"origin":"SAN"})',
    "tool: none",
    "user: Look again.",
]
SAN = [("Flight_search", {"origin": "SAN", "stops": 0})]
HI = "user: Hi."

READ: list[tuple[str, Publish, Json, list[tuple[list[str], list[Any]]]]] = [
    (
        "glaive: each turn with calls is an example, with all that was said before",
        published_glaive,
        chat(
            "U Hi.",
            "A Hello.",
            "U Note a USER: b\nand the time.",
            called("note", """'{"text": "a USER: b"}'"""),
            'F {"id": 1}',
            NOW,
        ),
        [
            (
                [HI, "assistant: Hello.", "user: Note a USER: b\nand the time."],
                [("note", {"text": "a USER: b"})],
            ),
            (
                [
                    *(HI, "assistant: Hello.", "user: Note a USER: b\nand the time."),
                    'assistant: note({"text":"a USER: b"})',
                    'tool: {"id": 1}',
                ],
                [("clock", {})],
            ),
        ],
    ),
    (
        "glaive: consecutive turns of the assistant are joined",
        published_glaive,
        chat("U Hi.", "A One moment.", f"A I look. {NOW[2:]}", NOW, "F 1", "F 2", NOW),
        [
            ([HI], [("clock", {})] * 2),
            (
                [HI, "assistant: One moment.\nI look. clock({}) clock({})", "tool: 1", "tool: 2"],
                [("clock", {})],
            ),
        ],
    ),
    (
        "glaive: no functions",
        published_glaive,
        chat("U Hi.", "A Hello.", system="SYSTEM: Help."),
        [],
    ),
    ("glaive: no calls", published_glaive, chat("U Hi.", "A Hello."), []),
    (
        "hermes: parallel calls, and their results in order",
        published_hermes,
        spoken(
            ASK,
            ("gpt", f"I look.\n{CALL}{CALL}"),
            (
                "tool",
                "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>",
            ),
            ("gpt", "Two of them."),
            ("human", "Again!"),
            ("gpt", CALL),
            ("tool", "none"),
        ),
        [
            (["user: Flights to Rome?"], [FLIGHT, FLIGHT]),
            (
                [
                    "user: Flights to Rome?",
                    f"assistant: I look. {MADE} {MADE}",
                    *("tool: 1", "tool: 2", "assistant: Two of them.", "user: Again!"),
                ],
                [FLIGHT],
            ),
        ],
    ),
    ("hermes: no calls", published_hermes, spoken(ASK, ("gpt", "No.")), []),
    *(
        (
            f"hermes: tools in the system text, {field}",
            published_hermes,
            spoken(ASK, ("gpt", CALL), tools=tools, field=field),
            [(["user: Flights to Rome?"], [FLIGHT])],
        )
        for field, tools in (
            (None, (FIND, EXTRACT)),
            ("null", json.dumps([FIND, EXTRACT])),  # 865 published rows
            ("[]", f"{json.dumps(FIND)}\n{json.dumps(EXTRACT)}"),  # 61 published rows
        )
    ),
    (
        "xlam: a question and its parallel calls",
        published_xlam,
        asked([{"name": "weather.forecast", "arguments": {"city": "Rome", "days": 2}}, PINGED]),
        [
            (
                ["user: What will the weather be?"],
                [("weather_forecast", {"city": "Rome", "days": 2}), ("ping", {})],
            )
        ],
    ),
    *(
        (
            f"confetti: earlier turns in the format of {name}",
            published_confetti,
            turn(FROM, *earlier, AGAIN),
            [(SEARCHED, SAN)],
        )
        for name, earlier in (("OpenAI", OPENAI), ("Converse", CONVERSE))
    ),
]


@pytest.mark.parametrize(
    ("publish", "row", "wanted"), [c[1:] for c in READ], ids=[c[0] for c in READ]
)
def test_published_row_becomes_examples(
    publish: Publish, row: Json, wanted: list[tuple[list[str], list[Any]]], tmp_path: Path
) -> None:
    """Each turn with calls is an example: the request has all that was said before it."""
    rows, faults = publish(tmp_path, [row])
    assert faults == []
    assert [(messages_of(each), calls_of(each)) for each in rows] == wanted
    assert len({each.example.id for each in rows}) == len(wanted)
    assert len({each.example.conversation for each in rows}) <= 1


def test_tools_of_xlam_become_json_schema(tmp_path: Path) -> None:
    """Parameters without `optional`, `required` or a default are required; equal tools are one."""
    [judged], _ = published_xlam(tmp_path, [asked([])])
    assert judged.example.id == "xlam_7"
    forecast, ping = (tool["function"] for tool in judged.example.request["tools"])
    assert forecast["name"] == "weather_forecast"
    assert forecast["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city.", "default": "Berlin"},
            "days": {"type": "integer", "description": "How many days."},
            "units": {"type": "string", "description": "Of which kind."},
            "hours": {"type": "integer", "description": ""},
        },
        "required": ["days"],
    }
    assert ping["parameters"] == {"type": "object", "properties": {}, "required": []}


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("""'{"text": "a"}'""", {"text": "a"}),
        ("""{"text": "a"}""", {"text": "a"}),
        ("""{"text": "a"}'""", {"text": "a"}),
        ('''"{\\"text\\": \\"a\\"}"''', {"text": "a"}),
        ("""'{"text": "it's"}'""", {"text": "it's"}),
        ("""'{"text": "it\\'s"}'""", {"text": "it's"}),
        ("""'{"text": "say \\"a\\""}'""", {"text": 'say "a"'}),
        ("""'{"text": "one\ntwo"}'""", {"text": "one\ntwo"}),
        ("""{'text': 'a', "tag": "b"}""", {"text": "a", "tag": "b"}),
        # The paper's cleaning: `None` is no value, and an optional parameter's empty text goes.
        ("""'{"text": "a", "tag": null, "options": null}'""", {"text": "a"}),
        ("""'{"text": "", "tag": ""}'""", {"text": ""}),
    ],
)
def test_arguments_of_glaive_in_any_quotes_are_read(
    written: str, arguments: Json, tmp_path: Path
) -> None:
    """Single, double, escaped and missing quotes, and apostrophes inside."""
    [judged], _ = published_glaive(tmp_path, [chat("U Note it.", called("note", written))])
    assert calls_of(judged) == [("note", arguments)]


def test_required_none_of_glaive_becomes_default_or_empty_value(tmp_path: Path) -> None:
    """A call with `None` as arguments has none; a required `None` is the default, or empty."""
    schema = function(
        "note",
        ("text", "options", "tags"),
        text={**STRING, "default": "plain"},
        options={"type": "object"},
        tags={"type": "array", "items": STRING},
    )
    written = called("note", """'{"text": null, "options": null, "tags": null}'""")
    rows = [chat("U Note it.", written, system=OFFERS + schema)]
    rows += [chat("U When?", called("clock", none)) for none in ("None", "''", "{}")]
    first, *others = published_glaive(tmp_path, rows)[0]
    assert calls_of(first) == [("note", {"text": "plain", "options": {}, "tags": []})]
    assert [calls_of(each) for each in others] == [[("clock", {})]] * 3


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>\n{"arguments": {"names": ["it\'s"]}, "name": "extract"}\n</tool_call>',
        "<tool_call>{'name': 'extract', 'arguments': {'names': ['it\\'s']}}</tool_call>",
        '<tool_call>\\n{"arguments": {"names": ["it\'s"]}, "name": "extract"}\\n</tool_call>',
        '<tool_call>\n{"arguments": {"names": ["it\'s"], "name": "extract"}}\n</tool_call>',
        '<tool_call>{"name": "extract", "arguments": "{\\"names\\": [\\"it\'s\\"]}"}</tool_call>',
        '<tool_call>\n{"arguments": {"names": ["it\'s"]}, "name": "extract"}\n',
    ],
)
def test_calls_of_hermes_in_every_published_form_are_read(call: str, tmp_path: Path) -> None:
    """Any quotes, escaped line breaks, a late closing brace, a missing closing tag."""
    [judged], _ = published_hermes(tmp_path, [spoken(ASK, ("gpt", call))])
    assert calls_of(judged) == [("extract", {"names": ["it's"]})]


TWICE = OFFERS + function("clock", (), a=STRING) + "\n" + function("clock", (), b=STRING)
GOOD: dict[Publish, Json] = {
    published_glaive: chat("U Hi.", NOW),
    published_hermes: spoken(ASK, ("gpt", CALL)),
    published_xlam: asked([PINGED]),
    published_confetti: {**turn(FROM), "id": "clean_1"},
}
SET_ASIDE: list[tuple[Publish, Json, str]] = [
    (published_glaive, {"system": ""}, "KeyError: 'chat'"),
    (published_glaive, chat("U Hi.", NOW, system=TWICE), "two different functions have the name"),
    (published_glaive, {**chat(), "chat": "Hi."}, "the chat does not start with a turn"),
    (published_glaive, chat(NOW), "before the first user message"),
    (published_glaive, chat("U Hi.", called("get-time", "'{}'")), "'get-time', which is not off"),
    (published_glaive, chat("U Hi.", "A <functioncall> AI to=note code"), "not a call with a name"),
    (published_glaive, chat("U Hi.", called("note", "'text is a'")), "neither JSON nor a Python"),
    (published_glaive, chat("U Hi.", called("note", "'[1]'")), "the arguments are not an object"),
    (published_glaive, chat("U Hi.", called("note", """'{"text": null}'""")), "'text' is None"),
    (published_glaive, chat("U Hi.", called("note", """'{"a": 1}'""")), "which are not parameters"),
    (published_glaive, chat("U Hi.", "F 1"), "a tool result has no matching call"),
    (published_glaive, chat("U Hi.", NOW, "U And?"), "1 calls have no result"),
    (published_hermes, spoken(ASK, tools="[{'name': 'f'", field="[]"), "JSONDecodeError"),
    (
        published_hermes,
        spoken(ASK, ("gpt", "<tool_call>{'a': {}}</tool_call>")),
        "KeyError: 'name'",
    ),
    (published_hermes, spoken(ASK, ("gpt", CALL.replace("find", "book"))), "which is not offered"),
    (published_hermes, spoken(ASK, ("function", "1")), "unknown speaker 'function'"),
    (published_hermes, spoken(ASK, ("gpt", CALL), tools=[], field=None), "there are no tools"),
    (published_xlam, asked([]) | {"query": None}, "the query is not a string, or is blank"),
    (published_xlam, asked([{"name": "ping"}]), "KeyError: 'arguments'"),
    (published_xlam, asked([], [{**PING, "name": "p" * 65}]), "must have 1 to 64 characters"),
    (
        published_xlam,
        asked([], [{**PING, "parameters": {"a": {"type": "strng"}}}]),
        "is not a known type",
    ),
    (published_confetti, turn({**FROM, "content_type": "x"}), "unknown content type 'x'"),
    (published_confetti, turn({**FROM, "role": "api"}), "unknown role 'api'"),
    (
        published_confetti,
        turn({**AGAIN, "content": [{"image": {}}]}),
        "unknown block with the keys",
    ),
    (published_confetti, turn(FROM, truth=[{"search": {}}]), "calls 'search'"),
    (published_confetti, turn(FROM, truth=None), "invalid accepted answer"),
    (
        published_confetti,
        {key: value for key, value in turn(FROM).items() if key != "truth"},
        "there is no accepted answer to 'clean_0'",
    ),
]


@pytest.mark.parametrize(("publish", "bad", "reason"), SET_ASIDE)
def test_row_in_other_form_is_set_aside(
    publish: Publish, bad: Json, reason: str, tmp_path: Path
) -> None:
    """It gives one error with its place and no example; the next row is read."""
    rows, [fault] = publish(tmp_path, [bad, GOOD[publish]])
    assert len(rows) == 1
    assert fault.startswith("1: ")
    assert reason in fault
