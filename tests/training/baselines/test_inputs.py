"""Inputs of baselines: views of a query, and embeddings."""

from __future__ import annotations

from switchcraft_training.records import Example
from tests.training.baselines.cases import views


def long_chat() -> Example:
    """Return a conversation whose latest turn is far from its start."""
    messages = [
        {"role": "user", "content": "river " * 40},
        {"role": "assistant", "content": "cloud"},
        {"role": "user", "content": "violin"},
    ]
    return Example("q", "simple", {"messages": messages, "tools": []})


VIOLIN = views().text("violin")[0]


def test_truncation_loses_the_latest_turn_and_packing_keeps_it() -> None:
    """A truncated long conversation lacks its latest turn; a packed one contains it."""
    seen = views(budget_tokens=32)
    assert VIOLIN not in seen.truncated(long_chat())
    assert VIOLIN in seen.raw(long_chat())
    assert VIOLIN in seen.packed(long_chat())
    assert VIOLIN in seen.vanilla(long_chat())
    assert len(seen.truncated(long_chat())) == 32
