"""The inputs in the repository: one file for each target, one JSON object per line.

Bytes are written as the characters U+0000 to U+00FF, so that most inputs are readable.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Entry:
    """One input; `found` names the defect that it showed, if any."""

    data: bytes
    found: str = ""

    @property
    def id(self) -> str:
        """Return the input's name in reports."""
        return sha256(self.data).hexdigest()[:12]


def read(name: str) -> list[Entry]:
    """Return a target's inputs, starting with those that showed a defect."""
    path = FOLDER / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Entry(e["input"].encode("latin-1"), e.get("found", "")) for e in map(json.loads, lines)]


def inputs(name: str, attacks: Iterable[bytes]) -> list[Entry]:
    """Return a target's inputs, and its attacks."""
    return [*read(name), *map(Entry, attacks)]


def export(entries: Iterable[Entry], folder: Path) -> None:
    """Write inputs as files, as libFuzzer needs them."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        (folder / entry.id).write_bytes(entry.data)
