"""Texts: spellings, paraphrases, literals and defaults, and which of them are equal."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.conversation import Json
from router_service.checker.canonical import canonical, same_text
from router_service.checker.defaults import documented_defaults
from router_service.checker.literals import parse_literal
from router_service.checker.parameter_schema import Schema
from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.checking import (
    DEFAULT_ENCODER_PACKAGE,
    ParaphraseDetector,
    check,
    encoder_embeddings,
)
from switchcraft_training.records import Expected

SAME = [
    ("Office conference room", "office  conference room"),
    ("San Francisco, CA", "San Francisco CA"),
    ("15th June", "15 June"),
    ("1990-05-15T00:00:00", "1990-05-15T00:00:00Z"),
    ("1990-05-15T02:00:00+02:00", "1990-05-15T00:00:00Z"),
    ("2024-01-02", "2024/1/2"),
    ("1,500", "1500"),
    ("5.0", "5"),
    ("all-inclusive", "all inclusive"),
    ("'R vs Adams'", "R vs Adams"),
    ("3*x**2 + 2*x - 1", "3x^2+2x-1"),
    ("lambda t: 3*t**2", "lambda x: 3x**2"),
    ("Straße", "STRASSE"),
    (".5", "0.5"),
    ("7:30pm", "7:30 PM"),
    ("don't stop", "dont stop"),
    ("**It is not in the text.**", "It is not in the text."),
    ("L.A Lakers", "L.A. Lakers"),
    ("555-123-4567", "(555) 123-4567"),
    ("x²", "x^2"),
]

DIFFERENT = [
    ("Buy", "Sell"),
    ("-5", "5"),
    ("1.5", "15"),
    ("2024-01-02", "2024-02-01"),
    ("not urgent", "urgent"),
    ("ada@example.com", "ada.example.com"),
    ("a@b.org", "b@a.org"),
    ("user_id", "userid"),
    ("2*(3+4)", "2*3+4"),
    ("x - 1", "x + 1"),
    ("10 USD", "10 EUR"),
    ("C", "C++"),
    ("1990-05-15T00:00:00Z", "1990-05-15T00:00:00+02:00"),
    ("", "x"),
    ("!", "?"),
    ("\u22125", "5"),
    (".5", "5"),
    ("notes.txt", "notes txt"),
    ("/srv/a_b", "/srv/a-b"),
    ("10:30", "10 30"),
    ("!done", "done"),
    ("a != b", "a = b"),
    ("2**3**4", "234"),
    ("12/05/2022", "05/12/2022"),
    ("1990-1995", "19901995"),
    ("x²", "x2"),
    ("stop()", "stop"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_spellings_of_one_value_have_one_canonical_form(a: str, b: str) -> None:
    """Spellings that differ only in case, punctuation or notation are equal."""
    assert canonical(a) == canonical(b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_values_have_different_canonical_forms(a: str, b: str) -> None:
    """Different values stay different, even if their spellings are similar."""
    assert canonical(a) != canonical(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [("x_y", "x-y"), ("__init__", "init"), ("user_id", "user-id"), ('del "a b', 'del "a b"')],
)
def test_underscores_in_names_and_open_quotes_make_texts_different(a: str, b: str) -> None:
    """Texts with equal canonical forms differ by underscores in names and by open quotes."""
    assert canonical(a) == canonical(b)
    assert not same_text(a, b)
    assert same_text("New_York", "New York")


@pytest.fixture(scope="module")
def detector() -> ParaphraseDetector:
    """Return a detector with the packaged MiniLM."""
    return ParaphraseDetector(encoder_embeddings(f"package:{DEFAULT_ENCODER_PACKAGE}/model"))


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("purchase groceries", "buy groceries"),
        ("meeting with the team", "team meeting"),
        ("the Louvre Museum", "Louvre Museum"),
        ("recipes that are vegetarian", "vegetarian recipes"),
        ("World War 2 history", "history of World War 2"),
        ("Please call me when you arrive", "Call me when you arrive"),
    ],
)
def test_paraphrase_with_synonyms_is_accepted(
    detector: ParaphraseDetector, given: str, want: str
) -> None:
    """Synonyms, other fillers, and another order with other fillers make a paraphrase."""
    assert detector(given, want)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("flight from Paris", "flight to Paris"),
        ("the door is not open", "the door is open"),
        ("small pepperoni pizza", "large pepperoni pizza"),
        ("lunch with Jane Smith", "lunch with John Smith"),
        ("room 12 on floor 3", "room 12 on floor 4"),
        ("convert word to pdf", "convert pdf to word"),
        ("an illegal act", "a legal act"),
        ("house_prices of today", "house price of today"),
        ("mail to ann@x.org", "mail to bob@x.org"),
        ("groceries", "food"),
        ("Golden Gate Bridge, San Francisco", "Golden Gate Bridge"),
    ],
)
def test_text_with_other_meaning_is_no_paraphrase(
    detector: ParaphraseDetector, given: str, want: str
) -> None:
    """Numbers, negations, directions, names, codes and opposites must be equal.

    Texts of one word have no paraphrase.
    """
    assert not detector(given, want)
    assert not detector(want, given)


def is_accepted(
    schema: Json, want: str, given: str, paraphrases: ParaphraseDetector | None
) -> bool:
    """Check one argument."""
    parameters = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    expected = Expected((ExpectedCall("f", {"a": (want,)}),))
    return check([tool], expected, [Call("f", {"a": given})], paraphrases).correct


def test_paraphrases_need_an_encoder_and_never_apply_to_enums(detector: ParaphraseDetector) -> None:
    """Without an encoder, a paraphrase is a different text; in an enum, it always is."""
    text, enum = {"type": "string"}, {"type": "string", "enum": ["buy groceries", "other"]}
    assert is_accepted(text, "buy groceries", "purchase groceries", detector)
    assert not is_accepted(text, "buy groceries", "purchase groceries", None)
    assert not is_accepted(enum, "buy groceries", "purchase groceries", detector)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('new ArrayList<>(Arrays.asList("a", 2L))', ["a", 2]),
        ("new int[] {1, 2}", [1, 2]),
        ('new HashMap<String, Object>() {{ put("a", 1); put("b", true); }}', {"a": 1, "b": True}),
        ('Map.of("a", 0.5f)', {"a": 0.5}),
        ("{limit=50, schema=public}", {"limit": 50, "schema": "public"}),
        ("{a: [1, {b: null}]}", {"a": [1, {"b": None}]}),
        (r"[{\"a\": 1}]", [{"a": 1}]),
        ("5n", 5),
        ("1_000", 1000),
        (r"'it\'s'", "it's"),
        ("new Point(1, 2)", "Point(1, 2)"),
        ("new P(new int[]{1}, {k: 'v'})", "P([1], {k: v})"),
        ("Integer.valueOf(5)", 5),
        ("2024-01-02", "2024-01-02"),
        ("[1, 2", "[1, 2"),
        ("new HashMap<>() {{ get(1) }}", "new HashMap<>() {{ get(1) }}"),
        ("", ""),
    ],
)
def test_literal_is_parsed_to_its_value(text: str, value: Json) -> None:
    """Collections, maps, boxes and numbers become values; anything else stays text."""
    assert parse_literal(text) == value


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ({"type": "integer", "default": 0, "description": "Default is 5"}, 0),
        ({"type": "integer", "description": "Page. Default is `0`"}, 0),
        ({"type": "integer", "description": "Page number (default: 10)."}, 10),
        ({"type": "number", "description": "Gravity, defaults to -9.81."}, -9.81),
        ({"type": "boolean", "description": "Full name. Default is false."}, False),
        ({"type": "boolean", "description": "Default value is True"}, True),
        ({"type": "string", "description": "The unit of measure (defaults to 'units')"}, "units"),
        ({"type": "string", "description": "Currency, default USD."}, "USD"),
        ({"type": "string", "description": 'Default to "New York"'}, "New York"),
        ({"type": "array", "description": "Default is [1, 2]"}, [1, 2]),
        ({"type": "object", "description": "Options. Default is {}"}, {}),
        ({"type": "integer", "description": "Limit; default none"}, None),
    ],
)
def test_default_is_parsed_as_the_schema_type(schema: dict[str, Any], default: object) -> None:
    """The `default` keyword wins over the description; the value has the schema's type."""
    values = documented_defaults(Schema(schema))
    assert default in values
    assert type(values[values.index(default)]) is type(default)
