"""ConFETTI's files: one turn a line, and a file of accepted calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router_service.apis.conversation import Json
from switchcraft_training.datasets import confetti
from tests.training.datasets.published import calls_of, messages_of, read

FUNCTIONS = [
    {
        "name": "BookFlight_search_flights",
        "description": "Search a flight.",
        "parameters": {
            "type": "object",
            "properties": {
                "departure_airport": {"type": "string", "title": "departure_airport"},
                "stops": {"type": "integer", "title": "stops"},
            },
            "required": ["departure_airport"],
        },
    }
]
TRUTH = [{"BookFlight_search_flights": {"departure_airport": ["SAN"], "stops": [0, ""]}}]
ASK = {"role": "user", "content": "A flight from San Diego.", "content_type": "text"}
DIALOGUE = "0b28ca41-0000-4000-8000-b2b0f4097e5d"


def turn(number: int, *question: Json, dialogue: str = f"{DIALOGUE}_0") -> dict[str, Json]:
    """Return a line of the file of turns."""
    return {
        "id": f"conversationsclean_{number}",
        "dialog_id": dialogue,
        "question": list(question),
        "function": FUNCTIONS,
    }


def write(root: Path, *turns: Json, truth: Json = TRUTH) -> Path:
    """Write the files of the dataset's repository, with the same accepted calls for every turn."""
    data = root / "data"
    (data / "possible_answer").mkdir(parents=True)
    truths = [{"id": line["id"], "ground_truth": truth} for line in turns]
    (data / confetti.FILE).write_text("\n".join(map(json.dumps, turns)))
    (data / "possible_answer" / confetti.FILE).write_text("\n".join(map(json.dumps, truths)))
    return root


def test_each_line_is_a_turn_with_accepted_calls(tmp_path: Path) -> None:
    """Repository, directory and file give the same rows; a dialogue is one conversation."""
    root = write(tmp_path, turn(0, ASK), turn(1, ASK, dialogue=f"{DIALOGUE}_1"))
    rows, faults = read(confetti.read_source, root)
    assert faults == []
    first, second = rows
    assert first.example.id == "conversationsclean_0"
    assert (first.example.dataset, first.example.category) == ("confetti", "conversations")
    assert first.example.conversation == second.example.conversation == DIALOGUE
    assert messages_of(first) == ["user: A flight from San Diego."]
    assert first.example.request["tools"] == [{"type": "function", "function": FUNCTIONS[0]}]
    [call] = first.expected.calls
    assert (call.name, call.optional) == ("BookFlight_search_flights", frozenset({"stops"}))
    assert calls_of(first) == [
        ("BookFlight_search_flights", {"departure_airport": "SAN", "stops": 0})
    ]
    for path in (root / "data", root / "data" / confetti.FILE):
        assert read(confetti.read_source, path) == (rows, [])


SPOKEN = [
    {"role": "assistant", "content": "From where?", "content_type": "text"},
    {"role": "user", "content": "San Diego.", "content_type": "text"},
]
ARGUMENTS = {"departure_airport": "SAN"}
OPENAI = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "x",
                "type": "function",
                "function": {
                    "name": "BookFlight.search_flights",
                    "arguments": json.dumps(ARGUMENTS),
                },
            }
        ],
    },
    {"role": "tool", "tool_call_id": "x", "content": "none"},
]
CONVERSE = [
    {
        "role": "assistant",
        "content": [
            {"toolUse": {"toolUseId": "x", "name": "BookFlight_search_flights", "input": ARGUMENTS}}
        ],
    },
    {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "x", "content": [{"text": "none"}]}},
        ],
    },
]


@pytest.mark.parametrize("called", [OPENAI, CONVERSE])
def test_earlier_turns_are_read_in_both_formats(called: list[Json], tmp_path: Path) -> None:
    """Texts, calls and results in OpenAI's or Converse's format become OpenAI messages."""
    last = {"role": "user", "content": [{"text": "Look again."}]}
    root = write(tmp_path, turn(0, ASK, *SPOKEN, *called, last))
    [judged], faults = read(confetti.read_source, root)
    assert faults == []
    assert messages_of(judged) == [
        "user: A flight from San Diego.",
        "assistant: From where?",
        "user: San Diego.",
        'assistant: BookFlight_search_flights({"departure_airport":"SAN"})',
        "tool: none",
        "user: Look again.",
    ]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ([{**ASK, "content_type": "tool_use"}], "unknown content type 'tool_use'"),
        ([{**ASK, "role": "api"}], "unknown role 'api'"),
        ([ASK, OPENAI[1]], "a tool result has no matching call"),
        ([ASK, OPENAI[0], ASK], "1 calls have no result"),
        ([{"role": "user", "content": [{"image": {}}]}], "unknown block with the keys ['image']"),
    ],
)
def test_unknown_layout_is_an_error(question: list[Json], reason: str, tmp_path: Path) -> None:
    """The error has the line's number, and the other turns are read."""
    root = write(tmp_path, turn(0, ASK), turn(1, *question), turn(2, ASK))
    rows, [fault] = read(confetti.read_source, root)
    assert [judged.example.id[-1] for judged in rows] == ["0", "2"]
    assert fault.startswith("2: ValueError: ")
    assert reason in fault


@pytest.mark.parametrize(
    ("truth", "reason"),
    [
        ([{"search": {}}], "calls 'search'"),
        (
            [{"BookFlight_search_flights": {"to": ["X"]}}],
            "the arguments ['to'], which are not parameters",
        ),
        (None, "invalid accepted answer"),
    ],
)
def test_invalid_accepted_answer_is_an_error(truth: Json, reason: str, tmp_path: Path) -> None:
    """A turn cannot be judged if its accepted answer calls something that is not offered."""
    rows, [fault] = read(confetti.read_source, write(tmp_path, turn(0, ASK), truth=truth))
    assert rows == []
    assert reason in fault
