"""Every client API with every upstream API, by the vendors' SDKs for Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import matrix
from tests.clients.matrix import CELLS, Cell, Matrix

PAGE = Path(__file__).parents[2] / "docs" / "translation.md"


@pytest.fixture(scope="module")
def running() -> Iterator[Matrix]:
    """Yield the gateways and the upstream behind them."""
    with matrix.running() as started:
        yield started


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_conversation_passes(running: Matrix, cell: Cell) -> None:
    """The client gets what the model wrote, or an explicit error of its own API."""
    assert running.problem(cell) == ""


def test_page_has_the_table_of_this_run() -> None:
    """The table in the documentation is the one that a run without problems prints."""
    assert matrix.table(dict.fromkeys(CELLS, "")) in PAGE.read_text()
