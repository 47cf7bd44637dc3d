"""What a run was made from, so that it can be made again."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from router_service.core.artifact import Provenance
from training.config import RunConfig, dump_config

VERSIONED = ("switchcraft", "torch", "transformers", "tokenizers", "onnx", "onnxruntime", "numpy")


def trace(config: RunConfig, source: Path) -> Provenance:
    """Record what this run was made from."""
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        config=dump_config(config),
        seed=config.seed,
        data_sha256=tree_sha256(source),
        versions={"python": platform.python_version(), **{n: version(n) for n in VERSIONED}},
    )


def tree_sha256(root: Path) -> str:
    """Return the SHA-256 over the paths and contents of all files below `root`."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _commit() -> str:
    """Return the checkout's commit, `unknown` outside of one."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],  # noqa: S607
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()
