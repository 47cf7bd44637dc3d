"""Resources of the gateway's process during a soak, and the delay of its event loop."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.processes import resident_mb

PROBE_PERIOD_S = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources of the gateway at one time; memory in 10^6 bytes."""

    at_s: float
    """From the start of the soak."""
    answered: int
    """Requests that have ended so far."""
    resident_mb: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Waiting times for `GET /healthz` and for an idle server at the same time."""

    at_s: float
    """Unix time."""
    gateway_s: float
    idle_s: float


def look(pid: int, *, at_s: float, answered: int) -> Sample:
    """Read a process's memory, descriptors and threads (proc(5))."""
    process = Path(f"/proc/{pid}")
    return Sample(
        at_s,
        answered,
        resident_mb(pid),
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
    )


def forget_peak(pid: int) -> None:
    """Reset a process's peak resident memory (proc(5), `clear_refs`)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    """Return the peak resident memory since the last reset, in 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("/proc has no VmHWM; this needs Linux")


@contextmanager
def probing(port: int, idle_port: int, out: Path) -> Iterator[None]:
    """Probe a gateway and an idle server from a separate process until the block ends."""
    command = (sys.executable, "-m", "benchmarks.mixed.watching", str(port), str(idle_port))
    with out.open("wb") as file, subprocess.Popen(command, stdout=file) as process:  # noqa: S603
        try:
            yield
        finally:
            process.terminate()


def read_probes(path: Path) -> Sequence[Probe]:
    """Return the probes in a file; an incomplete last line is skipped."""
    rows = (line.split() for line in path.read_text().splitlines())
    return [Probe(*map(float, row)) for row in rows if len(row) == 3]


def _probe(port: int, idle_port: int) -> None:
    """Probe both servers 20 times a second, without end; print the time and both waits."""
    gateway = socket.create_connection(("127.0.0.1", port))
    idle = socket.create_connection(("127.0.0.1", idle_port))
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + PROBE_PERIOD_S, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        sent_s = time.perf_counter()
        waits_s = []
        for server in (idle, gateway):
            server.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        for server in (idle, gateway):
            if not server.recv(65536):
                raise SystemExit("a server closed the probe's connection")
            waits_s.append(time.perf_counter() - sent_s)
        idle_s, gateway_s = waits_s
        print(f"{time.time():.3f} {gateway_s:.6f} {idle_s:.6f}", flush=True)


if __name__ == "__main__":
    _probe(int(sys.argv[1]), int(sys.argv[2]))
