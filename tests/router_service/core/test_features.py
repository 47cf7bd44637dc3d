"""Structural counts: one request counted by hand, and no request that breaks them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from router_service.core.features import FEATURES, extract
from router_service.core.messages import Conversation, Role, Turn, parse_conversation

REQUEST = {
    "messages": [
        {"role": "user", "content": "What are the areas of circles with radius 2, 3.5 and then 7?"}
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "circleArea",
                "description": "Area of a circle.",
                "parameters": {
                    "type": "object",
                    "required": ["radius"],
                    "properties": {
                        "radius": {"type": "number"},
                        "unit": {"type": "string", "enum": ["m", "cm"], "default": "m"},
                    },
                },
            },
        }
    ],
}


def test_golden() -> None:
    """These counts, made by hand, are what the code counts."""
    expected = {
        "tools": 1,
        "parameters": 2,
        "required": 1,
        "optional": 1,
        "schema_depth": 1,
        "enums": 1,
        "defaults": 1,
        "numbers_typed": 1,
        "camel_case_tools": 1,
        "mentioned": 1,
        "mentioned_share": 0.5,
        "name_overlap_max": 0.5,
        "query_words": 14,
        "query_numbers": 3,
        "query_decimals": 1,
        "numbers_per_parameter": 1.5,
        "commas": 1,
        "ands": 1,
        "sequence_words": 1,
        "question_marks": 1,
        "asks_what": 1,
        "asks_how": 0,
    }
    counts = extract(parse_conversation(REQUEST), list(expected))
    assert dict(zip(expected, counts, strict=True)) == expected


@given(st.text(max_size=300))
def test_every_count_is_a_finite_number(text: str) -> None:
    """No text, and no missing tool, makes a count that is not a number."""
    conversation = Conversation((Turn(Role.USER, text),))
    assert all(math.isfinite(count) for count in extract(conversation, list(FEATURES)))
