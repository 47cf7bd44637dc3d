"""The inputs in the repository: one file for each target, one JSON object per line.

Bytes are written as the characters U+0000 to U+00FF, so that most inputs are readable. `found`
names the defect that an input showed.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def read(name: str) -> list[bytes]:
    """Return a target's inputs."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["input"].encode("latin-1") for line in lines]
