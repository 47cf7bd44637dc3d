"""Structural features: requests counted by hand, and bounds on the time that counting takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.apis.conversation import (
    Conversation,
    Parameter,
    Role,
    SchemaSummary,
    ToolSpec,
    Turn,
    parse_conversation,
)
from router_service.predictor.features import MAX_QUERY_CHARS, extract

TEXT = (
    "Book rooms in Paris, New York and Rome for 2 nights from 2024-05-01, "
    'then e-mail "all done" to Alice and Bob. Can you also compare [1, 2] in km/h?'
)
ROOM = {
    "city": {"type": "string", "description": "City, e.g. Oslo."},
    "nights": {"type": "integer", "description": "How many nights."},
    "size": {"type": "string", "enum": ["single", "twin"]},
    "extras": {
        "type": "array",
        "description": "Optional extras.",
        "items": {"type": "string", "description": "An extra."},
    },
}
FLIGHT = {"direct": {"type": "boolean", "default": False}}


def tool(name: str, about: str, properties: object, *required: str) -> dict[str, object]:
    """Return a function tool."""
    parameters = {"type": "object", "required": [*required], "properties": properties}
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


BOOKING = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}],
    "tools": [
        tool("book_room", "Book a room in a city.", ROOM, "city", "nights"),
        tool("book_flight", "Book a flight to a city.", FLIGHT),
    ],
}

COUNTED = {
    "sentences": 2, "distinct_numbers": 5, "quoted_texts": 1, "capitalized": 8,
    "uppercase_share": 8 / 146, "dates": 1, "coordinates": 1, "bracketed_lists": 1,
    "code_marks": 2, "links": 0, "commas": 3, "commas_per_word": 3 / 29, "ands": 2, "lists": 1,
    "longest_list": 2, "sequence_words": 2, "steps": 1, "additions": 1, "comparisons": 1,
    "demands": 2, "starts_with_demand": 1, "starts_can": 0, "ends_asking": 1, "says_you": 1,
    "turns": 2, "system_chars": 9, "tools": 2, "parameters": 5, "parameters_max": 4,
    "required_max": 2, "required_min": 0, "optional": 3, "schema_depth": 2, "schema_nodes": 6,
    "enum_size_max": 2, "examples": 1, "called_optional": 1, "undescribed": 2, "strings": 3,
    "integers": 1, "booleans": 1, "arrays": 1, "name_chars": 10, "description_chars": 23,
    "names_alike_max": 1 / 3, "unknown_words": 11, "known_share": 2 / 13, "mentioned": 1,
    "tools_half_named": 2, "tools_named": 0, "best_score": 2 / 13 + 1 / 2 + 1 / 3,
    "second_score": 1 / 13 + 1 / 2 + 1 / 3, "best_lead": 1 / 13, "tools_near_best": 2,
    "best_parameters": 4, "best_required": 2, "best_arrays": 1, "best_enums": 1, "best_said": 1,
    "best_unsaid": 3, "best_required_said": 1, "best_required_unsaid": 1, "best_enums_unsaid": 1,
    "numbers_left": 5, "values_left": 10, "clause_tools": 1, "clauses_of_one_tool": 2,
    "clauses": 4,  # four texts between marks have more than 12 characters
    "query_numbers": 6,  # 2, 2024, -05, -01, 1, 2
    "names": 5,  # `Paris, New York` is one run; Rome, Alice, Bob, Can
    "names_joined": 2,  # York and Rome, Alice and Bob
    "tools_alike_max": 2 / 4,  # book and city of book, room, flight and city
    "known_words": 2,  # book, nights
    "names_left": 5,  # five names and a quoted text, minus one required string
}  # fmt: skip
"""Features of the text, of the tools, and of both, which match a count by hand.

The query has 13 words that are not stop words.
"""


def test_features_counted_by_hand() -> None:
    """A request with two tools has the features that were counted by hand."""
    found = extract(parse_conversation(BOOKING), list(COUNTED))
    assert dict(zip(COUNTED, found, strict=True)) == pytest.approx(COUNTED)


VALUES = st.text("ab", max_size=300)


@given(st.text("abA", min_size=1, max_size=60), st.lists(VALUES, max_size=5))
def test_indexed_and_scanned_enum_values_are_the_same(text: str, values: list[str]) -> None:
    """The same enum values are found by scanning (few values) and by indexing (many values)."""
    query = text * (MAX_QUERY_CHARS // len(text))
    many = SchemaSummary("string", enum=tuple(str(i) for i in range(100)))
    counted = []
    for padding in (SchemaSummary(), many):
        enum = SchemaSummary("string", enum=(*values, query[7:200].lower(), query[5:900].lower()))
        parameters = (Parameter("a", enum, True), Parameter("b", padding, True))
        asked = Conversation((Turn(Role.USER, query),), (ToolSpec("f", "", parameters),))
        (count,) = extract(asked, ["enum_values_said"])
        counted.append(count - sum(value in query.lower() for value in padding.enum))
    assert counted[0] == counted[1]
    assert counted[0] == sum(value in query.lower() for value in set(enum.enum))
