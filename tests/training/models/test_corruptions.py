"""Correct answers in which one thing is changed."""

from __future__ import annotations

import random

import pytest

from router_service.checker.toolbox import Call
from switchcraft_training.checking.mistakes import toolbox_of
from switchcraft_training.models.corruptions import Corruption, Subject, corrupt

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "hotel": {"type": "string"},
                    "nights": {"type": "integer"},
                    "date": {"type": "string"},
                    "room": {"type": "string", "enum": ["single", "double"]},
                    "breakfast": {"type": "boolean"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object"}}},
]
ARGUMENTS = {
    "city": "Oslo", "hotel": "Plaza", "nights": 3, "date": "2026-03-05", "room": "single",
}  # fmt: skip
CALLS = (Call("book", ARGUMENTS), Call("book", {"city": "Lima"}))
SUBJECT = Subject(CALLS, toolbox_of(TOOLS), ["book", "cancel"], ["Kyoto"], ["late"])


@pytest.mark.parametrize("kind", Corruption)
@pytest.mark.parametrize("seed", range(5))
def test_each_kind_changes_one_thing(kind: Corruption, seed: int) -> None:
    """An answer keeps all of its calls and arguments but one, and the original is unchanged."""
    changed = corrupt(SUBJECT, kind, random.Random(seed))
    if changed is None:  # the call that was drawn has nothing of the kind
        assert kind not in {Corruption.WORDS, Corruption.REPEATED_CALL, Corruption.OTHER_FUNCTION}
        return
    assert changed != CALLS
    assert CALLS[0].arguments == ARGUMENTS
    if kind is Corruption.WORDS:
        assert changed == ()
    elif kind is Corruption.REPEATED_CALL:
        assert changed == (*CALLS, CALLS[-1])
    elif kind is Corruption.MISSING_CALL:
        assert len(changed) == 1
        assert changed[0] in CALLS
    elif kind is Corruption.OTHER_FUNCTION:
        assert [call.name for call in changed] == ["cancel", "book"]
    else:
        differing = [
            (dict(one.arguments), dict(other.arguments))
            for one, other in zip(CALLS, changed, strict=True)
            if one != other
        ]
        assert len(differing) == 1
        old, new = differing[0]
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        assert len(keys) == (2 if kind is Corruption.SWAPPED else 1)
