"""The gateway as a user starts it: the command, on a free port, with its sandbox upstream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.processes import sandbox_gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run `switchcraft serve` without a configuration; yield its address, http://HOST:PORT."""
    with sandbox_gateway(tmp_path_factory.mktemp("gateway")) as url:
        yield url
