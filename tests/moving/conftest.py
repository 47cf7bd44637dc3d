"""The shipped router, loaded once."""

from __future__ import annotations

import pytest

from router_service.artifact import SHIPPED
from router_service.router import Router


@pytest.fixture(scope="session")
def router() -> Router:
    """Return the shipped router."""
    return Router.load(SHIPPED)
