"""Everything that reads foreign bytes, with the corpus, the attacks, and changes of both."""

from __future__ import annotations

import random

import pytest

from tests.attacks import IS_LONG
from tests.fuzz import client_http, entries, events, upstream_http
from tests.fuzz.target import Target

TARGETS = (client_http.TARGET, upstream_http.TARGET, events.TARGET)
SEED = 15
CHANGES = 1_000 if IS_LONG else 2
"""How often each input is changed. The next change is made of the changed input."""
MAX_BYTES = 4096


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_shows_a_defect(target: Target) -> None:
    """Neither the inputs of the repository nor changes of them show a defect."""
    rng = random.Random(SEED)
    problems: list[str] = []
    for data in (*entries.read(target.name), *target.attacks):
        changed = data
        for _ in range(1 + CHANGES):
            try:
                target.check(changed)
            except Exception as exc:  # noqa: BLE001 - all of them are reported
                problems.append(f"{changed!r}: {exc!r}")
            changed = target.mutate(changed, rng)[:MAX_BYTES]
    assert not problems, "\n".join(problems)
