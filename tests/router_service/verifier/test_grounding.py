"""Where the values of a call come from."""

from __future__ import annotations

import pytest

from router_service.apis.conversation import Json
from router_service.checker.parameter_schema import Schema
from router_service.checker.toolbox import Call
from router_service.verifier.answer_features import read_answer, unconfirmed_arguments
from router_service.verifier.grounding import (
    Said,
    Source,
    is_filler,
    is_named_after,
    is_placeholder,
    source_of,
)
from tests.candidates import ask

SAID = Said(
    "Book a table at Joe's Diner in San Francisco on March 5th, 2026 at 7 pm for twelve people. "
    "Budget: $1,200 or 3 thousand euros, 15% tip, 2 km from NYC."
)
PARAMETER = Schema(
    {
        "type": "string",
        "description": "How to sort, for example by rating. Default is relevance.",
        "enum": ["relevance", "rating"],
    }
)
ANYTHING = Schema({})


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("Joe's Diner", Source.SAID),
        ("san_francisco", Source.SAID),
        ("SF", Source.SAID),
        ("2026-03-05", Source.SAID),
        ("New York City", Source.SAID),
        ("2026-04-17", Source.NOWHERE),
        ("/etc/passwd", Source.NOWHERE),
        (12, Source.SAID),
        (1200, Source.SAID),
        (3000.0, Source.SAID),
        (0.15, Source.CALCULATED),
        (2000, Source.CALCULATED),
        (1215, Source.CALCULATED),
        (1201.5, Source.NOWHERE),
        (True, None),
        (None, None),
        ("", None),
    ],
)
def test_values_are_found_as_they_are_usually_written(value: Json, source: Source | None) -> None:
    """Dates, units, initials and sums count as said or calculated; other values do not."""
    assert source_of(SAID, "value", value, ANYTHING) is source


def test_schema_explains_its_own_values() -> None:
    """An enum's member and a default come from the schema, but a parameter's name does not."""
    assert source_of(SAID, "sort", "rating", PARAMETER) is Source.SCHEMA
    assert source_of(SAID, "sort", "relevance", PARAMETER) is Source.SCHEMA
    described = Schema({"type": "string", "description": "The path of the file."})
    assert source_of(SAID, "path", "path", described) is Source.NOWHERE
    example = Schema({"type": "string", "description": "A date, such as 2024-01-31."})
    assert source_of(SAID, "date", "2024-01-31", example) is Source.NOWHERE


def test_names_placeholders_and_fillers_are_recognized() -> None:
    """What stands for a value that is missing is recognized in its usual forms."""
    assert is_named_after("path", "path")
    assert is_named_after("apiKey", "your_api_key")
    assert not is_named_after("path", "/home/ann/report.txt")
    for text in ("YOUR_API_KEY", "<city>", "https://example.com", "{{user_id}}"):
        assert is_placeholder(text)
    assert not is_placeholder("Oslo")
    assert is_filler("dontcare")
    assert is_filler(0)
    assert not is_filler(value=False)


def test_text_in_any_script_is_looked_up() -> None:
    """A value in another script is invented unless it was said."""
    said = Said("Какая погода в Москве?")
    assert source_of(said, "city", "Москве", ANYTHING) is Source.SAID
    assert source_of(said, "city", "Берлин", ANYTHING) is Source.NOWHERE


def test_second_answer_confirms_an_argument() -> None:
    """An invented argument of a given tool is named, unless another answer has the same value."""
    question = ask("Forecast, please")
    lima = read_answer(question, [Call("forecast", {"city": "Lima"})])
    oslo = read_answer(question, [Call("forecast", {"city": "Oslo"})])
    risky = {"forecast"}
    named = {0: ("forecast.city",), 1: ("forecast.city",)}
    assert unconfirmed_arguments(question, {0: lima, 1: oslo}, risky) == named
    assert unconfirmed_arguments(question, {0: lima, 1: lima}, risky) == {}
    assert unconfirmed_arguments(question, {0: lima}, {"other"}) == {}
    gap = read_answer(question, [Call("forecast", {"city": "city"})])
    assert unconfirmed_arguments(question, {0: gap, 1: gap}, risky) == named


def test_written_texts_are_not_invented_arguments() -> None:
    """The body of a message is written by the model, so nobody has to say it before."""
    parameters = {"type": "object", "properties": {"to": {}, "body": {}}}
    question = ask("Tell ann@example.org that I am late", parameters)
    call = Call("forecast", {"to": "ann@example.org", "body": "Dear Ann, there was a traffic jam."})
    assert unconfirmed_arguments(question, {0: read_answer(question, [call])}, {"forecast"}) == {}
    call = Call("forecast", {"to": "bob@corp.com", "body": "Dear Bob"})
    found = unconfirmed_arguments(question, {0: read_answer(question, [call])}, {"forecast"})
    assert found == {0: ("forecast.to",)}


def test_named_arguments_are_safe_in_headers() -> None:
    """What a model wrote as an argument's name is not shown, and a schema's name is escaped."""
    hostile = "a\r\nset-cookie: x"
    question = ask("Forecast, please", {"type": "object", "properties": {hostile: {}}})

    def named(key: str) -> dict[int, tuple[str, ...]]:
        answer = read_answer(question, [Call("forecast", {key: "Lima"})])
        return unconfirmed_arguments(question, {0: answer}, {"forecast"})

    assert named("b\r\nset-cookie: x") == {0: ("forecast.*",)}
    assert named(hostile) == {0: ("forecast.a\\r\\nset-cookie: x",)}
