"""The command `switchcraft`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from router_service import signals
from router_service.core.errors import SwitchcraftError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 on success, 1 after an expected error."""
    given = sys.argv[1:] if argv is None else argv
    if "serve" in given[:1]:
        signals.hold()  # first of all, because a signal must not kill a gateway that is starting
        # numpy starts a thread for each core when it is imported. A gateway multiplies matrices
        # only when it starts, and the threads' memory is never returned (4 MB on two cores).
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # prometheus_client would keep counts in files there, where a restart finds them again.
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
        # Until it serves, nearly all objects stay. Visiting them takes a fifth of a start's time.
        gc.disable()
    status = 0
    try:
        # Imported here, because signals must be held first.
        from router_service.cli.commands import app
        from router_service.command_line import read_command

        command, bound = read_command(app, given)
        status = command(*bound.args, **bound.kwargs) or 0
    except SwitchcraftError as exc:
        print(f"switchcraft: {exc}", file=sys.stderr)
        status = 1
    except BrokenPipeError:
        # The program that reads our output has ended. Without a new destination, Python would fail
        # when it flushes the remaining output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except BaseException:
        if not signals.is_stopping():
            raise
    finally:
        gc.enable()
    return 0 if signals.is_stopping() else status
