"""Temporary directories that are removed even if the process that made them was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "in-use"
"""File in each directory that its process keeps locked. The system releases the lock when the
process ends, however it ends."""


@contextmanager
def temporary_directory(prefix: str) -> Iterator[Path]:
    """Provide an empty directory while the block runs; only this process's user can enter it.

    A process that is killed leaves its directory behind. The next one with the same prefix removes
    it. Raises OSError.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError):
            _remove_unless_in_use(lock.parent)
    while True:
        with (
            tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name,
            Path(name, LOCK).open("wb") as lock_file,
        ):
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            # Another process may have removed the directory just before it was locked.
            if os.fstat(lock_file.fileno()).st_nlink:
                yield Path(name)
                return


def _remove_unless_in_use(directory: Path) -> None:
    """Remove a directory of this user whose lock nobody holds."""
    status = directory.lstat()  # others can write to the parent directory, and make links there
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)
