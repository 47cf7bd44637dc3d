"""Bad input of every kind gets a clear 4xx and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import logging
import re
import socket
import tracemalloc
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router_service.telemetry import logs
from tests.attacks import BROKEN_JSON, CHUNK_SIZES, LENGTHS, OUTSIDE_JSON, REPEATED_KEYS
from tests.bodies import BODY, CHAT
from tests.hostile.conftest import API_KEY, SERVER

FUZZ = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
GOOD = json.dumps(BODY).encode()
BOMB = gzip.compress(bytes(50_000_000))


def body_with(extra: bytes) -> bytes:
    """Return a good body with something inserted at the front."""
    return b"{" + extra + b"," + GOOD[1:]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        *(
            pytest.param(body, {}, 400, "invalid_json", id=name)
            for name, body in BROKEN_JSON.items()
        ),
        *(
            pytest.param(body_with(b'"x":' + value), {}, 400, code, id=name)
            for code, values in (("invalid_json", OUTSIDE_JSON), ("duplicate_key", REPEATED_KEYS))
            for name, value in values.items()
        ),
        (b"\xef\xbb\xbf" + GOOD, {}, 400, "invalid_json"),
        (GOOD.decode().encode("utf-16"), {}, 400, "invalid_json"),
        (GOOD + GOOD, {}, 400, "invalid_json"),
        (body_with(b'"model":"large"'), {}, 400, "duplicate_key"),
        (GOOD + b" " * SERVER.max_body_bytes, {}, 413, "request_too_large"),
        (BOMB, {"content-encoding": "gzip"}, 415, "unsupported_content_encoding"),
        (GOOD, {"content-encoding": "br, gzip"}, 415, "unsupported_content_encoding"),
        (b"a=b&c=d", {"content-type": "application/x-www-form-urlencoded"}, 400, "invalid_json"),
        (b"--x\r\n\r\n--x--", {"content-type": "multipart/form-data; boundary=x"}, 400, None),
        (GOOD.replace(b"switchcraft", b"a\\r\\nset-cookie: a=b"), {}, 404, "model_not_found"),
        (GOOD.replace(b"switchcraft", b"\\u0000"), {}, 404, "model_not_found"),
        (GOOD.replace(b"switchcraft", b"m" * 100_000), {}, 404, "model_not_found"),
        (GOOD, {"x-switchcraft-policy": "theta=" + "9" * 5000}, 400, "invalid_policy"),
        (GOOD, {"x-switchcraft-policy": "theta=nan"}, 400, "invalid_policy"),
        (GOOD, {"x-switchcraft-policy": "../../etc/passwd"}, 400, "invalid_policy"),
    ],
)
def test_bad_body_or_header_gets_a_clear_error(
    http: httpx.Client, body: bytes, headers: dict[str, str], status: int, code: str | None
) -> None:
    """Each gets its status, its code, and a short message with the remedy."""
    response = http.post(CHAT, content=body, headers=headers)
    error = response.json()["error"]
    assert response.status_code == status
    assert code in {None, error["code"]}
    assert error["type"] == "invalid_request_error"
    assert len(response.content) < 1500
    assert "set-cookie" not in response.headers
    assert not any(word in response.text for word in ("Traceback", "orjson", "pydantic", ".py"))


def exchange(url: str, sent: bytes) -> bytes:
    """Return the answer to some bytes, or b"" if the gateway hangs up without one."""
    address = urlsplit(url)
    answer = b""
    with (
        socket.create_connection((address.hostname, address.port), timeout=10) as connection,
        contextlib.suppress(ConnectionResetError),
    ):
        connection.sendall(sent)
        while not is_whole(answer) and (part := connection.recv(65536)):
            answer += part
    return answer


def is_whole(answer: bytes) -> bool:
    """Return whether an answer is complete according to its content length."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def request(headers: bytes, body: bytes = GOOD) -> bytes:
    """Return a chat request with a key and additional header lines."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-api-key: "
    return head + API_KEY.encode() + b"\r\n" + headers + b"\r\n" + body


LENGTH = b"content-length: %d\r\n" % len(GOOD)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request(LENGTH + b"x-request-id: a\x00b\r\n"), 400),
        (request(LENGTH + b"x-request-id: a\rset-cookie: a=b\r\n"), 400),
        (request(LENGTH + b"x-request-id: a\x7fb\r\n"), 400),
        (request(LENGTH + b"content-length: 5\r\n"), 400),
        (request(LENGTH + b"transfer-encoding: chunked\r\n"), 400),
        *(
            (request(b"content-length: %b\r\n" % length), 413 if name == "2-to-64" else 400)
            for name, length in LENGTHS.items()
        ),
        (request(b"transfer-encoding: gzip, chunked\r\n", b"zz\r\n"), 501),
        *(
            (request(b"transfer-encoding: chunked\r\n", b"%b\r\nhello\r\n0\r\n\r\n" % size), 400)
            for size in CHUNK_SIZES.values()
        ),
        (request(LENGTH + b"bad header: a\r\n"), 400),
        (request(LENGTH + b"a: b\r\n" * 5000), 431),
        (b"GET /%00 HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n", 401),
        (b"GET /\xff HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n", 400),
        (b"GET http://[::/ HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n", 400),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nhost: h\r\nconnection: close\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (request(b"content-length: 100\r\n", b"{"), 408),
        (request(b"transfer-encoding: chunked\r\n", b"1\r\n{\r\n"), 408),
    ],
)
def test_invalid_http_gets_its_status_and_is_closed(
    url: str, http: httpx.Client, sent: bytes, status: int
) -> None:
    """Invalid, ambiguous or endless HTTP gets its status, and the connection is closed."""
    answer = exchange(url, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"set-cookie" not in answer.partition(b"\r\n\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert http.get("/healthz").status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from("role content tool_calls function name type text parameters".split())
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
FIELDS = st.dictionaries(
    st.sampled_from("messages tools functions stream n tool_choice response_format".split()), JSON
)


def test_invalid_http_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that never become a request are logged with the reason."""
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        exchange(url, b"NO HTTP\r\n\r\n")
        exchange(url, request(b"x: " + b"a" * SERVER.max_header_bytes + b"\r\n"))
    lines = [getattr(x, logs.FIELDS) for x in caplog.records if x.name == "switchcraft.request"]
    assert [(line["status"], line["code"]) for line in lines] == [
        (400, "invalid_http"),
        (431, "headers_too_large"),
    ]


@FUZZ
@given(FIELDS)
def test_any_value_in_a_known_field_gets_an_answer_or_400(
    http: httpx.Client, fields: dict[str, object]
) -> None:
    """Any value in a field that the gateway reads gives an answer or a 4xx."""
    body = json.dumps({"model": "switchcraft", "messages": BODY["messages"], **fields})
    response = http.post(CHAT, content=body)
    assert response.status_code in {200, 400}, response.text


@FUZZ
@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(0, 10))
def test_any_bytes_in_a_body_get_an_answer_or_4xx(
    http: httpx.Client, junk: bytes, at: int, cut: int
) -> None:
    """Any bytes inserted into a good body give an answer or a 4xx."""
    response = http.post(CHAT, content=GOOD[:at] + junk + GOOD[at + cut :])
    assert response.status_code in {200, 400, 404}, response.text


@settings(FUZZ, max_examples=40)
@given(st.binary(min_size=1, max_size=100), st.integers(0, 150))
def test_any_bytes_on_the_wire_never_get_a_500(
    url: str, http: httpx.Client, junk: bytes, at: int
) -> None:
    """Any bytes sent as HTTP get an answer other than 500, or the connection is closed."""
    good = request(LENGTH)
    answer = exchange(url, good[:at] + junk + good[at:])
    assert answer == b"" or answer[9:12] in {b"200", b"400", b"401", b"404", b"405", b"408", b"431"}
    assert http.get("/healthz").status_code == 200


def test_bad_requests_do_not_leak_memory(http: httpx.Client) -> None:
    """After thousands of bad requests the gateway uses no more memory than before."""
    bodies = [b"{", b"[" * 5000, body_with(b'"model":"x"'), GOOD.replace(b"switchcraft", b"none")]

    def storm(rounds: int) -> None:
        for index in range(rounds):
            for body in bodies:
                http.post(CHAT, content=body, headers={"x-request-id": f"{index}" * 20})
            http.get(f"/v1/none/{index}")
            http.get("/v1/models", headers={"authorization": f"Bearer wrong-{index}"})

    storm(30)  # fills caches and connection pools
    gc.collect()
    tracemalloc.start()
    try:
        storm(20)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        storm(200)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 1,200 requests that each leak half a kilobyte would take 600 KB.
    assert after - before < 300_000
