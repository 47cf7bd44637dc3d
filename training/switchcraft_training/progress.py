"""Stages of a run: which one is running, how far it is, and what it needed.

On a terminal, long loops have tqdm's bars. In a log, they have a line every half minute, and one
at their end. Lines of a run begin with the time since its start.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from types import TracebackType
from typing import Final, Self, TypeVar

from tqdm import tqdm

log = logging.getLogger(__name__)

Item = TypeVar("Item")

LOG_EVERY_S: Final = 30.0
_BAR_FORMAT: Final = (
    "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, ends {eta:%H:%M}{postfix}]"
)
_MEMORY: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


@dataclass(slots=True)
class Usage:
    """Time and memory of a stage, or of one of its steps over all its repetitions.

    `peak_memory_mb` is the process's resident memory at its peak, in units of 10^6 bytes.
    """

    stage: str
    step: str = ""
    repetitions: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_mb: float = 0.0


@dataclass(slots=True)
class Stages:
    """The planned stages of a run by name, and the usage of those that have started."""

    names: tuple[str, ...] = ()
    usages: dict[tuple[str, str], Usage] = field(default_factory=dict)
    current: str = ""
    part: str = ""
    """The part of the current stage that is running, for example `fold 2 of 5`."""
    workers_mb: dict[int, float] = field(default_factory=dict)
    """Peak memory of the current stage's other processes, by process id."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def title(self) -> str:
        """The current stage and its part, for example `stage 3 of 12, baselines`."""
        if self.current not in self.names:
            return self.current
        number = f"stage {self.names.index(self.current) + 1} of {len(self.names)}"
        return ", ".join(filter(None, (number, self.current, self.part)))

    def log(self, text: str) -> None:
        """Log a line with the time since the run's start."""
        if not self.names:
            log.info("%s", text)
            return
        elapsed = timedelta(seconds=round(time.monotonic() - self.started_s))
        log.info("%s  %s", elapsed, text)

    @contextmanager
    def measure(self, step: str = "") -> Iterator[Usage]:
        """Add the block's time and memory to the usage of a step, or of the current stage."""
        usage = self.usages.setdefault((self.current, step), Usage(self.current, step))
        around = self.usages.get((self.current, "")) if step else None
        if around is not None:
            around.peak_memory_mb = max(around.peak_memory_mb, _peak_memory_mb())
        with suppress(OSError):  # Only Linux can reset the peak; elsewhere, it is the process's.
            _RESET.write_text(_RESET_PEAK)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield usage
        finally:
            usage.repetitions += 1
            usage.seconds += time.perf_counter() - wall
            usage.cpu_seconds += time.process_time() - cpu
            usage.peak_memory_mb = max(usage.peak_memory_mb, _peak_memory_mb())
            if around is not None:
                around.peak_memory_mb = max(around.peak_memory_mb, usage.peak_memory_mb)


_NO_STAGES: Final = Stages()
_PART: Final = "part"
"""Name of the stage in a process that does a part of it."""
_stages: ContextVar[Stages] = ContextVar("stages", default=_NO_STAGES)


@contextmanager
def running(names: Sequence[str]) -> Iterator[Stages]:
    """Run a block whose stages have these names, in this order."""
    stages = Stages(tuple(names))
    token = _stages.set(stages)
    try:
        yield stages
    finally:
        _stages.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Run a block as a stage, and log its start, its duration and its memory.

    Within another stage, the block is a step of that stage.
    """
    stages = _stages.get()
    if stages is _NO_STAGES:  # A part of a run is used on its own.
        yield
        return
    if stages.current:
        with stages.measure(name):
            yield
        return
    stages.current = name
    stages.workers_mb.clear()
    title = stages.title
    stages.log(title)
    try:
        with stages.measure() as usage:
            yield
    finally:
        stages.current = ""
    usage.peak_memory_mb += sum(stages.workers_mb.values())
    took = timedelta(seconds=round(usage.seconds))
    stages.log(f"{title}: took {took}, at most {usage.peak_memory_mb:.0f} MB")


def each_part(parts: Sequence[Item], unit: str) -> Iterator[Item]:
    """Yield the parts of the current stage one after the other, and log which one is running.

    From the second one on, the line says when all parts are expected to end. `unit` is what a part
    is called, for example `fold`.
    """
    stages = _stages.get()
    if not stages.current:
        yield from parts
        return
    started_s = time.monotonic()
    try:
        for number, part in enumerate(parts):
            stages.part = f"{unit} {number + 1} of {len(parts)}"
            left_s = (time.monotonic() - started_s) * (len(parts) - number) / max(number, 1)
            end = f", until about {_clock_time(left_s)}" if number else ""
            stages.log(f"{stages.title}{end}")
            yield part
    finally:
        stages.part = ""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Run a block whose time and memory are measured as a step of the current stage."""
    stages = _stages.get()
    if not stages.current:
        yield
        return
    with stages.measure(name):
        yield


@dataclass(slots=True)
class PartUsage:
    """What a part of a stage needed in another process: in all, and by step."""

    process_id: int
    usages: tuple[Usage, ...] = ()


@contextmanager
def measuring_part() -> Iterator[PartUsage]:
    """Measure a block that does a part of a stage for another process; bars are hidden in it."""
    stages = Stages(current=_PART)
    part = PartUsage(os.getpid())
    token = _stages.set(stages)
    try:
        with stages.measure():
            yield part
    finally:
        part.usages = tuple(stages.usages.values())
        _stages.reset(token)


def add_part(part: PartUsage) -> None:
    """Add to the current stage what one of its parts needed in another process.

    The CPU time of all processes is added up. So is the memory of the stage, because processes run
    at the same time; what they share, such as the code of libraries, then counts several times.
    """
    stages = _stages.get()
    if not stages.current:
        return
    for usage in part.usages:
        known = stages.usages.setdefault(
            (stages.current, usage.step), Usage(stages.current, usage.step)
        )
        known.cpu_seconds += usage.cpu_seconds
        if usage.step:
            known.repetitions += usage.repetitions
            known.seconds += usage.seconds
            known.peak_memory_mb = max(known.peak_memory_mb, usage.peak_memory_mb)
        else:
            peak_mb = max(stages.workers_mb.get(part.process_id, 0.0), usage.peak_memory_mb)
            stages.workers_mb[part.process_id] = peak_mb


class Bar:
    """Progress of a loop within the current stage; a context manager.

    `done` units were finished earlier. `is_hidden` shows nothing, for example in all processes
    except the main one. In a log, a line follows the previous one after `LOG_EVERY_S`.
    """

    def __init__(
        self,
        what: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        is_hidden: bool = False,
    ) -> None:
        self._stages = _stages.get()
        title = self._stages.title
        is_hidden = is_hidden or title == _PART
        self._what = f"{title}: {what}" if title else what
        self._total, self._unit, self._done, self._earlier = total, unit, done, done
        self._figures = ""
        self._started = self._logged = time.monotonic()
        is_terminal = sys.stderr.isatty()
        self._logs = not (is_hidden or is_terminal)
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=self._what,
            unit=unit,
            bar_format=_BAR_FORMAT,
            dynamic_ncols=True,
            disable=is_hidden or not is_terminal,
        )

    def __enter__(self) -> Self:
        """Return the bar."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close the bar, and log how long it took."""
        self._bar.close()
        if self._logs:
            took = timedelta(seconds=round(time.monotonic() - self._started))
            self._stages.log(f"{self._state}, took {took}")

    @property
    def _state(self) -> str:
        state = f"{self._what}: {self._done} of {self._total} {self._unit}"
        return ", ".join(filter(None, (state, self._figures)))

    def update(self, done: int = 1) -> None:
        """Add finished units, and log a line if the last one is old enough."""
        self._done += done
        self._bar.update(done)
        now = time.monotonic()
        if self._logs and now - self._logged >= LOG_EVERY_S:
            self._logged = now
            unit_s = (now - self._started) / (self._done - self._earlier)
            left_s = unit_s * (self._total - self._done)
            self._stages.log(f"{self._state}, until about {_clock_time(left_s)}")

    def show(self, figures: str) -> None:
        """Show figures, such as the loss, after the bar, or in the next line of a log."""
        self._figures = figures
        self._bar.set_postfix_str(figures, refresh=False)

    def print_line(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line, file=sys.stderr)


def track(
    items: Iterable[Item], what: str, total: int, unit: str, *, is_hidden: bool = False
) -> Iterator[Item]:
    """Yield the items, with a `Bar` that counts them."""
    with Bar(what, total, unit, is_hidden=is_hidden) as bar:
        for item in items:
            yield item
            bar.update()


def _clock_time(left_s: float) -> str:
    """Return the local time in `left_s` seconds, with the date if it is not today."""
    now = datetime.now().astimezone()
    end = now + timedelta(seconds=left_s)
    return end.strftime("%H:%M" if end.date() == now.date() else "%Y-%m-%d %H:%M")


def _peak_memory_mb() -> float:
    """Return the peak of resident memory since the last reset."""
    if _MEMORY.exists():
        _, _, after = _MEMORY.read_text().partition("VmHWM:")
        return int(after.split()[0]) * 1024 / 1e6
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
