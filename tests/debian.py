"""Programs from Debian's packages: Prometheus, a browser, nginx, Java and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_UNPACKED = Path(sys.prefix) / "debian" / "usr"
"""Folder into which `make test` unpacks packages that need no installation."""

_POSTGRESQL = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
"""Folders of PostgreSQL's servers, which Debian does not add to the path."""


def program(name: str, package: str) -> Path:
    """Return a program's path. If it is missing, fail if CI=true, and skip otherwise."""
    places = [f"{_UNPACKED}/bin", f"{_UNPACKED}/sbin", *_POSTGRESQL]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    if found is not None:
        return Path(found)
    missing = f"no {name}: `apt-get install {package}`, or `make test` as root on a Debian"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
