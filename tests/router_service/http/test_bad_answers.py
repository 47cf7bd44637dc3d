"""Answers that are large, compressed, or unusual in one of their values."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence

import httpx
import pytest

from router_service.upstream.client import MAX_PASSED_HEADERS
from router_service.upstream.streams import MAX_HELD_BYTES, MAX_WHOLE_BYTES
from tests.apis import RESPONSES
from tests.bodies import CHAT
from tests.router_service.http.scripted import DONE, Script, body_of, data, exactly, stream, whole

MB = 1024 * 1024
USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}'
GOOD = b'{"id":"x","model":"m","choices":[{"message":{"content":"hi"}}],' + USAGE + b"}"
EVENT = data({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})
GZIP = b"content-encoding: gzip"


def many(item: bytes, size_bytes: int) -> bytes:
    """Return at least this many bytes of items, separated by commas."""
    return b",".join([item] * (size_bytes // (len(item) + 1)))


@pytest.mark.parametrize(
    ("before", "item", "size_bytes"),
    [
        (b'"choices":', b"{}", 12 * MB),
        (b'"choices":', b'{"a":1}', 3 * MB),  # which is held
        (b'"data":', b"-0.012345", 40 * MB),
    ],
)
def test_large_answers_are_relayed(
    script: Script, before: bytes, item: bytes, size_bytes: int
) -> None:
    """Every byte arrives, and the usage at their end is counted."""
    body = b"{%b[%b]," % (before, many(item, size_bytes)) + USAGE + b"}"
    script.play(whole(body))
    answer = script.ask(stream=False)
    assert (answer.status_code, answer.content == body) == (200, True)
    record = script.record(answer)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (7, 5)
    assert not record["usage_is_estimated"]


def test_unread_answers_are_known_by_their_length_and_their_id(script: Script) -> None:
    """Without its usage, an answer is billed by its length; a response is found by its id."""
    body = b'{"id":"resp_large","object":"response","output":[%b]}' % many(b"{}", 6 * MB)
    script.play(whole(body))
    record = script.record(script.ask(stream=False))
    assert (record["usage_is_estimated"], record["completion_tokens"]) == (True, len(body) // 4)
    embedded = script.http.post("/v1/embeddings", json={"model": "chat", "input": "a"})
    assert script.record(embedded)["completion_tokens"] == 0
    assert script.ask(RESPONSES, model="responses", store=True, stream=False).status_code == 200
    script.play(whole(GOOD))
    assert script.http.get("/v1/responses/resp_large").content == GOOD


def test_answers_have_a_maximum_length(script: Script) -> None:
    """An answer with a larger length is refused; one without a length is cut off, and billed.

    The client sees a cut by HTTP's framing.
    """
    head = b"HTTP/1.1 200 OK\r\n"
    script.play(exactly(head + b"content-length: %d\r\n\r\n" % (MAX_WHOLE_BYTES + 1)))
    refused = script.ask(stream=False)
    assert refused.status_code == 502
    assert f"more than {MAX_WHOLE_BYTES} bytes" in refused.json()["error"]["message"]
    chunks = [b"100000\r\n" + bytes(MB) + b"\r\n"] * 80
    script.play(exactly(head + b"transfer-encoding: chunked\r\n\r\n", *chunks))
    received: list[int] = []
    answers: list[httpx.Response] = []

    def read_all() -> None:
        body = body_of(RESPONSES, model="responses", stream=False)
        with script.http.stream("POST", "/v1/responses", json=body) as answer:
            answers.append(answer)
            received.extend(map(len, answer.iter_raw()))

    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
        read_all()
    assert MAX_WHOLE_BYTES - MB <= sum(received) <= MAX_WHOLE_BYTES
    record = script.record(answers[0])
    assert (record["ending"], record["usage_is_estimated"]) == ("broken", True)


@pytest.mark.parametrize("status", [400, 429, 500])
def test_large_errors_are_not_read(script: Script, status: int) -> None:
    """The client gets the status, with the gateway's own error instead of the body."""
    body = b'{"error":{"message":"x","list":[%b]}}' % many(b"{}", 12 * MB)
    script.play(whole(body, status))
    answer = script.ask(stream=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, "upstream_error")


def zipped(packed: bytes, levels: int = 1) -> bytes:
    """Return data that is compressed several times."""
    for _ in range(levels):
        packed = gzip.compress(packed, 6)
    return packed


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"X-GZIP", zipped(GOOD)),
        (b"deflate", zlib.compress(GOOD)),
        (b"identity, gzip", zipped(GOOD)),
        (b"", GOOD),
    ],
)
def test_single_compression_is_decoded(script: Script, coding: bytes, packed: bytes) -> None:
    """The gateway reads upstreams that compress although it did not ask for it."""
    script.play(whole(packed, 200, b"content-encoding: " + coding))
    answer = script.ask(stream=False)
    assert (answer.status_code, answer.content) == (200, GOOD)
    assert "content-encoding" not in answer.headers
    assert script.record(answer)["prompt_tokens"] == 7


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])  # read whole, and relayed in parts
@pytest.mark.parametrize(
    ("packed", "headers"),
    [
        (zipped(GOOD, 2), [b"content-encoding: gzip, gzip"]),
        (zipped(GOOD, 2), [GZIP, GZIP]),
        (GOOD, [b"content-encoding: br"]),
    ],
)
def test_other_content_codings_are_refused(
    script: Script, path: str, packed: bytes, headers: Sequence[bytes]
) -> None:
    """Several layers, and codings that were not requested, give an error that names the coding."""
    for place in ("first", "passed"):
        script.play(whole(packed, 200, *headers), at=place)
    answer = script.http.post(path, json=body_of(RESPONSES) | {"messages": [{}], "stream": False})
    assert answer.status_code == 502
    assert "which the gateway does not accept" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (zipped(bytes(100 * MB)), f"more than {MAX_HELD_BYTES} bytes"),
        (zipped(GOOD)[:-9], "compressed data that cannot be read"),
        (zipped(GOOD) + b"x", "compressed data that cannot be read"),
    ],
    ids=["100 MB", "cut", "longer"],
)
def test_unusable_compressed_data_is_an_error(script: Script, packed: bytes, problem: str) -> None:
    """100 KB that would expand to 100 MB are refused, and so is what ends early or goes on."""
    script.play(whole(packed, 200, GZIP))
    answer = script.ask(stream=False)
    assert answer.status_code == 502
    assert problem in answer.json()["error"]["message"]


def test_errors_keep_their_status_in_any_coding(script: Script) -> None:
    """The client learns the status even if the body cannot be decoded."""
    error = b'{"error":{"message":"Too long.","code":"context_length_exceeded"}}'
    script.play(whole(zipped(error), 400, GZIP))
    assert script.ask(stream=False).content == error
    script.play(whole(error, 422, b"content-encoding: br"))
    answer = script.ask(stream=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "upstream_error")
    script.play(whole(zipped(bytes(100 * MB)), 429, GZIP, b"retry-after: 7"))
    answer = script.ask(stream=False)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


def test_compressed_stream_is_read_at_the_clients_pace(script: Script) -> None:
    """Its events are parsed, and a stream that would expand to 100 MB waits for its client."""
    packed = zipped(EVENT + b"data: {" + USAGE + b"}\n\n" + DONE)
    script.play(stream(packed, headers=GZIP + b"\r\n"))
    answer = script.ask()
    assert answer.content == gzip.decompress(packed)
    assert script.record(answer)["prompt_tokens"] == 7
    script.play(stream(zipped(EVENT + b": \n\n" * 20 * MB), headers=GZIP + b"\r\n"))
    received = 0
    with script.http.stream("POST", CHAT, json=body_of(RESPONSES) | {"messages": [{}]}) as answer:
        for part in answer.iter_raw():
            received += len(part)
            if received > 2 * MB:
                break
    assert script.record(answer)["ending"] == "client_left"


@pytest.mark.parametrize("number", [b"-1", b'"1"', b"1e400", b"7" * 30, b"null", b"[]"])
def test_odd_numbers_do_not_change_an_answer(script: Script, number: bytes) -> None:
    """Invalid token counts are ignored, in whole answers and in streams.

    The error event of a broken stream has a sequence number that every client can read.
    """
    kinds = "prompt completion total input output cache_read_input cache_creation_input"
    counts = b",".join(b'"%b_tokens":%b' % (kind.encode(), number) for kind in kinds.split())
    body = b'{"id":"x","choices":[],"usage":{%b,"prompt_tokens_details":{%b}}}' % (counts, counts)
    script.play(whole(body))
    assert script.ask(stream=False).content == body
    sent = EVENT + b"data: " + body + b"\n\n" + DONE
    script.play(stream(sent))
    assert script.ask().content == sent
    event = b'data: {"type":"response.output_text.delta","delta":"a","sequence_number":%b}\n\n'
    script.play(stream(event % number))
    last = script.ask(RESPONSES, model="responses").text.strip().rpartition("\n\n")[2]
    name, _, text = last.partition("\n")
    error = json.loads(text.removeprefix("data: "))
    assert (name, error["type"], error["code"]) == ("event: error", "error", "upstream_unavailable")
    assert 0 <= error["sequence_number"] <= 2**53


def test_headers_for_clients_are_limited_in_number_and_length(script: Script) -> None:
    """Rate-limit headers that would exceed a client's own limits are dropped."""
    lines = [b"x-ratelimit-%d: 1" % i for i in range(200)]
    script.play(whole(GOOD, 200, b"x-request-id: " + b"x" * 90_000, *lines))
    answer = script.ask(stream=False)
    assert answer.status_code == 200
    assert len(answer.headers["x-request-id"]) < 100
    passed = [name for name in answer.headers if name.startswith("x-ratelimit-")]
    assert len(passed) <= MAX_PASSED_HEADERS


def test_comments_before_the_first_event_are_limited(script: Script) -> None:
    """Data that is held before the first event is limited in bytes as well as in time."""
    script.play(stream(*[b": wait\n\n" * 20_000] * 50, EVENT + DONE))
    answer = script.ask()
    assert answer.status_code == 200
    assert answer.content.endswith(EVENT + DONE)
