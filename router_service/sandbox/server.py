"""A server for the sandbox in a thread of the current process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from router_service.core.errors import SwitchcraftError
from router_service.sandbox.app import create_sandbox

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 1  # requests that hang on purpose must not delay the end of the process
_BACKLOG = 2048

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, as with providers; otherwise a request could meet the
end of its connection."""


class _Server(uvicorn.Server):
    """A uvicorn server with an event that it is ready."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and set the event."""
        await super().startup(sockets=sockets)
        self.ready.set()


@contextmanager
def run_in_thread(
    host: str = "127.0.0.1", port: int = 0, *, keep_requests: int = 0
) -> Iterator[str]:
    """Serve the sandbox from a daemon thread, and yield its base URL, `http://HOST:PORT/v1`.

    Port 0 chooses a free one. The server is ready when the URL is yielded, and stops when the block
    ends. Raise OSError if the port is taken. The process's logging is unchanged; a cut that a
    request asked for is an error line of the logger `uvicorn.error`.
    """
    listener = socket.create_server((host, port), backlog=_BACKLOG)
    address = f"http://{host}:{listener.getsockname()[1]}/v1"
    config = uvicorn.Config(
        create_sandbox(keep_requests=keep_requests),
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_TIMEOUT_S,
    )
    server = _Server(config)
    thread = threading.Thread(
        target=server.run, args=([listener],), name="switchcraft-sandbox", daemon=True
    )
    thread.start()
    try:
        if not server.ready.wait(START_TIMEOUT_S):
            raise SwitchcraftError(f"The sandbox did not start within {START_TIMEOUT_S:.0f} s.")
        yield address
    finally:
        server.should_exit = True
        thread.join(STOP_TIMEOUT_S)
