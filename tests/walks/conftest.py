"""Walks as a new user: what the documents tell people to do, followed from start to end.

`make walks` keeps the screenshots in `walks/`; look at them after a change of what users see.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.walks.screens import Screens


@pytest.fixture
def screens(browser: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Screens:
    """Return where the walk's screenshots go: below $WALK_SCREENSHOTS, or away."""
    folder = os.environ.get("WALK_SCREENSHOTS")
    name = request.node.name.removeprefix("test_")
    return Screens(browser, Path(folder) / name if folder else tmp_path / "screens")
