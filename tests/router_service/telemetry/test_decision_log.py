"""The decision log: its files, and the thread that never blocks a request or dies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from router_service.core.decision_record import LoggedFeedback, read_line
from router_service.settings import DecisionLogSettings
from router_service.telemetry import decision_log
from router_service.telemetry.decision_log import RETRY_S, BackgroundWorker, DecisionLog
from router_service.telemetry.metrics import Metrics
from tests.clock import Clock
from tests.serving import WAIT_S

DAY_S = 24 * 3600.0
NEW_YEAR_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


class Written:
    """Decision log in a folder, and its metrics."""

    def __init__(self, folder: Path, clock: Clock | None = None, **settings: float) -> None:
        self.folder = folder
        self.clock = clock or Clock(NEW_YEAR_S)
        self.metrics = Metrics()
        fields = {"path": folder, **settings}
        self.log = DecisionLog(DecisionLogSettings.model_validate(fields), self.metrics, self.clock)
        self.log.start()

    def write(self, *names: str) -> None:
        """Write feedback on these decisions."""
        for name in names:
            line = LoggedFeedback(created=self.clock(), decision_id=name, correct=True)
            self.log.write(line)

    def files(self) -> list[Path]:
        """Return the log's files, the oldest first."""
        return sorted(self.folder.glob("*.jsonl"))

    def names(self) -> list[str]:
        """Return the decisions of all lines, which must be complete."""
        lines = (
            line for file in self.files() for line in file.read_bytes().splitlines(keepends=True)
        )
        read = [read_line.validate_json(line) for line in lines if line.endswith(b"\n")]
        return [line.decision_id for line in read if isinstance(line, LoggedFeedback)]

    @property
    def is_up(self) -> bool:
        """Whether the metrics say that the log can be written."""
        return _is_up(self.metrics)

    @property
    def failed(self) -> float:
        """Return the number of lines that were lost because writing failed."""
        labels = {"kind": "decision_log", "reason": "failed"}
        return self.metrics.registry.get_sample_value("switchcraft_lost_records_total", labels) or 0


def _is_up(metrics: Metrics) -> bool:
    labels = {"dependency": "decision_log"}
    return metrics.registry.get_sample_value("switchcraft_dependency_up", labels) == 1


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    """Each line is in the file at once; other users cannot read the file."""
    written = Written(tmp_path / "a" / "log")
    written.write("dec_1", "dec_2")
    assert written.names() == ["dec_1", "dec_2"]
    (file,) = written.files()
    assert file.stat().st_mode & 0o007 == 0


def test_full_file_is_followed_by_another(tmp_path: Path) -> None:
    """Files are hardly larger than the limit, and no line is split or lost."""
    written = Written(tmp_path, max_file_mb=0.001)
    written.write(*map(str, range(100)))
    assert len(written.files()) > 5
    assert all(file.stat().st_size < 1200 for file in written.files())
    assert sorted(map(int, written.names())) == list(range(100))


def test_no_line_is_kept_longer_than_the_retention(tmp_path: Path) -> None:
    """Files are deleted when their first line is too old; foreign files stay."""
    other = tmp_path / "notes.jsonl"
    odd = tmp_path / "decisions-old.jsonl"
    other.touch()
    odd.touch()
    written = Written(tmp_path, retention_days=2)
    for name in ("dec_1", "dec_2", "dec_3"):
        written.write(name)
        written.clock.now_s += DAY_S
    written.log.tidy()
    assert written.names() == ["dec_2", "dec_3"]
    written.clock.now_s += 2 * DAY_S
    written.log.tidy()
    assert written.files() == [odd, other]


def outage_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages about the decision log."""
    return [r.getMessage() for r in caplog.records if r.name == "switchcraft.decision_log"]


def test_outage_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines are dropped and counted; the outage and its end are each logged once."""
    folder = tmp_path / "log"
    written = Written(folder)
    written.write("dec_1")
    shutil.rmtree(folder)
    folder.touch()  # so the folder cannot be created
    written.write("dec_2", "dec_3")
    assert not written.is_up
    assert written.failed == 2
    folder.unlink()
    written.clock.now_s += RETRY_S
    written.write("dec_4", "dec_5")
    assert written.names() == ["dec_4", "dec_5"]
    assert written.is_up
    first, second = outage_messages(caplog)
    assert f"dropping lines: path={folder}/decisions-" in first
    assert "cause=Not a directory" in first
    assert "lost_lines=2" in second


# The limit of a process's file size fails a write in its midst, as a disk that is full does.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.router_service.telemetry.test_decision_log import RETRY_S, Written

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = Written(Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
written.write(*(f"dec_{number}" for number in range(100)))
assert not written.is_up
kept = written.names()
assert 0 < len(kept) < 20
assert written.failed == 100 - len(kept)
assert all(file.read_bytes().endswith(b"\\n") for file in written.files())
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
written.clock.now_s += RETRY_S
written.write("dec_lost")
assert len(written.files()) == 1, "a file without a line is left"
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
written.clock.now_s += RETRY_S
written.write("dec_back")
assert sorted(written.names()) == sorted([*kept, "dec_back"])
assert written.is_up
print("ok")
"""


def test_full_disk_leaves_complete_lines(tmp_path: Path) -> None:
    """A partial line is cut off and counted; with free space the log continues in a new file."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "log")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout == "ok\n", ended.stderr


def test_worker_is_bounded_and_survives_failures() -> None:
    """A full queue refuses without waiting, and the thread goes on after a panic in native code.

    One item is always accepted, however large it is. Closing waits for the queue, but not forever.
    """
    go_on, seen = threading.Event(), list[int]()

    def handle(number: int) -> None:
        go_on.wait(WAIT_S)
        if number < 2:
            raise (RuntimeError, BaseException)[number]
        seen.append(number)

    def hang(_: int) -> None:
        go_on.wait(WAIT_S)

    def worker(work: Callable[[int], None]) -> BackgroundWorker[int]:
        made = BackgroundWorker(work, max_items=3, when_idle=lambda: None, at_end=lambda: None)
        made.start()
        return made

    made, other = worker(handle), worker(hang)
    assert [made.put(number) for number in range(5)] == [True, True, True, False, False]
    assert other.put(2, size_bytes=decision_log.MAX_QUEUED_BYTES * 2)
    assert not other.put(3, size_bytes=1)
    assert not other.close(0.1)
    go_on.set()
    assert made.close(WAIT_S)
    assert seen == [2]
