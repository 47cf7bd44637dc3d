"""The list of recent requests: how they get into the database, are read, and leave it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from router_service.core.errors import DatabaseError, InvalidRequestError
from router_service.core.reasons import Reason
from router_service.core.record import Record, RequestOutcome
from router_service.database.engine import Database
from router_service.database.schema import recent_requests
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.recent_requests import (
    RecentRequests,
    RequestQuery,
    read_conversation,
    read_page,
)
from router_service.telemetry.sinks import TIDY_ROWS
from router_service.telemetry.usage import DAY_S
from tests.records import make_record, refused_record

NOW_S = 20_000 * DAY_S


def make(number: int, **changes: Any) -> Record:  # noqa: ANN401
    """Return a request that ended so many seconds after the beginning."""
    facts: dict[str, Any] = {
        "created": float(NOW_S + number),
        "id": f"dec_{number:06}",
        "request_id": f"dec_{number:06}",
        "key": "anna",
        "team": "blue",
        "deployment": "small#0",
        "arm": "small",
        "policy": "theta=0.2",
        "policy_name": "fast",
        "reason": Reason.THRESHOLD,
        "attempts": 1,
        "latency_s": 0.5,
        "first_byte_s": 0.25,
        "actual_cost_usd": 1e-6,
        "prompt_tokens": 10,
        "completion_tokens": 20,
    }
    return make_record(**(facts | changes))


def refused(number: int, **changes: Any) -> Record:  # noqa: ANN401
    """Return a request that a rate limit has refused."""
    name = f"dec_{number:06}"
    facts = {"created": float(NOW_S + number), "id": name, "request_id": name, "latency_s": 0.5}
    return refused_record(**(facts | {"key": "anna", "team": "blue"} | changes))


def open_list(
    *, limit: int = 100_000, days: int = 7, max_pending: int = 20_000, now_s: float = NOW_S
) -> RecentRequests:
    """Return a list that writes and tidies when the test says so."""
    return RecentRequests(
        UsageSettings(recent_requests=limit, recent_days=days),
        DatabaseSettings(max_pending_rows=max_pending),
        clock=lambda: now_s,
        turn_s=60,
    )


def write(database: Database, *requests: Record, limit: int = 100_000) -> RecentRequests:
    """Write requests to the database."""
    listed = open_list(limit=limit)
    listed.add(requests)
    listed.write(database)
    return listed


def ids(database: Database, wanted: RequestQuery = RequestQuery()) -> list[int]:  # noqa: B008
    """Return the numbers of the newest requests."""
    page = read_page(database, wanted)
    return [int(request.id.removeprefix("dec_")) for request in page.requests]


def count(database: Database) -> int:
    """Return the number of rows."""
    with database.read() as connection:
        rows = connection.execute(select(func.count()).select_from(recent_requests))
        return int(rows.scalar_one())


def test_pages_follow_each_other_in_both_directions(database: Database) -> None:
    """Pages neither repeat nor omit a request, also of those that ended at the same time."""
    write(database, *(make(number, created=number // 4) for number in range(23)))
    place, seen, pages = None, [], []
    while True:
        page = read_page(database, RequestQuery(limit=5, before=place))
        seen += [int(request.id.removeprefix("dec_")) for request in page.requests]
        pages.append(page)
        if page.older is None:
            break
        place = page.older
    assert seen == [*range(22, -1, -1)]
    assert [len(page.requests) for page in pages] == [5, 5, 5, 5, 3]
    assert pages[0].newer is None
    newest = pages[0].requests[0]
    assert (newest.time, newest.latency_s, newest.cost_usd) == (5.0, 0.5, 1e-6)
    back = pages[-1]
    for expected in reversed(pages[1:-1]):
        back = read_page(database, RequestQuery(limit=5, after=back.newer))
        assert back == expected
    first = read_page(database, RequestQuery(limit=5, after=back.newer))
    assert first.requests == pages[0].requests
    assert read_page(database, RequestQuery(limit=5, after=pages[0].older)).newer is None


def test_invalid_positions_are_refused(database: Database) -> None:
    """A position is read from its own text only, and the error names the parameter."""
    for text in ("", "1", "1.", ".a", "1.a b", "-1.a", "1.a\n", "9" * 30 + ".a", "१.a"):
        for query in (RequestQuery(before=text), RequestQuery(after=text)):
            with pytest.raises(InvalidRequestError, match=r"Invalid '(before|after)'"):
                read_page(database, query)


def test_the_requests_of_a_conversation(database: Database) -> None:
    """The newest 50 requests of a conversation are found, the oldest of them first."""
    own = [make(number, conversation_id="conv") for number in range(52)]
    write(database, *reversed(own), make(60), make(61, conversation_id="other"))
    assert read_conversation(database, "conv") == tuple(record.id for record in own[2:])


def test_filters(database: Database) -> None:
    """Filters select by what a request has, or lacks, and combine."""
    write(
        database,
        make(1),
        make(2, key="bob", team=None, conversation_id="conv"),
        make(3, model="large", policy="drift=0.05", policy_name=None, reason=Reason.DRIFT),
        make(4, status=502, error="timeout"),
        make(5, policy=None, reason=Reason.PINNED, request_id="client-7_%"),
        refused(6),
        refused(7, key=None, team=None),
    )
    for wanted, expected in (
        (RequestQuery(), [7, 6, 5, 4, 3, 2, 1]),
        (RequestQuery(key="bob"), [2]),
        (RequestQuery(key=""), [7]),
        (RequestQuery(team="blue"), [6, 5, 4, 3, 1]),
        (RequestQuery(team="blue", key="bob"), []),
        (RequestQuery(model="large"), [3]),
        (RequestQuery(model="none"), [7, 6]),
        (RequestQuery(policy="drift=0.05"), [3]),
        (RequestQuery(policy="none"), [7, 6, 5]),
        (RequestQuery(reason="pinned"), [5]),
        (RequestQuery(outcome=RequestOutcome.FAILED), [4]),
        (RequestQuery(outcome=RequestOutcome.REFUSED, key="anna"), [6]),
        (RequestQuery(conversation="conv"), [2]),
        (RequestQuery(search="00003"), [3]),
        (RequestQuery(search="client-7"), [5]),
        (RequestQuery(search="7_%"), [5]),
        (RequestQuery(search="%"), [5]),
        (RequestQuery(search="nothing"), []),
    ):
        assert ids(database, wanted) == expected, wanted


def test_failed_batch_is_written_once(database_url: str) -> None:
    """Rows wait while the database is away, and a batch that is written again adds no row."""
    database = Database(database_url)
    listed = open_list()
    listed.add([make(1)])
    with pytest.raises(DatabaseError):
        listed.write(database)  # there are no tables yet
    database.prepare()
    listed.add([make(2)])
    listed.write(database)
    assert ids(database) == [2, 1]
    write(database, make(1), make(3))
    assert ids(database) == [3, 2, 1]
    database.close()


def test_oldest_rows_beyond_the_number_are_deleted(database: Database) -> None:
    """At a start, and after each tenth of the number, the oldest ones go; the newest stay."""
    listed = write(database, *(make(number) for number in range(2 * TIDY_ROWS + 150)), limit=100)
    listed.tidy(database)
    assert ids(database, RequestQuery(limit=1000)) == [
        *range(2 * TIDY_ROWS + 149, 2 * TIDY_ROWS + 49, -1)
    ]
    for number in range(9):
        listed.add([make(5000 + number)])
    listed.write(database)
    listed.tidy(database)
    assert count(database) == 109
    listed.add([make(6000)])
    listed.write(database)
    listed.tidy(database)
    assert count(database) == 100


def test_refused_requests_of_one_key_push_out_no_others(database: Database) -> None:
    """Beyond a tenth of the list, a key's requests without a model replace only each other."""
    flood = [refused(1_000 + number, key="mallory") for number in range(3 * TIDY_ROWS)]
    left = [refused(9_000 + n, key="mallory", status=499) for n in range(50)]
    others = [make(1), refused(2), make(3, key=None), refused(4, key=None)]
    listed = write(database, *others, *flood, *left, limit=100)
    listed.tidy(database)
    assert ids(database, RequestQuery(key="anna")) == [2, 1]
    assert ids(database, RequestQuery(key="")) == [4, 3]
    assert ids(database, RequestQuery(key="mallory")) == [*range(9_049, 9_039, -1)]


def test_old_rows_are_deleted(database: Database) -> None:
    """Rows are deleted once they are older than the days, however few there are."""
    write(database, make(0), make(10), make(DAY_S))
    open_list(days=2, now_s=NOW_S + 2 * DAY_S + 5).tidy(database)
    assert ids(database) == [DAY_S, 10]


def test_refused_requests_leave_room_in_the_buffer(database: Database) -> None:
    """A flood that the database does not take fast enough loses no request that was answered."""
    listed = open_list(max_pending=100)
    for number in range(100):
        listed.add([refused(number)])
    for number in range(100, 150):
        listed.add([make(number)])
    listed.write(database)
    assert ids(database, RequestQuery(model="small")) == [*range(149, 99, -1)]
