"""Strict JSON: ambiguous texts are refused, and all others are read."""

from __future__ import annotations

import json
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.core.errors import InvalidRequestError
from router_service.core.strict_json import (
    MAX_INTEGER,
    MIN_INTEGER,
    check_integers,
    decode,
    decode_exactly,
    loads_exactly,
)
from tests.attacks import BROKEN_JSON, OUTSIDE_JSON, REPEATED_KEYS


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        *(pytest.param(x, "duplicate_key", "a", id=name) for name, x in REPEATED_KEYS.items()),
        *(
            pytest.param(body, "invalid_json", None, id=name)
            for name, body in (*OUTSIDE_JSON.items(), *BROKEN_JSON.items())
        ),
        (b"[" + b"7" * 400 + b',"\\ud800"]', "invalid_json", None),
    ],
)
def test_ambiguous_texts_are_refused(body: bytes, code: str, param: str | None) -> None:
    """Each is an error with a short message."""
    with pytest.raises(InvalidRequestError) as caught:
        decode(body)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert len(caught.value.message) < 300


KEYS = st.sampled_from(["a", "b", ":", "a:", "\\", '"'])


@given(st.lists(st.tuples(KEYS, st.text(':\\"a', max_size=3), st.booleans()), max_size=4))
def test_duplicate_keys_are_refused(members: list[tuple[str, str, bool]]) -> None:
    """Two equal keys are refused, however keys, values and colons are written."""
    text = "{" + ", ".join(f"{_written(k, e)} : {_written(v, e)}" for k, v, e in members) + "}"
    names = [key for key, _, _ in members]
    if len(set(names)) == len(names):
        assert decode(text) == {key: value for key, value, _ in members}
    else:
        with pytest.raises(InvalidRequestError) as caught:
            decode(text.encode())
        assert caught.value.code == "duplicate_key"


WIDE = st.integers(-(10**21), 10**21) | st.integers(10**290, 10**330) | st.just(-(10**400))


@given(WIDE)
def test_integers_beyond_64_bits_are_rounded_or_kept(number: int) -> None:
    """`decode` rounds what no decision depends on, and what is written again keeps its digits."""
    text = f'{{"a":[-1.5e3,{number}],"b":"{"9" * 400}","c":{{"d":{number}}}}}'
    value = decode(text)["a"][1]
    if MIN_INTEGER <= number <= MAX_INTEGER:
        assert value == number
        check_integers(text.encode())
    else:
        assert isinstance(value, float)
        assert abs(number) > 10**299 or value == float(number)
        with pytest.raises(InvalidRequestError) as caught:
            check_integers(text.encode())
        assert caught.value.code == "integer_out_of_range"
        assert len(caught.value.message) < 300
    assert json.loads(orjson.dumps(decode_exactly(text))) == json.loads(text)
    assert json.loads(orjson.dumps(loads_exactly(text.encode()))) == json.loads(text)


def _written(text: str, is_escaped: bool) -> str:
    """Return a string as JSON, with escaped colons if wanted."""
    return json.dumps(text).replace(":", "\\u003a") if is_escaped else json.dumps(text)


def repeated(item: bytes, size_bytes: int) -> bytes:
    """Return an array that repeats one item up to a size."""
    return b"[" + b",".join([item] * (size_bytes // (len(item) + 1))) + b"]"


# Functions, so that only the tests that need the bodies make them.
MANY: list[Callable[[], bytes]] = [
    lambda: repeated(b"0", 10_000_000),
    lambda: repeated(b"{}", 10_000_000),
    lambda: repeated(b"[[[[[[[[]]]]]]]]", 10_000_000),
    lambda: repeated(b'{"a":1}', 10_000_000),
    lambda: repeated(b'","', 10_000_000),
    lambda: b"{" + b",".join(b'"%d":0' % i for i in range(900_000)) + b"}",
    lambda: repeated(b'"\\u003a",{}', 10_000_000),
    lambda: repeated(b'"\\\\",{}', 10_000_000),
]


@pytest.mark.parametrize("make", MANY, ids=range(len(MANY)))
def test_too_many_values_are_refused_before_parsing(make: Callable[[], bytes]) -> None:
    """Parsing them would hold the interpreter's lock for up to a second."""
    body = make()
    with pytest.raises(InvalidRequestError) as caught:
        decode(body)
    assert caught.value.code == "too_many_values"


TEXTS = st.text('",:[]{}\\\n0123456789', min_size=20, max_size=60)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(0, 5000))
def test_strings_are_not_taken_for_structure_in_large_texts(texts: list[str], filler: int) -> None:
    """Wherever a part of a text ends, in a string or outside, the same texts are refused."""
    value = {"filler": ["," * filler], "texts": texts * 800, "colon": ":"}
    body = json.dumps(value).replace('":"}', '"\\u003a"}').encode()
    assert decode(body) == value
    check_integers(body)
    bad = {
        b'"a":1,"a":2': (decode, "duplicate_key"),
        b'"a":-9223372036854775809': (check_integers, "integer_out_of_range"),
    }
    for members, (check, code) in bad.items():
        for text in (body[:-1] + b"," + members + b"}", b"{" + members + b"," + body[1:]):
            with pytest.raises(InvalidRequestError) as caught:
                check(text)
            assert caught.value.code == code
