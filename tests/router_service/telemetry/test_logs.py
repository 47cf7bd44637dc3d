"""Logs are JSON lines without what people said."""

from __future__ import annotations

import json
import logging
import sys

from router_service.telemetry.logs import FIELDS, JsonFormatter


def line(record: logging.LogRecord) -> dict[str, object]:
    """Return a record's line, decoded."""
    decoded: dict[str, object] = json.loads(JsonFormatter().format(record))
    return decoded


def test_a_record_is_one_line_of_json() -> None:
    """Message, level and fields are members of one object on one line."""
    record = logging.makeLogRecord({"msg": "a\n%s", "args": ("b",), FIELDS: {"status": 200}})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert line(record) | {"message": "a\nb", "status": 200} == line(record)


def test_an_exceptions_message_is_left_out() -> None:
    """An exception is told by its type and where it arose: its message may quote a request."""
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
