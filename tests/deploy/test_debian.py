"""Programs that tests run are found, installed, or reported as missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import debian
from tests.debian import PACKAGES, Package, program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide this machine's programs; return the folder of those that a test adds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(debian, "_UNPACKED", tmp_path / "debian")
    monkeypatch.setattr(debian, "_POSTGRESQL", [])
    return folder


def write_program(path: Path, script: str = "") -> None:
    """Write a program that runs a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("promised", "outcome"), [("true", "Failed"), ("", "Skipped")])
def test_missing_programs_fail_in_ci_and_skip_elsewhere(
    monkeypatch: pytest.MonkeyPatch, promised: str, outcome: str
) -> None:
    """A missing program fails its test if CI=true, and skips it otherwise."""
    monkeypatch.setenv("CI", promised)
    with pytest.raises(BaseException, match="no no-such-program: `make test-packages`") as caught:
        program("no-such-program")
    assert caught.typename == outcome


def test_every_program_belongs_to_a_package() -> None:
    """Tests ask only for programs that `make test-packages` installs."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    asked = {
        name for text in texts for name in re.findall(r'(?<![.\w])program\("([a-z0-9]+)"\)', text)
    }
    assert asked == {name for package in PACKAGES for name in package.programs}


@pytest.mark.parametrize("here", [(), ("bin/prometheus", "bin/promtool")])
def test_skipped_tests_are_reported(
    bare: Path, here: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without apt-get, each missing package is listed with its tests, and the remedy is named."""
    for name in here:
        write_program(bare.parent / "debian" / "usr" / name)
    assert debian.main() == 1
    head, *lines, remedy = capsys.readouterr().out.splitlines()
    assert head == "These tests are skipped, because Debian packages are missing:"
    assert remedy == "To install them on a Debian: sudo make test-packages"
    programs = {Path(name).name for name in here}
    missing = [package for package in PACKAGES if not programs.issuperset(package.programs)]
    assert [line.split(maxsplit=1) for line in lines] == [[p.name, p.tests] for p in missing]


def test_root_installs_only_what_is_missing(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Root gets the missing packages after a list that says which and why, and only once."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    log = bare.parent / "log"
    script = f'PATH=/usr/bin:/bin; echo "$@" >> {log}; cd {bare}; touch $4 && chmod +x $4'
    write_program(bare / "apt-get", script)
    packages = (Package("curl", ("curl",), "transfers"), Package("apt-get", ("apt-get",), "none"))
    monkeypatch.setattr(debian, "PACKAGES", packages)
    assert debian.main() == 0
    shown = "Installing Debian packages that tests need:\n  curl                  transfers\n"
    assert capfd.readouterr().out == shown
    commands = log.read_text().splitlines()
    assert commands == ["update -qq", "install -qq --no-install-recommends curl"]
    assert debian.main() == 0
    assert log.read_text().splitlines() == commands


def test_no_cluster_is_created_with_the_server(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's package starts a cluster of its own, unless this is switched off before."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian, "_NO_CLUSTER", bare.parent / "createcluster.conf")
    log = bare.parent / "log"
    conf = bare.parent / "createcluster.conf"
    script = f'PATH=/usr/bin:/bin; echo "$4: $(cat {conf} 2>/dev/null)" >> {log}'
    write_program(bare / "apt-get", script)
    monkeypatch.setattr(debian, "PACKAGES", [p for p in PACKAGES if p.name == "postgresql"])
    assert debian.main() == 1
    assert log.read_text().splitlines() == [
        ": ",
        "postgresql-common: ",
        "postgresql: create_main_cluster = false",
    ]


def test_make_test_installs_packages_first() -> None:
    """`make test` runs what `make test-packages` runs, before the tests."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    command = [make, "--dry-run", "--assume-old", ".venv/.dev", "test", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    places = [done.stdout.index(part) for part in ("-m tests.debian", "bin/pytest")]
    assert places == sorted(places)
