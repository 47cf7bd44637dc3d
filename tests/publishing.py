"""Artifacts that tests publish: copies of the shipped one with other names."""

from __future__ import annotations

import os
from pathlib import Path

from router_service.artifact import MANIFEST, SHIPPED, Artifact, save_manifest


def make_artifact(directory: Path, name: str, default_policy: str | None = None) -> Path:
    """Return a copy of the shipped artifact with another name, and therefore another hash."""
    target = directory / name
    target.mkdir(parents=True)
    for path in SHIPPED.iterdir():
        if path.name != MANIFEST:
            _share(path, target / path.name)
    manifest = Artifact.load(SHIPPED).manifest
    policies = dict(manifest.policies)
    if default_policy is not None:
        policies |= {"default": default_policy, "fast": default_policy}
    goals = manifest.policy_goals if default_policy is None else {}
    changed: dict[str, object] = {"name": name, "policies": policies, "policy_goals": goals}
    save_manifest(target, manifest.model_copy(update=changed))
    return target


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file, only in this copy."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)


def _share(path: Path, target: Path) -> None:
    """Link instead of copy: it is 34 MB, and no test writes to it in place."""
    try:
        os.link(path, target)
    except OSError:  # on another file system
        target.write_bytes(path.read_bytes())
