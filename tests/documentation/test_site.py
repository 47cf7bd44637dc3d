"""The documentation builds without warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_documentation_builds_strictly(tmp_path: Path) -> None:
    """Every link, anchor, included file and API reference of `docs/` resolves."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "configuration" / "index.html").is_file()


def test_architecture_names_files_that_exist() -> None:
    """Every file that ARCHITECTURE.md names exists; names are relative to their package."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    roots = (ROOT, ROOT / "router_service", ROOT / "training" / "switchcraft_training")
    named = set(re.findall(r"(?<![\w./])[\w.]+(?:/[\w.]+)+/?|\b\w+\.py\b", text))
    named = {name for name in named if name.endswith((".py", ".md", "/"))}
    assert len(named) > 20
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    assert not missing
