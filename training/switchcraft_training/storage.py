"""Files that are written completely or not at all, and one error if they cannot be written."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router_service.core.errors import ArtifactError
from switchcraft_training.errors import StorageError

if TYPE_CHECKING:
    from router_service.artifact import Artifact

_FAILED_WRITES: Final = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
}
_RUST_ERROR: Final = re.compile(r"\(os error (\d+)\)$")  # of safetensors and tokenizers
_TORCH_WRITER: Final = "inline_container.cc"  # its errors do not contain the system's reason


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """Give a path to write to; the file gets its own name only if the block ends without an error.

    A process that is killed leaves a file whose name ends in `.partial`, which the next run
    replaces.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    yield partial
    partial.replace(path)


@contextmanager
def explaining_failed_writes(folders: Iterable[Path]) -> Iterator[None]:
    """Raise StorageError instead of a library's error if a file cannot be written.

    `folders` are those that the block writes to, besides the folder for temporary files.
    """
    try:
        yield
    except Exception as exc:
        reason = _failed_write(exc)
        if reason is None:
            raise
        places = dict.fromkeys((*folders, Path(tempfile.gettempdir())))
        raise StorageError(reason, {place: _free_bytes(place) for place in places}) from exc


def _failed_write(exc: Exception) -> str | None:
    """Return the reason if an error is that of a file that could not be written, else None."""
    if isinstance(exc, OSError):
        if exc.errno not in _FAILED_WRITES:
            return None
        # A copy names its source as `filename` and its target, which fails, as `filename2`.
        path = exc.filename2 or exc.filename
        return f"{exc.strerror}: {path}" if path else exc.strerror
    found = _RUST_ERROR.search(str(exc))
    if found and int(found[1]) in _FAILED_WRITES:
        return os.strerror(int(found[1]))
    return "the checkpoint is incomplete" if _TORCH_WRITER in str(exc) else None


def _free_bytes(folder: Path) -> int:
    """Return the free space of the file system of a folder, which need not exist."""
    path = folder.absolute()
    existing = next(each for each in (path, *path.parents) if each.exists())
    return shutil.disk_usage(existing).free


@contextmanager
def changed_copy(artifact: Artifact, out: Path) -> Iterator[Path]:
    """Give a copy of an artifact to change, which becomes `out` if no error is raised."""
    if out.exists():
        problem = "exists already; give --out a directory that does not exist"
        raise ArtifactError(out, problem)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(artifact.directory, partial)
        yield partial
        partial.replace(out)
    except OSError as exc:
        # `copytree` raises a list of (source, target, reason).
        reason = exc.args[0][0][2] if isinstance(exc, shutil.Error) else exc.strerror
        problem = f"cannot be written: {reason}; free some space, or give another --out"
        raise ArtifactError(out, problem) from exc
    finally:
        shutil.rmtree(partial, ignore_errors=True)
