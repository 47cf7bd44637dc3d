"""Relay of server-sent events: bytes, order, backpressure and disconnects."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.bodies import ASK, BODY
from tests.clients.upstreams import event_stream, gateway_before_app, gateway_before_script
from tests.serving import scripted, wait_for

CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
OFFERED: Any = [
    {"type": "function", "function": {"name": name, "parameters": CITY}}
    for name in ("get_weather", "get_time")
]
STREAM = BODY | {"stream": True, "tools": OFFERED}


def chunk(delta: str, **fields: object) -> bytes:
    """Return a chunk with this encoded delta."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"} | fields
    choice = '{"index":0,"delta":' + delta + ',"finish_reason":null}'
    return (json.dumps(head)[:-1] + ',"choices":[' + choice + "]}").encode()


def call(index: int, fragment: str, name: str | None = None) -> bytes:
    """Return a chunk with a part of a tool call; `fragment` is encoded JSON text."""
    head = "" if name is None else f'"id" : "call_{name}", "type":"function",'
    named = "" if name is None else f'"name":"{name}", '
    return chunk(
        f'{{"tool_calls":[{{"index":{index},{head}"function":{{{named}"arguments":{fragment}}}}}]}}'
    )


def events(*data: bytes, end: bytes = b"\n\n") -> bytes:
    """Return events with one line of data each."""
    return b"".join(b"data: " + line + end for line in data)


STOP = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
DONE = events(STOP, b"[DONE]")
# Calls whose deltas come interleaved, an id that comes twice, arguments that are no JSON alone,
# escapes that a re-encoder would undo, a number that would lose digits.
CALLS = events(
    chunk('{"role":"assistant","content":null}'),
    call(1, '""', "get_time"),
    call(0, '""', "get_weather"),
    call(1, r'"{\"city\": \"\u004fs"'),
    call(0, r'"{ \"city\":\"Oslo\" , \"n\":1.00000000000000000001"'),
    call(0, '"}"', "get_weather"),
    call(1, r'"lo\"}"'),
)
STREAMS = {
    "calls": CALLS + DONE,
    "carriage returns": events(chunk('{"content":"a"}'), STOP, b"[DONE]", end=b"\r\n\r\n"),
    "old carriage returns": events(chunk('{"content":"a"}'), STOP, b"[DONE]", end=b"\r\r"),
    "mixed line ends": events(chunk("{}"), STOP, end=b"\r\n\r\n")
    + events(b"[DONE]", end=b"\n\r\n"),
    "keep-alives": b": ping\n\n:\n\n" + CALLS + b": ping\r\n\r\n" + DONE,
    "keep-alive first": b": OPENROUTER PROCESSING\n\n" * 3 + CALLS + DONE,
    "several lines of data": b'data: {"choices":\ndata: []}\n\n' + DONE,
    "other fields": b"event: x\nid: 7\nretry: 10\ndata: {}\n\ndata:{}\n\n" + DONE,
    "byte order mark": b"\xef\xbb\xbf" + CALLS + DONE,
    "letters of several bytes": events(
        chunk('{"content":"\u00e9\u4e16\U0001f642"}').decode().encode()
    )
    + DONE,
    "usage in its own chunk": CALLS
    + events(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}')
    + DONE,
    "unknown fields": events(chunk("{}", future={"a": [1e300]}), b'{"object":"future"}') + DONE,
    "half an emoji": events(chunk(r'{"content":"\ud83d"}'), chunk(r'{"content":"\ude00"}')) + DONE,
    "half an emoji first": events(chunk(r'{"content":"\ude00"}')) + CALLS + DONE,
    "numbers that JSON lacks": events(chunk('{"logprob":-Infinity,"p":[NaN,Infinity]}')) + DONE,
    "numbers of any size": events(chunk('{"n":[1e999,' + "1" * 5000 + "]}")) + CALLS + DONE,
    "control characters": events(chunk('{"content":"a\tb\x01c"}')) + CALLS + DONE,
    "half a letter": events(b'{"choices":[],"x":"\xf0\x9f"}') + CALLS + DONE,
    "keys that come twice": events(b'{"choices":[],"choices":[],"id":"a","id":"b"}') + CALLS + DONE,
    "nested 1,000 deep": events(b'{"a":' * 1000 + b"1" + b"}" * 1000) + CALLS + DONE,
    "nested 100,000 deep": events(b'{"a":' * 100_000 + b"1" + b"}" * 100_000) + CALLS + DONE,
    "words between events": CALLS + events(b"ping", b"{no JSON}", b"nan") + CALLS + DONE,
    "an event after the end": CALLS + DONE + b": bye\n\n",
    "no last empty line": CALLS + events(STOP) + b"data: [DONE]",
    "no done": CALLS + events(b'{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}'),
}


LONG = chunk(json.dumps({"content": "x" * 3_000_000}))
LINES = b"{\ndata: " + b'"choices":\ndata: [' + b"\ndata: ".join([b"1,"] * 300_000) + b"0]}"


@pytest.mark.parametrize(
    ("name", "chunk_bytes"),
    # Every stream in parts that end anywhere; in one part, those whose beginning is read specially.
    [*((name, 7) for name in STREAMS), *((name, None) for name in STREAMS if "first" in name)],
)
def test_stream_is_relayed_byte_for_byte(name: str, chunk_bytes: int | None) -> None:
    """An upstream's stream arrives in the same bytes, however the upstream splits it."""
    assert relayed(event_stream(STREAMS[name], chunk_bytes=chunk_bytes)) == STREAMS[name]


@pytest.mark.parametrize("data", [LONG, LINES], ids=["one line", "many lines"])
@pytest.mark.parametrize("first", [b"", events(chunk("{}"))], ids=["first", "second"])
def test_event_of_3_mb_is_relayed(data: bytes, first: bytes) -> None:
    """An event of 3 MB arrives complete, although it exceeds the buffer, and counts as output."""
    body = first + events(data) + DONE
    assert relayed(event_stream(body, chunk_bytes=4096)) == body


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_error_after_half_an_event_is_a_separate_event(end: bytes) -> None:
    """If a stream ends without a blank line, the gateway's error is not read as part of it."""
    half = b"data: " + chunk('{"content":"a"}') + end
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    body = relayed(head + events(chunk("{}")) + half)
    *_, error, rest = body.split(b"\n\n")
    assert rest == b""
    assert "error" in json.loads(error.strip().removeprefix(b"data: "))
    assert half in body


def relayed(script: bytes) -> bytes:
    """Return the body of a good answer from an upstream that plays a script."""
    with gateway_before_script(script) as url:
        answer = httpx.post(f"{url}/chat/completions", json=STREAM, timeout=30)
    assert answer.status_code == 200
    return answer.content


def test_client_assembles_the_same_calls_as_without_the_gateway() -> None:
    """Interleaved deltas keep index, id, name and arguments, as without the gateway."""
    script = event_stream(STREAMS["keep-alives"], chunk_bytes=11)
    with scripted(script) as direct, gateway_before_script(script) as gateway:
        answers = [assembled(url) for url in (direct, gateway)]
    assert answers[0] == answers[1]
    assert [part for part in answers[1] if part["index"] == 0] == [
        {"index": 0, "id": "call_get_weather", "name": "get_weather", "arguments": ""},
        {
            "index": 0,
            "id": None,
            "name": None,
            "arguments": '{ "city":"Oslo" , "n":1.00000000000000000001',
        },
        {"index": 0, "id": "call_get_weather", "name": "get_weather", "arguments": "}"},
    ]


def assembled(base_url: str) -> list[dict[str, Any]]:
    """Return the parts of calls that the OpenAI client reads from a stream, in order."""
    with openai.OpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="switchcraft", messages=ASK, tools=OFFERED, stream=True
        )
        parts = [
            part
            for chunk in stream
            for choice in chunk.choices
            for part in choice.delta.tool_calls or []
        ]
    return [
        {
            "index": part.index,
            "id": part.id,
            "name": part.function and part.function.name,
            "arguments": part.function and part.function.arguments,
        }
        for part in parts
    ]


class Endless:
    """Upstream that streams without end and counts the sent events."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.ended = threading.Event()
        routes = [Route("/v1/chat/completions", self._answer, methods=["POST"])]
        self.app = Starlette(routes=routes)

    async def _answer(self, _request: Request) -> StreamingResponse:
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        event = events(chunk(json.dumps({"content": "x" * 65_000})))
        try:
            while True:
                yield event
                self.sent_bytes += len(event)
                await asyncio.sleep(0)  # sending to a client that has left never waits
        finally:
            self.ended.set()

    def is_held_up(self) -> bool:
        """Return whether nothing could be sent for a while."""
        before = self.sent_bytes
        time.sleep(0.5)
        return self.sent_bytes == before > 0


def test_slow_client_slows_down_the_upstream() -> None:
    """A client that stops reading stops the upstream; nothing piles up, and reading resumes it."""
    upstream = Endless()
    with gateway_before_app(upstream.app) as url, asking(url) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        wait_for(upstream.is_held_up, "the upstream is held up")
        held_up_at = upstream.sent_bytes
        received = 0
        while received < 2 * held_up_at:
            received += len(connection.recv(1_000_000))
        assert upstream.sent_bytes > held_up_at
        connection.close()
        wait_for(upstream.ended.is_set, "the upstream is cancelled")


def asking(url: str) -> socket.socket:
    """Request a stream over a new connection and return the connection."""
    address = urlsplit(url)
    body = json.dumps(STREAM).encode()
    head = f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    connection = socket.create_connection((address.hostname, address.port), timeout=10)
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection
