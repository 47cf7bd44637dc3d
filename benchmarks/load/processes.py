"""Processes of the measured programs: startup, processor time, memory, shutdown."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.client import Load, RefusedError, play

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Program:
    """A command that serves a port of this machine."""

    command: Sequence[str]
    port: int
    log: Path
    """File for its output."""
    environment: Mapping[str, str]
    """Variables in addition to those of this process."""


@dataclass(frozen=True, slots=True)
class Running:
    """A program that has started to answer."""

    process: subprocess.Popen[bytes]
    port: int
    ready_s: float
    """From its start to its first answer."""

    def cpu_s(self) -> float:
        """Return the processor time of the program and its children (proc(5))."""
        return sum(_cpu_s(pid) for pid in _tree(self.process.pid))

    def resident_mb(self) -> float:
        """Return the resident memory of the program and its children, in 10^6 bytes (proc(5))."""
        return sum(resident_mb(pid) for pid in _tree(self.process.pid))


@contextmanager
def running(program: Program, request: bytes) -> Iterator[Running]:
    """Start a program and yield it after it has answered a request with 200; stop it at the end.

    Raises TimeoutError with the end of its output if it does not answer.
    """
    started = time.perf_counter()
    with program.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - the benchmark's own commands
            program.command,
            env={**os.environ, **program.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait(process, program, request)
        yield Running(process, program.port, time.perf_counter() - started)
    finally:
        _end(process)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], program: Program, request: bytes) -> None:
    deadline = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline and process.poll() is None:
        if _answers(program.port, request):
            return
        time.sleep(_POLL_S)
    output = program.log.read_bytes()[-2000:].decode(errors="replace")
    raise TimeoutError(f"{program.command[0]} does not answer; its output ends with: {output}")


def _answers(port: int, request: bytes) -> bool:
    try:
        play(Load(port, iter([request]), connections=1, seconds=0.0, warm_requests=1))
    except (OSError, RefusedError):
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _tree(int(child))


def _cpu_s(pid: int) -> float:
    """Return user and system time, fields 14 and 15; the name in field 2 may contain spaces."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_mb(pid: int) -> float:
    """Return the resident memory of one process, in 10^6 bytes (proc(5))."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
