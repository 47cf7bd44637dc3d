"""Everything that reads foreign bytes, with the corpus, the attacks, and changes of both."""

from __future__ import annotations

import random
from importlib import import_module

import pytest

from tests.attacks import IS_LONG
from tests.fuzz.changes import read_inputs

SEED = 15
CHANGES = 1_000 if IS_LONG else 2
"""How often each input is changed. The next change is made of the changed input."""
MAX_BYTES = 4096


@pytest.mark.parametrize("name", ["client_http", "upstream_http", "events"])
def test_no_input_shows_a_defect(name: str) -> None:
    """Neither the inputs of the repository nor changes of them show a defect."""
    target, rng = import_module(f"tests.fuzz.{name}"), random.Random(SEED)
    problems: list[str] = []
    for data in (*read_inputs(name), *target.ATTACKS):
        changed = data
        for _ in range(1 + CHANGES):
            try:
                target.check(changed)
            except Exception as exc:  # noqa: BLE001 - all of them are reported
                problems.append(f"{changed!r}: {exc!r}")
            changed = target.change(changed, rng)[:MAX_BYTES]
    assert not problems, "\n".join(problems)
