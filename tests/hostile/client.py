"""The behaviours of a malicious client, as a table of attacks on a gateway.

An entry is a function that gets an `Attack`, opens connections, sends data and checks answers.
`Target.withstand` asserts what must hold after every attack.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tests import attacks
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
from tests.hostile.upstream_server import BEHAVIOUR_HEADER

KB = 1024
MB = 1024 * 1024

FEEDBACK = "/v1/feedback"
KEY = auth_headers()
GOOD = chat_body()
"""A body that gets status 200."""
PROBE = request("GET", "/healthz")
CHUNKED = {"transfer-encoding": "chunked"}
BAD = frozenset(range(400, 500))
"""Every status for a client's mistake."""
ANY = frozenset({200, *BAD, 501, 502, 503, 505})
OK = frozenset({200})


@dataclass(frozen=True)
class ClientBehaviour:
    """One thing that a malicious or broken client does."""

    name: str
    act: Callable[[Attack], None]


def read(connection: Connection, *expected: Collection[int], may_close: bool = False) -> None:
    """Assert that one answer comes for each set of statuses, with one of them, and nothing else."""
    for index, statuses in enumerate(expected):
        answer = connection.read_answer()
        if answer is None:
            assert may_close, f"the gateway hung up instead of answer {index}"
            return
        check_answer(answer)
        assert answer.status in statuses, (
            f"answer {index} has {answer.status}: {answer.body[:200]!r}"
        )
        if answer.closes:
            break
    assert connection.is_silent(), "the gateway sent an answer that belongs to no request"


Packets = Sequence[bytes] | Callable[[], Sequence[bytes]]


def sends(
    name: str,
    packets: Packets,
    *expected: Collection[int],
    pause_s: float = 0.0,
    may_close: bool = False,
    is_cut: bool = False,
    times: int = 1,
) -> ClientBehaviour:
    """Return the behaviour that sends packets on one connection and gets these answers.

    Large packets are made by a function. `is_cut` marks an incomplete body, after which no other
    request may follow. `times` repeats the behaviour on as many connections, one after another.
    """

    def act(attack: Attack) -> None:
        data = packets() if callable(packets) else packets
        for _ in range(times):
            connection = attack.connect()
            connection.send(*data, pause_s=pause_s)
            read(connection, *(expected or (BAD,)), may_close=may_close)
            if is_cut:
                connection.close()

    return ClientBehaviour(name, act)


def head(method: str = "POST", target: str = CHAT, *lines: str, **headers: str) -> bytes:
    """Return a request head with a key; `lines` are written as given."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    plain = request_head(method, target, [*KEY.items(), *named])
    return plain[:-2] + "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n"


def post(body: bytes, target: str = CHAT, **headers: str) -> bytes:
    """Return a POST with a key and a body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request("POST", target, KEY | {"content-type": "application/json"} | named, body)


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """Return a chunk of a body."""
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def chunked(body: bytes = GOOD, end: bytes = b"0\r\n\r\n", **headers: str) -> bytes:
    """Return a POST whose body is in one chunk."""
    return head(transfer_encoding="chunked", **headers) + chunk(body) + end


def posts(
    name: str,
    body: Callable[[], bytes],
    target: str = CHAT,
    expected: Collection[int] = ANY,
    *,
    connections: int = 1,
    key: str = CLIENT_KEY,
    kind: str = "application/json",
) -> ClientBehaviour:
    """Return the behaviour that sends a large or unusual body on several connections at once."""

    def act(attack: Attack) -> None:
        data = body()
        headers = auth_headers(key) | {"content-type": kind}
        opened = []
        for _ in range(connections):
            opened.append(attack.connect())
            opened[-1].send(request("POST", target, headers, data))
        for connection in opened:
            read(connection, expected)

    return ClientBehaviour(name, act)


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


def tool(parameters: object, name: str = "f", description: str = "") -> dict[str, Any]:
    """Return a tool that no cache contains."""
    description = f"{new_nonce()} {description}"
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def with_tools(*tools: object) -> bytes:
    """Return a chat body with tools and a text that no cache contains."""
    text = {"role": "user", "content": f"Use the tools, {new_nonce()}"}
    return dumps({"model": "switchcraft", "messages": [text], "tools": tools})


def dumps(value: object) -> bytes:
    """Return JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


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
    marker = "the schema"
    return with_tools(tool(marker)).replace(b'"%b"' % marker.encode(), schema)


# Lengths of bodies.

SMUGGLED = request("GET", "/admin/status", auth_headers(ADMIN_KEY))
"""A request that only an administrator may make, hidden in a body."""

LENGTHS = [
    sends(
        "length-twice-equal",
        [head("POST", CHAT, *[f"content-length: {len(GOOD)}"] * 2) + GOOD],
        ANY,
    ),
    sends(
        "length-twice-other",
        [head("POST", CHAT, "content-length: 5", f"content-length: {len(GOOD)}") + GOOD],
    ),
    *(
        sends(f"length-{name}", [head(content_length=value.decode()) + GOOD], BAD, is_cut=True)
        for name, value in {**attacks.LENGTHS, "11-mb": b"%d" % (11 * MB)}.items()
    ),
    sends("length-empty", [head("POST", CHAT, "content-length:") + GOOD], ANY, may_close=True),
    sends(
        "length-and-chunked", [head(content_length="5", transfer_encoding="chunked") + chunk(GOOD)]
    ),
    sends(
        "chunked-and-length", [head(transfer_encoding="chunked", content_length="5") + chunk(GOOD)]
    ),
    *(
        sends(
            f"coding-{name}", [head("POST", CHAT, *lines) + chunk(GOOD) + b"0\r\n\r\n"], BAD | {501}
        )
        for name, lines in {
            "twice": ["transfer-encoding: chunked, chunked"],
            "gzip": ["transfer-encoding: gzip, chunked"],
            "identity": ["transfer-encoding: identity"],
            "unknown": ["transfer-encoding: xchunked"],
            "vertical-tab": ["transfer-encoding: \x0bchunked"],
            "before-colon": ["transfer-encoding : chunked"],
            "last-not-chunked": ["transfer-encoding: chunked, identity"],
            "folded": ["transfer-encoding:\r\n chunked"],
        }.items()
    ),
    sends(
        "coding-lines",
        [head("POST", CHAT, *["transfer-encoding: chunked"] * 2) + chunk(GOOD) + b"0\r\n\r\n"],
        ANY,
    ),
    sends(
        "coding-empty",
        [head("POST", CHAT, "transfer-encoding:", "content-length: 5") + GOOD],
        ANY,
        may_close=True,
    ),
    *(
        sends(
            f"chunk-size-{name}", [head(transfer_encoding="chunked") + size + b"\r\n" + GOOD], BAD
        )
        for name, size in {**attacks.CHUNK_SIZES, "short": b"3"}.items()
    ),
    sends("chunk-size-spaces", [head(transfer_encoding="chunked") + b"5 \r\n"], BAD),
    sends("chunk-lf-only", [head(transfer_encoding="chunked") + b"2\n{}\n0\n\n"]),
    sends("chunk-without-crlf", [head(transfer_encoding="chunked") + b"2\r\n{}0\r\n\r\n"]),
    sends(
        "chunk-extensions",
        [head(transfer_encoding="chunked") + chunk(GOOD, b";a=b;c") + b"0;d\r\n\r\n"],
        OK,
    ),
    sends(
        "chunks-of-one-byte",
        lambda: [
            head(transfer_encoding="chunked")
            + b"".join(chunk(GOOD[i : i + 1]) for i in range(len(GOOD)))
            + b"0\r\n\r\n"
        ],
        OK,
    ),
    sends(
        "chunks-of-one-byte-100-000",
        lambda: [
            head(transfer_encoding="chunked") + chunk(b" ") * 100_000 + chunk(GOOD) + b"0\r\n\r\n"
        ],
        ANY,
    ),
    sends("chunks-empty", [head(transfer_encoding="chunked") + b"0\r\n\r\n"]),
    sends("body-behind-length", [head(content_length="2") + b"{}" + SMUGGLED], BAD, OK),
    sends("get-with-body", [head("GET", "/v1/models", content_length="5") + b"hello"], OK),
    sends(
        "get-with-chunks",
        [head("GET", "/v1/models", transfer_encoding="chunked") + chunk(b"hello") + b"0\r\n\r\n"],
        OK,
    ),
    sends(
        "get-with-hidden-request",
        [head("GET", "/v1/models", content_length=str(len(SMUGGLED))) + SMUGGLED],
        OK,
    ),
    sends("delete-with-body", [head("DELETE", "/v1/files/f", content_length="5") + b"hello"], ANY),
    sends("options-with-body", [head("OPTIONS", CHAT, content_length="5") + b"hello"], ANY),
    sends(
        "probe-with-10-mb",
        lambda: [head("GET", "/healthz", content_length=str(10 * MB)) + bytes(10 * MB)],
        OK,
    ),
    sends("without-length", [head() + b""], BAD),
]


# Trailers.

TRAILER_KEY = f"authorization: Bearer {CLIENT_KEY}\r\n".encode()
BARE = request_head("POST", CHAT, CHUNKED)


def _hidden_headers(attack: Attack) -> None:
    """Send trailers with the names of headers that the gateway forwards."""
    for packets in ([0], [0, 1], [0, 1, 2]):
        nonce = new_nonce()
        parts = [
            head(transfer_encoding="chunked", x_request_id=nonce) + chunk(GOOD),
            b"0\r\nidempotency-key: hidden\r\nx-request-id: hidden\r\nx-behaviour: hidden\r\n",
            b"openai-beta: hidden\r\ntraceparent: hidden\r\n\r\n",
        ]
        connection = attack.connect()
        sent = [b"".join(parts)] if len(packets) == 1 else parts
        connection.send(*sent, pause_s=0.01)
        read(connection, OK)
        told = attack.target.upstream.state()["last"]["headers"]
        assert told["x-request-id"] == nonce
        assert "hidden" not in json.dumps(told), f"a trailer was forwarded: {told}"


def _floods(
    block: bytes, start: bytes, limit_mb: int = 64, seconds: float = 1.5
) -> Callable[[Attack], None]:
    """Return an attack that sends a start, and then the same bytes until they are refused."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        connection.send(start)
        connection.flood(block, limit_mb * MB, seconds)
        connection.close()

    return act


TRAILERS = [
    sends("trailer-key", [BARE + chunk(GOOD) + b"0\r\n" + TRAILER_KEY + b"\r\n"], {401}),
    sends(
        "trailer-key-later",
        [BARE + chunk(GOOD), b"0\r\n" + TRAILER_KEY + b"\r\n"],
        {401},
        pause_s=0.02,
    ),
    sends(
        "trailer-admin-key",
        [
            request_head("POST", "/admin/reload", CHUNKED)
            + b"0\r\nx-api-key: "
            + ADMIN_KEY.encode()
            + b"\r\n\r\n"
        ],
        {401},
    ),
    ClientBehaviour("trailer-headers", _hidden_headers),
    sends(
        "trailer-host",
        [chunked(end=b"0\r\nhost: evil\r\ntransfer-encoding: x\r\n\r\n")],
        ANY,
        may_close=True,
    ),
    sends("trailer-malformed", [chunked(end=b"0\r\nnonsense\r\n\r\n")], ANY),
    sends("trailer-nul", [chunked(end=b"0\r\na: \0\r\n\r\n")], ANY),
    sends(
        "trailers-5-000",
        [chunked(end=b"0\r\n" + b"a: b\r\n" * 5000 + b"\r\n")],
        ANY,
        may_close=True,
    ),
    ClientBehaviour("trailers-endless", _floods(b"a:b\r\n" * 10_000, chunked(end=b"0\r\n"))),
    ClientBehaviour("trailers-without-key", _floods(b"a:b\r\n" * 10_000, BARE + b"0\r\n")),
    ClientBehaviour(
        "trailers-on-probe",
        _floods(b"a:b\r\n" * 10_000, request_head("GET", "/healthz", CHUNKED) + b"0\r\n"),
    ),
    ClientBehaviour("trailer-value-endless", _floods(b"x" * 64 * KB, chunked(end=b"0\r\na: "))),
    ClientBehaviour("trailer-name-endless", _floods(b"x" * 64 * KB, chunked(end=b"0\r\n"))),
    ClientBehaviour(
        "trailer-value-small-packets", _floods(b"x" * 100, chunked(end=b"0\r\na: "), 4)
    ),
    ClientBehaviour("trailers-one-by-one", _floods(b"a: b\r\n", chunked(end=b"0\r\n"), 4)),
    ClientBehaviour(
        "chunk-extension-endless",
        _floods(b"x" * 64 * KB, head(transfer_encoding="chunked") + b"5;a="),
    ),
    ClientBehaviour(
        "chunk-extension-name-endless",
        _floods(b"x" * 64 * KB, head(transfer_encoding="chunked") + b"5;"),
    ),
    ClientBehaviour(
        "chunk-extensions-endless",
        _floods(chunk(b"x", b";" + b"a" * 4000) * 16, head(transfer_encoding="chunked")),
    ),
    ClientBehaviour(
        "chunk-extension-quoted-endless",
        _floods(b"x" * 64 * KB, head(transfer_encoding="chunked") + b'5;a="'),
    ),
    ClientBehaviour(
        "chunk-size-zeros-endless", _floods(b"0" * 64 * KB, head(transfer_encoding="chunked"))
    ),
    ClientBehaviour(
        "chunks-endless", _floods(chunk(b"x" * 64 * KB), head(transfer_encoding="chunked"))
    ),
    ClientBehaviour(
        "chunks-endless-on-probe",
        _floods(chunk(b"x" * 64 * KB), request_head("GET", "/healthz", CHUNKED)),
    ),
    ClientBehaviour(
        "chunks-of-one-byte-endless",
        _floods(chunk(b"x") * 10_000, head(transfer_encoding="chunked")),
    ),
]


# Upgrades.


def _upgrades() -> Iterator[ClientBehaviour]:
    """Yield upgrades of every kind, with the body in one packet and in two."""
    kinds = {
        "h2c": {
            "connection": "Upgrade, HTTP2-Settings",
            "upgrade": "h2c",
            "http2-settings": "AAMAAABk",
        },
        "websocket": {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
        },
        "x": {"connection": "upgrade", "upgrade": "x"},
        "tls": {"connection": "keep-alive, Upgrade", "upgrade": "TLS/1.2, HTTP/2.0"},
    }
    for name, lines in kinds.items():
        good = request_head("POST", CHAT, KEY | lines | {"content-length": str(len(GOOD))})
        hides = request_head("POST", FEEDBACK, KEY | lines | {"content-length": str(len(SMUGGLED))})
        chunks = request_head("POST", CHAT, KEY | lines | CHUNKED)
        yield sends(f"upgrade-{name}", [good + GOOD], OK)
        yield sends(f"upgrade-{name}-two-packets", [good, GOOD], OK, pause_s=0.02)
        yield sends(
            f"upgrade-{name}-three-packets",
            [good[:40], good[40:] + GOOD[:9], GOOD[9:]],
            OK,
            pause_s=0.02,
        )
        yield sends(f"upgrade-{name}-chunked", [chunks + chunk(GOOD) + b"0\r\n\r\n"], OK)
        yield sends(
            f"upgrade-{name}-chunked-packets", [chunks, chunk(GOOD), b"0\r\n\r\n"], OK, pause_s=0.02
        )
        yield sends(f"upgrade-{name}-hides-request", [hides + SMUGGLED], {400})
        yield sends(f"upgrade-{name}-hides-request-later", [hides, SMUGGLED], {400}, pause_s=0.02)
        yield sends(f"upgrade-{name}-get", [request_head("GET", "/v1/models", KEY | lines)], OK)
        yield sends(f"upgrade-{name}-pipelined", [good + GOOD + PROBE], OK, OK)
        yield sends(
            f"upgrade-{name}-probe", [request_head("GET", "/healthz", lines) + PROBE], OK, OK
        )


UPGRADES = [
    *_upgrades(),
    sends("connect", [request_head("CONNECT", "evil.example:443")], BAD),
    sends("http-2-preface", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)]),
    sends(
        "http-2-preface-upgraded",
        [
            head("GET", "/healthz", "upgrade: h2c", "connection: upgrade")
            + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        ],
        OK,
        BAD,
    ),
]


# Expectations.

EXPECTATIONS = [
    sends(
        "expect-continue",
        [head(content_length=str(len(GOOD)), expect="100-continue"), GOOD],
        OK,
        pause_s=0.02,
    ),
    sends(
        "expect-continue-at-once",
        [head(content_length=str(len(GOOD)), expect="100-continue") + GOOD],
        OK,
    ),
    sends(
        "expect-continue-chunked",
        [head(transfer_encoding="chunked", expect="100-continue"), chunk(GOOD) + b"0\r\n\r\n"],
        OK,
        pause_s=0.02,
    ),
    sends(
        "expect-too-much",
        [head(content_length=str(11 * MB), expect="100-continue")],
        {413, 417},
        is_cut=True,
    ),
    sends(
        "expect-without-key",
        [request_head("POST", CHAT, {"content-length": "99", "expect": "100-continue"})],
        {401},
        is_cut=True,
    ),
    sends("expect-unknown", [head(content_length=str(len(GOOD)), expect="200-ok") + GOOD], ANY),
    sends("expect-on-get", [head("GET", "/v1/models", expect="100-continue")], OK),
    sends("expect-and-never-send", [head(content_length="100", expect="100-continue")], {408}),
]


# Heads.


def get(*lines: str, target: str = "/v1/models") -> bytes:
    """Return a GET with a key and further lines as given."""
    return head("GET", target, *lines)


def _asks_for_heads(attack: Attack) -> None:
    """Send HEAD requests; an answer's body would be read as the start of the next answer."""
    for target in ("/healthz", "/v1/models", CHAT, FILE, "/metrics", "/none"):
        connection = attack.connect()
        for _ in range(3):
            connection.send(request("HEAD", target, KEY))
            answer = connection.read_answer(to_head=True)
            assert answer is not None
            check_answer(answer)
            if not connection.is_usable:
                break


HEADS = [
    sends("tls-hello", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)]),
    sends("socks", [b"\x05\x01\x00"], BAD | {408}),
    sends("http-0.9", [b"GET /healthz\r\n\r\n"], ANY),
    sends("http-0.9-key", [b"GET /v1/models\r\n"], BAD | {408}),
    sends("http-1.0", [b"GET /healthz HTTP/1.0\r\n\r\n"], OK),
    sends(
        "http-1.0-keep-alive",
        [b"GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" * 2],
        OK,
        OK,
    ),
    sends("http-1.2", [b"GET /healthz HTTP/1.2\r\nhost: h\r\n\r\n"], ANY),
    sends("http-9.9", [b"GET /healthz HTTP/9.9\r\nhost: h\r\n\r\n"]),
    sends("no-method", [b" /healthz HTTP/1.1\r\nhost: h\r\n\r\n"]),
    sends("no-target", [b"GET  HTTP/1.1\r\nhost: h\r\n\r\n"]),
    sends("method-brew", [b"BREW /pot HTTP/1.1\r\nhost: h\r\n\r\n"]),
    sends("method-lower", [b"get /healthz HTTP/1.1\r\nhost: h\r\n\r\n"]),
    sends("method-1-mb", [b"G" * MB], may_close=True),
    sends("method-trace", [head("TRACE", "/v1/models")], BAD),
    sends("method-pri", [head("PROPFIND", CHAT)], BAD),
    ClientBehaviour("method-head", _asks_for_heads),
    sends("json-as-http", [GOOD + b"\r\n\r\n"]),
    sends("binary", [bytes(range(256)) * 16]),
    sends("random", [random.Random(1).randbytes(4096)], times=5),
    sends("empty-lines", [b"\r\n" * 100 + PROBE], ANY),
    sends(
        "host-missing",
        [b"GET /v1/models HTTP/1.1\r\n" + f"authorization: Bearer {CLIENT_KEY}\r\n\r\n".encode()],
        ANY,
    ),
    sends("host-twice", [get("host: evil")], ANY),
    *(
        sends(f"host-{name}", [b"GET /v1/models HTTP/1.1\r\nhost: " + value + b"\r\n\r\n"], BAD)
        for name, value in {
            "path": b"h/healthz",
            "query": b"h/healthz?",
            "user": b"user@h",
            "empty": b"",
            "8-bit": b"\xff",
            "brackets": b"[::",
            "port": b"h:99999999",
            "long": b"h" * 20_000,
        }.items()
    ),
    *(
        sends(f"target-{name}", [f"GET {value} HTTP/1.1\r\nhost: h\r\n\r\n".encode("latin-1")], BAD)
        for name, value in {
            "absolute": "http://evil.example/v1/models",
            "absolute-probe": "http://healthz/v1/models",
            "absolute-path": "http://h/healthz/../v1/models",
            "absolute-empty": "http://",
            "absolute-brackets": "http://[::/",
            "absolute-port": "http://h:99999/v1/models",
            "absolute-scheme": "gopher://h/v1/models",
            "authority": "h:80",
            "asterisk": "*",
            "no-slash": "v1/models",
            "8-bit": "/v1/\xff",
            "nul": "/v1/\0",
            "fragment": "/v1/models#x",
            "30-kb": "/v1/" + "a" * 30_000,
            "60-kb": "/v1/" + "a" * 60_000,
            "query-60-kb": "/healthz?" + "a" * 60_000,
        }.items()
    ),
    sends("options-asterisk", [request_head("OPTIONS", "*")], ANY),
    sends("header-nul", [get("x-a: a\0b")]),
    sends("header-bare-cr", [get("x-request-id: a\rset-cookie: b")], BAD),
    sends("header-bare-lf", [get("x-request-id: a\nx-evil: b")], ANY),
    sends("header-lf-only", [PROBE.replace(b"\r\n", b"\n")], ANY),
    sends("header-folded", [get("x-a: b\r\n c")], ANY),
    sends("header-folded-first", [b"GET /healthz HTTP/1.1\r\n host: h\r\n\r\n"], ANY),
    sends("header-no-colon", [get("nonsense")]),
    sends("header-no-name", [get(": a")]),
    sends("header-bad-name", [get("bad name: a")]),
    sends("header-space-before-colon", [get("x-a : b")], BAD),
    sends("header-8-bit", [get("x-request-id: \xff\xe9", "user-agent: \xff")], ANY),
    sends("header-control", [get("x-request-id: a\x01b")], ANY),
    sends("header-31-kb", [get("x-a: " + "a" * 31_000)], OK),
    sends("header-1-mb", [get("x-a: " + "a" * MB)], {431}, may_close=True),
    sends("header-name-1-mb", [get("a" * MB + ": x")], BAD, may_close=True),
    sends("headers-6-000", [get(*["a: b"] * 6000)], {431}),
    sends("headers-30-000", [get(*["a:"] * 30_000)], {431}, may_close=True),
    sends("cookies", [get(*[f"cookie: c{i}={'x' * 50}" for i in range(300)])], ANY),
    sends("request-id-30-kb", [get("x-request-id: " + "r" * 30_000)], ANY),
    sends(
        "request-timeouts",
        [
            get("x-request-timeout: " + t)
            for t in ("nan", "inf", "-1", "0", "1e999", "x", "9" * 999)
        ],
        *[ANY] * 7,
    ),
    sends(
        "policies",
        [
            head("POST", CHAT, f"x-switchcraft-policy: {p}", f"content-length: {len(GOOD)}") + GOOD
            for p in (
                "theta=nan",
                "theta=" + "9" * 9999,
                "\xff",
                "a" * 30_000,
                "drift=inf",
                "utility=-1e999",
                "verified=x",
            )
        ],
        *[ANY] * 7,
    ),
    sends(
        "traceparents",
        [
            get("traceparent: " + t, "tracestate: " + "a" * 9000)
            for t in ("00-0-0-0", "ff", "\xff", "00-" + "f" * 32 + "-" + "f" * 16 + "-ff")
        ],
        *[ANY] * 4,
    ),
    sends(
        "forwarded-for",
        [
            get(
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: https",
                "forwarded: for=evil",
                "x-original-url: /admin/status",
                "x-rewrite-url: /admin/status",
                "x-http-method-override: DELETE",
            )
        ],
        OK,
    ),
    sends(
        "content-encodings",
        [
            post(GOOD, content_encoding=e)
            for e in ("gzip", "gzip, gzip", "br", "deflate", "zstd", "x" * 9000)
        ],
        *[BAD] * 6,
    ),
    sends(
        "content-types",
        [
            post(GOOD, content_type=t)
            for t in (
                "text/xml",
                "a" * 9000,
                "application/json; charset=utf-16",
                "multipart/form-data",
                ";",
            )
        ],
        *[ANY] * 5,
    ),
    ClientBehaviour("header-value-endless", _floods(b"x" * 64 * KB, b"GET / HTTP/1.1\r\nx-a: ")),
    ClientBehaviour("headers-endless", _floods(b"a: b\r\n" * 10_000, b"GET / HTTP/1.1\r\n")),
    ClientBehaviour("target-endless", _floods(b"x" * 64 * KB, b"GET /")),
    ClientBehaviour("method-endless", _floods(b"X" * 64 * KB, b"")),
    ClientBehaviour("empty-lines-endless", _floods(b"\r\n" * 32 * KB, b"")),
    ClientBehaviour("headers-small-packets", _floods(b"a: b\r\n", b"GET / HTTP/1.1\r\n", 4)),
]


# Paths.


def _tricks(attack: Attack) -> None:
    """Request paths that some servers read as leaving `/v1`; none may reach the upstream."""
    before = attack.target.upstream.state()["requests"]
    for target in attacks.PATHS:
        for method, body in (("GET", None), ("POST", b"{}"), ("DELETE", None)):
            connection = attack.connect()
            connection.send(request(method, target.decode("latin-1"), KEY, body))
            answer = connection.read_answer()
            assert answer is not None, target
            check_answer(answer)
            assert answer.status in BAD, f"{method} {target!r} got {answer.status}"
            connection.close()
    assert attack.target.upstream.state()["requests"] == before, "a path was passed on"


def _admin_paths(attack: Attack) -> None:
    """Request the admin paths in other spellings; a client's key may open none."""
    for path in ("/admin/status", "/metrics", "/openapi.json", "/ui/api/artifact"):
        for target in (
            path,
            f"/{path}",
            f"{path}/",
            f"/v1/..{path}",
            f"/.{path}",
            path.upper(),
            f"{path}%20",
            f"{path};a",
            f"/healthz/..{path}",
            f"/healthz/%2e%2e{path}",
            f"/%61{path[2:]}",
            f"{path}?x=/healthz",
            f"{path}%00",
            f"/healthz{path}",
        ):
            connection = attack.connect()
            connection.send(request("GET", target, KEY))
            answer = connection.read_answer()
            assert answer is not None
            check_answer(answer)
            assert answer.status in BAD, f"{target} got {answer.status}: {answer.body[:200]!r}"
            connection.close()


PATHS = [
    ClientBehaviour("paths-out-of-v1", _tricks),
    ClientBehaviour("paths-of-admin", _admin_paths),
    *(
        sends(f"path-{name}", [request("GET", target, KEY)], ANY)
        for name, target in {
            "response-30-kb": "/v1/responses/" + "r" * 30_000,
            "decision-30-kb": "/v1/decisions/" + "d" * 30_000,
            "decision-quotes": "/v1/decisions/%22%27%3Cscript%3E",
            "segments-10-000": "/v1" + "/a" * 10_000,
            "semicolons": "/v1/files" + ";a=b" * 5000,
            "query": "/v1/files?" + "&".join(f"a{i}=b" for i in range(3000)),
            "query-odd": "/v1/files?a=%00&b[]=%zz&&&===",
        }.items()
    ),
]


# Keys.

KEYS = [
    sends("keys-none", [request("POST", CHAT, {}, GOOD)], {401}),
    sends("keys-30-kb", [request("GET", "/v1/models", auth_headers("k" * 30_000))], {401}),
    sends("keys-8-bit", [request("GET", "/v1/models", auth_headers("\xff\xe9"))], {401}),
    sends(
        "keys-twice",
        [request("GET", "/v1/models", [("authorization", "Bearer wrong"), *KEY.items()])],
        {401},
    ),
    sends(
        "keys-basic",
        [
            request("GET", "/ui/api/traffic/requests", {"authorization": "Basic " + v})
            for v in ("%%", "QQ==", "A" * 20_000, "\xff", "=")
        ],
        *[{401}] * 5,
    ),
    sends(
        "keys-in-query",
        [request("GET", f"/v1/models?api_key={CLIENT_KEY}&key={CLIENT_KEY}")],
        {401},
    ),
    sends("keys-in-path", [request("GET", f"/v1/models/{CLIENT_KEY}")], {401}),
    sends(
        "keys-prefixes",
        [
            request("GET", "/v1/models", auth_headers(CLIENT_KEY[:n]))
            for n in range(1, len(CLIENT_KEY))
        ],
        *[{401}] * (len(CLIENT_KEY) - 1),
    ),
    sends(
        "keys-spaces",
        [
            request("GET", "/v1/models", {"authorization": v})
            for v in ("", "Bearer", "Bearer  ", "bearer\t", "Token x", f"Bearer a {CLIENT_KEY}")
        ],
        *[{401}] * 6,
    ),
    sends(
        "keys-many",
        [request("GET", "/v1/models", {"x-api-key": f"wrong-{n}"}) for n in range(300)],
        *[{401}] * 300,
    ),
]


# Bodies.


def _wide(properties: int) -> Callable[[], bytes]:
    return lambda: with_tools(
        tool(
            {
                "type": "object",
                "properties": {
                    f"p{i}": {"type": "string", "description": "d" * 20} for i in range(properties)
                },
            }
        )
    )


def _bodies_outside_json(attack: Attack) -> None:
    """Send bodies that are not JSON, or that have a value which parsers read differently."""
    values = (*attacks.OUTSIDE_JSON.values(), *attacks.REPEATED_KEYS.values())
    for body in (*(chat_with(x=value) for value in values), *attacks.BROKEN_JSON.values()):
        connection = attack.connect()
        connection.send(post(body))
        read(connection, {400})


WRONG_SCHEMAS: Sequence[Any] = (
    *(None, 0, "x", [], [[]], {"properties": []}, {"properties": {"a": 0}}),
    *({"type": [[]]}, {"enum": {}}, {"required": "a"}, {"$ref": 0}),
)

JSON = [
    posts(
        "feedback-1-mb-of-zeros",
        lambda: json_object(decision_id=b'"x"', expected=json_array(1)),
        FEEDBACK,
        BAD,
    ),
    posts(
        "feedback-10-mb-of-zeros",
        lambda: json_object(decision_id=b'"x"', expected=json_array(9.9)),
        FEEDBACK,
        BAD,
    ),
    posts(
        "feedback-10-mb-of-zeros-4-times",
        lambda: json_object(decision_id=b'"x"', expected=json_array(9.9)),
        FEEDBACK,
        BAD,
        connections=4,
    ),
    posts(
        "feedback-objects",
        lambda: json_object(decision_id=b'"x"', expected=json_array(5, b"{}")),
        FEEDBACK,
        BAD,
    ),
    posts(
        "feedback-calls",
        lambda: json_object(
            decision_id=b'"x"', expected=json_array(5, b'{"name":0,"arguments":0}')
        ),
        FEEDBACK,
        BAD,
    ),
    posts(
        "feedback-wide-arguments",
        lambda: json_object(
            decision_id=b'"x"',
            expected=b'[{"name":"f","arguments":'
            b"{" + b",".join(b'"a%d":0' % i for i in range(500_000)) + b"}}]",
        ),
        FEEDBACK,
        ANY,
    ),
    posts(
        "feedback-128-large-calls",
        lambda: json_object(
            decision_id=b'"x"',
            expected=b"["
            + b",".join([b'{"name":"f","arguments":{"a":' + json_array(0.07) + b"}}"] * 128)
            + b"]",
        ),
        FEEDBACK,
        ANY,
    ),
    posts(
        "feedback-deep",
        lambda: json_object(decision_id=b'"x"', expected=b"[" * 900 + b"]" * 900),
        FEEDBACK,
        BAD,
    ),
    posts(
        "feedback-id-9-mb",
        lambda: json_object(decision_id=b'"' + b"x" * 9 * MB + b'"', correct=b"true"),
        FEEDBACK,
        BAD,
    ),
    posts(
        "feedback-keys",
        lambda: b"{" + b",".join(b'"k%d":0' % i for i in range(600_000)) + b',"correct":true}',
        FEEDBACK,
        BAD,
    ),
    *(
        posts(f"{name}-{what}", body, target)
        for name, target in {
            "files": "/v1/files",
            "unknown": "/v1/nothing/there",
            "embeddings": "/v1/embeddings",
            "responses": "/v1/responses",
            "chat": CHAT,
            "ask": "/ui/api/ask/chat",
            "explain": "/ui/api/explain",
            "reload": "/admin/reload",
        }.items()
        for what, body in {
            "10-mb-of-zeros": lambda: json_object(model=b'"m"', input=json_array(9.9)),
            "10-mb-of-objects": lambda: json_object(
                model=b'"switchcraft"', messages=json_array(9.9, b"{}")
            ),
        }.items()
    ),
    posts("chat-10-mb-of-zeros-4-times", lambda: chat_with(x=json_array(9.9)), connections=4),
    posts("chat-10-mb-of-arrays", lambda: chat_with(x=json_array(9.9, b"[]"))),
    posts("chat-10-mb-of-strings", lambda: chat_with(x=json_array(9.9, b'""'))),
    posts("chat-10-mb-of-spaces", lambda: b" " * int(9.9 * MB) + GOOD),
    posts("chat-10-mb-of-colons", lambda: chat_with(x=b'"' + b":" * int(9.8 * MB) + b'"')),
    posts(
        "chat-10-mb-of-escaped-colons",
        lambda: chat_with(x=b'"' + b"\\u003a" * int(1.6 * MB) + b'"'),
    ),
    posts(
        "chat-10-mb-of-long-integers", lambda: chat_with(x=json_array(9.9, b"1234567890123456789"))
    ),
    posts("chat-10-mb-integer", lambda: chat_with(seed=b"9" * int(9.8 * MB))),
    posts("chat-10-mb-float", lambda: chat_with(temperature=b"0." + b"3" * int(9.8 * MB))),
    posts(
        "chat-10-mb-of-keys",
        lambda: chat_with(x=b"{" + b",".join(b'"k%d":0' % i for i in range(700_000)) + b"}"),
    ),
    posts(
        "chat-10-mb-of-equal-keys",
        lambda: chat_with(x=b"{" + b",".join([b'"k":0'] * 1_600_000) + b"}"),
    ),
    posts("chat-keys-twice", lambda: b'{"model":"m",' + GOOD[1:], CHAT, {400}),
    ClientBehaviour("chat-outside-json", _bodies_outside_json),
    posts("chat-nested-4-mb", lambda: b"[" * 4 * MB, CHAT, {400}),
    posts("chat-nested-objects", lambda: b'{"a":' * 500_000, CHAT, {400}),
    posts("chat-nested-900", lambda: chat_with(x=b"[" * 900 + b"]" * 900)),
    posts("chat-invalid-utf-8", lambda: chat_with(x=b'"' + b"a" * 9 * MB + b'\xff"'), CHAT, {400}),
    posts("chat-model-9-mb", lambda: chat_with(model=b'"' + b"m" * 9 * MB + b'"'), CHAT, BAD),
    posts("chat-model-types", lambda: chat_with(model=json_array(1)), CHAT, BAD),
    posts(
        "chat-messages-300-000",
        lambda: chat_with(messages=json_array(9, b'{"role":"user","content":"a"}')),
    ),
    posts("chat-routed-messages-200-000", lambda: with_messages(200_000)),
    posts("chat-message-9-mb", lambda: with_message("word " * int(1.8 * MB))),
    posts("chat-message-9-mb-one-word", lambda: with_message("a" * 9 * MB)),
    posts("chat-message-emoji", lambda: with_message("\U0001f600" * 200_000)),
    posts("chat-message-digits", lambda: with_message("1" * 5 * MB)),
    posts("chat-message-punctuation", lambda: with_message("!?.," * MB)),
    posts("chat-message-newlines", lambda: with_message("\n" * 5 * MB)),
    posts("chat-message-quotes", lambda: with_message('"\\' * 2 * MB)),
    posts("chat-message-urls", lambda: with_message("http://a.b/c?d=e&f=g " * 200_000)),
    posts(
        "chat-message-parts",
        lambda: chat_with(
            tools=b"[%b]" % dumps(tool({})),
            messages=b'[{"role":"user","content":'
            + json_array(9, b'{"type":"text","text":"a"}')
            + b"}]",
        ),
    ),
    posts("chat-tools-10-000", lambda: with_tools(*(tool({}, f"f{i}") for i in range(10_000)))),
    posts("chat-tools-equal-50-000", lambda: with_tools(*[tool({})] * 50_000)),
    posts("chat-tools-empty", lambda: with_tools(*[{}] * 500_000)),
    posts("chat-tool-name-5-mb", lambda: with_tools(tool({}, "f" * 5 * MB))),
    posts("chat-tool-description-9-mb", lambda: with_tools(tool({}, "f", "word " * int(1.8 * MB)))),
    posts("chat-tool-wide", _wide(100_000)),
    posts("chat-tool-wide-3-000", _wide(3000)),
    posts("chat-tool-deep-10-mb", lambda: with_schema(deep_schema(60, 3000))),
    posts("chat-tool-deep-10-mb-twice", lambda: with_schema(deep_schema(60, 3000)), connections=2),
    posts(
        "chat-tool-deep-10-mb-8-times", lambda: with_schema(deep_schema(60, 3000)), connections=8
    ),
    posts("chat-tool-deep-1-mb", lambda: with_schema(deep_schema(60, 300))),
    posts("chat-tool-nested-900", lambda: nested_tool(230)),
    posts(
        "chat-tool-enum",
        lambda: with_tools(
            tool(
                {
                    "type": "object",
                    "properties": {"a": {"enum": [f"value {i}" for i in range(300_000)]}},
                }
            )
        ),
    ),
    posts(
        "chat-tool-enums",
        lambda: with_tools(
            tool(
                {
                    "type": "object",
                    "properties": {f"p{i}": {"enum": ["a", "b", "c"]} for i in range(50_000)},
                }
            )
        ),
    ),
    posts(
        "chat-tool-required",
        lambda: with_tools(tool({"type": "object", "required": [f"p{i}" for i in range(300_000)]})),
    ),
    posts(
        "chat-tool-any-of",
        lambda: with_tools(
            tool({"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}}] * 50_000})
        ),
    ),
    posts(
        "chat-tool-references",
        lambda: with_tools(
            tool({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 10_000}}})
        ),
    ),
    posts(
        "chat-tool-pattern",
        lambda: with_tools(
            tool(
                {
                    "type": "object",
                    "properties": {"a": {"type": "string", "pattern": "(a+)+" * 10_000}},
                }
            )
        ),
    ),
    posts(
        "chat-tool-types",
        lambda: with_tools(*map(tool, WRONG_SCHEMAS)),
    ),
    posts(
        "chat-tool-choice-9-mb",
        lambda: chat_with(tools=dumps([tool({})]), tool_choice=json_array(9)),
    ),
    posts("chat-tool-calls", lambda: with_calls(50_000)),
    posts("chat-tool-results", lambda: with_results(50_000)),
    posts(
        "chat-fields",
        lambda: chat_with(
            temperature=b"-1e308",
            n=b"18446744073709551615",
            max_tokens=b"-1",
            seed=b"-9223372036854775808",
            stop=json_array(1),
            logit_bias=b"{}",
            response_format=json_array(1),
            metadata=json_array(1),
            user=b"0",
        ),
    ),
    posts(
        "chat-response-format-deep",
        lambda: chat_with(response_format=deep_schema(30, 300), tools=dumps([tool({})])),
    ),
    posts(
        "responses-previous-1-mb",
        lambda: json_object(
            model=b'"m"', input=b'"x"', previous_response_id=b'"' + b"r" * MB + b'"'
        ),
        "/v1/responses",
    ),
    posts(
        "responses-previous-types",
        lambda: json_object(model=b'"m"', input=b'"x"', previous_response_id=json_array(1)),
        "/v1/responses",
    ),
    posts(
        "responses-conversation",
        lambda: json_object(
            model=b'"m"', input=b'"x"', conversation=b'{"id":"' + b"c" * MB + b'"}'
        ),
        "/v1/responses",
    ),
    posts(
        "responses-input-items",
        lambda: json_object(
            model=b'"switchcraft"',
            input=json_array(9, b'{"type":"function_call_output","call_id":"a","output":"b"}'),
            tools=b'[{"type":"function","name":"f"}]',
        ),
        "/v1/responses",
    ),
    posts(
        "responses-input-deep",
        lambda: json_object(
            model=b'"switchcraft"',
            input=b"[" * 900 + b"]" * 900,
            tools=b'[{"type":"function","name":"f"}]',
        ),
        "/v1/responses",
    ),
    posts(
        "embeddings-9-mb",
        lambda: json_object(model=b'"m"', input=json_array(9, b'"a"')),
        "/v1/embeddings",
    ),
    posts(
        "completions-9-mb",
        lambda: json_object(model=b'"m"', prompt=json_array(9)),
        "/v1/completions",
    ),
    posts(
        "multipart-9-mb",
        lambda: (
            b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\n" + bytes(9 * MB) + b"\r\n--x--"
        ),
        "/v1/files",
        kind="multipart/form-data; boundary=x",
    ),
    posts(
        "multipart-parts",
        lambda: b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\nb\r\n" * 100_000,
        "/v1/files",
        kind="multipart/form-data; boundary=x",
    ),
    posts(
        "multipart-without-boundary",
        lambda: b"--x\r\n" * 1000,
        "/v1/files",
        kind="multipart/form-data",
    ),
    posts(
        "form-9-mb",
        lambda: b"a=b&" * (2 * MB),
        "/v1/files",
        kind="application/x-www-form-urlencoded",
    ),
    posts("text-as-json", lambda: b"{" * 9 * MB, "/v1/files", kind="text/plain"),
    posts(
        "explain-deep", lambda: with_schema(deep_schema(60, 3000)), "/ui/api/explain", key=ADMIN_KEY
    ),
    posts("explain-zeros", lambda: chat_with(x=json_array(9.9)), "/ui/api/explain", key=ADMIN_KEY),
    posts(
        "ask-deep", lambda: with_schema(deep_schema(60, 3000)), "/ui/api/ask/chat", key=ADMIN_KEY
    ),
    posts("too-large", lambda: b"[" + b"0," * (6 * MB) + b"0]", CHAT, {413}),
]


def with_message(text: str) -> bytes:
    """Return a chat body to route, with a text that no cache contains."""
    messages = [{"role": "user", "content": f"{new_nonce()} {text}"}]
    return dumps({"model": "switchcraft", "messages": messages, "tools": [tool({})]})


def with_messages(count: int) -> bytes:
    """Return a chat body to route, with this many messages."""
    messages = [{"role": "user", "content": str(index)} for index in range(count)]
    return dumps({"model": "switchcraft", "messages": messages, "tools": [tool({})]})


def nested_tool(depth: int) -> bytes:
    """Return a chat body with a tool whose schema is nested this deep."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return with_tools(tool(schema))


def with_calls(count: int) -> bytes:
    """Return a chat body whose last turn has this many calls."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": new_nonce()},
        {"role": "assistant", "tool_calls": [call] * count},
    ]
    return dumps({"model": "switchcraft", "messages": messages, "tools": [tool({})]})


def with_results(count: int) -> bytes:
    """Return a chat body with this many tool results."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Error: x"},
    ]
    messages = [{"role": "user", "content": new_nonce()}, *turn * count]
    return dumps({"model": "switchcraft", "messages": messages, "tools": [tool({})]})


def with_items(count: int) -> bytes:
    """Return a Responses body with this many items of the assistant in a row."""
    items: list[dict[str, Any]] = [{"role": "user", "content": new_nonce()}]
    items += [{"role": "assistant", "content": ""}] * count
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    return dumps({"model": "switchcraft", "input": items, "tools": tools})


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


# Pipelines.


def _pipelines(
    name: str, block: bytes, limit_mb: int = 12, connections: int = 1
) -> ClientBehaviour:
    """Return the behaviour that sends requests and reads no answers."""

    def act(attack: Attack) -> None:
        opened = [attack.connect() for _ in range(connections)]
        for connection in opened:
            connection.flood(block, limit_mb * MB // connections, 1.5 / connections)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)

    return ClientBehaviour(f"pipeline-{name}", act)


def _pipeline_then_leave(*packets: bytes, pause_s: float = 0.05) -> Callable[[Attack], None]:
    """Return an attack that sends requests with slow answers and disconnects."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        connection.send(*packets)
        time.sleep(pause_s)
        connection.close()

    return act


def behaving(name: str, variant: int = 0, body: bytes = GOOD) -> bytes:
    """Return a request that makes the upstream use one of its behaviours."""
    return request("POST", CHAT, KEY | {BEHAVIOUR_HEADER: f"{name}:{variant}"}, body)


def _slow_second_body(attack: Attack) -> None:
    """Send a second request whose body takes longer than allowed for a refused request."""
    connection = attack.connect()
    connection.send(PROBE + head(content_length=str(len(GOOD))) + GOOD[:10])
    read(connection, OK)
    connection.send(*(GOOD[i : i + 20] for i in range(10, len(GOOD), 20)), pause_s=0.1)
    read(connection, OK)


STREAMED = chat_body(stream=True)

PIPELINES = [
    _pipelines("of-refused", b"GET / HTTP/1.1\r\n\r\n" * 4096),
    _pipelines("of-probes", PROBE * 1000),
    _pipelines("of-models", get() * 200, 8),
    _pipelines("of-chats", post(GOOD) * 50, 4),
    _pipelines("of-streams", post(STREAMED) * 50, 4),
    _pipelines("of-wrong-keys", request("GET", "/v1/models", auth_headers("wrong")) * 500),
    _pipelines("of-chunks", chunked() * 50, 4),
    _pipelines(
        "of-upgrades",
        request_head("GET", "/healthz", {"connection": "upgrade", "upgrade": "x"}) * 1000,
    ),
    _pipelines("of-large-heads", get("x-a: " + "a" * 20_000) * 20),
    _pipelines("of-bodies", post(b"x" * 100_000) * 10, 24),
    _pipelines("on-8-connections", b"GET / HTTP/1.1\r\n\r\n" * 4096, 24, connections=8),
    _pipelines("of-metrics", request("GET", "/metrics", auth_headers(ADMIN_KEY)) * 100, 2),
    ClientBehaviour(
        "pipeline-behind-slow", _pipeline_then_leave(behaving("silence"), PROBE * 50_000)
    ),
    sends("pipeline-50", [PROBE * 50], *[OK] * 50),
    sends(
        "pipeline-of-all-kinds",
        [PROBE + post(GOOD) + get() + chunked() + request("GET", "/v1/models")],
        OK,
        OK,
        OK,
        OK,
        {401},
    ),
    sends("pipeline-bad-behind-good", [PROBE + b"NONSENSE\r\n\r\n"], OK, BAD, may_close=True),
    sends(
        "pipeline-in-small-packets",
        [bytes([b]) for b in PROBE + PROBE],
        OK,
        OK,
    ),
    ClientBehaviour("pipeline-slow-second-body", _slow_second_body),
    ClientBehaviour("pipeline-then-leave", _pipeline_then_leave(behaving("silence") + PROBE)),
    ClientBehaviour("pipeline-then-leave-later", _pipeline_then_leave(behaving("silence"), PROBE)),
    ClientBehaviour(
        "pipeline-half-then-leave",
        _pipeline_then_leave(behaving("silence") + head(content_length="99")),
    ),
    ClientBehaviour(
        "pipeline-stream-then-leave",
        _pipeline_then_leave(behaving("events-endless-slow", body=STREAMED) + PROBE),
    ),
    ClientBehaviour("pipeline-20-then-leave", _pipeline_then_leave(behaving("silence") * 20)),
    ClientBehaviour("leave-at-once", _pipeline_then_leave(behaving("silence"), pause_s=0.0)),
]


# Clients that are slow or disconnect.


def _slowly(
    data: bytes, pause_s: float, step: int, expected: Collection[int]
) -> Callable[[Attack], None]:
    """Return an attack that sends a request slowly until the gateway answers or disconnects."""

    def act(attack: Attack) -> None:
        connection = attack.connect()
        for start in range(0, len(data), step):
            if not connection.send(data[start : start + step]) or connection.has_ended():
                break
            time.sleep(pause_s)
        read(connection, expected, may_close=True)

    return act


def _close_by(
    close: Callable[[Connection], None], *packets: bytes, pause_s: float = 0.0
) -> Callable[[Attack], None]:
    """Return an attack that ends its connections within or after a request."""

    def act(attack: Attack) -> None:
        for _ in range(10):
            connection = attack.connect()
            connection.send(*packets)
            time.sleep(pause_s)
            close(connection)

    return act


def _half_closed(attack: Attack) -> None:
    """Send FIN after a request; its answer may still be read."""
    connection = attack.connect()
    connection.send(PROBE)
    connection.finish_sending()
    answer = connection.read_answer()
    assert answer is None or answer.status == 200


def _half_closed_stream(attack: Attack) -> None:
    """Send FIN after a request whose answer never ends."""
    connection = attack.connect()
    connection.send(behaving("events-endless-slow", body=STREAMED))
    time.sleep(0.1)
    connection.finish_sending()
    connection.read_answer(limit_s=4)


def _reset_in_answer(attack: Attack) -> None:
    """Reset the connection while large answers arrive."""
    for name in ("event-10-mb", "events-endless", "comments-endless-later"):
        connection = attack.connect()
        connection.send(behaving(name, body=STREAMED))
        connection.read_answer(limit_bytes=100_000)
        connection.reset()


def _short_uploads(count: int, size_bytes: int) -> Callable[[Attack], None]:
    """Return an attack whose uploads all end one byte early."""

    def act(attack: Attack) -> None:
        data = head(content_length=str(size_bytes)) + bytes(size_bytes - 1)
        opened = []
        for _ in range(count):
            opened.append(attack.connect())
            opened[-1].send(data)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)
        for connection in opened:
            connection.close()

    return act


def _unread_answers(
    count: int, name: str, body: bytes, pause_s: float = 1.0
) -> Callable[[Attack], None]:
    """Return an attack that requests large answers and reads none.

    It ends when the gateway has all answers, or after `pause_s`.
    """

    def act(attack: Attack) -> None:
        opened = [attack.connect(receive_buffer_bytes=4096) for _ in range(count)]
        asked = attack.target.upstream.state()["requests"]
        for connection in opened:
            connection.send(behaving(name, body=body))
        deadline_s = time.monotonic() + pause_s
        while time.monotonic() < deadline_s:
            state = attack.target.upstream.state()
            if state["requests"] - asked >= count and not state["playing"]:
                break
            time.sleep(0.05)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)
        for connection in opened:
            connection.close()

    return act


def _flood(
    path: str, body: Callable[[], bytes], *, pause_s: float = 0.0, leaves: bool = False
) -> Callable[[Attack], None]:
    """Return an attack with eight heavy requests at once, while another key is served.

    With `leaves`, the clients do not wait for their answers.
    """

    def act(attack: Attack) -> None:
        bodies = [body() for _ in range(8)]
        opened = [attack.connect() for _ in bodies]
        for connection, text in zip(opened, bodies, strict=True):
            connection.send(request("POST", path, KEY, text))
        with Connection(attack.target.port) as other:
            for _ in range(5):
                attack.target.ask_to_route(other)
        if leaves:
            time.sleep(pause_s)
            for connection in opened:
                connection.close()
        else:
            for connection in opened:
                read(connection, ANY)

    return act


def _held_slots(start: bytes, count: int) -> Callable[[Attack], None]:
    """Return an attack whose requests all lack their bodies, while another key is served."""

    def act(attack: Attack) -> None:
        opened = [attack.connect() for _ in range(count)]
        for connection in opened:
            connection.send(start)
        time.sleep(0.1)
        with Connection(attack.target.port) as other:
            attack.target.ask_to_route(other)
        for connection in opened:
            connection.close()

    return act


def _reads_bytewise(attack: Attack) -> None:
    """Read a large answer in small pieces and disconnect in the middle."""
    connection = attack.connect(receive_buffer_bytes=1024)
    connection.send(behaving("events-1-mb", body=STREAMED))
    connection.read_answer(limit_bytes=100_000, limit_s=1)
    connection.close()


SLOW = [
    ClientBehaviour("slow-head", _slowly(get("x-a: " + "a" * 500), 0.05, 10, {408})),
    ClientBehaviour("slow-first-byte", _slowly(b"G" * 3, 0.6, 1, BAD)),
    ClientBehaviour(
        "slow-body", _slowly(head(content_length="500") + b"x" * 500, 0.05, 10, {400, 408})
    ),
    ClientBehaviour(
        "slow-chunks",
        _slowly(head(transfer_encoding="chunked") + chunk(b" ") * 100, 0.05, 6, {400, 408}),
    ),
    ClientBehaviour(
        "slow-trailers", _slowly(chunked(end=b"0\r\n" + b"a: b\r\n" * 100), 0.04, 6, ANY)
    ),
    ClientBehaviour(
        "slow-body-of-probe",
        _slowly(head("GET", "/healthz", content_length="500") + b"x" * 500, 0.02, 10, OK),
    ),
    ClientBehaviour("fin-at-once", _close_by(Connection.close)),
    ClientBehaviour("rst-at-once", _close_by(Connection.reset)),
    ClientBehaviour("fin-in-head", _close_by(Connection.close, get()[:30])),
    ClientBehaviour("rst-in-head", _close_by(Connection.reset, get()[:30], pause_s=0.01)),
    ClientBehaviour("fin-in-body", _close_by(Connection.close, head(content_length="500") + b"{")),
    ClientBehaviour(
        "rst-in-body", _close_by(Connection.reset, head(content_length="500") + b"{", pause_s=0.01)
    ),
    ClientBehaviour(
        "fin-in-chunk",
        _close_by(Connection.close, head(transfer_encoding="chunked") + b"5\r\n{", pause_s=0.01),
    ),
    ClientBehaviour("rst-behind-request", _close_by(Connection.reset, post(GOOD))),
    ClientBehaviour("fin-behind-request", _close_by(Connection.close, post(GOOD))),
    ClientBehaviour(
        "rst-while-waiting", _close_by(Connection.reset, behaving("silence"), pause_s=0.02)
    ),
    ClientBehaviour(
        "fin-while-waiting", _close_by(Connection.close, behaving("silence"), pause_s=0.02)
    ),
    ClientBehaviour(
        "fin-while-streaming",
        _close_by(Connection.close, behaving("events-endless-slow", body=STREAMED), pause_s=0.05),
    ),
    ClientBehaviour(
        "rst-in-routed", _close_by(Connection.reset, post(with_tools(tool({}))), pause_s=0.002)
    ),
    ClientBehaviour("half-close", _half_closed),
    ClientBehaviour("half-close-in-stream", _half_closed_stream),
    ClientBehaviour(
        "half-close-in-body",
        _close_by(Connection.finish_sending, head(content_length="500") + b"{", pause_s=0.01),
    ),
    ClientBehaviour("rst-in-answer", _reset_in_answer),
    ClientBehaviour("uploads-one-byte-short", _short_uploads(60, int(9.9 * MB))),
    ClientBehaviour("uploads-small-short", _short_uploads(300, 100_000)),
    ClientBehaviour(
        "uploads-chunked-short",
        _held_slots(head(transfer_encoding="chunked") + chunk(bytes(MB)) * 9, 60),
    ),
    ClientBehaviour("bodies-of-one-byte", _held_slots(head(content_length="500") + b"{", 350)),
    ClientBehaviour(
        "bodies-of-one-byte-passed",
        _held_slots(head("POST", "/v1/files", content_length="500") + b"{", 350),
    ),
    ClientBehaviour("heads-of-one-byte", _held_slots(b"G", 350)),
    ClientBehaviour("idle-connections", _held_slots(b"", 350)),
    ClientBehaviour("silent-upstreams", _held_slots(behaving("silence"), 250)),
    ClientBehaviour("answers-unread-150", _unread_answers(150, "8-mb", GOOD)),
    ClientBehaviour(
        "answers-unread-passed",
        _held_slots(request("GET", FILE, KEY | {BEHAVIOUR_HEADER: "8-mb"}), 60),
    ),
    ClientBehaviour("streams-unread-20", _unread_answers(20, "events-endless", STREAMED)),
    ClientBehaviour("events-unread-80", _unread_answers(80, "event-10-mb", STREAMED)),
    ClientBehaviour("assistant-items", _flood("/v1/responses", lambda: with_items(55_000))),
    ClientBehaviour("tool-results", _flood(CHAT, lambda: with_results(9_000))),
    ClientBehaviour(
        "tool-blocks", _flood("/v1/messages", lambda: with_blocks(9_000), pause_s=0.5, leaves=True)
    ),
    ClientBehaviour("answers-unread-until-cut", _unread_answers(5, "8-mb", GOOD, pause_s=2.5)),
    ClientBehaviour("answer-read-bytewise", _reads_bytewise),
]


def _kept_open(*packets: bytes, answers: int = 0) -> Callable[[Attack], None]:
    """Return an attack with more connections than the gateway may have descriptors."""

    def act(attack: Attack) -> None:
        opened = [attack.connect() for _ in range(400)]
        for connection in opened:
            connection.send(*packets)
        for connection in opened[:100]:
            connection.read_answers(answers)
        for _ in range(20):
            with Connection(attack.target.port) as other:
                attack.target.ask_to_route(other)
            time.sleep(0.01)
        for connection in opened:
            connection.close()

    return act


FEW_DESCRIPTORS = [
    ClientBehaviour("idle", _kept_open()),
    ClientBehaviour("kept-alive", _kept_open(PROBE, answers=1)),
    ClientBehaviour("empty-lines", _kept_open(b"\r\n")),
    ClientBehaviour("halves-of-heads", _kept_open(PROBE[:-3])),
    ClientBehaviour("refused", _kept_open(b"NONSENSE\r\n\r\n")),
    ClientBehaviour("without-key", _kept_open(request_head("POST", CHAT, {"content-length": "9"}))),
]
"""Attacks of a client on a gateway that may have 256 descriptors."""

BEHAVIOURS = (
    *LENGTHS,
    *TRAILERS,
    *UPGRADES,
    *EXPECTATIONS,
    *HEADS,
    *PATHS,
    *KEYS,
    *JSON,
    *PIPELINES,
    *SLOW,
)
