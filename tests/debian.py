"""Programs from Debian's packages: a browser, PostgreSQL and Prometheus.

`make test-packages` installs those that are missing: `python -m tests.debian`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_UNPACKED = Path(sys.prefix) / "debian"
"""Folder into which packages that need no installation are unpacked."""

_POSTGRESQL = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
"""Folders of PostgreSQL's servers, which Debian does not add to the path."""

_NO_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package and the tests that need it."""

    name: str
    programs: tuple[str, ...]
    tests: str
    is_unpacked: bool = False
    """Unpack the package instead of installing it, because that would start a server."""

    def is_here(self) -> bool:
        """Return whether its programs can be run."""
        return all(find(program) is not None for program in self.programs)


PACKAGES = (
    Package("chromium", ("chromium",), "the web page and the walks as a new user, in a browser"),
    Package("postgresql", ("initdb", "postgres"), "keys, budgets and usage in PostgreSQL"),
    Package(
        "prometheus",
        ("prometheus", "promtool"),
        "metrics, alerts and dashboards, as Prometheus evaluates them",
        is_unpacked=True,
    ),
)


def find(name: str) -> Path | None:
    """Return a program's path, or None if it is not installed."""
    places = [str(_UNPACKED / "usr" / "bin"), *_POSTGRESQL]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    return None if found is None else Path(found)


def program(name: str) -> Path:
    """Return a program's path. If it is missing, fail if CI=true, and skip otherwise."""
    found = find(name)
    if found is not None:
        return found
    missing = f"no {name}: `make test-packages` installs it, as root on a Debian"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def main() -> int:
    """Install the missing packages, and return 1 if some are still missing."""
    missing = [package for package in PACKAGES if not package.is_here()]
    if missing and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        _print("Installing Debian packages that tests need:", missing)
        _apt("update")
        for package in missing:
            _install(package)
        missing = [package for package in missing if not package.is_here()]
    if missing:
        _print("These tests are skipped, because Debian packages are missing:", missing)
        sys.stdout.write("To install them on a Debian: sudo make test-packages\n")
    return bool(missing)


def _print(head: str, packages: list[Package]) -> None:
    lines = [f"  {package.name:<21} {package.tests}" for package in packages]
    sys.stdout.write("\n".join([head, *lines]) + "\n")
    sys.stdout.flush()


def _install(package: Package) -> None:
    if package.is_unpacked:
        _UNPACKED.mkdir(exist_ok=True)
        _apt("download", package.name)
        for archive in _UNPACKED.glob(f"{package.name}_*.deb"):
            subprocess.run(["dpkg", "-x", archive, _UNPACKED], check=False)
            archive.unlink()
        return
    if package.name == "postgresql":
        # PostgreSQL needs a user of its own and libraries, so it is installed. The package of its
        # server would create a cluster and start it, unless this file says otherwise.
        _apt("install", "--no-install-recommends", "postgresql-common")
        if _NO_CLUSTER.parent.is_dir():
            _NO_CLUSTER.write_text("create_main_cluster = false\n")
    _apt("install", "--no-install-recommends", package.name)


def _apt(*arguments: str) -> None:
    """Run `apt-get`. A failure is not an error here: what is missing afterwards is reported."""
    subprocess.run(
        ["apt-get", arguments[0], "-qq", *arguments[1:]],
        cwd=_UNPACKED if arguments[0] == "download" else None,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdout=sys.stderr,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
