"""Where the workers of one gateway keep their values, so that each of them can show all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.multiprocess import mark_process_dead

from router_service.core.errors import ConfigError
from router_service.telemetry.metrics import SHARED_DIRECTORY


@contextmanager
def shared_values() -> Iterator[None]:
    """Have a directory for the values of workers that start within the block, empty at first.

    It is the one that the environment names, else a temporary one. Raises ConfigError where
    nothing can be written there.
    """
    named = os.environ.get(SHARED_DIRECTORY)
    if named is not None:
        _empty(Path(named))
        yield
        return
    with _temporary() as directory:
        os.environ[SHARED_DIRECTORY] = directory
        try:
            yield
        finally:
            del os.environ[SHARED_DIRECTORY]


def forget(process_id: int) -> None:
    """Show no gauge of a worker that has ended any more; what it counted stays."""
    mark_process_dead(process_id)  # type: ignore[no-untyped-call] # the library's own lack


def _temporary() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="switchcraft-metrics-")
    except OSError as exc:
        problem = f"is not set, and there is no directory for temporary files: {exc.strerror}"
        raise ConfigError("the environment", SHARED_DIRECTORY, problem) from exc


def _empty(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for values in directory.glob("*.db"):
            values.unlink()
    except OSError as exc:
        problem = f"the values of workers cannot be kept in {directory}: {exc.strerror}"
        raise ConfigError("the environment", SHARED_DIRECTORY, problem) from exc
