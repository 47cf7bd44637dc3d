"""Batches of rows: similar lengths, and masked padding."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from router_service.core.model import BUCKET_TOKENS, batches_by_length, pad_rows
from router_service.core.packing import Packed


@given(st.lists(st.integers(0, 700)), st.integers(1, 5_000))
def test_every_row_is_in_one_batch_of_similar_length(lengths: list[int], bound: int) -> None:
    """No row is lost or duplicated, padding stays below a bucket, and batches within the bound."""
    batches = list(batches_by_length(lengths, bound))
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    for batch in batches:
        longest, shortest = (f(lengths[row] for row in batch) for f in (max, min))
        assert longest - shortest < BUCKET_TOKENS
        assert len(batch) == 1 or longest * len(batch) <= bound


def test_padding_is_masked() -> None:
    """A shorter row is padded after its ids, and the mask ends where the row ends."""
    ids, mask, features = pad_rows([Packed((7, 8, 9), (1.5,), ()), Packed((7,), (2.5,), ())])
    assert ids.tolist() == [[7, 8, 9], [7, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert features.tolist() == [[1.5], [2.5]]
