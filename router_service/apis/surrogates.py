"""Text that providers send with halves of surrogate pairs, which cannot be encoded."""

from __future__ import annotations


def fix_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: surrogate pairs are joined, and lone halves become `?`.

    Providers split an emoji between two deltas: `"\ud83d"` and `"\ude00"` are one character of the
    answer. A lone half cannot be encoded (Unicode standard, section 3.9).
    """
    if has_surrogates(text):
        return join_surrogates(text).encode(errors="replace").decode()
    return text


def join_surrogates(text: str) -> str:
    """Return a text with surrogate pairs joined to the characters that they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def has_surrogates(text: str) -> bool:
    """Return whether a text has halves of surrogate pairs, so that it cannot be encoded."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
