"""What a run was made from, so that it can be made again."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from router_service.core.artifact import Provenance
from training.config import RunConfig, SourceConfig, dump_config
from training.labelling.export import ANSWERS

VERSIONED = ("switchcraft", "torch", "transformers", "tokenizers", "onnx", "onnxruntime", "numpy")


def trace(config: RunConfig, data: Path) -> Provenance:
    """Record what this run was made from, its source below `data`."""
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        config=dump_config(config),
        seed=config.seed,
        data_sha256=source_sha256(config.source, data),
        versions={"python": platform.python_version(), **{n: version(n) for n in VERSIONED}},
    )


def source_sha256(source: SourceConfig, data: Path) -> str:
    """Return the SHA-256 of all that a source reads."""
    if source.answers is None:
        return tree_sha256(data / source.path)
    digests = (tree_sha256(data / path) for path in (source.path, source.answers / ANSWERS))
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def tree_sha256(root: Path) -> str:
    """Return the SHA-256 over the paths and contents of a file, or of all below a folder."""
    digest = hashlib.sha256()
    files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
    for path in sorted(files):
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
