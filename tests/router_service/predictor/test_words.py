"""Words: ids of texts, word by word."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router_service.predictor.words import MAX_WORDS, WordTokenizer, tokenizes_words_separately

PARTS = [
    " ",
    ",",
    "\n",
    "e\u0301",
    "\u0301",
    "\x00",
    "\x0b",
    "\x1c",
    "\u00a0",
    "\u2019",
    "[SEP]",
    "\u4e2d",
]
LONG = "supercalifragilisticexpialidocious" * 4


@pytest.fixture
def tokenizer(shipped_tokenizer: Tokenizer) -> Tokenizer:
    """Return the shipped tokenizer as packing configures it."""
    shipped_tokenizer.no_truncation()
    shipped_tokenizer.no_padding()
    shipped_tokenizer.encode_special_tokens = True
    return shipped_tokenizer


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=12) | st.sampled_from([*PARTS, LONG])))
def test_ids_are_the_tokenizers(tokenizer: Tokenizer, parts: list[str]) -> None:
    """Any text has the tokenizer's ids, whether none, some or all of its words are known."""
    words = WordTokenizer(tokenizer)
    for text in ("".join(parts[::2]), "".join(parts), "".join(parts)):
        assert list(words.encode(text)) == tokenizer.encode(text, add_special_tokens=False).ids


def test_number_of_words_is_limited(tokenizer: Tokenizer) -> None:
    """A client that sends ever new words does not fill the memory, and gets the same ids."""
    words = WordTokenizer(tokenizer)
    first, second = (
        " ".join(f"{letter}{number}" for number in range(MAX_WORDS - 10)) for letter in "ab"
    )
    for text in (first, second, first):
        assert list(words.encode(text)) == tokenizer.encode(text, add_special_tokens=False).ids
        assert words.known <= MAX_WORDS


def test_added_words_may_be_longer_than_words(shipped_tokenizer: Tokenizer) -> None:
    """A tokenizer with added tokens that are no special tokens gets whole texts."""
    shipped_tokenizer.add_tokens(["get-weather"])
    assert not tokenizes_words_separately(shipped_tokenizer)
