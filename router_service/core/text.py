"""Text for terminals: columns, and no character that a terminal obeys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def printable(text: str) -> str:
    """Return a text with escapes in place of line breaks and other control characters.

    Clients choose paths and names, which must not control a terminal, nor change the order of other
    characters.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> Iterator[str]:
    """Yield rows in columns, two spaces apart; those after the first `left` ones end alike."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if left is None or place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
