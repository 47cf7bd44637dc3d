"""The leaderboard's files: conversion, accepted and recorded answers, and its verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import Call
from switchcraft_training.checking import check_answer
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.bfcl.format import (
    ANY_CALL,
    NO_CALL,
    convert_functions,
)
from switchcraft_training.datasets.rows import read_lines
from switchcraft_training.errors import DataError
from switchcraft_training.records import Example, Expected, Judged
from tests.training.runs import write_lines

PREFIX = "gorilla_openfunctions_v1_test_"
FUNCTION = {
    "name": "Sky.scan",
    "description": "Scan the sky.",
    "parameters": {
        "type": "dict",
        "required": ["at"],
        "properties": {
            "at": {"type": "tuple", "items": {"type": "float"}, "description": "Where."},
            "how": {
                "type": "dict",
                "properties": {"deep": {"type": "boolean"}, "mode": {"type": "any"}},
            },
            "n": {"type": "integer", "default": 3, "optional": True},
        },
    },
}


def test_question_becomes_openai_request() -> None:
    """The benchmark's types become JSON Schema, and dots in names become underscores."""
    function = convert_functions([FUNCTION], "simple", version=1)[0]["function"]
    assert function["name"] == "Sky_scan"
    assert function["parameters"] == {
        "type": "object",
        "required": ["at"],
        "properties": {
            "at": {"type": "array", "items": {"type": "number"}, "description": "Where."},
            "how": {
                "type": "object",
                "properties": {"deep": {"type": "boolean"}, "mode": {"type": "string"}},
            },
            "n": {"type": "integer", "default": 3},
        },
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write a benchmark of four categories with one question each."""
    name = f"{PREFIX}{{}}.json.gz".format
    data = tmp_path / "data"
    question = {"question": "Scan.", "function": [FUNCTION]}
    write_lines(data / name("parallel_function"), {"id": "parallel_function_0", **question})
    truth = {
        "Sky.scan_1": {"at": [[1.0, 2.0]], "how": [{"deep": [True], "mode": ["a", ""]}, ""]},
        "Sky.scan_2": {"at": [[3.0, 4.0]], "n": [5]},
    }
    row = {"id": "parallel_function_0", "ground_truth": truth}
    write_lines(data / "possible_answer" / name("parallel_function"), row)
    source = [
        "Sky.scan(at=(1, -2.5), n=1 / 4)",
        "math_gcd(a=4, b=6)",
        "Sky.scan((1, 2), n=3)",
    ]
    write_lines(
        data / name("executable_simple"),
        {"id": "executable_simple_0", **question, "ground_truth": source},
    )
    write_lines(data / name("relevance"), {"id": "relevance_0", **question})
    write_lines(data / name("rest"), {"id": "rest_0", **question})
    return tmp_path


def examples(root: Path) -> dict[str, tuple[Example, Expected]]:
    """Read the examples by category."""
    return {pair[0].category: pair for pair in list(bfcl.open_recording(root).judged())}


def test_accepted_answers_are_read(root: Path) -> None:
    """Numbered names, nested values, omissions and Python code all become expected calls."""
    read = examples(root)
    assert set(read) == {"parallel_function", "executable_simple", "relevance"}
    first, second = read["parallel_function"][1].calls
    assert first.name == second.name == "Sky_scan"
    assert first.optional == {"how"}
    nested = first.arguments["how"][0]
    assert nested == {"deep": OneOf((True,)), "mode": OneOf(("a", ""), is_optional=True)}
    assert second.arguments == {"at": ([3.0, 4.0],), "n": (5,)}
    scan, gcd, positional = read["executable_simple"][1].calls
    assert scan.arguments == {"at": ([1, -2.5],), "n": (0.25,)}
    assert gcd.arguments == {"a": (4, 6), "b": (4, 6)}
    assert positional.arguments == {"at": ([1, 2],), "n": (3,)}
    assert read["relevance"][1].calls == ()


def test_answers_are_read_with_their_counts(root: Path) -> None:
    """Native runs have lists, others text; zero output tokens mean a provider failure."""
    for arm, result in (("m-FC", [{"Sky_scan": '{"n": 1}'}]), ("m", "Sky.scan(n=1)")):
        rows = [
            {
                "id": "relevance_0",
                "result": result,
                "input_token_count": 7,
                "output_token_count": 3,
            },
            {
                "id": "relevance_1",
                "result": "Internal error",
                "input_token_count": 0,
                "output_token_count": 0,
            },
        ]
        write_lines(root / "result" / arm / f"{PREFIX}relevance_result.json.gz", *rows)
        answer, failure = bfcl.open_recording(root).answers(arm)
        assert answer.calls is not None
        assert isinstance(answer.calls[0], Call)
        assert (answer.input_tokens, answer.output_tokens) == (7, 3)
        assert (failure.calls, failure.problem, failure.input_tokens) == (None, "no_answer", None)
    assert bfcl.open_recording(root).arms() == ["m", "m-FC"]


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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("category", sorted(NO_CALL | ANY_CALL))
def test_relevance_is_judged_without_accepted_answers(tmp_path: Path, category: str) -> None:
    """Irrelevance expects no call, and live relevance expects any call."""
    question(f"BFCL_v4_{category}.json", ASKED, None, tmp_path)
    assert only(tmp_path).expected == Expected((), any_call=category in ANY_CALL)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write two runs of one model; the second run's answer is wrong."""
    for run, calls in (("run-1", [{"area": '{"base": 10}'}]), ("run-2", [])):
        folder = tmp_path / run
        write_lines(
            folder / "result/m/non_live/BFCL_v4_simple_python_result.json.gz",
            {"id": "simple_python_0", "result": calls, "input_token_count": 9},
        )
    write_lines(
        tmp_path / "run-1/result/m/multi_turn/BFCL_v4_multi_turn_base_result.json.gz",
        {"id": "multi_turn_base_0", "result": [[["words"]]]},
    )
    return tmp_path


@pytest.mark.slow
def test_repeated_runs_are_attempts(runs: Path) -> None:
    """Each run's answers have its number; only questions with answers are judged."""
    recording = bfcl.open_recording(runs)
    assert recording.arms() == ["m"]
    first, second = recording.answers("m")
    assert (first.attempt, second.attempt) == (0, 1)
    assert (first.calls, second.calls) == ((Call("area", {"base": 10}),), ())
    assert [judged.example.id for judged in recording.judged()] == ["simple_python_0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "counts", "warnings"),
    [
        ("gpt-5.2-2025-12-11-FC", (240, 30), 0),
        ("claude-haiku-4-5-20251001-FC", (120, 30), 0),
        ("openai_gpt-oss-20b", (120, 30), 0),
        ("gemini-2.5-flash-lite-FC", (120, 30), 0),
        ("gemini-3-pro-preview-FC", (None, None), 1),
    ],
)
def test_token_counts_are_those_that_providers_charge(
    tmp_path: Path,
    arm: str,
    counts: tuple[int | None, int | None],
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """OpenAI's prompt counts are those of one call; Google's output counts lack the reasoning."""
    calls = [{"area": '{"base": 10}'}, {"area": {"base": 20}}]
    row = {"id": "parallel_0", "result": calls, "input_token_count": 120, "output_token_count": 30}
    write_lines(tmp_path / f"run-1/result/{arm}/non_live/BFCL_v4_parallel_result.json.gz", row)
    (answer,) = bfcl.open_recording(tmp_path).answers(arm)
    assert (answer.input_tokens, answer.output_tokens) == counts
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("latency", "seconds"),
    [(1.5, 1.5), (2, 2.0), ([0.5, 1, 0.25], 1.75), ("N/A", None), (0, None), ([], None)],
)
def test_latency_is_read(tmp_path: Path, latency: object, seconds: float | None) -> None:
    """The latency is the sum of all steps; a latency that was not measured is unknown, not 0."""
    row = {"id": "simple_0", "result": "[f()]", "latency": latency}
    write_lines(tmp_path / "result" / "m" / "BFCL_v3_simple_result.json.gz", row)
    (answer,) = bfcl.open_recording(tmp_path).answers("m")
    assert answer.seconds == seconds


@pytest.mark.slow
@pytest.mark.recorded
def test_verdicts_agree_with_the_leaderboard_s(recorded_data: Path) -> None:
    """At least 97% of our verdicts are those of the leaderboard's checker; on v3, 98.3% are."""
    root = recorded_data / "bfcl-v3-8b"
    recording = bfcl.open_recording(root)
    judged = {j.example.id: j for j in recording.judged() if not j.expected.any_call}
    arm = recording.arms()[0]
    verdicts = {
        row["id"]: row["valid"]
        for path in (root / "verdict" / arm).glob("*.json.gz")
        for row in read_lines(path, dict)
    }
    same = [
        check_answer(*judged[answer.example_id], answer).correct == verdicts[answer.example_id]
        for answer in recording.answers(arm)
        if answer.example_id in judged
    ]
    assert sum(same) / len(same) >= 0.97
