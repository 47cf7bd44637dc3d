"""Where the pointer is kept, and how it is moved so that no two publishers undo each other."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from redis import Redis
from redis.exceptions import RedisError, WatchError

from router_service.core.addresses import check_redis_address
from router_service.core.errors import PublicationError
from router_service.core.releases import POINTER_FILE, POINTER_KEY, Publication
from switchcraft_training.publishing.releases import sync

Change = Callable[[Publication | None], Publication]

TIMEOUT_S = 5.0


class Pointer(Protocol):
    """One place that says what is published; every operation raises PublicationError."""

    name: str
    """The place, as people may read it: without a password."""
    is_beside_releases: bool
    """Whether releases lie in the same directory."""

    def read(self) -> Publication | None:
        """Return what is published, or None where nothing is yet."""

    def move(self, change: Change) -> Publication:
        """Replace the pointer in one step by what `change` makes of it, and return that."""


def open_pointer(place: str) -> Pointer:
    """Return the pointer of a directory, or of a Redis by its address."""
    is_address = place.startswith(("redis://", "rediss://", "unix://"))
    return RedisPointer(place) if is_address else DirectoryPointer(Path(place))


class DirectoryPointer:
    """A file beside the releases."""

    is_beside_releases = True

    def __init__(self, directory: Path) -> None:
        """Point in a directory, which is made with its first release."""
        self.name = str(directory)
        self._directory = directory
        self._path = directory / POINTER_FILE

    def read(self) -> Publication | None:
        """Return what the file says."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise PublicationError(self.name, f"cannot be read: {exc.strerror}") from exc
        return Publication.parse(text, str(self._path))

    def move(self, change: Change) -> Publication:
        """Replace the file; readers see the old one or the new one, whole."""
        with self._locked():
            publication = change(self.read())
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(publication.to_json())
            sync(partial)
            partial.replace(self._path)
            sync(self._directory)
        return publication

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the file is closed
                yield
        except OSError as exc:
            raise PublicationError(self.name, f"cannot be written: {exc.strerror}") from exc


class RedisPointer:
    """A key of Redis."""

    is_beside_releases = False

    def __init__(self, url: str) -> None:
        """Connect on first use; raises PublicationError where it is no address of Redis."""
        self.name = _without_password(url)
        try:
            check_redis_address(url)
        except ValueError as exc:
            raise PublicationError(self.name, str(exc)) from None
        try:
            self._redis = Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
            )
        except ValueError:
            # Not from exc: urllib's message quotes what it takes for the port, and that is the
            # password where it has a slash.
            raise PublicationError(self.name, "is not an address of Redis") from None

    def read(self) -> Publication | None:
        """Return what the key holds."""
        with self._translated():
            return self._parsed(self._redis.get(POINTER_KEY))

    def move(self, change: Change) -> Publication:
        """Replace the key's value; where another publisher was faster, `change` is asked again."""
        with self._translated(), self._redis.pipeline() as pipeline:
            while True:
                pipeline.watch(POINTER_KEY)  # type: ignore[no-untyped-call]  # the driver's gap
                publication = change(self._parsed(pipeline.get(POINTER_KEY)))
                pipeline.multi()
                pipeline.set(POINTER_KEY, publication.to_json())
                with suppress(WatchError):
                    pipeline.execute()
                    return publication

    def _parsed(self, text: object) -> Publication | None:
        return Publication.parse(text, self.name) if isinstance(text, bytes) else None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as exc:
            raise PublicationError(self.name, f"is away ({type(exc).__name__})") from exc


def _without_password(url: str) -> str:
    """Return an address without user and query; a password may have any of its marks."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
