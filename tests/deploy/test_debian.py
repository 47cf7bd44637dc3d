"""Programs that tests run are found, or missed aloud."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.debian import program

SCRIPT = Path(__file__).parents[2] / ".ci" / "debian-packages"


@pytest.mark.parametrize(("promised", "outcome"), [("true", "Failed"), ("", "Skipped")])
def test_what_ci_promises_is_no_skip(
    monkeypatch: pytest.MonkeyPatch, promised: str, outcome: str
) -> None:
    """A program that is missing fails a test where CI=true, and skips it elsewhere."""
    monkeypatch.setenv("CI", promised)
    with pytest.raises(BaseException, match="no no-such-program: `apt-get install it`") as caught:
        program("no-such-program", "it")
    assert caught.typename == outcome


def test_what_cannot_be_had_is_said(tmp_path: Path) -> None:
    """Where there is no apt-get, the script says what is missing, and tests go on."""
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
    told = "No {}: it takes root on a Debian; its tests are skipped.\n"
    assert done.stderr == told.format("prometheus") + told.format("chromium")
