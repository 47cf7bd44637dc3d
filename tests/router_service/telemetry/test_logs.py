"""Log lines without request content: JSON for machines, and text for people."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from router_service.settings import LogFormat
from router_service.telemetry.logs import FIELDS, JsonFormatter, TextFormatter, formatter_for

WHY = "small: 91% is within 5 points of the best model (large, 94%) and costs 17 times less."


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return true."""
        return True


def request(**fields: object) -> logging.LogRecord:
    """Return the record of a request."""
    found = {"id": "dec_1", "status": 200, "ms": 812.4, "ending": "complete", **fields}
    return logging.makeLogRecord({"name": "switchcraft.request", "msg": "request", FIELDS: found})


def texts(*records: logging.LogRecord) -> list[str]:
    """Return the text of records, each without its time."""
    formatter = TextFormatter(has_color=False)
    return [formatter.format(record).partition("  ")[2] for record in records]


def test_request_is_one_aligned_line_of_text() -> None:
    """The line has status, duration, model, policy and the reason; the columns stay aligned."""
    routed = request(model="small", policy="drift=0.05", reason="drift", why=WHY, attempts=1)
    named = request(model="a-longer-name", reason="pinned", attempts=1)
    failed = request(
        model="small", policy="drift=0.1", status=502, ms=31.0, ending="broken", cause="c"
    )
    assert texts(named, routed, failed) == [
        "200           812 ms  a-longer-name  -  pinned",
        "200           812 ms  small          drift=0.05  " + WHY.removeprefix("small: "),
        "502            31 ms  small          drift=0.1     ending=broken  cause=c  id=dec_1",
    ]


def test_text_cannot_control_the_terminal() -> None:
    """Line breaks and escape sequences that a client sends are written as escapes."""
    (text,) = texts(request(method="GET", path="/a\n\x1b[31m\u202eb"))
    assert text.endswith("GET /a\\n\\x1b[31m\\u202eb")


@pytest.mark.parametrize(
    ("stream", "log_format", "environ", "expected"),
    [
        (Terminal(), "auto", {}, "\x1b["),
        (Terminal(), "auto", {"NO_COLOR": "1"}, "  info     ready"),
        (Terminal(), "json", {}, '"message":"ready"'),
        (io.StringIO(), "auto", {}, '"message":"ready"'),
        (io.StringIO(), "text", {}, "  info     ready"),
    ],
)
def test_format_follows_the_stream_unless_it_is_set(
    stream: io.StringIO, log_format: LogFormat, environ: dict[str, str], expected: str
) -> None:
    """A terminal gets coloured text, anything else JSON; the setting overrides that."""
    record = logging.makeLogRecord({"msg": "ready", "levelno": logging.INFO, "levelname": "INFO"})
    text = formatter_for(stream, log_format, environ).format(record)
    assert expected in text
    assert ("\x1b" in text) is (expected == "\x1b[")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter(has_color=False)])
def test_exception_message_is_left_out(formatter: logging.Formatter) -> None:
    """An exception is logged by type and traceback, because its message may quote a request."""
    said = "what the user said"
    try:
        int(said)
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    text = formatter.format(record)
    assert "ValueError" in text
    assert "test_logs" in text
    assert said not in text
