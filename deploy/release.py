"""Build everything of a release in dist/, without uploading it: `make release`.

Raise `__version__` in router_service/__init__.py first. If the changelog has no section for that
version yet, what is under "Unreleased" becomes that section, in a commit of its own. Everything is
built from the committed files, so two builds of one commit are identical, except for the image.
CONTRIBUTING.md says what is left to do afterwards.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
ENGINES = ("docker", "podman", "buildah")
"""Programs that can build the image, in the order in which they are tried."""

_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_SECTION = re.compile(
    r"^## \[([^\]]+)\](?: - (\S+))?\n(.*?)(?=^## \[|^\[[^\]]+\]: |\Z)", re.MULTILINE | re.DOTALL
)


class ReleaseError(Exception):
    """A reason not to build a release; the message says what to do."""


def released_changelog(text: str, version: str, today: str) -> str:
    """Return the changelog with a section for a version, into which unreleased changes move.

    Raise ReleaseError if there is nothing to release, or if changes came after the section.
    """
    sections = {name: body.strip() for name, _, body in _SECTION.findall(text)}
    unreleased = sections.get("Unreleased", "")
    if sections.get(version):
        if unreleased:
            problem = (
                f"has a section for {version}, and changes under Unreleased: raise __version__"
            )
            raise ReleaseError(f"CHANGELOG.md {problem} in router_service/__init__.py")
        return text
    if not unreleased:
        raise ReleaseError(f"CHANGELOG.md has no changes for {version} under Unreleased")
    return text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {today}\n", 1)


def release_notes(text: str, version: str) -> str:
    """Return the changelog's section of a version."""
    (notes,) = [body.strip() for name, _, body in _SECTION.findall(text) if name == version]
    return f"{notes}\n"


def copy_sources(root: Path, folder: Path) -> None:
    """Copy the files that git knows or would add, as they are in the working tree."""
    listed = _run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", root=root)
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)


def build_packages(sources: Path, dist: Path) -> None:
    """Build the sdist, and the wheel from it; raise ReleaseError if an index would refuse them."""
    _run("uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable,
         "--no-create-gitignore", "--out-dir", dist, root=sources)  # fmt: skip
    (wheel,) = dist.glob("*.whl")
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        try:
            description = Metadata.from_email(archive.read(name)).description
        except ExceptionGroup as exc:
            raise ReleaseError(f"{wheel.name}: {exc.exceptions[0]}") from exc
    if not description:
        raise ReleaseError(f"{wheel.name} has no description, which the index shows")


def build_documentation(sources: Path, version: str, archive: Path) -> None:
    """Build the documentation of a version as an archive of a web site."""
    config = sources / "mkdocs.release.yml"
    config.write_text(f"INHERIT: mkdocs.yml\nsite_name: Switchcraft {version}\n")
    site = sources.parent / "site"
    _run("mkdocs", "build", "--strict", "--config-file", config,
         "--site-dir", site, root=sources)  # fmt: skip

    def without_builder(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with (
        archive.open("wb") as file,
        gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tree,
    ):
        tree.add(site, arcname=archive.name.removesuffix(".tar.gz"), filter=without_builder)


def build_image(sources: Path, version: str, archive: Path) -> str | None:
    """Build the image for CPUs and save it; return its name, or None if no engine works here."""
    tag = f"switchcraft:{version}"
    for engine in filter(shutil.which, ENGINES):
        try:
            _run(engine, "info", root=sources)
        except ReleaseError:
            continue  # for example docker without its daemon
        _run(engine, "build", "--target", "cpu", "--tag", tag, ".", root=sources)
        saved: Sequence[object] = ("save", "--output", archive, tag)
        if engine == "buildah":
            saved = ("push", tag, f"docker-archive:{archive}:{tag}")
        _run(engine, *saved, root=sources)
        return tag
    return None


def build(root: Path, dist: Path) -> str:
    """Build a release of a repository; return what is left to do."""
    version = _check_tree(root)
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text()
    released = released_changelog(text, version, f"{datetime.now(UTC):%Y-%m-%d}")
    if released != text:
        changelog.write_text(released)
        _run("git", "commit", "--quiet", "--message", f"Release {version}", changelog, root=root)
        _say(f"CHANGELOG.md has a section for {version} now, which is committed")
    os.environ["SOURCE_DATE_EPOCH"] = _run("git", "log", "-1", "--format=%ct", root=root).strip()
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        sources = Path(temporary) / "sources"
        copy_sources(root, sources)
        _say("wheel and sdist")
        build_packages(sources, dist)
        _say("list of the image's packages (SBOM)")
        _run("sh", "deploy/install.sh", "cpu", Path(temporary) / "image", root=sources)
        bom = Path(temporary) / "image" / "sbom.cdx.json"
        shutil.copy(bom, dist / f"switchcraft-{version}.cdx.json")
        _say("documentation")
        build_documentation(sources, version, dist / f"switchcraft-docs-{version}.tar.gz")
        _say("image")
        image = build_image(sources, version, dist / f"switchcraft-image-{version}.tar")
    if image is None:
        engines = ", ".join(ENGINES)
        _say(f"no image: none of {engines} works here; elsewhere, `docker build .` makes it")
    (dist / f"release-notes-{version}.md").write_text(release_notes(released, version))
    files = sorted(dist.iterdir())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(sums))
    return "\n".join(_steps(version, dist, image))


def _check_tree(root: Path) -> str:
    """Return the version that is released; raise ReleaseError if it cannot be."""
    changes = _run("git", "status", "--porcelain", root=root)
    if changes:
        raise ReleaseError(f"the working tree has changes: commit them first\n{changes.rstrip()}")
    found = _VERSION.search((root / "router_service" / "__init__.py").read_text())
    if found is None:
        raise ReleaseError("router_service/__init__.py has no __version__")
    version = found[1]
    tagged = _run("git", "tag", "--list", f"v{version}", root=root).strip()
    if tagged and _run("git", "rev-list", "-1", tagged, root=root) != _run(
        "git", "rev-parse", "HEAD", root=root
    ):
        raise ReleaseError(f"{tagged} is the tag of another commit: raise __version__")
    return version


def _steps(version: str, dist: Path, image: str | None) -> list[str]:
    """Return the commands that are left to a person."""
    files = [path.name for path in sorted(dist.iterdir())]
    packages = " ".join(f"dist/{name}" for name in files if name.startswith("switchcraft_router-"))
    steps = [
        f"Release {version} is in dist/: {', '.join(files)}.",
        f"Read dist/release-notes-{version}.md. Then upload it:",
        "",
        f"  git tag --annotate v{version} --message 'Switchcraft {version}'",
        f"  git push origin HEAD v{version}",
        f"  uv publish {packages}",
    ]
    if image is not None:
        steps += [
            f"  docker load --input dist/switchcraft-image-{version}.tar",
            f"  docker tag {image} REGISTRY/{image} && docker push REGISTRY/{image}",
        ]
    return [*steps, "", f"and attach the other files to the release page of v{version}."]


def _run(*command: object, root: Path) -> str:
    """Run a program, with those beside this Python first; raise ReleaseError if it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603 - the commands are written above
        [str(part) for part in command],
        cwd=root,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        problem = done.stderr.strip() or done.stdout.strip()
        raise ReleaseError(f"{' '.join(map(str, command[:2]))} failed: {problem}")
    return done.stdout


def _say(text: str) -> None:
    sys.stderr.write(f"release: {text}\n")


def main() -> int:
    """Build the release in dist/; return the exit status."""
    description = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser(description=description).parse_args()
    try:
        sys.stdout.write(f"{build(ROOT, ROOT / 'dist')}\n")
    except ReleaseError as exc:
        sys.stderr.write(f"release: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
