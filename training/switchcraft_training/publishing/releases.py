"""Releases of artifacts, and the pointer that tells gateways which releases are in use."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from router_service.artifact import MANIFEST, Artifact, sha256
from router_service.core.errors import PublicationError
from router_service.core.releases import POINTER_FILE, Canary, Publication, Release
from router_service.router import Router

PublicationUpdate = Callable[[Publication | None], Publication]
"""Function from the current publication (None if there is none yet) to the next one."""

_NOT_ALLOWED_IN_FOLDER_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def make_release(artifact: Path, store: Path, *, is_beside_pointer: bool) -> Release:
    """Return a release of an artifact, after copying the artifact to `store` if it is not there.

    The copy's folder is named after the artifact and the hash of its manifest. It gets this name
    only after its hashes and canary requests have been verified. The release's path is relative if
    the pointer is in the store, and absolute otherwise. Raises ArtifactError if the artifact is
    invalid, and PublicationError if the store cannot be written.
    """
    manifest = Artifact.load(artifact).manifest
    digest = sha256(artifact / MANIFEST)
    folder = f"{_NOT_ALLOWED_IN_FOLDER_NAME.sub('-', manifest.name)}-{digest[:12]}"
    target = store.resolve() / folder
    with _raising_publication_error(str(store)):
        store.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            partial = Path(tempfile.mkdtemp(prefix=f".{folder}-", dir=target.parent))
            try:
                for name in (*manifest.files, MANIFEST):
                    shutil.copyfile(artifact / name, partial / name)
                    flush_to_disk(partial / name)
                Router.load(partial)
                partial.chmod(0o755)  # mkdtemp creates a directory that only its owner can read
                flush_to_disk(partial)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
            flush_to_disk(target.parent)
    Router.load(target)
    if sha256(target / MANIFEST) != digest:
        problem = "contains another artifact than its name says; remove it, and publish again"
        raise PublicationError(str(target), problem)
    return Release(
        name=manifest.name,
        path=folder if is_beside_pointer else str(target),
        manifest_sha256=digest,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
    )


def flush_to_disk(path: Path) -> None:
    """Flush a file or directory to disk, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _raising_publication_error(place: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        problem = f"cannot be written: {exc.strerror}; free some space, or give another directory"
        raise PublicationError(place, problem) from exc


def put_stable(published: Publication | None, release: Release) -> Publication:
    """Make a release the stable one; the shadow and canary releases stay as they are."""
    if published is None:
        return Publication(serial=1, stable=release)
    return _next_publication(published, stable=release)


def put_shadow(published: Publication | None, release: Release) -> Publication:
    """Add a shadow release; raises PublicationError if there is no stable release."""
    return _next_publication(_require_published(published), shadow=release)


def put_canary(published: Publication | None, canary: Canary) -> Publication:
    """Add a canary release; raises PublicationError if there is no stable release."""
    return _next_publication(_require_published(published), canary=canary)


def withdraw(published: Publication | None, role: str) -> Publication:
    """Remove the `shadow` or `canary` release; raises PublicationError if it does not exist."""
    existing = _require_published(published)
    if getattr(existing, role) is None:
        raise PublicationError("the publication", f"has no {role} to withdraw")
    return _next_publication(existing, **{role: None})


def promote(published: Publication | None) -> Publication:
    """Make the canary the stable release; raises PublicationError if it does not exist."""
    existing = _require_published(published)
    if existing.canary is None:
        raise PublicationError("the publication", "has no canary to promote")
    return _next_publication(existing, stable=existing.canary.release, canary=None)


def _require_published(published: Publication | None) -> Publication:
    if published is None:
        problem = "nothing is published yet; publish a stable release first"
        raise PublicationError("the publication", problem)
    return published


def _next_publication(published: Publication, **changes: Release | Canary | None) -> Publication:
    return published.model_copy(update={"serial": published.serial + 1, **changes})


class Pointer(Protocol):
    """Record of the releases that are in use. An operation that fails raises PublicationError."""

    name: str
    """The directory or address to show to users, without a password."""
    is_beside_releases: bool
    """Whether the releases are in the same directory as the pointer."""

    def read(self) -> Publication | None:
        """Return what is published, or None if nothing is published yet."""

    def move(self, update: PublicationUpdate) -> Publication:
        """Replace the publication atomically by what `update` returns, and return that."""


def open_pointer(place: str) -> Pointer:
    """Return the pointer in a directory, or in Redis if the place is a Redis address.

    Raises MissingExtraError if it is in Redis and the extra `redis` is not installed.
    """
    if not place.startswith(("redis://", "rediss://", "unix://")):
        return DirectoryPointer(Path(place))
    from switchcraft_training.publishing.redis_pointer import RedisPointer  # noqa: PLC0415 - extra

    return RedisPointer(place)


class DirectoryPointer:
    """Pointer in a file beside the releases."""

    is_beside_releases = True

    def __init__(self, directory: Path) -> None:
        """Use a directory, which is created with its first release."""
        self.name = str(directory)
        self._directory = directory
        self._path = directory / POINTER_FILE

    def read(self) -> Publication | None:
        """Return the publication in the file."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise PublicationError(self.name, f"cannot be read: {exc.strerror}") from exc
        return Publication.parse(text, str(self._path))

    def move(self, update: PublicationUpdate) -> Publication:
        """Replace the file atomically; a lock keeps publishers from overwriting each other."""
        with _raising_publication_error(self.name):
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
                publication = update(self.read())
                partial = self._path.with_suffix(".partial")
                partial.write_bytes(publication.to_json())
                flush_to_disk(partial)
                partial.replace(self._path)
                flush_to_disk(self._directory)
        return publication
