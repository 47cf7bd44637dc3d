"""Releases of artifacts, and the changes of what is published.

`router_service.store.pointers` reads and writes the pointer that tells gateways which releases are
in use.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from router_service.artifact import MANIFEST, Artifact, sha256
from router_service.core.errors import ArtifactError
from router_service.core.releases import Canary, Publication, Release
from router_service.router import Router
from router_service.store.pointers import flush_to_disk, unwritable

_NOT_ALLOWED_IN_FOLDER_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def make_release(artifact: Path, directory: Path) -> Release:
    """Return a release of an artifact, after copying the artifact to a pointer's directory.

    The copy's folder is named after the artifact and the hash of its manifest. It gets this name
    only after its hashes and canary requests have been verified. Raises ArtifactError if the
    artifact is invalid, or if the directory cannot be written.
    """
    manifest = Artifact.load(artifact).manifest
    digest = sha256(artifact / MANIFEST)
    folder = f"{_NOT_ALLOWED_IN_FOLDER_NAME.sub('-', manifest.name)}-{digest[:12]}"
    target = directory.resolve() / folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
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
    except OSError as exc:
        raise unwritable(str(directory), exc) from exc
    Router.load(target)
    if sha256(target / MANIFEST) != digest:
        problem = "contains another artifact than its name says; remove it, and publish again"
        raise ArtifactError(str(target), problem)
    return Release(
        name=manifest.name,
        path=folder,
        manifest_sha256=digest,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
    )


def put_stable(published: Publication | None, release: Release) -> Publication:
    """Make a release the stable one; the canary release stays as it is."""
    if published is None:
        return Publication(serial=1, stable=release)
    return _next_publication(published, stable=release)


def put_canary(published: Publication | None, canary: Canary) -> Publication:
    """Add a canary release; raises ArtifactError if there is no stable release."""
    return _next_publication(_require_published(published), canary=canary)


def withdraw(published: Publication | None) -> Publication:
    """Remove the canary release; raises ArtifactError if it does not exist."""
    existing = _require_published(published)
    if existing.canary is None:
        raise ArtifactError("the publication", "has no canary to withdraw")
    return _next_publication(existing, canary=None)


def promote(published: Publication | None) -> Publication:
    """Make the canary the stable release; raises ArtifactError if it does not exist."""
    existing = _require_published(published)
    if existing.canary is None:
        raise ArtifactError("the publication", "has no canary to promote")
    return _next_publication(existing, stable=existing.canary.release, canary=None)


def _require_published(published: Publication | None) -> Publication:
    if published is None:
        problem = "nothing is published yet; publish a stable release first"
        raise ArtifactError("the publication", problem)
    return published


def _next_publication(published: Publication, **changes: Release | Canary | None) -> Publication:
    return published.model_copy(update={"serial": published.serial + 1, **changes})
