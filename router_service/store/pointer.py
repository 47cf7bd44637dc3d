"""The pointer as a directory has it."""

from __future__ import annotations

from pathlib import Path

from router_service.core.errors import StoreError
from router_service.core.publication import POINTER_FILE

MAX_BYTES = 1024 * 1024
"""A pointer has about 1 KB; what is larger is none, and is not read to its end."""


def read_pointer(directory: Path) -> bytes | None:
    """Return the pointer's text, or None where nothing is published; raises StoreError."""
    try:
        with (directory / POINTER_FILE).open("rb") as file:
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError("read the publication", f"{directory}: {exc.strerror}") from exc
