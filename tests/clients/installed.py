"""Client packages, installed once for each list of versions."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ENVIRONMENT = dict(os.environ)
"""The environment before any test: an installer needs the real certificate authorities."""


def installed(cache: pytest.Cache, manifest: Path, command: Sequence[str]) -> Path:
    """Return a folder in which a command has installed a manifest's packages.

    The folder is kept in pytest's cache under a name derived from its inputs. The command runs in
    it, next to a copy of the manifest.
    """
    facts = (manifest.read_bytes(), " ".join(command).encode(), platform.python_version().encode())
    name = hashlib.sha256(b"\0".join(facts)).hexdigest()[:16]
    folder = cache.mkdir("clients") / name
    complete = folder / ".complete"  # an interrupted installation starts again
    with folder.with_suffix(".lock").open("w") as lock:
        # Of the test processes that need the same packages, one installs and the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            shutil.copy(manifest, folder)
            done = subprocess.run(
                command,
                cwd=folder,
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            complete.touch()
    return folder
