"""The leaderboard's files: conversion, accepted answers, and agreement with its verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import Call
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.bfcl.format import convert_functions
from switchcraft_training.records import Example, Expected
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
