"""Programs that tests run are found or reported as missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.debian import program

SCRIPT = Path(__file__).parents[2] / ".ci" / "debian-packages"


@pytest.mark.parametrize(("promised", "outcome"), [("true", "Failed"), ("", "Skipped")])
def test_missing_programs_fail_in_ci_and_skip_elsewhere(
    monkeypatch: pytest.MonkeyPatch, promised: str, outcome: str
) -> None:
    """A missing program fails its test if CI=true, and skips it otherwise."""
    monkeypatch.setenv("CI", promised)
    with pytest.raises(BaseException, match="no no-such-program: `apt-get install it`") as caught:
        program("no-such-program", "it")
    assert caught.typename == outcome


def test_missing_programs_are_reported(tmp_path: Path) -> None:
    """Without apt-get, the script reports the missing programs, and the tests continue."""
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("bash", "id"):
        (path / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        [SCRIPT, tmp_path / "debian"],
        env=os.environ | {"PATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.partition(" is missing")[0] for line in done.stderr.splitlines()]
    assert names == ["prometheus", "nginx", "chromium", "javac", "initdb"]
