"""Request bodies with another model, JSON as providers write it, and decompression."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.core.errors import UpstreamError
from router_service.upstream.bodies import (
    MAX_EMPTY_BYTES,
    MAX_PART_BYTES,
    MAX_VALUES,
    BodyTemplate,
    Decompressor,
    UnreadableError,
    asks_for_usage,
    is_repeatable,
    read_json,
)


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b'{"model":"a"}', b'{"model":"b\\"c"}'),
        (
            b'{ "x":{"model":1}, "mod\\u0065l"\n:\t"a" }',
            b'{ "x":{"model":1}, "mod\\u0065l"\n:\t"b\\"c" }',
        ),
        (b'{"model":{"model":["}"]},"n":1e3}', b'{"model":"b\\"c","n":1e3}'),
        (
            b'{"a":"\\"model\\":1","models":[1,"model"]}',
            b'{"a":"\\"model\\":1","models":[1,"model"]}',
        ),
        (
            b'{"model":1,"m":[{"model":2}],"model":3}',
            b'{"model":"b\\"c","m":[{"model":2}],"model":"b\\"c"}',
        ),
    ],
)
def test_only_the_top_level_model_changes(body: bytes, spliced: bytes) -> None:
    """Whatever an object holds, its top-level models change, and no other byte does."""
    assert BodyTemplate.of(body).with_model('b"c') == spliced


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream":true,"stream_options":{"include_usage":true}}', True),
        (b'{ "stream_options" : { "include_usage" : false } , "stream" : true }', True),
        (b'{"stream":true}', False),
        (b'{"stream_options":{"include_usage":true}}', False),
        (b'{"stream":"true","stream_options":{"include_usage":true}}', False),
        (b'{"stream":true,"stream_options":{}}', False),
        (b'{"stream":true,"stream_options":{"include_usage":1}}', False),
        (b'{"stream":true,"stream_options":{"include_usage":true,"x":1}}', False),
        (b'{"stream":true,"a":{"stream_options":{"include_usage":true}}}', False),
        (b'{"stream":true,"a":"\\"stream_options\\":{\\"include_usage\\":true}"}', False),
    ],
)
def test_only_plain_usage_options_are_recognized(body: bytes, expected: bool) -> None:
    """An upstream may refuse other options for good reasons."""
    assert asks_for_usage(body) is expected


CHAT, RESPONSES = "/chat/completions", "/responses"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, b'{"model":"m"}', True),
        (RESPONSES, b'{"model":"m","background":true}', False),
        (RESPONSES, rb'{"model":"m","b\u0061ckground":true}', False),
        (RESPONSES, b'{"model":"m","conversation":"c"}', False),
        (RESPONSES, b'{"model":"m","input":"a \\"background\\" for \\"mcp\\""}', True),
        (RESPONSES, b'{"model":"m","tools":[1,{"type":"mcp","server_url":"x"}]}', False),
        (RESPONSES, rb'{"model":"m","tools":[{"type":"\u006dcp"}]}', False),
        (CHAT, b'{"model":"m","tools":[{"type":"mcp"}]}', False),
        ("/messages", b'{"model":"m","mcp_servers":[{"url":"x"}]}', False),
        ("/batches", b'{"model":"m"}', False),
        ("/responses/compact", b'{"model":"m"}', True),
        ("/Chat/Completions", b'{"model":"m"}', False),
    ],
)
def test_requests_without_lasting_effect_are_repeatable(
    path: str, body: bytes, expected: bool
) -> None:
    """Unknown endpoints may create something. A completion does so only with certain options."""
    assert is_repeatable(path, BodyTemplate.of(body)) is expected


def test_deep_json_is_distinguished_from_invalid_json() -> None:
    """JSON that is nested too deeply to be read here is not reported as invalid."""
    assert read_json(b'{"a":' * 1000 + b"1" + b"}" * 1000)
    with pytest.raises(UnreadableError) as deep:
        read_json(b"[" * 100_000 + b"]" * 100_000)
    assert deep.value.is_too_much
    with pytest.raises(UnreadableError) as cut:
        read_json(b"[" * 100_000)
    assert (cut.value.is_too_much, cut.value.is_cut_off) == (False, True)


def test_json_of_too_many_values_is_not_read() -> None:
    """It is neither cut off nor a failure. Long texts with few values are read."""
    many = b'{"a":[' + b"{}," * MAX_VALUES + b"{}]}"
    with pytest.raises(UnreadableError) as failed:
        read_json(many)
    assert (failed.value.is_too_much, failed.value.is_cut_off) == (True, False)
    with pytest.raises(UnreadableError) as cut:
        read_json(many[:-1])
    assert (cut.value.is_too_much, cut.value.is_cut_off) == (False, True)
    assert read_json(b'["' + b"x" * 1_000_000 + b'"]')


class Parts:
    """A body that arrives in parts of a given size."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size
        self.position = 0

    async def read(self) -> bytes:
        """Return the next part."""
        part = self._data[self.position : self.position + self._size]
        self.position += len(part)
        return part


async def iterate(parts: Parts) -> list[bytes]:
    """Return the parts of a decompressed body."""
    body, found = Decompressor("m", parts.read), []
    while part := await body.read():
        found.append(part)
    return found


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


@given(
    st.binary(max_size=300), st.integers(0, 5000), st.integers(1, 500), st.sampled_from([*PACKERS])
)
def test_any_body_is_decompressed_however_it_is_split(
    data: bytes, times: int, size: int, coding: str
) -> None:
    """The result is the original, in parts of at most 64 KB."""
    packed = PACKERS[coding](data * times)
    found = asyncio.run(iterate(Parts(packed, size)))
    assert b"".join(found) == data * times
    assert max(map(len, found), default=0) <= MAX_PART_BYTES


@pytest.mark.parametrize(
    "packed",
    [b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 3 * MAX_EMPTY_BYTES,
     b"\x1f\x8b\x08\0" + bytes(6) + b"\0\0\0\xff\xff" * MAX_EMPTY_BYTES],
    ids=["name", "blocks"],
)  # fmt: skip
def test_data_that_unpacks_to_nothing_is_not_read_without_end(packed: bytes) -> None:
    """A header's endless name, or endless empty blocks, are refused after a fixed amount."""
    parts = Parts(packed, 65_536)
    with pytest.raises(UpstreamError, match="unpacks to nothing"):
        asyncio.run(iterate(parts))
    assert parts.position <= MAX_EMPTY_BYTES + 65_536
