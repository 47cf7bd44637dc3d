"""Configurations as they are read from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from router_service.settings import Settings, load_settings

LoadFile = Callable[..., Settings]


@pytest.fixture
def load_file(tmp_path: Path) -> LoadFile:
    """Return what loads a text as a file named config.yaml."""

    def load_text(text: str, environ: Mapping[str, str]) -> Settings:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return load_settings(path, environ)

    return load_text
