"""Two texts side by side, with what differs marked by signs as well as by colour."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

REMOVED: Final = "#ff8a80"
ADDED: Final = "#a5d6a7"


def side_by_side(before: str, after: str, titles: tuple[str, str]) -> Table:
    """Return a table whose rows hold the lines that belong together."""
    table = Table(box=box.MINIMAL, show_edge=False, expand=True, padding=(0, 1), pad_edge=False)
    for title in titles:
        table.add_column(title, ratio=1, overflow="fold")
    for left, right in aligned(before.splitlines(), after.splitlines()):
        table.add_row(*_row(left, right))
    return table


def aligned(before: list[str], after: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield lines in pairs; None where a line has no partner."""
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for _, i, i_end, j, j_end in matcher.get_opcodes():
        yield from zip_longest(before[i:i_end], after[j:j_end])


def _row(left: str | None, right: str | None) -> tuple[Text, Text]:
    if left == right:
        same = Text(f"  {left}")
        return same, same
    marks = _differing_words(left or "", right or "")
    return (
        _marked("- ", left, REMOVED, marks[0]),
        _marked("+ ", right, ADDED, marks[1]),
    )


def _marked(sign: str, line: str | None, color: str, spans: list[tuple[int, int]]) -> Text:
    if line is None:
        return Text()
    text = Text(sign + line, style=color)
    for start, end in spans:
        text.stylize("bold underline", start + len(sign), end + len(sign))
    return text


def _differing_words(left: str, right: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the spans of characters that only one of two lines has; none in a line alone."""
    if not left or not right:
        return [], []
    words = _words(left), _words(right)
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
    matcher = SequenceMatcher(
        None, [left[a:b] for a, b in words[0]], [right[a:b] for a, b in words[1]], autojunk=False
    )
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag != "equal":
            spans[0].extend(words[0][i:i_end])
            spans[1].extend(words[1][j:j_end])
    return spans


def _words(line: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\w+|\W", line)]
