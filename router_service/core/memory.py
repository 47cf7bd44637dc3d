"""How the process's C library keeps memory: what is freed goes back to the operating system."""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt(3).
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGE_BYTES = 128 * 1024
"""Blocks of this size are mapped separately and returned when freed. It is glibc's initial
threshold, which glibc would raise to up to 32 MB."""
_ARENAS = 2


def bound_heap() -> None:
    """Have large blocks returned as soon as they are freed; call it before threads are started.

    By default glibc keeps blocks of up to 32 MB in heaps, of which each thread may have its own:
    after ten publications under load, 307 of 401 MB of heap were free, and not returned.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def return_freed() -> None:
    """Return free heap memory to the system: 33 MB after the shipped graph was loaded."""
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> ctypes._NamedFuncPointer | None:
    """Return a function of glibc's; None where the C library is another."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
