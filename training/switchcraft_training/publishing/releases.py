"""An artifact -> a release: a directory that is complete and verified, and never changes."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from router_service.core.artifact import MANIFEST, Artifact, sha256
from router_service.core.errors import PublicationError
from router_service.core.releases import Release
from router_service.router import Router

_NOT_IN_A_FOLDER_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def make_release(artifact: Path, store: Path, *, is_beside_pointer: bool) -> Release:
    """Copy an artifact into a store of releases, unless it is there, and return what it is.

    The release is named by the hash of its manifest. The copy itself is verified, hashes and
    canaries, before it takes its name. Its path is the folder's name where the pointer lies in
    the store too, else absolute. Raises ArtifactError, or PublicationError for a store that
    cannot be written.
    """
    manifest = Artifact.load(artifact).manifest
    digest = sha256(artifact / MANIFEST)
    folder = f"{_NOT_IN_A_FOLDER_NAME.sub('-', manifest.name)}-{digest[:12]}"
    target = store.resolve() / folder
    with _translated(store):
        store.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            _copy(artifact, [*manifest.files, MANIFEST], target)
    Router.load(target)
    if sha256(target / MANIFEST) != digest:
        raise PublicationError(str(target), "holds another artifact than its name says; remove it")
    return Release(
        name=manifest.name,
        path=folder if is_beside_pointer else str(target),
        manifest_sha256=digest,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
    )


def _copy(artifact: Path, names: list[str], target: Path) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name in names:
            shutil.copyfile(artifact / name, partial / name)
            sync(partial / name)
        Router.load(partial)
        partial.chmod(0o755)  # temporary folders are their maker's alone
        sync(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    sync(target.parent)


def sync(path: Path) -> None:
    """Return once a file or a directory is on its disk, so that no power cut undoes it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(store: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise PublicationError(str(store), f"cannot be written: {exc.strerror}") from exc
