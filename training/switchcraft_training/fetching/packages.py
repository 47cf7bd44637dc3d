"""Files of a pinned package, downloaded by pip with the user's own settings."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from switchcraft_training.errors import FetchError
from switchcraft_training.fetching.git import AGAIN
from switchcraft_training.fetching.sources import Package


def download_wheel(package: Package, folder: Path, index: str | None = None) -> Path:
    """Download a package's wheel, unless the folder has it, and return its path.

    `index` is the address of another package index than the one that pip is configured to use.
    Raises FetchError if pip is missing, the index cannot be reached or has no such version, or the
    hash differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    requirement = f"{package.name}=={package.version}"
    wanted.write_text(f"{requirement} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement"]
    command += [str(wanted), "--dest", str(folder)]
    command += ["--index-url", index] if index else []
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - see above
    if done.returncode:
        raise FetchError(requirement, _explain(done.stderr.decode(errors="replace")))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _explain(output: str) -> str:
    """Return what pip's error output means, and what to do."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    last = errors[-1].removeprefix("ERROR:").strip() if errors else output.strip()[-200:]
    if "No module named pip" in output:
        return (
            f"cannot be downloaded, because pip is not installed: run python -m ensurepip. {AGAIN}"
        )
    if "DO NOT MATCH THE HASHES" in output:
        return (
            "has another hash than the pinned one: the index or a proxy changed the file. Use"
            " another index with --mirror, or update Switchcraft."
        )
    return (
        f"could not be downloaded: {last}. Check the network and pip's index (pip config list), or"
        f" name another index with --mirror. {AGAIN}"
    )


def read_wheel(wheel: Path) -> Mapping[str, bytes]:
    """Return the contents of a wheel's JSON files by path."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".json")]
        return {name: archive.read(name) for name in names}
