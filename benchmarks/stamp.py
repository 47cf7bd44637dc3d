"""Figures as JSON, with the machine, the commit and the versions they were measured with."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import orjson

from router_service.apis.conversation import Json


def write_figures(path: Path | None, figures: Mapping[str, Json], *packages: str) -> None:
    """Write figures with their stamp to a file, in a folder that may not exist yet.

    Without a path, write nothing: `--out` of a benchmark is optional.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {**figures, **stamp(*packages)}
        path.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


def stamp(*packages: str) -> dict[str, Json]:
    """Return the machine's processor and cores, Python's and the packages' versions, the commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "commit": _commit(),
    }


def _processor() -> str:
    """Return the processor's name from Linux, or from Python on other systems."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str:
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    run = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return run.stdout.strip()
