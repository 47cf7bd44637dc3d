"""Logs as JSON lines on standard error, without request content and without keys."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

FIELDS = "fields"
"""Attribute of a log record that holds its structured fields."""

_requests = logging.getLogger("switchcraft.request")


class JsonFormatter(logging.Formatter):
    """Formatter that writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without an exception's message, because that may quote a request."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_info[0].__name__
            line["traceback"] = "".join(traceback.format_tb(record.exc_info[2]))
        return orjson.dumps(line, default=str).decode()


def configure_logging(level: str = "info") -> None:
    """Send all logs of the process to standard error, one JSON line per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Do not collect information that no log line contains (Python's logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = False
    logging.logMultiprocessing = False
    # At level info, the HTTP clients would log the address of each request.
    for name in ("httpx", "httpcore", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)


def log_request(fields: Mapping[str, object], *, is_quiet: bool = False) -> None:
    """Write the log line of a request that has ended.

    Its level is warning if the request failed: with a status of 5xx, an upstream's 429 or a broken
    stream, as in the alerts. Otherwise it is info, or debug if `is_quiet`.
    """
    status = fields.get("status", 0)
    has_failed = (
        (isinstance(status, int) and status >= 500)
        or (status == 429 and "model" in fields)
        or fields.get("ending") == "broken"
    )
    level = logging.WARNING if has_failed else logging.DEBUG if is_quiet else logging.INFO
    if not _requests.isEnabledFor(level):
        return
    # The record is created here, because `Logger.log` walks the stack to find its caller, which
    # takes half of the time for a line.
    record = logging.LogRecord(_requests.name, level, __file__, 0, "request", None, None)
    setattr(record, FIELDS, fields)
    _requests.handle(record)
