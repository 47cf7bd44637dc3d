"""Tests that are coroutines run on asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop of tests that are coroutines."""
    return "asyncio"
