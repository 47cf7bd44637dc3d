"""Artifacts that tests publish: the shipped one under other names."""

from __future__ import annotations

import os
from pathlib import Path

from router_service.core.artifact import MANIFEST, SHIPPED, Artifact, save_manifest


def make_artifact(directory: Path, name: str, default_policy: str | None = None) -> Path:
    """Make a copy of the shipped artifact of another name, hence of another hash; return it."""
    target = directory / name
    target.mkdir(parents=True)
    for path in SHIPPED.iterdir():
        if path.name != MANIFEST:
            _share(path, target / path.name)
    manifest = Artifact.load(SHIPPED).manifest
    policies = dict(manifest.policies)
    policies["default"] = default_policy or policies["default"]
    save_manifest(target, manifest.model_copy(update={"name": name, "policies": policies}))
    return target


def flip(path: Path) -> None:
    """Change one bit in the middle of a file, of this copy alone."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def _share(path: Path, target: Path) -> None:
    """Link, not copy, 34 MB that no test writes to in place."""
    try:
        os.link(path, target)
    except OSError:  # another file system
        target.write_bytes(path.read_bytes())
