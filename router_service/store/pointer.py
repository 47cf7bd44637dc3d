"""The pointer as a directory has it."""

from __future__ import annotations

from pathlib import Path

from router_service.core.errors import StoreError
from router_service.core.publication import MAX_POINTER_BYTES, POINTER_FILE


def read_pointer(directory: Path) -> bytes | None:
    """Return the pointer's text, or None if nothing is published; raises StoreError.

    A text that is too long is cut one byte behind the limit, and is refused when it is parsed.
    """
    try:
        with (directory / POINTER_FILE).open("rb") as file:
            return file.read(MAX_POINTER_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError("read the publication", f"{directory}: {exc.strerror}") from exc
