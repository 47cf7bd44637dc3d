"""Tokenization word by word, for tokenizers whose words do not depend on each other.

For a text of 148 words the tokenizer takes 140 us, because it normalizes the text and records
offsets. Finding the words and looking them up takes 20 us, and most words are known from earlier
texts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

Ids = tuple[int, ...]

# Blanks and ASCII's punctuation end a word. What else may end one, such as punctuation of other
# alphabets, is inside a word here, and the tokenizer splits it. Control characters end no word,
# because the normalizer removes them.
_WORD = re.compile(r"[^ \t\n\r!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")

MAX_WORDS = 16_384
"""Number of words that are remembered; all are forgotten if there are more. 450 requests of BFCL
have 5,000 words."""
MAX_WORD_CHARS = 32
"""Longest word that is remembered. Together, the words take about 3 MB."""


def tokenizes_words_separately(tokenizer: Tokenizer) -> bool:
    """Return whether the ids of a text are the concatenated ids of its words.

    This holds for BERT's tokenizers, whose words end at blanks and punctuation.
    """
    return (
        isinstance(tokenizer.normalizer, BertNormalizer)
        and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
        and isinstance(tokenizer.model, WordPiece)
        and all(token.special for token in tokenizer.get_added_tokens_decoder().values())
    )


class WordTokenizer:
    """Tokenizer that remembers the ids of words; may be shared by threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Use a tokenizer that tokenizes words separately, and special tokens as text."""
        self._tokenizer = tokenizer
        self._ignores_case: bool = tokenizer.normalizer.lowercase
        self._ids: dict[str, Ids] = {}

    @property
    def known(self) -> int:
        """Number of words that are remembered."""
        return len(self._ids)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, the same as the tokenizer's."""
        if self._ignores_case and text.isascii():  # else the normalizer's rules differ
            text = text.lower()
        known, words = self._ids, _WORD.findall(text)
        try:
            return tuple(chain.from_iterable(map(known.__getitem__, words)))
        except KeyError:
            new = self._tokenize(list({word for word in words if word not in known}))
            return tuple(chain.from_iterable([new.get(w) or known.get(w, ()) for w in words]))

    def _tokenize(self, words: Sequence[str]) -> Mapping[str, Ids]:
        """Return the ids of distinct words, and remember them."""
        # One text with all words takes half as long as a text for each.
        encoded = self._tokenizer.encode("\n".join(words), add_special_tokens=False)
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        by_word: list[list[int]] = [[] for _ in words]
        for token_id, (start, _) in zip(encoded.ids, encoded.offsets, strict=True):
            by_word[bisect_right(starts, start) - 1].append(token_id)
        found = {word: tuple(ids) for word, ids in zip(words, by_word, strict=True)}
        if len(self._ids) + len(found) > MAX_WORDS:
            self._ids = {}  # a new table, because other threads may read the old one
        self._ids.update((w, ids) for w, ids in found.items() if len(w) <= MAX_WORD_CHARS)
        return found
