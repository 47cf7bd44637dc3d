"""The traffic history: its sums, its file, and what happens if the file cannot be written."""

from __future__ import annotations

import logging
import random
import resource
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from router_service.core.errors import HistoryUnavailableError
from router_service.settings import HistorySettings
from router_service.telemetry.history import (
    DAY_S,
    HOUR_S,
    LATENCY_RATIO,
    MAX_POLICIES,
    MINUTE_S,
    TrafficHistory,
)

NOON = 20_000 * DAY_S + 12 * HOUR_S


class Clock:
    """A clock that stands still until the test advances it."""

    now_s: float = NOON

    def __call__(self) -> float:
        """Return Unix seconds."""
        return self.now_s


def open_history(path: Path | None, clock: Clock, max_rows: int = 1000) -> TrafficHistory:
    """Return a history whose thread does not run, so that the test decides when it writes."""
    return TrafficHistory(HistorySettings(path=path), clock, max_rows)


def add(
    history: TrafficHistory, model: str = "m", policy: str = "theta=0.5", **values: float
) -> None:
    """Add a request of one second that costs 0.001 USD, unless `values` say otherwise."""
    facts = {"latency_s": 1.0, "cost_usd": 0.001} | values
    history.add("team-a", model, policy, is_error=False, **facts)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at noon."""
    return Clock()


def test_older_versions_file_keeps_its_sums(tmp_path: Path, clock: Clock) -> None:
    """Its rows have no count of unfamiliar requests, so they count none; they are copied once."""
    path = tmp_path / "history.sqlite3"
    history = open_history(path, clock)
    add(history)
    history.write()
    history.close()
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE traffic_2 RENAME TO traffic_1")
        connection.execute("ALTER TABLE traffic_1 DROP COLUMN unfamiliar")
    for requests in (2, 3):
        history = open_history(path, clock)
        history.add("team-a", "m", "theta=0.5", is_error=False, is_unfamiliar=True)
        history.write()
        sums = history.read(DAY_S, 0, "model")["m"]
        assert (sums.requests, sums.unfamiliar) == (requests, requests - 1)


def test_sums_survive_a_restart(tmp_path: Path, clock: Clock) -> None:
    """A history that opens the file later reads the sums, by minute, hour and day."""
    path = tmp_path / "new" / "history.sqlite3"
    first = open_history(path, clock)
    add(first, "a", cost_usd=0.25, baseline_usd=1.0, prompt_tokens=100, completion_tokens=7)
    clock.now_s += MINUTE_S
    add(first, "b")
    first.add(None, "none", "none", is_error=True)
    first.write()
    second = open_history(path, clock)
    by_model = second.read(MINUTE_S, NOON, "model")
    a = by_model["a"]
    assert (a.requests, a.cost_usd, a.compared_usd, a.baseline_usd) == (1, 0.25, 0.25, 1.0)
    assert (a.prompt_tokens, a.completion_tokens, a.errors) == (100, 7, 0)
    assert (by_model["none"].errors, by_model["none"].percentile_s(0.5)) == (1, None)
    minutes = second.read(MINUTE_S, NOON, "start")
    assert {start: sums.requests for start, sums in minutes.items()} == {NOON: 1, NOON + 60: 2}
    assert {s: t.requests for s, t in second.read(DAY_S, 0, "start").items()} == {
        NOON - 12 * HOUR_S: 3
    }
    assert [*second.read(HOUR_S, 0, "start")] == [NOON]
    assert [*second.read(HOUR_S, 0, "model", key="team-a")] == ["a", "b"]
    assert [*second.read(HOUR_S, NOON + 1, "model")] == []


def test_workers_add_to_the_same_file(tmp_path: Path, clock: Clock) -> None:
    """Four workers that write at the same time lose nothing."""
    path = tmp_path / "history.sqlite3"
    workers = [open_history(path, clock) for _ in range(4)]

    def work(history: TrafficHistory) -> None:
        for _ in range(25):
            add(history)
            history.write()

    threads = [threading.Thread(target=work, args=(history,)) for history in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert workers[0].read(DAY_S, 0, "model")["m"].requests == 100


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_percentiles_are_close(share: float, clock: Clock) -> None:
    """An estimated percentile differs from the exact one by less than the ratio of two bounds."""
    history, rng = open_history(None, clock), random.Random(7)
    latencies = sorted(rng.lognormvariate(0, 1.5) for _ in range(2001))
    for latency_s in latencies:
        add(history, latency_s=latency_s)
    history.write()
    found = history.read(MINUTE_S, 0, "model")["m"].percentile_s(share)
    exact = latencies[int(share * 2001)]
    assert found is not None
    assert exact / LATENCY_RATIO < found < exact * LATENCY_RATIO


def test_policies_of_clients_are_limited(clock: Clock) -> None:
    """A client that sends ever new numbers gets rows for some of them, and one for the others."""
    history = open_history(None, clock)
    for index in range(1000):
        add(history, policy=f"theta={index}")
    history.write()
    found = history.read(MINUTE_S, 0, "policy")
    assert len(found) == MAX_POLICIES + 1
    assert found["theta"].requests == 1000 - MAX_POLICIES


def test_old_rows_are_deleted(tmp_path: Path, clock: Clock) -> None:
    """Minutes older than two hours are deleted, and with too many rows the oldest ones too."""
    history = open_history(tmp_path / "history.sqlite3", clock, max_rows=50)
    for _ in range(180):
        add(history)
        clock.now_s += MINUTE_S
    history.write()
    history.tidy()
    assert len(history.read(MINUTE_S, 0, "start")) + 3 + 1 == 50
    assert min(history.read(MINUTE_S, 0, "start")) == clock.now_s - 46 * MINUTE_S
    assert len(history.read(HOUR_S, 0, "start")) == 3
    clock.now_s += 40 * DAY_S
    history.tidy()
    assert history.read(DAY_S, 0, "start") == {}


@contextmanager
def no_file_longer_than(size_bytes: int) -> Iterator[None]:
    """Make every longer write of this process fail, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("fault", ["no directory", "full disk"])
def test_unwritable_file_is_reported_once_and_loses_nothing(
    fault: str, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are counted meanwhile; the log and a reader get the path and the cause."""
    path = tmp_path / "folder" / "history.sqlite3"
    history = open_history(path, clock)
    if fault == "no directory":
        path.parent.write_text("a file")
    with no_file_longer_than(4096 if fault == "full disk" else resource.RLIM_INFINITY):
        for _ in range(3):
            add(history)
            clock.now_s += 1
            history.write()
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert str(path) in warning.getMessage()
    with pytest.raises(HistoryUnavailableError, match=str(path)):
        history.read(MINUTE_S, 0, "model")
    if fault == "no directory":
        path.parent.unlink()
    add(history)
    history.write()
    assert history.read(MINUTE_S, 0, "model")["m"].requests == 4
    assert "again" in caplog.records[-1].getMessage()


def damage(path: Path) -> None:
    """Overwrite all pages of a database but the first with noise."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"noise" * (path.stat().st_size // 5))


def set_aside(folder: Path) -> list[Path]:
    """Return the damaged databases that were kept, without the files that belong to them."""
    return list(folder.glob("*.corrupt-*Z"))


@pytest.mark.parametrize("fault", ["no database", "damaged pages", "damaged while open"])
def test_damaged_file_is_kept_and_a_new_one_begins(
    fault: str, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The damaged file keeps its bytes under another name, and no request is lost."""
    path = tmp_path / "history.sqlite3"
    history = open_history(path, clock)
    for minute in range(200):
        add(history, f"model-{minute}")
    history.write()
    if fault != "damaged while open":
        history.close()
        history = open_history(path, clock)
    if fault == "no database":
        for each in tmp_path.iterdir():
            each.unlink()
        path.write_text("no database" * 100)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage(path)
    damaged = path.read_bytes()
    add(history, "after")
    history.write()
    assert [*history.read(MINUTE_S, 0, "model")] == ["after"]
    (kept,) = set_aside(tmp_path)
    assert kept.name == "history.sqlite3.corrupt-20241004T120000Z"
    if fault != "damaged while open":
        assert kept.read_bytes() == damaged
    (line,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert (line.levelno, str(kept) in line.getMessage()) == (logging.ERROR, True)


def test_workers_set_a_damaged_file_aside_once(tmp_path: Path, clock: Clock) -> None:
    """Workers that share a damaged file all continue with one new file, and lose no request."""
    path = tmp_path / "history.sqlite3"
    workers = [open_history(path, clock) for _ in range(4)]
    for history in workers:
        for number in range(200):
            add(history, f"before-{number}")
        history.write()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(path)
    go_on = threading.Barrier(len(workers))

    def work(history: TrafficHistory) -> None:
        go_on.wait()
        for _ in range(25):
            add(history, "after")
            add(history, "before-77")
            history.write()
            with suppress(HistoryUnavailableError):  # at most once, while it is set aside
                history.read(DAY_S, 0, "model")

    threads = [threading.Thread(target=work, args=(history,)) for history in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set_aside(tmp_path)) == 1
    sums = workers[0].read(DAY_S, 0, "model")
    assert sums["after"].requests == sums["before-77"].requests == 100


def test_file_is_for_its_owner_only(tmp_path: Path, clock: Clock) -> None:
    """The file and SQLite's own ones get mode 0600; an older, public one is closed to others."""
    path = tmp_path / "history.sqlite3"
    history = open_history(path, clock)
    add(history)
    history.write()
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert modes == dict.fromkeys((f"history.sqlite3{end}" for end in ("", "-wal", "-shm")), 0o600)
    for each in tmp_path.iterdir():
        each.chmod(0o644)
    assert open_history(path, clock).read(MINUTE_S, 0, "model")["m"].requests == 1
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o640}


def test_deleted_file_is_created_again(tmp_path: Path, clock: Clock) -> None:
    """After someone deletes the file, new requests are written to a new one."""
    path = tmp_path / "history.sqlite3"
    history = open_history(path, clock)
    add(history, "before")
    history.write()
    for each in tmp_path.iterdir():
        each.unlink()
    add(history, "after")
    history.write()
    assert [*history.read(MINUTE_S, 0, "model")] == ["after"]


def test_running_thread_writes_what_is_pending_at_the_end(tmp_path: Path, clock: Clock) -> None:
    """A shutdown right after a request loses nothing; a disabled history creates no file."""
    path = tmp_path / "history.sqlite3"
    history = open_history(path, clock)
    history.start()
    add(history)
    history.close()
    assert open_history(path, clock).read(MINUTE_S, 0, "model")["m"].requests == 1
    disabled = TrafficHistory(HistorySettings(enabled=False, path=tmp_path / "none"), clock)
    disabled.start()
    add(disabled)
    disabled.close()
    assert not (tmp_path / "none").exists()
    with pytest.raises(HistoryUnavailableError, match=r"history\.enabled"):
        disabled.read(MINUTE_S, 0, "model")


def test_unwritable_file_is_reported_at_the_start(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator sees it at once, and not only after the first request."""
    (tmp_path / "file").touch()
    history = open_history(tmp_path / "file" / "history.sqlite3", clock)
    history.start()
    history.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert str(tmp_path / "file") in line
