"""Handle signals that reach a process before it serves requests.

Importing takes a second. During that time the default action of SIGHUP, SIGTERM and SIGINT would
kill the process with a failure status. This module imports almost nothing, so that the command line
can call `hold` before it imports anything else.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class _Held:
    """Whether each kind of signal has arrived."""

    hang_up = False
    stop = False


def hold() -> None:
    """Remember SIGHUP, and exit with 0 at SIGTERM or SIGINT, until other handlers are installed.

    A signal that the parent process ignores stays ignored, as `nohup` requires. Only the main
    thread may handle signals; in other threads, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    _Held.hang_up = _Held.stop = False
    for number, handler in (
        (signal.SIGHUP, _remember), (signal.SIGTERM, _stop), (signal.SIGINT, _stop),
    ):  # fmt: skip
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def release_hang_up() -> None:
    """Restore the default action of SIGHUP, and deliver one that was remembered."""
    if signal.getsignal(signal.SIGHUP) is _remember:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if take_hang_up():
            signal.raise_signal(signal.SIGHUP)


def take_hang_up() -> bool:
    """Return whether SIGHUP has arrived, and clear it."""
    arrived, _Held.hang_up = _Held.hang_up, False
    return arrived


def is_stopping() -> bool:
    """Return whether a stop was requested while the process was starting.

    The SystemExit itself may be lost: a C extension that is being imported turns it into an
    ImportError, and Python only prints an exception that is raised within a finalizer.
    """
    return _Held.stop


def _remember(_number: int, _frame: FrameType | None) -> None:
    _Held.hang_up = True


def _stop(_number: int, _frame: FrameType | None) -> None:
    if _Held.stop:
        os._exit(0)  # this is the second request to stop, so exit immediately
    _Held.stop = True
    raise SystemExit(0)
