"""Paraphrases: what the last resort bridges with a real encoder, and what it never does."""

from __future__ import annotations

import pytest

from switchcraft_training.checking.calls import check
from switchcraft_training.checking.command import PACKAGE
from switchcraft_training.checking.embeddings import encoder_embeddings
from switchcraft_training.checking.paraphrase import Paraphrases
from switchcraft_training.records import Call, Expected, ExpectedCall, Json


@pytest.fixture(scope="module")
def paraphrases() -> Paraphrases:
    """Return the comparison with the packaged MiniLM."""
    return Paraphrases(encoder_embeddings(f"package:{PACKAGE}/model"))


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("purchase groceries", "buy groceries"),
        ("meeting with the team", "team meeting"),
        ("rice bowls", "rice bowl"),
        ("the Louvre Museum", "Louvre Museum"),
        ("recipes that are vegetarian", "vegetarian recipes"),
        ("World War 2 history", "history of World War 2"),
        ("Please call me when you arrive", "Call me when you arrive"),
    ],
)
def test_other_words_for_the_same(paraphrases: Paraphrases, given: str, want: str) -> None:
    """Fillers, synonyms and another order with other fillers are the same text."""
    assert paraphrases(given, want)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("flight from Paris", "flight to Paris"),
        ("the door is not open", "the door is open"),
        ("sell the stock", "buy the stock"),
        ("small pepperoni pizza", "large pepperoni pizza"),
        ("lunch with Jane Smith", "lunch with John Smith"),
        ("room 12 on floor 3", "room 12 on floor 4"),
        ("meeting on Tuesday", "meeting on Monday"),
        ("convert word to pdf", "convert pdf to word"),
        ("man bites dog", "dog bites man"),
        ("an illegal act", "a legal act"),
        ("house_prices of today", "house price of today"),
        ("mail to ann@x.org", "mail to bob@x.org"),
        ("code AB12 please", "code AB13 please"),
        ("groceries", "food"),
        ("Golden Gate Bridge, San Francisco", "Golden Gate Bridge"),
    ],
)
def test_what_is_never_bridged(paraphrases: Paraphrases, given: str, want: str) -> None:
    """Numbers, negations, directions, names, codes, opposites and one-word texts are not."""
    assert not paraphrases(given, want)
    assert not paraphrases(want, given)


def judge(schema: Json, want: str, given: str, paraphrases: Paraphrases | None) -> bool:
    """Judge one argument."""
    parameters = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    expected = Expected((ExpectedCall("f", {"a": (want,)}),))
    return check([tool], expected, [Call("f", {"a": given})], paraphrases).correct


def test_the_checker_asks_last_and_never_for_an_enum(paraphrases: Paraphrases) -> None:
    """Without an encoder a paraphrase is another text; a member of an enum always is."""
    text, enum = {"type": "string"}, {"type": "string", "enum": ["buy groceries", "other"]}
    assert judge(text, "buy groceries", "purchase groceries", paraphrases)
    assert not judge(text, "buy groceries", "purchase groceries", None)
    assert not judge(enum, "buy groceries", "purchase groceries", paraphrases)
