"""Temporary directories: private, removed at the end, and removed later if a process was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from router_service.temporary import temporary_directory

HOLD = """
from router_service.temporary import temporary_directory
with temporary_directory("test-") as path:
    (path / "file").touch()
    print(path, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary directories, which no other test uses."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@contextmanager
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a process with a temporary directory."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_directory_is_private_and_removed_at_the_end(folder: Path) -> None:
    """Only its owner can enter it, and nothing of it is left."""
    with temporary_directory("test-") as path:
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "file").touch()
    assert list(folder.iterdir()) == []


def test_directory_of_a_killed_process_is_removed_by_the_next_one(folder: Path) -> None:
    """Directories that are in use, or that are not ours, stay."""
    foreign = folder / "test-foreign"
    foreign.mkdir()
    (folder / "test-link").symlink_to(foreign)
    with holder() as (process, left), holder() as (_, used):
        with temporary_directory("test-"):
            assert left.exists()
        process.kill()
        process.wait()
        assert left.exists()
        with temporary_directory("other-"):
            assert left.exists()
        with temporary_directory("test-"):
            assert not left.exists()
            assert (used / "file").exists()
        assert foreign.exists()
