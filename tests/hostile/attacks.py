"""The behaviours of malicious clients and upstreams, as a table of attacks on a gateway.

An entry is a function that gets an `Attack`, opens connections, sends data and checks answers.
`Target.withstand` asserts what must hold after every attack. What one message gets is the claim of
`test_bad_input.py`: here is what may exhaust a process, or harm other clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from tests.bodies import CHAT
from tests.hostile.raw import Connection, request, request_head
from tests.hostile.target import (
    ADMIN_KEY,
    CLIENT_KEY,
    FILE,
    Attack,
    auth_headers,
    chat_body,
    check_answer,
    new_nonce,
)
from tests.hostile.upstream import BEHAVIOUR_HEADER, STREAMED, WHOLE, dumps

KB = 1024
MB = 1024 * 1024

FEEDBACK = "/v1/feedback"
FILES = "/v1/files"
RESPONSES = "/v1/responses"
EXPLAIN = "/ui/api/explain"
KEY = auth_headers()
GOOD = chat_body()
"""A body that gets status 200."""
STREAMING = chat_body(stream=True)
PROBE = request("GET", "/healthz")
BAD = frozenset(range(400, 500))
"""Every status for a client's mistake."""
ANY = frozenset({200, *BAD, 501, 502, 503, 505})

Act = Callable[[Attack], None]


def read(connection: Connection, expected: Collection[int], *, may_close: bool = False) -> None:
    """Assert that one answer comes, with one of the expected statuses, and nothing else."""
    answer = connection.read_answer()
    if answer is None:
        assert may_close, "the gateway hung up without an answer"
        return
    check_answer(answer)
    assert answer.status in expected, f"{answer.status}: {answer.body[:200]!r}"
    assert connection.is_silent(), "the gateway sent an answer that belongs to no request"


def head(method: str = "POST", target: str = CHAT, **headers: str) -> bytes:
    """Return a request head with a key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request_head(method, target, KEY | named)


def post(body: bytes, target: str = CHAT) -> bytes:
    """Return a POST with a key and a body."""
    return request("POST", target, KEY | {"content-type": "application/json"}, body)


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(end: bytes = b"0\r\n\r\n") -> bytes:
    """Return a POST whose body is in one chunk."""
    return head(transfer_encoding="chunked") + chunk(GOOD) + end


def behaving(name: str, body: bytes = GOOD) -> bytes:
    """Return a request that makes the upstream use one of its behaviours."""
    return request("POST", CHAT, KEY | {BEHAVIOUR_HEADER: name}, body)


# What has no end.


def floods(block: bytes, start: bytes) -> Act:
    """Return an attack that sends a start, and then the same bytes until they are refused."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        connection.send(start)
        connection.flood(block, 64 * MB, 1.5)
        connection.close()

    return act


_CHUNKED_HEAD = head(transfer_encoding="chunked")

ENDLESS: Mapping[str, Act] = {
    "header-value": floods(b"x" * 64 * KB, b"GET / HTTP/1.1\r\nx-a: "),
    "headers": floods(b"a: b\r\n" * 10_000, b"GET / HTTP/1.1\r\n"),
    "empty-lines": floods(b"\r\n" * 32 * KB, b""),
}


# Bodies.


def posts(
    body: Callable[[], bytes],
    target: str = CHAT,
    expected: Collection[int] = ANY,
    *,
    connections: int = 1,
    key: str = CLIENT_KEY,
    kind: str = "application/json",
) -> Act:
    """Return an attack that sends a large or unusual body on several connections at once.

    Meanwhile another key is served. The clients read their answers.
    """

    def act(attack: Attack) -> None:
        data = body()
        headers = auth_headers(key) | {"content-type": kind}
        opened = []
        for _ in range(connections):
            opened.append(attack.connect())
            opened[-1].send(request("POST", target, headers, data))
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)
        for connection in opened:
            read(connection, expected)

    return act


def json_array(size_mb: float, item: bytes = b"0") -> bytes:
    """Return a JSON array of `size_mb`."""
    return b"[" + (item + b",") * (int(size_mb * MB / (len(item) + 1)) - 200) + item + b"]"


def json_object(**members: bytes) -> bytes:
    """Return a JSON object from encoded values."""
    return b"{" + b",".join(b'"%b":%b' % (n.encode(), v) for n, v in members.items()) + b"}"


def chat_with(**members: bytes) -> bytes:
    """Return a chat body to route, with further encoded members."""
    messages = b'[{"role":"user","content":"What is the weather in Oslo?"}]'
    return json_object(**({"model": b'"switchcraft"', "messages": messages} | members))


def feedback(expected: bytes) -> bytes:
    """Return feedback with an encoded value of the expected calls."""
    return json_object(decision_id=b'"x"', expected=expected)


def tool(parameters: object, name: str = "f", description: str = "") -> dict[str, Any]:
    """Return a tool that no cache contains."""
    description = f"{new_nonce()} {description}"
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def routed(*messages: object, tools: object = None) -> bytes:
    """Return a chat body to route, with a text that no cache contains."""
    first = {"role": "user", "content": f"Use the tools, {new_nonce()}"}
    tools = [tool({})] if tools is None else tools
    return dumps({"model": "switchcraft", "messages": [first, *messages], "tools": tools})


@lru_cache(maxsize=4)
def deep_schema(levels: int, properties: int) -> bytes:
    """Return a JSON schema with this many levels and properties per level."""
    schema: dict[str, Any] = {"type": "string"}
    wide = {f"p{index}": {"type": "string"} for index in range(properties)}
    for _ in range(levels):
        schema = {"type": "object", "properties": {**wide, "inner": schema}}
    return dumps(schema)


def with_schema(schema: bytes) -> bytes:
    """Return a chat body with one tool that has this schema."""
    return routed(tools=[tool("the schema")]).replace(b'"the schema"', schema)


def with_blocks(count: int) -> bytes:
    """Return a Messages body with this many calls in one turn, and as many results in the next."""
    calls = [{"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}} for i in range(count)]
    results = [{"type": "tool_result", "tool_use_id": f"c{i}"} for i in range(count)]
    messages = [
        {"role": "user", "content": new_nonce()},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    return dumps({"model": "switchcraft", "max_tokens": 9, "messages": messages, "tools": tools})


BODIES: Mapping[str, Act] = {
    "feedback-of-zeros": posts(lambda: feedback(json_array(9.9)), FEEDBACK, BAD, connections=4),
    "feedback-of-large-calls": posts(
        lambda: feedback(
            b"[%b]" % b",".join([b'{"name":"f","arguments":{"a":%b}}' % json_array(0.07)] * 128)
        ),
        FEEDBACK,
    ),
    **{
        f"10-mb-of-zeros-to-{target}": posts(lambda: chat_with(x=json_array(9.9)), target)
        for target in (FILES, RESPONSES, "/admin/reload")
    },
    "zeros": posts(lambda: chat_with(x=json_array(9.9)), connections=4),
    "keys": posts(lambda: chat_with(x=b"{%b}" % b",".join(b'"k%d":0' % i for i in range(700_000)))),
    "messages": posts(lambda: chat_with(messages=json_array(9, b'{"role":"user","content":"a"}'))),
    "message-of-9-mb": posts(
        lambda: routed({"role": "user", "content": "word " * int(1.8 * MB)}),
    ),
    "tool-with-deep-schema": posts(lambda: with_schema(deep_schema(60, 3000)), connections=8),
    "multipart": posts(
        lambda: b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\nb\r\n" * 100_000,
        FILES,
        kind="multipart/form-data; boundary=x",
    ),
    "explained": posts(lambda: with_schema(deep_schema(60, 3000)), EXPLAIN, key=ADMIN_KEY),
    "too-large": posts(lambda: b"[" + b"0," * (6 * MB) + b"0]", CHAT, {413}),
}


# Pipelines.


def pipeline(block: bytes, limit_mb: int = 12, connections: int = 1) -> Act:
    """Return an attack that sends requests and reads no answers."""

    def act(attack: Attack) -> None:
        opened = [attack.connect() for _ in range(connections)]
        for connection in opened:
            connection.flood(block, limit_mb * MB // connections, 1.5 / connections)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)

    return act


def leaves(*packets: bytes) -> Act:
    """Return an attack that sends requests with slow answers and disconnects."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        connection.send(*packets)
        time.sleep(0.05)
        connection.close()

    return act


PIPELINES: Mapping[str, Act] = {
    "of-refused": pipeline(b"GET / HTTP/1.1\r\n\r\n" * 4096, 24, connections=8),
    "of-streams": pipeline(post(STREAMING) * 50, 4),
    "of-bodies": pipeline(post(b"x" * 100_000) * 10, 24),
    "of-slow-then-leaves": leaves(behaving("silence") * 20),
}


# Clients that are slow or disconnect.


def slowly(data: bytes, pause_s: float, step: int, expected: Collection[int]) -> Act:
    """Return an attack that sends a request slowly until the gateway answers or disconnects."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        for start in range(0, len(data), step):
            if not connection.send(data[start : start + step]) or connection.has_ended():
                break
            time.sleep(pause_s)
        read(connection, expected, may_close=True)

    return act


def closes(close: Callable[[Connection], None], *packets: bytes, pause_s: float = 0.0) -> Act:
    """Return an attack that ends its connections within or after a request."""

    def act(attack: Attack) -> None:
        for _ in range(10):
            connection = attack.connect()
            connection.send(*packets)
            time.sleep(pause_s)
            close(connection)

    return act


def _half_closed_stream(attack: Attack) -> None:
    """Send FIN after a request whose answer never ends."""
    connection = attack.connect()
    connection.send(behaving("events-endless-slow", STREAMING))
    time.sleep(0.1)
    connection.finish_sending()
    connection.read_answer(limit_s=4)


def unread(count: int, name: str, body: bytes) -> Act:
    """Return an attack that requests large answers and reads none.

    It ends when the gateway has all answers, or after a second.
    """

    def act(attack: Attack) -> None:
        opened = [attack.connect(receive_buffer_bytes=4096) for _ in range(count)]
        upstream = attack.target.upstream
        asked = upstream.requests
        for connection in opened:
            connection.send(behaving(name, body))
        deadline_s = time.monotonic() + 1
        while time.monotonic() < deadline_s:
            if upstream.requests - asked >= count and not upstream.playing:
                break
            time.sleep(0.05)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)
        for connection in opened:
            connection.close()

    return act


def held(start: bytes, count: int, pause_s: float = 0.1) -> Act:
    """Return an attack of requests that are not continued, while another key is served."""

    def act(attack: Attack) -> None:
        opened = [attack.connect() for _ in range(count)]
        for connection in opened:
            connection.send(start)
        time.sleep(pause_s)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)
        for connection in opened:
            connection.close()

    return act


_SHORT = head(content_length="500") + b"{"
_UPLOAD_BYTES = int(9.9 * MB)

SLOW: Mapping[str, Act] = {
    "head": slowly(head("GET", "/v1/models", x_a="a" * 500), 0.05, 10, {408}),
    "body": slowly(head(content_length="500") + b"x" * 500, 0.05, 10, {400, 408}),
    "chunks": slowly(_CHUNKED_HEAD + chunk(b" ") * 100, 0.05, 6, {400, 408}),
    "trailers": slowly(chunked(end=b"0\r\n" + b"a: b\r\n" * 100), 0.04, 6, ANY),
    "rst-in-body": closes(Connection.reset, _SHORT, pause_s=0.01),
    "fin-while-streaming": closes(
        Connection.close, behaving("events-endless-slow", STREAMING), pause_s=0.05
    ),
    "half-close-in-stream": _half_closed_stream,
    "uploads-one-byte-short": held(
        head(content_length=str(_UPLOAD_BYTES)) + bytes(_UPLOAD_BYTES - 1), 60
    ),
    "bodies-of-one-byte": held(_SHORT, 350),
    "heads-of-one-byte": held(b"G", 350),
    "silent-upstreams": held(behaving("silence"), 250),
    "tool-blocks": held(post(with_blocks(9_000), "/v1/messages"), 8, pause_s=0.5),
    "answers-unread": unread(150, "8-mb", GOOD),
    "answers-unread-passed": held(request("GET", FILE, KEY | {BEHAVIOUR_HEADER: "8-mb"}), 60),
    "streams-unread": unread(20, "events-endless", STREAMING),
    "events-unread": unread(80, "event-10-mb", STREAMING),
}


# Upstreams that exhaust a process.

READ_BYTES = 16 * MB
"""Read of a malicious answer; then the client leaves, because some answers have no end."""


def answered(name: str, body: bytes) -> Act:
    """Return an attack that is a client's request and an upstream's malicious answer."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        connection.send(behaving(name, body))
        answer = connection.read_answer(limit_bytes=READ_BYTES)
        assert answer is not None, "the gateway hung up without an answer"
        check_answer(answer)
        if not connection.is_usable:
            connection.close()

    return act


ANSWERS: Mapping[str, Act] = {
    **{name: answered(name, GOOD) for name in WHOLE},
    **{name: answered(name, STREAMING) for name in STREAMED},
}


# More connections than descriptors.


def kept_open(*packets: bytes, answers: int = 0) -> Act:
    """Return an attack with more connections than the gateway may have descriptors."""

    def act(attack: Attack) -> None:
        opened = [attack.connect() for _ in range(400)]
        for connection in opened:
            connection.send(*packets)
        for connection in opened[:100]:
            for _ in range(answers):
                connection.read_answer()
        for _ in range(20):
            with Connection(attack.target.port) as other:
                attack.target.ask_to_route(other)
            time.sleep(0.01)
        for connection in opened:
            connection.close()

    return act


FEW_DESCRIPTORS: Mapping[str, Act] = {
    "idle": kept_open(),
    "kept-alive": kept_open(PROBE, answers=1),
    "halves-of-heads": kept_open(PROBE[:-3]),
    "refused": kept_open(b"NONSENSE\r\n\r\n"),
}
"""Attacks of a client on a gateway that may have 256 descriptors."""

ATTACKS: Mapping[str, Act] = {
    f"{kind}-{name}": act
    for kind, table in {
        "endless": ENDLESS,
        "body": BODIES,
        "pipeline": PIPELINES,
        "slow": SLOW,
        "answer": ANSWERS,
    }.items()
    for name, act in table.items()
}
