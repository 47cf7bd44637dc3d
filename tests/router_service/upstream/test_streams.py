"""Event streams are forwarded even if they cannot be read, and what is recorded of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.api import Api
from router_service.apis.parts import Request
from router_service.apis.usage import Usage
from router_service.core.errors import Failure, OverloadedError, UpstreamError
from router_service.settings import Deployment
from router_service.upstream.client import (
    ANSWER_COPIES,
    ReserveMemory,
    UpstreamClient,
    unlimited,
)
from router_service.upstream.connection import HttpRequest
from router_service.upstream.streams import (
    MAX_EVENT_BYTES,
    EventReader,
)
from tests import apis
from tests.dialect_answers import CASES, events
from tests.fuzz.events import Stream, read_events
from tests.fuzz.target import virtual_loop
from tests.serving import scripted

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
GOOD = b'{"choices":[{"index":0,"delta":{"content":"good"}}]}'
USED = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'


def relay(
    *data: bytes,
    reserve_memory: ReserveMemory = unlimited,
) -> tuple[list[bytes], EventReader, UpstreamError | None]:
    """Return the forwarded parts of a stream of events, its reader, and its error."""
    body = b"".join(b"data: " + line + b"\n\n" for line in data)

    async def exchange(url: str) -> tuple[list[bytes], EventReader, UpstreamError | None]:
        deployment = Deployment(upstream_model="m", base_url=url)
        client = UpstreamClient(max_connections=1)
        parts: list[bytes] = []
        error = None
        message = HttpRequest("m", "/chat/completions", url, b"{}", deployment.timeouts)
        sent = client.send(deployment, message, reserve_memory=reserve_memory)
        with await sent as answer:
            reader = EventReader(answer, expects_json=True)
            try:
                async for events in reader.events:
                    parts.append(events)  # noqa: PERF401 - what came before an error is kept
            except UpstreamError as exc:
                error = exc
        await client.aclose()
        return parts, reader, error

    with scripted(HEAD % len(body) + body) as url:
        return asyncio.run(exchange(url))


@pytest.mark.parametrize("data", [b"ping", b"{no JSON}", b'{"a":"b"c"}'])
def test_unreadable_events_fail_before_the_first_output(data: bytes) -> None:
    """Nothing is forwarded, so another deployment may still answer."""
    parts, _, error = relay(data, GOOD, b"[DONE]")
    assert error is not None
    assert (parts, error.failure) == ([], Failure.MALFORMED)


def test_an_event_that_is_cut_off_ends_the_stream() -> None:
    """A part of the answer is lost, and the client must be informed."""
    parts, _, error = relay(GOOD, b'{"choices":[{"index":0,"del', GOOD, b"[DONE]")
    assert error is not None
    assert (b"".join(parts), error.failure) == (b"data: " + GOOD + b"\n\n", Failure.MALFORMED)


def test_long_events_count_towards_the_memory_of_requests() -> None:
    """Memory is reserved for a buffered event, and then for what is kept of the answer.

    Without memory, the event is forwarded unread, and nothing is kept.
    """
    held: list[int] = []
    event = b'{"choices":[{"delta":{"content":"%b"}}]}' % (b"x" * 500_000)
    parts, reader, error = relay(GOOD, event, USED, b"[DONE]", reserve_memory=held.append)
    assert (error, reader.usage) == (None, Usage(3, 2))
    assert reader.written_tokens > 100_000
    assert sum(held) == ANSWER_COPIES * reader.accumulator.characters
    assert reader.accumulator.characters > 500_000

    def refuse(size_bytes: int) -> None:
        if size_bytes > 0:
            raise OverloadedError("overloaded", "There is no room.")

    whole, reader, error = relay(GOOD, event, USED, b"[DONE]", reserve_memory=refuse)
    assert (b"".join(whole), error, reader.usage) == (b"".join(parts), None, Usage(3, 2))
    assert reader.written_tokens < 10
    assert reader.accumulator.answer() is None
    assert len(max(whole, key=len)) < MAX_EVENT_BYTES / 2


def chat_event(text: str, **fields: object) -> dict[str, object]:
    """Return an event of Chat Completions whose delta has a text and further fields."""
    delta = {"content": text, **fields}
    return {"id": "1", "model": "m", "choices": [{"index": 0, "delta": delta}]}


def messages_event(kind: str, name: str, text: str) -> dict[str, object]:
    """Return an event of Messages that adds to a block."""
    delta = {"type": kind, name: text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


TEXTS = ["a", "1", "m", "a b", '"a"', "\\", "a\\n", "a\nb", "\x7f", "\u00e9", "\U0001f600", " ", ""]
WRITTEN: dict[Api, list[Callable[[str], dict[str, object]]]] = {
    apis.CHAT: [
        chat_event,
        lambda text: {**chat_event(text), "id": text},
        lambda text: {**chat_event(text), "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        lambda text: chat_event(text, role="assistant"),
        lambda text: chat_event(text, reasoning_content=text),
        lambda text: chat_event("a", reasoning_content=text),
        lambda text: chat_event(
            text, tool_calls=[{"index": 0, "function": {"name": "f", "arguments": text}}]
        ),
        lambda text: {"choices": [{"index": 1, "delta": {"content": text}}]},
        lambda text: {
            "choices": [{"index": 0, "finish_reason": "stop", "delta": {"content": text}}]
        },
    ],
    apis.MESSAGES: [
        lambda text: messages_event("text_delta", "text", text),
        lambda text: messages_event("input_json_delta", "partial_json", text),
        lambda text: messages_event("thinking_delta", "thinking", text),
        lambda text: messages_event("signature_delta", "signature", text),
    ],
}


@pytest.mark.parametrize("api", WRITTEN)
@given(data=st.data())
def test_events_that_differ_in_their_text_are_read_like_others(
    api: Api, data: st.DataObject
) -> None:
    """The reader, which compares their bytes, notes the same as the record of decoded events."""
    write, text = st.sampled_from(WRITTEN[api]), st.sampled_from(TEXTS)
    few = st.lists(write, min_size=1, max_size=3)
    drawn = data.draw(few.flatmap(lambda some: st.lists(st.tuples(st.sampled_from(some), text))))
    is_ascii = data.draw(st.booleans())
    sent = [json.dumps(each(text), ensure_ascii=is_ascii).encode() for each, text in drawn]
    stream = b"".join(b"data: " + event + b"\n\n" for event in sent)
    cut = data.draw(st.integers(0, len(stream)))
    parts = [part for part in (stream[:cut], stream[cut:]) if part]
    answer = Stream(parts, is_delimited=True, is_broken=False)
    reader, relayed = virtual_loop().finish(read_events(answer, api))
    record = api.record()
    for event in sent:
        record.feed(orjson.loads(event))
    assert relayed.data == stream
    for name in ("usage", "identity", "has_output", "has_stopped", "written_characters", "is_text"):
        assert getattr(reader.accumulator, name) == getattr(record, name)
    assert reader.accumulator.answer() == record.answer()


class SilentStream(Stream):
    """A stream whose upstream keeps the connection open after the last event."""

    async def read(self) -> bytes:
        """Return the next part, and wait for a long time at the end."""
        part = await super().read()
        if not part:
            await asyncio.sleep(1000)  # the loop's clock is virtual
        return part


def test_a_translated_stream_ends_although_its_upstream_is_silent() -> None:
    """The client does not wait for the upstream's timeout, and gets no error after the end."""
    sent = events(CASES["text"], apis.MESSAGES)
    data = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in sent)
    stream = SilentStream([data], is_delimited=True, is_broken=False)
    request = Request("m", ())
    translator = AnswerTranslator(apis.MESSAGES, apis.CHAT, request, model="m", created_s=1)
    loop = virtual_loop()
    _, relayed = loop.finish(read_events(stream, apis.MESSAGES, translator))
    assert (relayed.error, relayed.data.endswith(b"data: [DONE]\n\n")) == ("", True)
    assert loop.time() < 5
