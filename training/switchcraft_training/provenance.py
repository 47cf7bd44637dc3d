"""Provenance of a run: everything needed to repeat it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import yaml

from router_service.core.artifact import Provenance
from switchcraft_training.config import RunConfig, SourceConfig, dump_config
from switchcraft_training.labelling.answers import ANSWERS

DISTRIBUTION = "switchcraft-router"
VERSIONED = ("torch", "transformers", "tokenizers", "onnx", "onnxruntime", "numpy")


def trace(config: RunConfig, data: Path) -> Provenance:
    """Return the provenance of a run whose sources are in the folder `data`."""
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        config=dump_config(config),
        seed=config.seed,
        data_sha256=sources_sha256((config.source, *config.also), data),
        versions={
            "python": platform.python_version(),
            "switchcraft": version(DISTRIBUTION),
            **{name: version(name) for name in VERSIONED},
        },
    )


def also_of(provenance: Provenance) -> tuple[SourceConfig, ...]:
    """Return the sources that an artifact was trained on in addition to its own."""
    config = yaml.safe_load(provenance.config) or {}
    return tuple(SourceConfig.model_validate(source) for source in config.get("also", ()))


def sources_sha256(sources: Sequence[SourceConfig], data: Path) -> str:
    """Return one SHA-256 for the files of all sources; a single source keeps its own hash."""
    digests = [source_sha256(source, data) for source in sources]
    return digests[0] if len(digests) == 1 else _joined_sha256(digests)


def source_sha256(source: SourceConfig, data: Path) -> str:
    """Return the SHA-256 of the files that a source reads."""
    if source.answers is None:
        return tree_sha256(data / source.path)
    return _joined_sha256(
        tree_sha256(data / path) for path in (source.path, source.answers / ANSWERS)
    )


def tree_sha256(root: Path, pattern: str = "*") -> str:
    """Return the SHA-256 of the path and contents of a file, or of all files in a folder."""
    digest = hashlib.sha256()
    files = [root] if root.is_file() else [path for path in root.rglob(pattern) if path.is_file()]
    for path in sorted(files):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _joined_sha256(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _commit() -> str:
    """Return the commit of the checkout, or `unknown` outside a checkout."""
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
