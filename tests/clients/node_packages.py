"""Node clients: installed once a set of versions, and run a scenario a process."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "node"
INSTALL_S = 240
RUN_S = 60
_INSTALL = "npm install --no-save --no-audit --no-fund --no-package-lock".split()


def install(cache: Path) -> Path:
    """Return a folder with the scripts and with the packages that they import.

    It is named by the hash of `package.json`. Its versions are the last ones that support Node 20.
    """
    manifest = SCRIPTS / "package.json"
    folder = cache / hashlib.sha256(manifest.read_bytes()).hexdigest()[:16]
    complete = folder / ".complete"  # an install that was interrupted begins anew
    folder.mkdir(parents=True, exist_ok=True)
    if not complete.exists():
        shutil.copy(manifest, folder)
        done = subprocess.run(
            _INSTALL, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert done.returncode == 0, done.stderr
        complete.touch()
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def run(folder: Path, script: str, scenario: str, base_url: str, *extra: str) -> Any:  # noqa: ANN401 - whatever the script prints
    """Run one scenario in a process of its own, and return what it printed."""
    command = ["node", script, scenario, base_url, *extra]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
