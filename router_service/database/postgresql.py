"""Connections to PostgreSQL that never wait longer than a limit. Importing this needs psycopg."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_S = 10
"""Time after which the server gives up a statement."""
ANSWER_TIMEOUT_S = STATEMENT_TIMEOUT_S + 1.0
"""Time after which a server that does not answer counts as unreachable."""

T = TypeVar("T")


class TimeLimitedConnection(psycopg.Connection[Any]):
    """Connection that closes itself if the server does not answer in time.

    The server's own limit, `statement_timeout`, does not help while the server is frozen, and TCP's
    limits do not, because the kernel of a frozen server still acknowledges what it receives.
    """

    answer_timeout_s = ANSWER_TIMEOUT_S

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - psycopg's own
        """Run a generator of psycopg that sends and receives, within the limit."""
        deadline_s = time.monotonic() + self.answer_timeout_s
        result: T = super().wait(self._until(deadline_s, gen), *args, **kwargs)
        return result

    def _until(self, deadline_s: float, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Yield what the generator yields; psycopg sends a false value every 0.1 s of waiting."""
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline_s:
                    self.close()
                    raise psycopg.OperationalError(
                        f"the server has not answered within {self.answer_timeout_s:.0f} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def connect(*args: Any, **parameters: Any) -> TimeLimitedConnection:  # noqa: ANN401 - psycopg's own
    """Open a connection with our limits; raises psycopg.Error."""
    connection = TimeLimitedConnection.connect(
        *args,
        **parameters,
        connect_timeout=CONNECT_TIMEOUT_S,
        # Notice connections that a firewall has dropped, and machines that are gone.
        keepalives_idle=30,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=STATEMENT_TIMEOUT_S * 1000,
    )
    connection.autocommit = True
    # Not as `options` of the connection, which the address may have. The second limit frees the
    # locks of a gateway that is frozen within a transaction.
    limit_ms = STATEMENT_TIMEOUT_S * 1000
    connection.execute(b"SET statement_timeout = %d" % limit_ms)
    connection.execute(b"SET idle_in_transaction_session_timeout = %d" % limit_ms)
    connection.autocommit = False
    return connection
