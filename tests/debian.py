"""Programs from Debian's packages that tests run: Prometheus, a browser, nginx and Java."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_UNPACKED = Path(sys.prefix) / "debian" / "usr"
"""Folder into which `make test` unpacks packages that need no installation."""


def program(name: str, package: str) -> Path:
    """Return a program's path. If it is missing, fail if CI=true, and skip otherwise."""
    found = shutil.which(name) or shutil.which(name, path=f"{_UNPACKED}/bin:{_UNPACKED}/sbin")
    if found is not None:
        return Path(found)
    missing = f"no {name}: `apt-get install {package}`, or `make test` as root on a Debian"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
