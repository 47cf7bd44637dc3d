"""Probe /healthz 20 times a second and write the time of each answer: `probe.py PORT PID`.

This is a separate process, so that it does not wait for the tests' interpreter lock. A line has the
time of the request (`time.monotonic`, the same clock in every process) and the seconds until the
answer, or -1 if a new connection got no answer. Time for which the gateway's main thread (PID) or
the probe was ready to run but waited for a processor is subtracted (proc(5): schedstat), because a
busy machine is not a stall of the event loop.
"""

from __future__ import annotations

import os
import socket
import sys
import time

INTERVAL_S = 0.05
LONGEST_S = 30.0
REQUEST = b"GET /healthz HTTP/1.1\r\nhost: gateway\r\n\r\n"


def connect(port: int) -> socket.socket:
    """Connect to the gateway."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection: socket.socket) -> bool:
    """Send one probe; return False if the gateway disconnected instead of answering."""
    try:
        connection.sendall(REQUEST)
        return connection.recv(65536).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def queued_s(pid: int) -> float:
    """Return how long a process's threads have waited for a processor since their start."""
    total_ns = 0
    folder = f"/proc/{pid}/task"
    threads = os.listdir(folder) if os.access(folder, os.R_OK) else ()  # noqa: PTH208 - slow import
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:  # noqa: PTH123
                total_ns += int(file.read().split()[1])
        except (OSError, IndexError):
            continue  # the thread has just ended
    return total_ns / 1e9


def main(port: int, pid: int) -> None:
    """Probe until standard output is closed."""
    connection = connect(port)
    while True:
        began_s = time.monotonic()
        waited_s = queued_s(pid) + queued_s(os.getpid())
        try:
            if not ask(connection):  # the gateway may close an idle connection
                connection.close()
                connection = connect(port)
                if not ask(connection):
                    raise ConnectionError
            waited_s = queued_s(pid) + queued_s(os.getpid()) - waited_s
            took_s = max(0.0, time.monotonic() - began_s - waited_s)
        except OSError:
            took_s = -1.0
        sys.stdout.write(f"{began_s:.6f} {took_s:.6f}\n")
        sys.stdout.flush()
        time.sleep(max(0.0, began_s + INTERVAL_S - time.monotonic()))


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except (BrokenPipeError, ConnectionError):
        sys.exit(0)
