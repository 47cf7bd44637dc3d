"""Server-sent events: the events that `EventReader` relays for any stream of an upstream.

Each input is a stream. Its first byte says how the stream ends. Bit 0: whether HTTP marks the end.
Bit 1: whether the connection breaks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from router_service.apis.answer_translation import AnswerTranslator
from router_service.core.errors import UpstreamError
from router_service.settings import Timeouts
from router_service.upstream.client import TimeoutGuard, UpstreamAnswer
from router_service.upstream.connection import ConnectionFault, HttpResponse
from router_service.upstream.streams import MAX_EVENT_BYTES, EventReader
from tests.apis import UpstreamApi
from tests.attacks import OUTSIDE_JSON, REPEATED_KEYS
from tests.fuzz.changes import change_json, change_lines
from tests.fuzz.target import randomness, splits, virtual_loop

LONG_BYTES = MAX_EVENT_BYTES + 70_000


class Stream(HttpResponse):
    """A streamed answer with given parts."""

    def __init__(self, parts: Sequence[bytes], *, is_delimited: bool, is_broken: bool) -> None:
        self.status = 200
        self.headers = [(b"content-type", b"text/event-stream")]
        self.headers += [(b"transfer-encoding", b"chunked")] if is_delimited else []
        self._parts = iter(parts)
        self._is_broken = is_broken

    async def read(self) -> bytes:
        """Return the next part, or break off."""
        part = next(self._parts, b"")
        if not part and self._is_broken:
            raise ConnectionFault.RESET.error("m", "reset")
        return part

    async def aclose(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Relayed:
    """The relayed stream, and the gateway's notes."""

    parts: list[bytes] = field(default_factory=list)
    error: str = ""
    notes: tuple[object, ...] = ()
    is_within_event: bool = False

    @property
    def data(self) -> bytes:
        """Return all relayed bytes."""
        return b"".join(self.parts)


async def read_events(
    stream: Stream, dialect: UpstreamApi | None = None, translator: AnswerTranslator | None = None
) -> tuple[EventReader, Relayed]:
    """Return the gateway's reader of a stream, at its end, and what it relays."""
    guard = TimeoutGuard("m", Timeouts(), 1e6)
    answer = UpstreamAnswer("m", stream, guard)
    reader, relayed = EventReader(answer, api=dialect, translator=translator), Relayed()
    try:
        async for part in reader.events:
            relayed.parts.append(part)
    except UpstreamError as exc:
        relayed.error = str(exc)
    finally:
        guard.close()
    return reader, relayed


def read_stream(
    data: bytes, dialect: UpstreamApi | None = None, translator: AnswerTranslator | None = None
) -> Relayed:
    """Return what the gateway relays of a stream, in parts of 64 KB, whose end HTTP marks."""
    parts = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    stream = Stream(parts, is_delimited=True, is_broken=False)
    _, relayed = virtual_loop().finish(read_events(stream, dialect, translator))
    return relayed


async def _relay(stream: Stream) -> Relayed:
    reader, relayed = await read_events(stream)
    # Later events and errors are computed from `last_number` and the tokens, which are numbers.
    assert isinstance(reader.last_number, int), f"the last number is {reader.last_number!r}"
    assert reader.written_tokens >= 0, f"{reader.written_tokens} tokens were written"
    relayed.is_within_event = reader.is_within_event
    relayed.notes = (
        reader.usage,
        reader.has_output,
        str(reader.error),
        reader.last_number,
        reader.response_id,
        reader.identity,
        reader.written_tokens,
        reader.accumulator.answer(),
    )
    return relayed


def _relayed(parts: Sequence[bytes], flags: int) -> Relayed:
    stream = Stream(parts, is_delimited=bool(flags & 1), is_broken=bool(flags & 2))
    return virtual_loop().finish(_relay(stream))


def check(data: bytes) -> None:
    """Check the relayed bytes of a stream that is split in several ways."""
    flags, sent = data[0] if data else 0, data[1:]
    rng = randomness(data)
    first: Relayed | None = None
    for parts in splits(sent, rng):
        relayed = _relayed(parts, flags)
        _check_relayed(relayed, sent)
        first = first or relayed
        # Blank lines before an event that is not relayed may or may not be relayed.
        seen = [(one.data.rstrip(b"\r\n"), one.error, one.notes) for one in (first, relayed)]
        assert seen[0] == seen[1], f"the stream depends on how it is cut: {first} or {relayed}"
    if rng.randrange(64) == 0:
        check_long(data)


def _check_relayed(relayed: Relayed, sent: bytes) -> None:
    assert sent.startswith(relayed.data), f"{sent!r} was relayed as {relayed.data!r}"
    if not relayed.error:
        assert relayed.data == sent, f"only {relayed.data!r} of {sent!r} was relayed"
    elif not relayed.is_within_event:
        message = f"an error follows half an event: {relayed.data!r}"
        assert is_between_events(relayed.data), message
    if len(sent) < MAX_EVENT_BYTES:
        end = b""
        for part in relayed.parts[:-1]:
            end = (end + part)[-4:]
            assert is_between_events(end), f"events are cut: {relayed.parts}"


def is_between_events(data: bytes) -> bool:
    """Return whether a new event follows these bytes (WHATWG HTML, "Parsing an event stream")."""
    if not data:
        return True
    line = data.removesuffix(b"\n") if data.endswith(b"\r\n") else data
    return line[-1:] in {b"\r", b"\n"} and line[:-1][-1:] in {b"\r", b"\n", b""}


def check_long(data: bytes) -> None:
    """Check a stream in which one line is too long to be kept."""
    flags, sent = data[0] if data else 0, data[1:]
    place = randomness(data).randrange(len(sent) + 1)
    long = sent[:place] + b"x" * LONG_BYTES + sent[place:]
    whole = [long[i : i + 65536] for i in range(0, len(long), 65536)]
    relayed = _relayed(whole, flags)
    _check_relayed(relayed, long)


TOKENS = (
    *(b"data: [DONE]\n\n", b"data: {}\n\n", b"data:", b"event: error\n"),
    *(b"event: response.completed\n", b"id: 1\n", b"retry: 1\n", b": comment\n\n"),
    *(b"\xef\xbb\xbf", b"\n\n", b"\r\n\r\n", b"\r\r", b"\r", b"\n", b"\0", b"\\ud83d"),
    b"\\ude00",
    *(value for value in OUTSIDE_JSON.values() if len(value) < 20),
    *(b"18446744073709551616", b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'),
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}\n\n',
    b'data: {"error":{"message":"m"}}\n\n',
    b'data: {"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b'data: {"type":"response.output_text.delta","delta":"a","sequence_number":3}\n\n',
    b'data: {"type":"response.created","response":{"id":"r","model":"m"},"sequence_number":0}\n\n',
    b'data: {"type":"response.completed","response":{"id":"r","output":[]}}\n\n',
    *(b'"sequence_number":', b'"id":', b'"model":', b'"delta":', b'"content":', b"[[[[", b"null"),
)

_DATA = re.compile(rb"data: (\{[^\r\n]*\})")

ATTACKS = tuple(
    b'\1data: {"choices":[{"index":0,"delta":{"content":%b}}]}\n\ndata: [DONE]\n\n' % value
    for value in (*OUTSIDE_JSON.values(), *REPEATED_KEYS.values())
    if len(value) < 5000  # each split of the stream is read, also byte by byte
)


def change(data: bytes, rng: random.Random) -> bytes:
    """Change a stream's lines, or the JSON of one of its events."""
    events = list(_DATA.finditer(data))
    if not events or rng.random() < 0.5:
        return change_lines(data, TOKENS, rng)
    event = rng.choice(events)
    return data[: event.start(1)] + change_json(event[1], rng) + data[event.end(1) :]
