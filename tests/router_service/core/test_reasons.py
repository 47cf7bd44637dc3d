"""Reasons: one enumeration, which people can read."""

from __future__ import annotations

import re
from pathlib import Path

from router_service.core.reasons import Reason

CONCEPTS = Path(__file__).parents[3] / "docs/concepts.md"


def test_every_reason_is_documented() -> None:
    """The table of reasons in the documentation has every reason, and no other."""
    section = CONCEPTS.read_text().partition("## Reasons")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(Reason)
