"""Whole exchanges, decisions and names of metrics stay as they are in the files of this folder.

`python -m tests.goldens` writes the files again after an intended change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from itertools import islice

import pytest

from tests.goldens.recording import FOLDER, keeping_approximations, record

FILES = (
    "chat.txt", "responses.txt", "messages.txt", "policies.txt", "keys.txt", "route.txt",
    "metrics.txt",
)  # fmt: skip

MAX_LINES = 40
"""Longest difference of one exchange that is printed."""


@pytest.fixture(scope="module")
def recorded() -> Mapping[str, str]:
    """Return the text of each file as it is now."""
    return record()


@pytest.mark.parametrize("file", FILES)
def test_behaviour_is_as_recorded(file: str, recorded: Mapping[str, str]) -> None:
    """Bytes to clients and upstreams, records, log lines, decisions and series are unchanged."""
    expected = (FOLDER / file).read_text()
    found = keeping_approximations(recorded[file], expected)
    if found != expected:
        pytest.fail(f"{file} differs:\n" + "\n".join(difference(expected, found)), pytrace=False)


def test_every_file_is_compared(recorded: Mapping[str, str]) -> None:
    """No golden file is recorded without being compared."""
    assert {*recorded} == {*FILES} == {path.name for path in FOLDER.glob("*.txt")}


def difference(expected: str, found: str) -> Iterator[str]:
    """Yield the lines that differ, below the name of their exchange."""
    before, after = _sections(expected), _sections(found)
    for name in before | after:
        lines, others = before.get(name, []), after.get(name, [])
        if lines != others:
            yield f"=== {name}"
            yield from islice(difflib.unified_diff(lines, others, n=0, lineterm=""), 2, MAX_LINES)


def _sections(text: str) -> dict[str, list[str]]:
    """Return the lines of each exchange of a file by its name."""
    head, *exchanges = re.split(r"^=== ", text, flags=re.MULTILINE)
    named = (each.partition("\n") for each in exchanges)
    return {"": head.splitlines()} | {name: lines.splitlines() for name, _, lines in named}
