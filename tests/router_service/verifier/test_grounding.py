"""Where the values of a call come from."""

from __future__ import annotations

import pytest

from router_service.apis.conversation import Json, parse_conversation
from router_service.checker.parameter_schema import Schema
from router_service.verifier.answer_features import Question, unconfirmed_arguments
from router_service.verifier.grounding import (
    Said,
    Source,
    fits_examples,
    identifies,
    is_filler,
    is_named_after,
    is_placeholder,
    pieces_of,
    read_pieces,
    source_of,
)
from tests.candidates import answer, ask, read

SAID = Said(
    read_pieces(
        "Book a table at Joe's Diner in San Francisco on March 5th, 2026 at 7 pm for twelve people."
        " Budget: $1,200 or 3 thousand euros, 15% tip, 2 km from NYC."
    )
)
ANYTHING = Schema({})


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("san_francisco", Source.SAID),
        ("SF", Source.SAID),
        ("2026-03-05", Source.SAID),
        ("New York City", Source.SAID),
        ("2026-04-17", Source.NOWHERE),
        ("/etc/passwd", Source.NOWHERE),
        (3000.0, Source.SAID),
        (0.15, Source.CALCULATED),
        (2000, Source.CALCULATED),
        (1215, Source.CALCULATED),
        (1201.5, Source.NOWHERE),
        (True, None),
        ("", None),
    ],
)
def test_values_are_found_as_they_are_usually_written(value: Json, source: Source | None) -> None:
    """Dates, units, initials and sums count as said or calculated; other values do not."""
    assert source_of(SAID, "value", value, ANYTHING) is source


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


LONG = 1234567890123456
HUGE = int("12345" * 80)
ORDER = Schema({"type": "integer"})


@pytest.mark.parametrize(
    ("said", "value", "source"),
    [
        (str(LONG), LONG + 1, Source.NOWHERE),
        (f"{LONG:,}", LONG, Source.SAID),
        (f"-{LONG}", -LONG, Source.SAID),
        (f"000{LONG}", LONG, Source.SAID),
        (f"{LONG}.0", LONG, Source.SAID),
        ("5", 5.0, Source.SAID),
        (str(2**64 + 1), 2**64 + 1, Source.SAID),
        (str(HUGE), HUGE + 1, Source.NOWHERE),
        (str(LONG), LONG * 100, Source.CALCULATED),
        ("0.07", 7, Source.CALCULATED),
        ("1234567890123.5", 1234567890123, Source.NOWHERE),
    ],
)
def test_integers_are_compared_exactly(said: str, value: float, source: Source) -> None:
    """Every digit of an integer counts, whatever its length, sign, zeros and separators."""
    assert source_of(Said(read_pieces(f"Take {said} of them")), "amount", value, ORDER) is source


@pytest.mark.parametrize(
    ("name", "schema", "is_identifying"),
    [
        ("id", {}, True),
        ("userIDs", {}, True),
        ("accountnumber", {}, True),
        ("zip_code", {}, True),
        ("pid", {}, True),
        ("order", {"description": "List of order numbers, at most five."}, True),
        ("order", {"description": "The order's unique identifier."}, True),
        ("value", {"type": "string", "format": "uuid"}, True),
        ("issue", {}, True),
        ("order", {"description": "A number identifying the order."}, True),
        ("order", {"description": "The order's number."}, True),
        ("order", {"description": "Which order to delete, by its number."}, True),
        ("order", {"anyOf": [{"description": "The order ID."}, {"type": "null"}]}, True),
        ("order_ref", {}, True),
        ("uid", {}, True),
        ("sort", {"description": "Sort the orders by the number of items."}, False),
        ("limit", {"description": "Optional. Number of order IDs."}, False),
        ("seconds", {"description": "Seconds until an identifying number is optional."}, False),
        ("number_of_guests", {}, False),
        ("number", {"description": "A whole number."}, False),
        ("guests", {"description": "The number of guests for the booking ID."}, False),
        ("user_id_count", {}, False),
        ("valid", {}, False),
    ],
)
def test_identifying_parameters_are_known(name: str, schema: Json, is_identifying: bool) -> None:
    """The name, the description or the format says that a value identifies something."""
    assert identifies(name, Schema(schema)) is is_identifying


@pytest.mark.parametrize(
    ("said", "value", "is_said"),
    [
        ("order seven", 7, True),
        ("order 7", 700, False),
        ("orders 7 and 8", 15, False),
        ("7 thousand", 7000, False),
        ("rated 4.5", 5, False),
        ("version 1.2", "1.2", True),
        ("#12345", 12345, True),
        ("ORD-12345", 12345, True),
        ("ORD-12345", "ORD-12345", True),
        ("ORD-12345", "ORD-12346", False),
        ("orders 101,102,103", 102, True),
        ("1234567890123", "1234567890124", False),
        ("555-123-4567", 5551234567, True),
        ("the first of 12 and 34", 1234, False),
        ("+1 (555) 123-4567", "+15551234567", True),
        ("+1 (555) 123-4567", "+15551234568", False),
        ("555\u2011123\u20114567", "5551234567", True),
        ("1'234'567'890'123", 1234567890123, True),
        ("SW1A 2AA", "SW1A 1AA", False),
        ("SK4455", "SK 4455", True),
        ("123abc", "123abd", False),
        ("123e4567-e89b-12d3-a456-426614174000", "123e4567-e89c-12d3-a456-426614174000", False),
    ],
)
def test_only_the_same_digits_explain_what_identifies(
    said: str, value: Json, is_said: bool
) -> None:
    """A number that identifies something is not calculated, scaled or completed."""
    found = source_of(
        Said(read_pieces(f"Delete {said}")), "order_id", value, ORDER, is_identifying=True
    )
    assert found is (Source.SAID if is_said else Source.NOWHERE)


NESTED = {
    "type": "object",
    "properties": {
        "orders": {
            "type": "array",
            "items": {"type": "object", "properties": {"number": {"type": "integer"}}},
        },
        "ids": {"type": "array", "items": {"type": "integer"}},
        "which": {"type": "array", "description": "IDs of the orders", "items": {}},
        "those": {"type": "array", "items": {"type": "integer", "description": "Order ID"}},
        "days": {"type": "integer"},
    },
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"ids": [7, 700]}', ("forecast.ids",)),
        ('{"those": [700]}', ("forecast.those",)),
        ('{"orders": [{"number": 700}]}', ("forecast.orders",)),
        ('{"orders": [{"number": 7}], "ids": [7], "which": [7], "days": 700}', ()),
        (f'{{"ids": [{HUGE + 1}]}}', ("forecast.ids",)),
        (f'{{"days": {2**64 + 3}}}', ("forecast.days",)),
    ],
)
def test_numbers_in_lists_and_objects_keep_their_identity(
    arguments: str, named: tuple[str, ...]
) -> None:
    """Integers beyond 64 bits are read from a call as they are, at any depth."""
    question = ask(f"Delete order 7, {HUGE} and {2**64 + 1}", NESTED)
    found = unconfirmed_arguments(question, {0: read(question, answer(arguments))}, {"forecast"})
    assert found.get(0, ()) == named


@pytest.mark.parametrize("place", [0, 59_990, 180_000, 299_000])
def test_values_are_found_in_the_whole_of_a_long_conversation(place: int) -> None:
    """Neither the length of a conversation nor what follows hides what was said in it."""
    text = "lorem ipsum dolor " * 17_000
    text = f"{text[:place]} Order K81-2234 of Ann Sørensen weighs 73.25 kg. {text[place:]}"
    turns = [{"role": "user", "content": each} for each in (text[:150_000], text[150_000:])]
    question = Question(parse_conversation({"messages": turns}), [])
    for value in ("K81-2234", "Ann Sørensen", 73.25):
        assert question.grounding(value) == 1
        assert source_of(question.said, "value", value, ANYTHING) is Source.SAID
    assert source_of(question.said, "id", "K81-2235", ORDER, is_identifying=True) is Source.NOWHERE
    assert question.grounding("Bob Nilsen") == 0


@pytest.mark.parametrize(
    ("description", "value", "fits"),
    [
        ("The city, such as Berkeley, CA", "Oslo, NO", True),
        ("The city, such as Berkeley, CA", "Oslo", False),
        ("The day, e.g. '2024-03-13'", "2026-11-28", True),
        ("The day, e.g. '2024-03-13'", "28 November", False),
        ("The city", "Oslo", None),
        ("How many, e.g. 3", 4, None),
    ],
)
def test_texts_have_the_form_of_examples(description: str, value: Json, *, fits: bool) -> None:
    """Marks, a first capital and digits tell whether a text is written like an example."""
    assert fits_examples(value, Schema({"type": "string", "description": description})) is fits


@pytest.mark.parametrize("times", [1, 2])
def test_a_text_is_read_in_pieces(times: int) -> None:
    """Nothing between two pieces is lost, also when they are known from an earlier request."""
    text = "\n".join(
        ["It is filler." * 400, "It costs 5", "million.", "Ask Ann Lee", "about A-77."]
    )
    for _ in range(times):
        said = Said(read_pieces(text))
    assert said.source_of_number(5_000_000) is Source.SAID
    assert said.share_of_text("filler it") == said.share_of_text("Ann Lee, about") == 1
    assert said.has_code("a77")


def test_pieces_stay_when_a_conversation_grows() -> None:
    """New results of tools change only the last piece, also if each result is one line of JSON."""
    results = [f'{{"id":{number},"note":"{"word " * 100}"}}' for number in range(40)]
    before, after = (set(pieces_of(" ".join(results[:count]))) for count in (30, 40))
    assert len(before) > 2
    assert len(before - after) <= 1
