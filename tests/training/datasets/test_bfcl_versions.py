"""The leaderboard's later versions: layouts, messages, accepted answers, schemas, exclusions."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.comparison import OneOf
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.bfcl.format import (
    ANY_CALL,
    NO_CALL,
    read_truth,
)
from switchcraft_training.errors import DataError
from switchcraft_training.records import Expected, Judged
from tests.training.runs import write_lines

pytestmark = pytest.mark.slow

INSTALLED = Path("bfcl-eval")
BOOK = {
    "name": "Hotel.book",
    "description": "Book a room.",
    "parameters": {
        "type": "dict",
        "required": ["guest"],
        "properties": {
            "guest": {"type": "dict", "properties": {"name": {"type": "string"}}},
            "nights": {"type": "integer", "default": 1},
            "extras": {"type": "array", "items": {"type": "dict", "properties": {}}},
        },
    },
}
ASKED = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Book."}]]
TRUTH = {
    "Hotel.book": {
        "guest": [{"name": ["Ann", "Anne"], "title": ["Dr", ""]}],
        "nights": [2, ""],
        "extras": [[{"kind": ["crib"]}]],
    }
}


def question(name: str, given: Json, truth: Json, folder: Path) -> None:
    """Write a file with one question, and its accepted answer if given."""
    category = name.split("_", 2)[2].removesuffix(".gz").removesuffix(".json")
    write_lines(folder / name, {"id": f"{category}_0", "question": given, "function": [BOOK]})
    if truth is not None:
        row = {"id": f"{category}_0", "ground_truth": truth}
        write_lines(folder / "possible_answer" / name, row)


def only(folder: Path) -> Judged:
    """Read the one example in a directory."""
    (judged,) = bfcl.read_source(folder)
    return judged


@pytest.mark.parametrize(
    "name", ["BFCL_v3_multiple.json.gz", "BFCL_v4_multiple.json", "data/BFCL_v4_multiple.json"]
)
def test_nested_accepted_values_are_read(tmp_path: Path, name: str) -> None:
    """Keys of objects have their own accepted values, also in lists; `""` means optional."""
    folder, file = (tmp_path / name).parent, Path(name).name
    question(file, ASKED, [TRUTH, TRUTH], folder)
    example, expected = only(tmp_path)
    assert (example.id, example.dataset) == ("multiple_0", f"bfcl-v{file[6]}")
    assert example.request["messages"] == ASKED[0]
    first, second = expected.calls
    assert first == second
    assert first.name == "Hotel_book"
    assert first.optional == {"nights"}
    assert first.arguments["nights"] == (2, "")
    guest = {"name": OneOf(("Ann", "Anne")), "title": OneOf(("Dr", ""), is_optional=True)}
    assert first.arguments["guest"] == (guest,)
    assert first.arguments["extras"] == ([{"kind": OneOf(("crib",))}],)


@pytest.mark.parametrize("category", sorted(NO_CALL | ANY_CALL))
def test_relevance_is_judged_without_accepted_answers(tmp_path: Path, category: str) -> None:
    """Irrelevance expects no call, and live relevance expects any call."""
    question(f"BFCL_v4_{category}.json", ASKED, None, tmp_path)
    assert only(tmp_path).expected == Expected((), any_call=category in ANY_CALL)


@pytest.mark.parametrize(
    ("given", "truth", "problem"),
    [
        (ASKED, None, "invalid accepted answer"),
        (ASKED, [{"Hotel.cancel": {}}], "which the question does not offer"),
        (
            ASKED,
            [{"Hotel.book": {"room": [1]}}],
            r"the arguments \['room'\], which are not parameters",
        ),
        (ASKED, ["Hotel.cancel(guest=1)"], "which is not offered"),
        ([ASKED[0], ASKED[0]], [TRUTH], "TypeError"),
        ([], [TRUTH], "neither a text nor the messages"),
    ],
)
def test_invalid_row_is_refused_or_passed_to_handler(
    tmp_path: Path, given: Json, truth: Json, problem: str
) -> None:
    """A row that cannot be judged stops the reading, or goes to the handler with its line."""
    question("BFCL_v3_simple.json", given, truth, tmp_path)
    with pytest.raises(DataError, match=rf"BFCL_v3_simple\.json:1: .*{problem}"):
        only(tmp_path)
    faults: list[DataError] = []
    assert list(bfcl.read_source(tmp_path, lambda fault, _: faults.append(fault))) == []
    assert [fault.line for fault in faults] == [1]


@pytest.fixture(scope="module")
def installed() -> list[Judged]:
    """Read all of the installed package's data."""
    return list(bfcl.read_source(INSTALLED))


def test_every_example_is_readable_and_answerable(installed: list[Judged]) -> None:
    """The router reads every request, and every expected call is offered with its parameters.

    Four questions of live irrelevance offer no function.
    """
    bare = []
    for judged in installed:
        conversation = parse_conversation(judged.example.request)
        assert conversation.unread == ()
        assert_offered(judged)
        if not conversation.tools:
            bare.append(judged.example.id)
    assert bare == [f"live_irrelevance_12{i}-9-{i}" for i in range(4)]


def assert_offered(judged: Judged) -> None:
    """Assert that the offered tools have every expected function and parameter."""
    offered = {
        tool["function"]["name"]: tool["function"]["parameters"]["properties"]
        for tool in judged.example.request["tools"]
    }
    for call in judged.expected.calls:
        assert call.arguments.keys() <= offered[call.name].keys(), judged.example.id


@pytest.mark.parametrize(
    ("function", "takes", "given", "meant"),
    [
        ("get_aws_pricing", "operating_system", "operating_system0", "operating_system"),
        ("transfer_to_human_agent", "statement", "question", "statement"),
        ("bank.calculate_balance", "account", "type", None),
    ],
)
def test_known_wrong_parameters_are_repaired(
    function: str, takes: str, given: str, meant: str | None
) -> None:
    """A misspelled parameter is renamed, and a parameter without a similar one is dropped."""
    schema = {"type": "dict", "properties": {takes: {"type": "string"}}}
    functions = [{"name": function, "parameters": schema}]
    expected = read_truth([{function: {given: ["x", ""]}}], functions, version=3)
    arguments = {} if meant is None else {meant: ("x", "")}
    assert expected.calls[0].arguments == arguments
    assert expected.calls[0].optional == arguments.keys()
