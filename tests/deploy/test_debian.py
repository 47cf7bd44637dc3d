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


POSTGRESQL = [] if list(Path("/usr/lib/postgresql").glob("*/bin/initdb")) else ["initdb"]
"""What is missing of PostgreSQL, whose programs are not on the path."""


@pytest.mark.parametrize("unpacked", [(), ("bin/prometheus",), ("sbin/nginx", "bin/chromium")])
def test_missing_programs_are_reported(tmp_path: Path, unpacked: tuple[str, ...]) -> None:
    """Without apt-get, the script reports the missing programs, and the tests continue."""
    path, folder = tmp_path / "bin", tmp_path / "debian"
    path.mkdir()
    for name in ("bash", "id"):
        (path / name).symlink_to(shutil.which(name) or name)
    for name in unpacked:
        file = folder / "usr" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o755)
    done = subprocess.run(
        [SCRIPT, folder],
        env=os.environ | {"PATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.partition(" is missing")[0] for line in done.stderr.splitlines()]
    here = {Path(each).name for each in unpacked}
    wanted = ["prometheus", "nginx", "chromium", "javac", *POSTGRESQL]
    assert names == [name for name in wanted if name not in here]


def test_no_cluster_is_created_with_the_server() -> None:
    """The server's package starts a cluster of its own, unless this is switched off before."""
    text = SCRIPT.read_text()
    order = ("install postgresql-common", "create_main_cluster = false", "install postgresql\n")
    places = [text.index(part) for part in order]
    assert places == sorted(places)
