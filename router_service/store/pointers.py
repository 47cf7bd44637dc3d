"""The pointer to the published releases, in a file beside them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from router_service.core.errors import ArtifactError
from router_service.core.releases import MAX_POINTER_BYTES, Publication, PublicationUpdate

POINTER_FILE = "current.json"
"""The pointer's file in a publication directory. Releases are folders beside it."""


class Pointer:
    """Pointer to the releases in a directory. An operation that fails raises ArtifactError."""

    def __init__(self, directory: Path) -> None:
        """Use a directory, which is created with its first release."""
        self.name = str(directory)
        self._directory = directory
        self._path = directory / POINTER_FILE

    def read_text(self) -> bytes | None:
        """Return the file's text, or None if nothing is published; raises ArtifactError.

        A longer text than allowed is cut one byte after the limit, so that parsing it fails.
        """
        try:
            with self._path.open("rb") as file:
                return file.read(MAX_POINTER_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise ArtifactError(self.name, f"cannot be read: {exc.strerror}") from exc

    def read(self) -> Publication | None:
        """Return the publication in the file."""
        text = self.read_text()
        return None if text is None else Publication.parse(text, str(self._path))

    def move(self, update: PublicationUpdate) -> Publication:
        """Replace the file atomically; a lock keeps publishers from overwriting each other."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
                publication = update(self.read())
                partial = self._path.with_suffix(".partial")
                partial.write_bytes(publication.to_json())
                flush_to_disk(partial)
                partial.replace(self._path)
                flush_to_disk(self._directory)
        except OSError as exc:
            raise unwritable(self.name, exc) from exc
        return publication


def flush_to_disk(path: Path) -> None:
    """Flush a file or directory to disk, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(place: str, exc: OSError) -> ArtifactError:
    """Return the error for a place that cannot be written."""
    problem = f"cannot be written: {exc.strerror}; free some space, or give another directory"
    return ArtifactError(place, problem)
