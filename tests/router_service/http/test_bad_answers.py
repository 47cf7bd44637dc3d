"""Answers that are large, compressed, or unusual in one of their values."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from router_service.upstream.streams import MAX_HELD_BYTES
from tests import apis
from tests.apis import RESPONSES
from tests.bodies import CHAT
from tests.router_service.http.scripted import DONE, Script, body_of, data, stream, whole
from tests.serving import wait_for

MB = 1024 * 1024
USAGE = b'"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}'
GOOD = b'{"id":"x","model":"m","choices":[{"message":{"content":"hi"}}],' + USAGE + b"}"
EVENT = data({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})
GZIP = b"content-encoding: gzip"


def zipped(data: bytes) -> bytes:
    """Return compressed data."""
    return gzip.compress(data, 6)


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


def test_compressed_stream_is_read(script: Script) -> None:
    """Its events are parsed, and reach the client without compression."""
    packed = zipped(EVENT + b"data: {" + USAGE + b"}\n\n" + DONE)
    script.play(stream(packed, headers=GZIP + b"\r\n"))
    answer = script.ask()
    assert answer.content == gzip.decompress(packed)
    assert script.record(answer)["prompt_tokens"] == 7


def test_slow_client_slows_its_upstream(script: Script) -> None:
    """While a client does not read, little more of its stream is taken; then the stream goes on."""
    part, sent_bytes = data({"choices": [{"delta": {"content": "x" * 1000}}]}) * 1000, 0

    def endless() -> Iterator[bytes]:
        nonlocal sent_bytes
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        while sent_bytes < 200 * MB:
            yield part
            sent_bytes += len(part)

    def is_blocked() -> bool:
        before = sent_bytes
        for _ in range(20):  # requests, during which the gateway could take more
            script.http.get("/healthz")
        return 0 < sent_bytes == before

    script.play(endless)
    with script.http.stream("POST", CHAT, json=body_of(apis.CHAT)) as answer:
        parts = answer.iter_raw()
        received_bytes = len(next(parts))
        wait_for(is_blocked, "the upstream is blocked, or has sent everything")
        taken_bytes = sent_bytes
        assert taken_bytes < 100 * MB
        while received_bytes < taken_bytes + MB:
            received_bytes += len(next(parts))


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


def many(item: bytes, size_bytes: int) -> bytes:
    """Return at least this many bytes of items, separated by commas."""
    return b",".join([item] * (size_bytes // (len(item) + 1)))


@pytest.mark.parametrize("item", [b"{}", b'"%b"' % (b"x" * MB)], ids=["values", "bytes"])
def test_unread_answers_are_known_by_their_length_and_their_id(script: Script, item: bytes) -> None:
    """Without its usage, an answer is billed by its length; a response is found by its id."""
    body = b'{"id":"resp_large","object":"response","output":[%b],' % many(item, 6 * MB)
    body += b'"usage":{"prompt_tokens":7,"completion_tokens":5},"text":[%b]}' % many(item, 2 * MB)
    script.play(whole(body))
    record = script.record(script.ask(stream=False))
    assert (record["usage_is_estimated"], record["completion_tokens"]) == (True, len(body) // 4)
    embedded = script.http.post("/v1/embeddings", json={"model": "chat", "input": "a"})
    assert script.record(embedded)["completion_tokens"] == 0
    assert script.ask(RESPONSES, model="responses", store=True, stream=False).status_code == 200
    script.play(whole(GOOD))
    assert script.http.get("/v1/responses/resp_large").content == GOOD


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
