"""Upstream that answers chat requests with the same bytes, or with the answer that they have.

    python -m benchmarks.load.upstream 9000

It answers immediately, or after `DELAY_S` if the body contains `DELAYED`. A request for a stream
gets `CHUNKS` events, each written separately as soon as the one before is sent. If the body also
contains `PACED`, one event comes every `PACE_S`. Every event's text has the
time of writing, by the clock that all processes of a machine share, so that the reader can compute
the event's age.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import cast

import httptools
import orjson
import uvloop

CHUNKS = 50
PACED = b"one word at a time"
PACE_S = 0.01
DELAYED = b"after a short while"
DELAY_S = 0.02
WRITTEN_AT = re.compile(rb"at=(\d+);")

_STREAMED = re.compile(rb'"stream":\s*true')
_MODEL = b'"created":1700000000,"model":"gpt-4.1-mini-2025-04-14"'
_ANSWERED = b'"upstream_answer":'
"""Mark of a body that has the message to be answered as a field `upstream_answer`."""


def _answer_with(message: bytes, reason: bytes) -> bytes:
    """Return a response with one choice."""
    completion = (
        b'{"id":"chatcmpl-1","object":"chat.completion",' + _MODEL + b',"choices":[{"index":0,'
        b'"message":' + message + b',"logprobs":null,"finish_reason":"' + reason + b'"}],'
        b'"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(completion) + completion


_ANSWER = _answer_with(b'{"role":"assistant","content":"Hello.","refusal":null}', b"stop")
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk",' + _MODEL
_WORD = _EVENT + b',"choices":[{"index":0,"delta":{"content":"at=%d;"},"finish_reason":null}]}\n\n'
_LAST = (
    _EVENT + b',"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    _EVENT + b',"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":50,'
    b'"total_tokens":59}}\n\n',
    b"data: [DONE]\n\n",
)


class Upstream(asyncio.Protocol):
    """One connection, which answers each request when it has been read."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for answers."""
        # uvloop's transports have the interface but not the class.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - its interface
        """Cancel the streams of the connection."""
        for stream in self._streams:
            stream.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Keep one part of the request's body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Answer the request."""
        body = b"".join(self._body)
        self._body.clear()
        if not _STREAMED.search(body):
            if _ANSWERED in body:
                message = orjson.dumps(orjson.loads(body)["upstream_answer"])
                self._transport.write(_answer_with(message, b"tool_calls"))
            elif DELAYED in body:
                asyncio.get_running_loop().call_later(DELAY_S, self._transport.write, _ANSWER)
            else:
                self._transport.write(_ANSWER)
            return
        stream = asyncio.ensure_future(self._stream(PACE_S if PACED in body else 0.0))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    async def _stream(self, pace_s: float) -> None:
        self._transport.write(_STREAM_HEAD)
        for _ in range(CHUNKS):
            self._write(_WORD % time.perf_counter_ns())
            await asyncio.sleep(pace_s)
        for event in _LAST:
            self._write(event)
        self._transport.write(b"0\r\n\r\n")

    def _write(self, event: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))


async def serve(port: int) -> None:
    """Serve on a port of this machine until the process ends."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
