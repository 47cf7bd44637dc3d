"""The generated pages of `docs/reference/` are those that the code describes."""

from __future__ import annotations

import pytest

from tests.documentation.documents import ROOT
from tests.documentation.reference import pages


@pytest.mark.parametrize("name", pages())
def test_page_is_up_to_date(name: str) -> None:
    """The file is the one that `python -m tests.documentation.reference` writes."""
    assert (ROOT / "docs" / name).read_text() == pages()[name]
