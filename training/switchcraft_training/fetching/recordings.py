"""Arrangement of downloaded files as a recording's folder, and the check of an existing folder.

Files are arranged in a hidden folder beside the recording's own, which appears when it is complete.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from switchcraft_training.errors import DataError, FetchError
from switchcraft_training.fetching.downloads import (
    PinnedCommit,
    download_wheel,
    git_object_id,
    read_wheel,
)
from switchcraft_training.fetching.sources import Files, Package, PublicRecording, Repository
from switchcraft_training.progress import Bar
from switchcraft_training.storage import complete_file

log = logging.getLogger(__name__)

SOURCES: Final = "SOURCES.json"


class FetchedSource(BaseModel):
    """Where some of the files come from: a commit of a repository, or a version of a package."""

    model_config = ConfigDict(frozen=True)

    name: str
    url: str | None
    """The repository's address; None for a package from the configured index."""
    revision: str
    licence: str


class FetchedFiles(BaseModel):
    """The file `SOURCES.json` of a recording's folder."""

    model_config = ConfigDict(frozen=True)

    recording: str
    models: tuple[str, ...]
    sources: tuple[FetchedSource, ...]
    sha256: Mapping[str, str]
    """SHA-256 of every file by its path in the folder."""


def fetch_recording(
    recording: PublicRecording, data: Path, mirrors: Mapping[str, str], models: Sequence[str] = ()
) -> Path:
    """Download a recording into its folder in `data`, or check the one that is there.

    `mirrors` has other addresses by the source's name, and `models` are shell patterns that replace
    the recording's own. Raises FetchError if something cannot be downloaded, and DataError if the
    existing folder was changed or has other contents than those that are asked for.
    """
    folder = data / recording.folder
    models = tuple(models) or recording.models
    if folder.exists():
        _check_folder(folder, recording, models)
        return folder
    sources = _sources(recording, mirrors)
    addresses = ", ".join(dict.fromkeys(source.url or source.name for source in sources))
    size = f"about {recording.download_mb} MB ({recording.disk_mb} MB on the disk) from"
    what = size if models == recording.models else f"{', '.join(models)} from"
    log.info("%s: download of %s %s", recording.name, what, addresses)
    partial = data / f".{recording.folder}.partial"
    arranged = partial / "files"
    targets: set[str] = set()
    for files in recording.files:
        address = mirrors.get(files.source.name)
        if isinstance(files.source, Package):
            targets |= _arrange_package(files.source, files, partial, address)
        else:
            targets |= _arrange_repository(files.source, files, models, partial, address)
    for path in arranged.rglob("*"):
        # An interrupted run may have asked for other models.
        if path.is_file() and path.relative_to(arranged).as_posix() not in targets:
            path.unlink()
    hashes = {target: _sha256(arranged / target) for target in sorted(targets)}
    fetched = FetchedFiles(recording=recording.name, models=models, sources=sources, sha256=hashes)
    (arranged / SOURCES).write_text(fetched.model_dump_json(indent=1) + "\n")
    arranged.rename(folder)
    shutil.rmtree(partial)
    size_mb = sum(path.stat().st_size for path in folder.rglob("*.gz")) / 1e6
    log.info("%s: %d files, %.0f MB in %s", recording.name, len(hashes), size_mb, folder)
    return folder


def _sources(recording: PublicRecording, mirrors: Mapping[str, str]) -> tuple[FetchedSource, ...]:
    sources = {}
    for files in recording.files:
        source = files.source
        url = mirrors.get(source.name)
        if isinstance(source, Repository):
            url, revision = url or source.url, files.commit
        else:
            revision = source.version
        sources[source.name] = FetchedSource(
            name=source.name, url=url, revision=revision, licence=source.licence
        )
    return tuple(sources.values())


def _check_folder(folder: Path, recording: PublicRecording, models: Sequence[str]) -> None:
    """Check that a folder is the recording that is asked for, and that no file was changed."""
    path = folder / SOURCES
    if not path.exists():
        problem = (
            f"exists, but has no {SOURCES}: it was not downloaded by this command, and stays as it"
            " is. Use it, remove it, or give another folder with --data"
        )
        raise DataError(folder, None, problem)
    again = f"Remove the folder {folder}, and run the same command again"
    try:
        fetched = FetchedFiles.model_validate_json(path.read_bytes())
    except ValidationError as exc:
        raise DataError(
            path, None, f"cannot be read ({exc.error_count()} errors). {again}"
        ) from exc
    has, pinned = (
        {source.name: source.revision for source in sources}
        for sources in (fetched.sources, _sources(recording, {}))
    )
    if has != pinned:
        problem = f"has the revisions {has}, and this version fetches {pinned}"
        raise DataError(path, None, f"{problem}. {again}")
    if set(fetched.models) != set(models):
        problem = f"has the models {', '.join(fetched.models)}, and not {', '.join(models)}"
        raise DataError(path, None, f"{problem}. {again}")
    changed = [name for name, digest in fetched.sha256.items() if _sha256(folder / name) != digest]
    if changed:
        problem = f"is missing, or differs from what was downloaded ({len(changed)} such files)"
        raise DataError(folder / changed[0], None, f"{problem}. {again}")
    log.info("%s: %s is complete and unchanged", recording.name, folder)


def _arrange_package(package: Package, files: Files, partial: Path, index: str | None) -> set[str]:
    """Arrange a package's files, and return their paths in the recording's folder."""
    contents = read_wheel(download_wheel(package, partial / package.name, index))
    matches = {path: match for path in contents if (match := files.pattern.fullmatch(path))}
    if not matches:
        raise FetchError(f"{package.name}=={package.version}", _nothing_like(files))
    targets = {files.target.format_map(match.groupdict()): path for path, match in matches.items()}
    for target, path in targets.items():
        _write_compressed(partial / "files" / target, contents[path])
    return set(targets)


def _arrange_repository(
    repository: Repository, files: Files, models: Sequence[str], partial: Path, url: str | None
) -> set[str]:
    """Arrange a repository's files that are not there yet, and return the paths of all."""
    clone = partial / f"{repository.name}-{files.commit[:12]}.git"
    commit = PinnedCommit(url or repository.url, files.commit, clone)
    wanted = dict(_select(commit, files, models))
    missing: dict[str, list[Path]] = {}
    for target, object_id in wanted.items():
        path = partial / "files" / target
        if not _has_content(path, object_id):
            missing.setdefault(object_id, []).append(path)
    what = f"{repository.name}, {files.target.partition('/')[0]}"
    with Bar(what, len(missing), "files", is_hidden=not missing) as bar:
        for object_id, content in commit.read_files(missing):
            for path in missing[object_id]:
                _write_compressed(path, content)
            bar.update()
    return set(wanted)


def _select(commit: PinnedCommit, files: Files, models: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the target and the object id of each file of these models.

    Raises FetchError if the commit has no file of a model.
    """
    listed = commit.list_files()
    matches = {path: match for path in listed if (match := files.pattern.fullmatch(path))}
    if not matches:
        raise FetchError(commit.url, f"at commit {commit.commit} {_nothing_like(files)}")
    unmatched = set(models) if "model" in files.pattern.groupindex else set()
    for path, match in matches.items():
        groups = match.groupdict()
        model = groups.get("model")
        chosen = {each for each in models if model is None or fnmatchcase(model, each)}
        unmatched -= chosen
        if chosen:
            yield files.target.format_map(groups), listed[path]
    if unmatched:
        known = sorted({match["model"] for match in matches.values()})
        problem = f"has no answers of {', '.join(sorted(unmatched))}; it has: {', '.join(known)}"
        raise FetchError(commit.url, problem)


def _nothing_like(files: Files) -> str:
    return (
        f"has no file like {files.pattern.pattern}. Name a copy of the original with --mirror, or"
        " update Switchcraft."
    )


def _has_content(path: Path, object_id: str) -> bool:
    """Return whether a file was already arranged by an earlier, interrupted run."""
    try:
        return git_object_id(gzip.decompress(path.read_bytes())) == object_id
    except (OSError, EOFError, zlib.error):
        return False


def _write_compressed(path: Path, content: bytes) -> None:
    """Write a compressed file, which appears when it is complete."""
    with complete_file(path) as partial:
        partial.write_bytes(gzip.compress(content, compresslevel=6, mtime=0))


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file, or an empty text if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
