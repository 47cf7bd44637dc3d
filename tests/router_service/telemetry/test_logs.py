"""JSON log lines without request content."""

from __future__ import annotations

import json
import logging
import sys

from router_service.telemetry.logs import FIELDS, JsonFormatter


def line(record: logging.LogRecord) -> dict[str, object]:
    """Return the decoded line of a record."""
    decoded: dict[str, object] = json.loads(JsonFormatter().format(record))
    return decoded


def test_record_is_one_line_of_json() -> None:
    """Message, level and fields are members of one object on one line."""
    record = logging.makeLogRecord({"msg": "a\n%s", "args": ("b",), FIELDS: {"status": 200}})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert line(record) | {"message": "a\nb", "status": 200} == line(record)


def test_exception_message_is_left_out() -> None:
    """An exception is logged by type and traceback, because its message may quote a request."""
    said = "what the user said"
    try:
        int(said)
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    text = JsonFormatter().format(record)
    written = line(record)
    assert written["exception"] == "ValueError"
    assert "test_logs" in str(written["traceback"])
    assert said not in text
