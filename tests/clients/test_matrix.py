"""Every client API with every upstream API, by the vendors' SDKs for Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apis import APIS, Api
from tests.clients import matrix
from tests.clients.matrix import CELLS, SCRIPTS, Case, Cell, Matrix, play
from tests.providers.app import Provider
from tests.serving import served

PAGE = Path(__file__).parents[2] / "docs" / "translation.md"


@pytest.fixture(scope="module")
def running() -> Iterator[Matrix]:
    """Yield a gateway and the providers behind it."""
    with matrix.running() as started:
        yield started


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_conversation_passes(running: Matrix, cell: Cell) -> None:
    """The client gets what the model wrote, or an explicit error of its own API."""
    assert running.problem(cell) == ""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("case", [*SCRIPTS, Case.IMAGE], ids=lambda case: case.name.lower())
@pytest.mark.parametrize("dialect", APIS)
def test_scripted_provider_is_read_by_its_own_sdk(dialect: Api, case: Case, stream: bool) -> None:
    """Without a gateway, the same checks pass, so the scripted providers speak these APIs."""
    provider = Provider(play)
    with served(provider) as url:
        assert Matrix(url, provider).problem(Cell(dialect, dialect, stream, case)) == ""


def test_page_has_the_table_of_this_run() -> None:
    """The table in the documentation is the one that a run without problems prints."""
    assert matrix.table(dict.fromkeys(CELLS, "")) in PAGE.read_text()
