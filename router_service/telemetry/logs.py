"""Logs on standard error, without request content and without keys: JSON, or text for people."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from operator import attrgetter
from typing import TextIO

import orjson

from router_service.core.reasons import Reason
from router_service.core.record import Record, RecordKind
from router_service.core.text import aligned, printable
from router_service.settings import LogFormat
from router_service.tracing import AttributeValue

FIELDS = "fields"
"""Attribute of a log record that holds its structured fields."""

MAX_PATH = 200
"""Longest part of a client's path that is logged, in characters. Queries are never logged."""

QUIET_PATHS = frozenset(
    "/healthz /readyz /health/liveliness /health/liveness /health/readiness /metrics "
    "/ui/api/traffic/requests /ui/api/traffic/overview".split()
)
"""Paths that are polled every few seconds; logged at level debug."""

_LOGGED = (
    "model", "deployment", "attempts", "arm", "release", "reason", "policy",
    "policy_name",
    "stream", "status", "ending", "prompt_tokens", "completion_tokens", "usage_is_estimated",
    "actual_cost_usd", "first_byte_s", "unverified", "risk", "familiarity",
    "previous_arm",
)  # fmt: skip
"""Fields of the decision that are in the log line."""
_logged_values = attrgetter(*_LOGGED)

_MAX_COLUMN = 32
"""Widest column for models and for policies in the text format, in characters."""

_GREY, _RED, _GREEN, _YELLOW, _CYAN = "90", "31", "32", "33", "36"
_COLORS = {logging.DEBUG: _GREY, logging.INFO: _CYAN, logging.WARNING: _YELLOW}

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


class TextFormatter(logging.Formatter):
    """Formatter for people: time, level or status, and the rest, in aligned columns.

    Control characters are escaped, because clients choose paths and names.
    """

    def __init__(self, *, has_color: bool) -> None:
        """Write ANSI colours if `has_color`."""
        super().__init__()
        self._has_color = has_color
        self._model_width = self._policy_width = 0

    def format(self, record: logging.LogRecord) -> str:
        """Return the text, without an exception's message, because that may quote a request.

        It is one line, and further lines for a table or a traceback.
        """
        fields: Mapping[str, object] = getattr(record, FIELDS, {})
        label, color = record.levelname.lower(), _COLORS.get(record.levelno, _RED)
        further: list[str] = []
        if record.name == _requests.name:
            label = str(fields.get("status", ""))
            color = _GREEN if label < "4" else _YELLOW if label < "5" else _RED
            text = self._describe_request(fields)
        else:
            text = record.getMessage()
            for name, value in fields.items():
                if isinstance(value, list):
                    cells = [[*value[0]], *([str(cell) for cell in row.values()] for row in value)]
                    further += [f"    {line}" for line in aligned(cells)]
                else:
                    text += f" {name}={value}"
        if record.exc_info and record.exc_info[0]:
            further += "".join(traceback.format_tb(record.exc_info[2])).splitlines()
            further.append(record.exc_info[0].__name__)
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        label = f"{label:<7}"
        if self._has_color:
            time, label = f"\x1b[{_GREY}m{time}\x1b[0m", f"\x1b[{color}m{label}\x1b[0m"
        return "\n".join((f"{time}  {label}  {printable(text)}", *map(printable, further)))

    def _describe_request(self, fields: Mapping[str, object]) -> str:
        """Return a request's duration, model, policy, the reason, and what is unusual about it."""
        ms = f"{fields.get('ms', 0):>8,.0f} ms"
        if "model" not in fields:
            line = f"{fields.get('method', '')} {fields.get('path', 'refused')}".lstrip()
        else:
            model, policy = str(fields["model"]), str(fields.get("policy", "-"))
            self._model_width = max(self._model_width, min(len(model), _MAX_COLUMN))
            self._policy_width = max(self._policy_width, min(len(policy), _MAX_COLUMN))
            # The sentence begins with the arm, which is usually the model.
            why = str(fields.get("why", fields.get("reason", ""))).removeprefix(f"{model}: ")
            line = f"{model:<{self._model_width}}  {policy:<{self._policy_width}}  {why}"
        usual = {"attempts": 1, "ending": "complete", "key": None}
        failed = {"cause": None, "id": None} if str(fields.get("status", "")) >= "4" else {}
        for name, usually in (usual | failed).items():
            if fields.get(name, usually) != usually:
                line += f"  {name}={fields[name]}"
        return f"{ms}  {line}"


def formatter_for(
    stream: TextIO, log_format: LogFormat, environ: Mapping[str, str] = os.environ
) -> logging.Formatter:
    """Return the formatter of a stream; `auto` is text on a terminal, and JSON elsewhere.

    The environment variable `NO_COLOR` turns colours off (no-color.org).
    """
    is_terminal = stream.isatty()
    if log_format == "json" or (log_format == "auto" and not is_terminal):
        return JsonFormatter()
    return TextFormatter(has_color=is_terminal and not environ.get("NO_COLOR"))


class BatchHandler(logging.StreamHandler[TextIO]):
    """Handler that can write several lines with one call of the system."""

    def handle_all(self, records: Sequence[logging.LogRecord]) -> None:
        """Write lines in one piece, in this order."""
        found = [each for each in records if self.filter(each)]
        if not found:
            return
        try:
            text = "".join([self.format(each) + self.terminator for each in found])
            with self.lock or nullcontext():
                self.stream.write(text)
                self.flush()
        except Exception:  # noqa: BLE001 - as `emit`: a log that cannot be written fails no request
            self.handleError(found[0])


def configure_logging(level: str = "info", log_format: LogFormat = "auto") -> None:
    """Send all logs of the process to standard error."""
    handler = BatchHandler(sys.stderr)
    handler.setFormatter(formatter_for(sys.stderr, log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Do not collect information that no log line contains (Python's logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = False
    logging.logMultiprocessing = False
    # At level info, the HTTP clients would log the address of each request, and uvicorn would log
    # each step of starting and stopping, for which the gateway has its own lines.
    for name in ("httpx", "httpcore", "urllib3", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def log_fields(record: Record) -> dict[str, AttributeValue]:
    """Return what the log and the trace say about a request, without its ids."""
    fields: dict[str, AttributeValue]
    if record.kind in {RecordKind.OWN, RecordKind.SHED}:
        method, path = record.method or "", record.path[:MAX_PATH]
        return {"method": method, "path": path, "status": record.status}
    if record.kind is RecordKind.PLANNED:
        values = zip(_LOGGED, _logged_values(record), strict=True)
        fields = {name: value for name, value in values if value is not None}
        candidates = record.candidates
        if candidates is not None:
            fields["candidates"] = len(candidates)
            accepted = next((each for each in record.answers if each.is_accepted), None)
            if accepted is not None and accepted.p_correct is not None:
                fields["p_correct"] = accepted.p_correct
    elif record.model is not None:
        fields = {"model": record.model, "reason": Reason.PASSED}
        fields |= {"status": record.status, "ending": record.ending}
    else:
        fields = {"status": record.status}
    if record.cause is not None:
        fields["cause"] = record.cause
    if record.why is not None:
        fields["why"] = record.why
    return fields


def log_requests(records: Iterable[Record]) -> None:
    """Write the log lines of requests that have ended."""
    lines: list[logging.LogRecord] = []
    for record in records:
        fields = log_fields(record)
        is_quiet = record.kind is RecordKind.OWN and record.path in QUIET_PATHS
        level = _level_of(fields, is_quiet=is_quiet and record.status < 400)
        if not _requests.isEnabledFor(level):
            continue
        line: dict[str, object] = {
            "id": record.id,
            "request_id": record.request_id,
            "ms": round(record.latency_s * 1e3, 1),
        }
        if record.key is not None:
            line["key"] = record.key
        if record.team is not None:
            line["team"] = record.team
        if record.trace_id is not None:
            line["trace_id"] = record.trace_id
        written = _line(level, {**line, **fields})
        written.created = record.created
        lines.append(written)
    _write(lines)


def log_request(fields: Mapping[str, object]) -> None:
    """Write the log line of a request that has not reached the app."""
    level = _level_of(fields)
    if _requests.isEnabledFor(level):
        _write([_line(level, fields)])


def _level_of(fields: Mapping[str, object], *, is_quiet: bool = False) -> int:
    """Return the level of a request's line.

    It is warning if the request failed: with a status of 5xx, an upstream's 429 or a broken stream,
    as in the alerts. Otherwise it is info, or debug if `is_quiet`.
    """
    status = fields.get("status", 0)
    has_failed = (
        (isinstance(status, int) and status >= 500)
        or (status == 429 and "model" in fields)
        or fields.get("ending") == "broken"
    )
    return logging.WARNING if has_failed else logging.DEBUG if is_quiet else logging.INFO


def _line(level: int, fields: Mapping[str, object]) -> logging.LogRecord:
    # The record is created here, because `Logger.log` walks the stack to find its caller, which
    # takes half of the time for a line.
    line = logging.LogRecord(_requests.name, level, __file__, 0, "request", None, None)
    setattr(line, FIELDS, fields)
    return line


def _write(lines: Sequence[logging.LogRecord]) -> None:
    """Pass lines to all handlers, as a logger does, but those of a `BatchHandler` at once."""
    if _requests.disabled or not lines:
        return
    kept = [line for line in lines if _requests.filter(line)]
    logger: logging.Logger | None = _requests
    while logger is not None:
        for handler in logger.handlers:
            handled = [line for line in kept if line.levelno >= handler.level]
            if isinstance(handler, BatchHandler):
                handler.handle_all(handled)
            else:
                for line in handled:
                    handler.handle(line)
        logger = logger.parent if logger.propagate else None
