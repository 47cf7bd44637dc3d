"""Request bodies: replacing the model, stream options, and which requests may be repeated."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.core.errors import InvalidRequestError
from router_service.upstream.body_template import (
    BodyTemplate,
    asks_for_usage,
    is_repeatable,
    without_stream_options,
)

SPACE = st.text(alphabet=" \t\r\n", max_size=2)
KEYS = st.sampled_from(
    [
        '"model"',
        '"mod\\u0065l"',
        '"\\u006Dodel"',
        '"models"',
        '"m"',
        '"\\"model"',
        '"a,\\"model\\""',
    ]
)
LEAVES = st.one_of(
    st.text().map(json.dumps),
    st.text(alphabet='{}[]",:\\model ').map(json.dumps),
    st.sampled_from(["1e3", "-0.50", "true", "null", '"model"', '"\\"model\\": 1"', '"\\\\"']),
)


def _object(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(KEYS, values), max_size=3)
    return pairs.map(lambda items: "{" + ",".join(f"{k} : {v}" for k, v in items) + "}")


def _array(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda items: "[" + " ,".join(items) + "]")


VALUES = st.recursive(LEAVES, lambda inner: _object(inner) | _array(inner), max_leaves=8)
MEMBERS = st.lists(st.tuples(SPACE, KEYS, SPACE, SPACE, VALUES, SPACE), max_size=5)


def write(members: list[tuple[str, str, str, str, str, str]], model: str | None) -> bytes:
    """Write members as an object, with the value of every top-level model replaced if given."""
    texts = []
    for a, key, b, c, value, d in members:
        is_model = model is not None and json.loads(key) == "model"
        texts.append(f"{a}{key}{b}:{c}{json.dumps(model) if is_model else value}{d}")
    return ("{" + ",".join(texts) + "}").encode()


@given(members=MEMBERS)
def test_only_the_top_level_model_changes(
    members: list[tuple[str, str, str, str, str, str]],
) -> None:
    """Whatever an object holds, its top-level models change, and no other byte does."""
    body = write(members, None)
    json.loads(body)  # the test's own grammar
    assert BodyTemplate.of(body).with_model("new") == write(members, "new")


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b'{"model":"a"}', b'{"model":"b\\"c"}'),
        (b'{ "x":{"model":1}, "model"\n:\t"a" }', b'{ "x":{"model":1}, "model"\n:\t"b\\"c" }'),
        (b'{"model":{"model":["}"]},"n":1e3}', b'{"model":"b\\"c","n":1e3}'),
        (b'{"a":"\\"model\\":1"}', b'{"a":"\\"model\\":1"}'),
    ],
)
def test_escapes_nesting_and_spacing_are_handled(body: bytes, spliced: bytes) -> None:
    """Keys may be escaped, nested, spaced oddly, or have values of other types."""
    assert BodyTemplate.of(body).with_model('b"c') == spliced


@pytest.mark.parametrize(
    ("body", "rest"),
    [
        (b'{"stream_options":{"a":[1]},"b":2}', b'{"b":2}'),
        (b'{"b":2 ,\n "stream_options" : null }', b'{"b":2 }'),
        (b'{"a":1,"stream_options":{},"b":2}', b'{"a":1,"b":2}'),
        (b'{"stream_options":{}}', b"{}"),
        (b'{"a":{"stream_options":{}}}', b'{"a":{"stream_options":{}}}'),
        (b'{"a":"\\"stream_options\\":1"}', b'{"a":"\\"stream_options\\":1"}'),
    ],
)
def test_stream_options_can_be_left_out(body: bytes, rest: bytes) -> None:
    """The top-level member is removed with its comma, wherever it is.

    Nested members of its name stay.
    """
    assert without_stream_options(body) == rest
    json.loads(rest)


@pytest.mark.parametrize("filling", [b"{},", b'"",', b"[],", b'"a\\"b",', b"1,"])
def test_large_bodies_take_bounded_time(filling: bytes) -> None:
    """A megabyte of the least favourable tokens takes a fraction of a second."""
    body = b'{"a":[' + filling * (1_000_000 // len(filling)) + b'0],"model":"x"}'
    started_s = time.perf_counter()
    assert BodyTemplate.of(body).with_model("y").endswith(b'"model":"y"}')
    assert time.perf_counter() - started_s < 1.0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream":true,"stream_options":{"include_usage":true}}', True),
        (b'{ "stream_options" : { "include_usage" : false } , "stream" : true }', True),
        (b'{"stream":true}', False),
        (b'{"stream_options":{"include_usage":true}}', False),
        (b'{"stream":false,"stream_options":{"include_usage":true}}', False),
        (b'{"stream":null,"stream_options":{"include_usage":true}}', False),
        (b'{"stream":"true","stream_options":{"include_usage":true}}', False),
        (b'{"stream":true,"stream_options":{}}', False),
        (b'{"stream":true,"stream_options":null}', False),
        (b'{"stream":true,"stream_options":[]}', False),
        (b'{"stream":true,"stream_options":{"include_usage":1}}', False),
        (b'{"stream":true,"stream_options":{"include_usage":null}}', False),
        (b'{"stream":true,"stream_options":{"include_usage":true,"x":1}}', False),
        (b'{"stream":true,"a":{"stream_options":{"include_usage":true}}}', False),
        (b'{"a":{"stream":true},"stream_options":{"include_usage":true}}', False),
        (b'{"stream":true,"a":"\\"stream_options\\":{\\"include_usage\\":true}"}', False),
    ],
)
def test_only_plain_usage_options_are_recognized(body: bytes, expected: bool) -> None:
    """An upstream may refuse other options for good reasons."""
    assert asks_for_usage(body) is expected


def test_thousands_of_nested_models_are_refused() -> None:
    """Finding the level of each key takes 2 us, and a body could have 100,000."""
    nested = b'{"x":[' + b",".join([b'{"model":1}'] * 20_000) + b'],"model":"a"}'
    with pytest.raises(InvalidRequestError) as caught:
        BodyTemplate.of(nested)
    assert caught.value.code == "too_many_values"


@pytest.mark.parametrize(
    "text", [b'"model",', b'"\\"model\\":",', b'"\\u006d",', b"model ", b'"",']
)
def test_text_that_resembles_the_key_takes_bounded_time(text: bytes) -> None:
    """Strings that are not keys are skipped by library code."""
    inner = text * (4_000_000 // len(text))
    array = b"[" + inner.rstrip(b",") + b"]" if text.endswith(b",") else b'"' + inner + b'"'
    started_s = time.thread_time()
    body = b'{"x":' + array + b',"m\\u006fdel":"a"}'
    assert BodyTemplate.of(body).with_model("b") == body[:-3] + b'b"}'
    assert time.thread_time() - started_s < 0.5


CHAT, RESPONSES = "/chat/completions", "/responses"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, b'{"model":"m"}', True),
        (CHAT, b'{"model":"m","store":true}', True),
        ("/completions", b'{"model":"m"}', True),
        ("/embeddings", b'{"model":"m"}', True),
        (RESPONSES, b'{"model":"m","store":true}', True),
        (RESPONSES, b'{"model":"m","previous_response_id":"r"}', True),
        (RESPONSES, b'{"model":"m","background":false,"conversation":null}', True),
        (RESPONSES, b'{"model":"m","background":true}', False),
        (RESPONSES, rb'{"model":"m","b\u0061ckground":true}', False),
        (RESPONSES, b'{"background":true,"model":"m"}', False),
        (RESPONSES, b'{"model":"m","conversation":"c"}', False),
        (RESPONSES, b'{"model":"m","conversation":{"id":"c"}}', False),
        (RESPONSES, b'{"model":"m","input":"a \\"background\\" for \\"mcp\\""}', True),
        (RESPONSES, b'{"model":"m","tools":[{"type":"web_search"}]}', True),
        (RESPONSES, b'{"model":"m","tools":[1,{"type":"mcp","server_url":"x"}]}', False),
        (RESPONSES, rb'{"model":"m","tools":[{"type":"\u006dcp"}]}', False),
        (CHAT, b'{"model":"m","tools":[{"type":"mcp"}]}', False),
        (CHAT, b'{"model":"m","tools":{"type":"mcp"}}', True),
        ("/batches", b'{"model":"m"}', False),
        ("/fine_tuning/jobs", b'{"model":"m"}', False),
        ("/videos", b'{"model":"m"}', False),
        ("/responses/compact", b'{"model":"m"}', False),
        ("/Chat/Completions", b'{"model":"m"}', False),
        ("/chat/completions/", b'{"model":"m"}', False),
    ],
)
def test_requests_without_lasting_effect_are_repeatable(
    path: str, body: bytes, expected: bool
) -> None:
    """Unknown endpoints may create something. A completion does so only with certain options."""
    assert is_repeatable(path, BodyTemplate.of(body)) is expected
