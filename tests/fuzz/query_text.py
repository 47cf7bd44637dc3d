"""Fuzz target: the features of a query take bounded time."""

from __future__ import annotations

from tests.fuzz.mutation import of_lines
from tests.fuzz.requests import check_query
from tests.fuzz.target import Target

TOKENS = (
    b"Paris, New York and Rome",
    b"http://a.com/b/",
    b"3.5 km",
    b"12/12/2024",
    b"January",
    b"and then ",
    b"[1, 2]",
    b'"a"',
    b"`a`",
    b"(-1",
    b"A",
    b"a_b",
    b"aB",
    b", ",
    b"1 and 2",
    b"Of the ",
    b"\n",
    b"\xc3\xa9",
    b"\xf0\x9f\x98\x80",
    b"?",
    b"e.g.",
    b"'",
    b"''",
    b"$",
    b"-",
)

TARGET = Target(
    name="query_text",
    check=check_query,
    mutate=of_lines(TOKENS),
    tokens=TOKENS,
    measured=("router_service/predictor/text_features.py",),
    max_bytes=512,
    runs=100,
)
