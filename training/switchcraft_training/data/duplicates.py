"""Groups of near-duplicate rows, which the splits keep together.

Two rows are near-duplicates if what their users say in the whole conversation is nearly the same.
System prompts, tools and tool results do not count: many rows with different questions share them,
and the same question under another prompt is still the same question. A group that is too large is
divided again by the whole content of its conversations.

Time grows as n log n: MinHash signatures are cut into bands, and a row is compared only with a few
rows that have an equal band [Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", 3.4].
Memory holds the texts, their words and their signatures (1 KB each), and the n-grams of each
distinct word; the n-grams of texts are computed in batches.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from router_service.apis.conversation import Role, read_turns, with_paths
from switchcraft_training.records import Example

NEAR_FROM: Final = 0.75
"""Least cosine similarity of near-duplicates, computed from character 3- to 5-grams. Of the pairs
of the recorded pools with a similarity from 0.75 to 0.8, nearly all differ in numbers, names or a
few words. The n-grams are not weighted by their rarity: in a large corpus, a weight would make one
other number more important than the sentence around it."""

SAME_TOOLS_AGREEMENT: Final = 0.74
"""Least share of equal values in the signatures of nearly equal lists of tools. It estimates the
share of equal n-grams with a standard error of 0.03, and two sets of equal size with a cosine
similarity of 0.85 share 0.85 / (2 - 0.85) = 0.74 of their n-grams."""

SAME_TOOLS_FROM: Final = 0.85
"""Least cosine similarity of nearly equal lists of tools. Of the pool of December 2025, 2,297
queries have 1,083 different lists; at 0.85, the largest group, joined with near-duplicates, has 6%
of the queries. At 0.75, it has 11%, because lists that only share a few tools are joined."""

LARGE_SHARE: Final = 0.05
LARGE_ROWS: Final = 20
"""A group is too large if it has more than `LARGE_SHARE` of the rows, and more than `LARGE_ROWS`.
Folds of equal size need groups that are much smaller than a fold."""

STRICTER: Final = (0.8, 0.9, 0.95)
"""Least similarities that are tried in turn to divide a group that is too large."""

SIGNATURE: Final = 256
BAND: Final = 4
"""Values in a MinHash signature and in each of its bands. With 64 bands of 4 values, two texts that
share 56% of their n-grams, the least share at a cosine similarity of 0.75, have an equal band with
a probability of 99.9%."""
LEAST_AGREEMENT: Final = 0.3
"""Least share of equal values in two signatures, which estimates the share of equal n-grams with a
standard error of 0.03. Pairs below it have an equal band by chance, and are not compared."""
NEIGHBOURS: Final = 8
"""Number of preceding rows with an equal band that a row is compared with, besides the first. Rows
with the same band are sorted by two more values of the signature, so that similar rows are near."""

Groups = NDArray[np.int64]
"""The group of each row, (rows,); rows of one group have the same number."""

BATCH_PAIRS: Final = 10_000
BATCH_NGRAMS: Final = 2_000_000
"""Pairs whose signatures are compared at once, and n-grams of texts that are computed at once, to
limit the memory."""

Sparse = Any
"""A sparse matrix in CSR format, (rows, n-grams); scipy has no types."""

log = logging.getLogger(__name__)


def near_duplicates(examples: Sequence[Example]) -> Groups:
    """Return each example's group: equal for near-duplicates and turns of one conversation.

    A group that is too large (see `LARGE_SHARE`) is divided by comparing whole conversations
    instead of single turns, with system prompts, calls and results, by n-grams that are rare in the
    group, and with increasing similarity. A warning names what joined the group and how it was
    divided. Conversations that are still nearly equal remain together.

    The result does not depend on the order of the examples, except for the groups' numbers.
    """
    if not examples:
        return np.empty(0, dtype=np.int64)
    said = [user_text(example) for example in examples]
    names = [example.conversation or f"\0{row}" for row, example in enumerate(examples)]
    _, conversations = np.unique(np.array(names, dtype=object), return_inverse=True)
    # An example without any text of a user is compared by everything that it contains.
    texts = [text or _whole_text(each) for text, each in zip(said, examples, strict=True)]
    similar = _similar(texts, NEAR_FROM)
    # The edges join conversations, which come after the groups of similar texts.
    first = int(similar.max()) + 1
    size = first + int(conversations.max()) + 1
    groups = _components(size, similar, first + conversations)[similar]
    limit = max(LARGE_ROWS, int(LARGE_SHARE * len(examples)))
    sizes = np.bincount(groups, minlength=1)
    for group in np.flatnonzero(sizes > limit):
        rows = np.flatnonzero(groups == group)
        pieces = _divide(examples, rows, conversations[rows], limit)
        groups[rows] = np.where(pieces == 0, group, groups.max() + pieces)
        _warn(texts, rows, conversations[rows], pieces, len(examples))
    return groups


def similar_tools(examples: Sequence[Example]) -> Groups:
    """Return each example's group: equal for examples with the same tools, or nearly the same.

    Tools are compared by their names and the names of their parameters. An example without tools
    has its own group.
    """
    groups = np.arange(len(examples), dtype=np.int64)
    offering = np.array([row for row, each in enumerate(examples) if each.request["tools"]])
    if len(offering):
        texts = [_tools_text(examples[row]) for row in offering]
        groups[offering] = len(examples) + _similar(texts, SAME_TOOLS_FROM)
    return groups


def tools_signatures(examples: Sequence[Example]) -> NDArray[np.uint8]:
    """Return the signature of each example's list of tools, (examples, SIGNATURE).

    Only the lowest byte of each MinHash value is kept, as in b-bit minwise hashing (Li and König,
    2010): different values are equal by chance in one of 256 cases, and names cannot be recovered.
    """
    ngrams = _NGrams.of([" ".join(_tools_text(each).casefold().split()) for each in examples])
    return ngrams.signatures().astype(np.uint8)


def join_groups(one: Groups, other: Groups) -> Groups:
    """Return the groups of rows that share a group in either grouping, directly or by others."""
    _, one = np.unique(one, return_inverse=True)
    _, other = np.unique(other, return_inverse=True)
    first = int(one.max(initial=-1)) + 1
    return _components(first + int(other.max(initial=-1)) + 1, one, first + other)[one]


def _tools_text(example: Example) -> str:
    """Return the names of an example's tools and of their parameters, in alphabetical order."""
    functions = (tool["function"] for tool in example.request["tools"])
    lines = []
    for function in functions:
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        names = sorted(properties) if isinstance(properties, dict) else ()
        lines.append(" ".join([function["name"].replace("_", " "), *names]))
    return "\n".join(sorted(lines))


def _divide(examples: Sequence[Example], rows: Groups, conversations: Groups, limit: int) -> Groups:
    """Return the part of a group that each of its rows is in, numbered from 0, (rows,).

    Each conversation is compared by the text of its longest turn. A part that is still larger than
    `limit` is divided again with the next similarity.
    """
    whole = [_whole_text(examples[row]) for row in rows]
    pieces = np.zeros(len(rows), dtype=np.int64)
    for least in STRICTER:
        for piece in np.flatnonzero(np.bincount(pieces) > limit):
            own = np.flatnonzero(pieces == piece)
            longest: dict[int, int] = {}
            for place in sorted(own, key=lambda place: (len(whole[place]), whole[place])):
                longest[int(conversations[place])] = int(place)
            units = list(longest)
            # Texts that differ only in numbers stay together.
            texts = [re.sub(r"\d+", "0", whole[longest[unit]]) for unit in units]
            parts = dict(zip(units, _similar(texts, least, weighted=True), strict=True))
            found = np.array([parts[int(conversations[place])] for place in own])
            pieces[own] = np.where(found == 0, piece, pieces.max() + found)
    return pieces


def _warn(
    texts: Sequence[str], rows: Groups, conversations: Groups, pieces: Groups, total: int
) -> None:
    """Log what joined a group that is too large, and into how many parts it was divided.

    The warning quotes the text that most of its conversations have in common.
    """
    pairs = set(zip((texts[row] for row in rows), conversations.tolist(), strict=True))
    text, _ = min(Counter(text for text, _ in pairs).items(), key=lambda item: (-item[1], item[0]))
    parts = np.bincount(pieces)
    outcome = "its conversations are nearly equal and stay in one fold"
    if len(parts) > 1:
        outcome = (
            f"divided into {len(parts)} groups of at most {parts.max()} rows by comparing whole"
            " conversations, so that similar turns may be in different folds"
        )
    log.warning(
        "large group of near-duplicates: rows=%d share=%.0f%% text=%r: %s",
        len(rows),
        100 * len(rows) / total,
        shorten(text),
        outcome,
    )


def shorten(text: str) -> str:
    """Return a text in one line, cut after 80 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:80]}..."


def user_text(example: Example) -> str:
    """Return the texts of all user messages of a conversation."""
    messages = with_paths(example.request["messages"], "", None)
    return "\n".join(turn.text for turn in read_turns(messages, []) if turn.role is Role.USER)


def _whole_text(example: Example) -> str:
    """Return the texts of all roles, and all calls with their arguments."""
    messages = with_paths(example.request["messages"], "", None)
    lines = []
    for turn in read_turns(messages, []):
        lines += [turn.text, *(f"{call.name} {call.arguments}" for call in turn.tool_calls)]
    return "\n".join(lines)


def _similar(texts: Sequence[str], least: float, *, weighted: bool = False) -> Groups:
    """Return the group of each text, (texts,): texts with at least this similarity are joined.

    Similarity is the cosine of the counts of character n-grams; case and spacing do not matter. If
    `weighted`, n-grams that are rare in these texts weigh more (TF-IDF), and those that more than
    half of the texts contain are not used to find texts to compare.
    """
    normalized = [" ".join(text.casefold().split()) for text in texts]
    distinct = sorted(set(normalized))
    places = {text: place for place, text in enumerate(distinct)}
    ngrams = _NGrams.of(distinct)
    idf = np.ones(ngrams.of_words.shape[1], dtype=np.float32)
    compared = ngrams
    if weighted:
        frequencies = ngrams.document_frequencies()
        idf += np.log(np.float32(len(distinct) + 1) / (frequencies + 1).astype(np.float32))
        compared = ngrams.without(frequencies > len(distinct) / 2)
    signatures = compared.signatures()
    groups = np.arange(len(distinct))
    for start in range(0, SIGNATURE, BAND):
        one, other = _candidates(signatures[:, np.arange(start, start + BAND + 2) % SIGNATURE])
        is_new = groups[one] != groups[other]
        one, other = one[is_new], other[is_new]
        is_likely = _agreements(signatures, one, other) >= LEAST_AGREEMENT
        one, other = one[is_likely], other[is_likely]
        is_near = ngrams.cosines(idf, one, other) >= least
        one, other = groups[one[is_near]], groups[other[is_near]]
        groups = _components(len(distinct), one, other)[groups]
    return groups[[places[text] for text in normalized]]


@dataclass(frozen=True, slots=True)
class _NGrams:
    """The character n-grams of texts, as the words of each text and the n-grams of each word.

    No n-gram spans two words, so that the product of both matrices has the n-grams of the texts. It
    is much larger than its factors, and is only computed for the texts in use.
    """

    words: Sparse
    """How often a text has a word, (texts, words)."""
    of_words: Sparse
    """How often a word has an n-gram, (words, n-grams)."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> _NGrams:
        # Imported here: the container images that serve and publish lack these packages.
        from scipy.sparse import csr_matrix  # noqa: PLC0415
        from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

        numbers: dict[str, int] = {}
        indices, offsets = array("i"), array("q", [0])
        for text in texts:
            indices.extend(numbers.setdefault(word, len(numbers)) for word in text.split())
            offsets.append(len(indices))
        ones = np.ones(len(indices), dtype=np.float32)
        shape = (len(texts), max(1, len(numbers)))
        words = csr_matrix((ones, np.asarray(indices), np.asarray(offsets)), shape=shape)
        words.sum_duplicates()
        vectorizer = HashingVectorizer(
            analyzer="char_wb",
            ngram_range=(3, 5),
            alternate_sign=False,
            norm=None,
            dtype=np.float32,
        )
        return cls(words, vectorizer.transform(list(numbers) or [""]))

    def counts(self, texts: Groups) -> Sparse:
        """Return how often these texts have an n-gram, (texts, n-grams)."""
        return self.words[texts] @ self.of_words

    def without(self, is_left_out: NDArray[np.bool_]) -> _NGrams:
        """Return the n-grams without some of them; the argument has shape (n-grams,)."""
        kept = self.of_words.copy()
        kept.data *= ~is_left_out[kept.indices]
        kept.eliminate_zeros()
        return replace(self, of_words=kept)

    def document_frequencies(self) -> NDArray[np.int64]:
        """Return the number of texts that have each n-gram, (n-grams,)."""
        total = np.zeros(self.of_words.shape[1], dtype=np.int64)
        for texts in _batches(self._sizes()):
            total += np.bincount(self.counts(texts).indices, minlength=len(total))
        return total

    def signatures(self) -> NDArray[np.uint32]:
        """Return the MinHash signature of each text's set of n-grams, (texts, SIGNATURE)."""
        from rensa import RMinHash  # noqa: PLC0415 - of the `train` extra

        signatures = np.empty((self.words.shape[0], SIGNATURE), dtype=np.uint32)
        for texts in _batches(self._sizes()):
            counts = self.counts(texts)
            signatures[texts] = RMinHash.digest_matrix_from_flat_token_hashes(
                counts.indices.astype(np.uint64), counts.indptr.astype(np.uint64), SIGNATURE, 0
            ).to_rows()
        return signatures

    def cosines(self, idf: NDArray[np.float32], one: Groups, other: Groups) -> NDArray[np.float32]:
        """Return the cosine similarities of pairs of texts, (pairs,).

        An n-gram counts by the logarithm of its number in the text, times its weight in `idf`.
        """
        from sklearn.preprocessing import normalize  # noqa: PLC0415

        found = np.empty(len(one), dtype=np.float32)
        sizes = self._sizes()
        order = np.argsort(one, kind="stable")  # pairs with the same text are in one batch
        for batch in _batches((sizes[one] + sizes[other])[order]):
            pairs = order[batch]
            texts, places = np.unique([one[pairs], other[pairs]], return_inverse=True)
            vectors = self.counts(texts)
            vectors.sort_indices()
            vectors.data = (np.log(vectors.data) + 1) * idf[vectors.indices]
            vectors = normalize(vectors, copy=False)
            first, second = places.reshape(2, -1)
            products = vectors[first].multiply(vectors[second])
            found[pairs] = np.asarray(products.sum(axis=1)).ravel()
        return found

    def _sizes(self) -> Groups:
        """Return the number of n-grams of each text, at most, (texts,)."""
        return np.asarray(self.words @ np.diff(self.of_words.indptr)).astype(np.int64)


def _batches(sizes: Groups) -> list[Groups]:
    """Return the places of rows in batches of about `BATCH_NGRAMS`; `sizes` has shape (rows,)."""
    if not len(sizes):
        return []
    numbers = np.cumsum(sizes) // BATCH_NGRAMS
    return np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(numbers)) + 1)


def _candidates(columns: NDArray[np.uint32]) -> tuple[Groups, Groups]:
    """Return pairs of rows with an equal band, as two arrays, (pairs,).

    The first `BAND` columns are the band; the other columns sort rows with an equal band.
    """
    order = np.lexsort(columns.T[::-1])
    band = columns[order, :BAND]
    places = np.arange(len(order))
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (band[1:] != band[:-1]).any(axis=1)
    first = np.maximum.accumulate(np.where(is_first, places, 0))
    # The first row of a band is compared with all, and every row with its neighbours.
    later, earlier = [places[places - first > NEIGHBOURS]], [first[places - first > NEIGHBOURS]]
    for step in range(1, NEIGHBOURS + 1):
        later.append(places[places - first >= step])
        earlier.append(later[-1] - step)
    return order[np.concatenate(later)], order[np.concatenate(earlier)]


def _agreements(signatures: NDArray[np.uint32], one: Groups, other: Groups) -> NDArray[np.float64]:
    """Return the share of equal values in the signatures of pairs of rows, (pairs,)."""
    found = np.empty(len(one))
    for start in range(0, len(one), BATCH_PAIRS):
        pairs = slice(start, start + BATCH_PAIRS)
        found[pairs] = (signatures[one[pairs]] == signatures[other[pairs]]).mean(axis=1)
    return found


def _components(size: int, one: Groups, other: Groups) -> Groups:
    """Return the connected component of each of `size` nodes; edges go from `one` to `other`."""
    from scipy.sparse import coo_matrix  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    edges = coo_matrix((np.ones(len(one), dtype=np.bool_), (one, other)), shape=(size, size))
    components: Groups = connected_components(edges, directed=False)[1].astype(np.int64)
    return components
