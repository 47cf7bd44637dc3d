"""`make release`, run in a small repository: what it builds, and when it refuses."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "deploy" / "release.py"
VERSION = "1.2.0"
FILES = {
    ".gitignore": "dist/\n",
    "CHANGELOG.md": """\
# Changelog

## [Unreleased]

### Added

- Routes tea, too.

## [1.1.0] - 2026-05-04

- Routes coffee.
""",
    "README.md": "# A small router\n",
    "deploy/install.sh": 'mkdir -p "$2" && echo "{}" > "$2/sbom.cdx.json"\n',
    "docs/index.md": "# Start here\n",
    "mkdocs.yml": "site_name: Small\ntheme: mkdocs\n",
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "switchcraft-router"
readme = "README.md"
requires-python = ">=3.11"
dynamic = ["version"]

[tool.hatch.version]
path = "router_service/__init__.py"

[tool.hatch.build.targets.wheel]
packages = ["router_service"]
""",
    "router_service/__init__.py": f'__version__ = "{VERSION}"\n',
}
ENGINE = """\
#!/bin/sh
echo "$(basename "$0") $@" >> {log}
[ "$(basename "$0")" = podman ] || exit 1
[ "$1" != save ] || echo image > "$3"
"""


class Repository:
    """A repository with the script, and programs that take the place of container engines."""

    def __init__(self, folder: Path) -> None:
        self.root, self.programs, self.log = folder / "work", folder / "bin", folder / "log"
        for name, text in FILES.items():
            self.write(name, text)
        shutil.copy(SCRIPT, self.root / "deploy")
        self.programs.mkdir()
        self.git("init", "--quiet")
        self.commit()

    def write(self, name: str, text: str) -> None:
        """Write a file of the repository."""
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *arguments: str) -> str:
        """Run git, and return its output."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.root, env=self._environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def commit(self) -> None:
        """Commit all files."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Change")

    def install_engines(self) -> None:
        """Install engines of which only Podman works, like Docker without its daemon."""
        for name in ("docker", "podman", "buildah"):
            (self.programs / name).write_text(ENGINE.format(log=self.log))
            (self.programs / name).chmod(0o755)

    def release(self) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        return subprocess.run(
            [sys.executable, self.root / "deploy" / "release.py"],
            env=self._environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def sums(self) -> dict[str, str]:
        """Return the hashes of what was built, after comparison with SHA256SUMS."""
        dist = self.root / "dist"
        found = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir()
        }
        listed = (line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines())
        del found["SHA256SUMS"]
        assert {name: digest for digest, name in listed} == found
        return found

    def _environment(self) -> dict[str, str]:
        names = {"GIT_AUTHOR_NAME": "A", "GIT_COMMITTER_NAME": "A"}
        names |= {"GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_EMAIL": "a@example.com"}
        return {**os.environ, **names, "PATH": f"{self.programs}:{os.environ['PATH']}"}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository whose next version has changes."""
    return Repository(tmp_path)


def test_release_is_complete_and_reproducible(repository: Repository) -> None:
    """One command builds every part; another build of the same commit has the same bytes."""
    repository.install_engines()
    first = repository.release()
    assert first.returncode == 0, first.stderr
    built = repository.sums()
    assert built.keys() == {
        f"switchcraft_router-{VERSION}-py3-none-any.whl",
        f"switchcraft_router-{VERSION}.tar.gz",
        f"switchcraft-{VERSION}.cdx.json",
        f"switchcraft-docs-{VERSION}.tar.gz",
        f"switchcraft-image-{VERSION}.tar",
        f"release-notes-{VERSION}.md",
    }
    dist = repository.root / "dist"
    notes = (dist / f"release-notes-{VERSION}.md").read_text()
    assert notes == "### Added\n\n- Routes tea, too.\n"
    with tarfile.open(dist / f"switchcraft-docs-{VERSION}.tar.gz") as archive:
        page = archive.extractfile(f"switchcraft-docs-{VERSION}/index.html")
        assert page is not None
        assert f"Switchcraft {VERSION}" in page.read().decode()
    changelog = (repository.root / "CHANGELOG.md").read_text()
    assert f"## [Unreleased]\n\n## [{VERSION}] - 20" in changelog
    assert repository.git("log", "-1", "--format=%s") == f"Release {VERSION}\n"
    assert repository.git("status", "--porcelain") == ""
    tag = f"switchcraft:{VERSION}"
    engines = repository.log.read_text().splitlines()
    assert engines[:3] == [
        "docker info",
        "podman info",
        f"podman build --target cpu --tag {tag} .",
    ]
    wheel, sdist = (name for name in sorted(built, reverse=True) if "_router-" in name)
    for command in (f"git push origin HEAD v{VERSION}", f"dist/{sdist}", f"dist/{wheel}", tag):
        assert command in first.stdout
    again = repository.release()
    assert again.returncode == 0, again.stderr
    assert repository.sums() == built
    assert repository.git("log", "--format=%s") == f"Release {VERSION}\nChange\n"


@pytest.mark.parametrize(
    ("changed", "text", "problem"),
    [
        ("router_service/new.py", "", "router_service/new.py"),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [1.1.0] - 2026-05-04\n\n- C.\n", "no changes for"),
        (
            "CHANGELOG.md",
            f"## [Unreleased]\n\n- B.\n\n## [{VERSION}] - 2026-06-04\n\n- C.\n",
            "raise __version__",
        ),
        ("docs/index.md", "[nowhere](nowhere.md)\n", "nowhere.md"),
    ],
    ids=["uncommitted", "nothing changed", "changes after the section", "broken link"],
)
def test_release_is_refused(repository: Repository, changed: str, text: str, problem: str) -> None:
    """A tree with changes, a version without changes of its own, or a broken page is refused."""
    repository.write(changed, text)
    if changed != "router_service/new.py":
        repository.commit()
    done = repository.release()
    assert done.returncode == 1
    assert problem in done.stderr


def test_version_is_released_once(repository: Repository) -> None:
    """A version whose tag is on another commit has been released."""
    repository.git("tag", f"v{VERSION}")
    repository.write("README.md", "# A larger router\n")
    repository.commit()
    done = repository.release()
    assert done.returncode == 1
    assert f"v{VERSION} is the tag of another commit: raise __version__" in done.stderr
