"""The corpus of attacks, from which unit tests, the fuzzer and the hostile tests take their values.

Each group has one claim, which all users of the group check in their own way: that of a parser, of
a gateway in the test's process, or of a gateway process that must go on serving others. Attacks
that only one test makes stay there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

IS_LONG = os.environ.get("HOSTILE") == "long"
"""Whether the tests run in the long form of `make check-hostile`."""

OUTSIDE_JSON: Mapping[str, bytes] = {
    "not a number": b"NaN",
    "infinity": b"Infinity",
    "minus infinity": b"-Infinity",
    "a large exponent": b"1e400",
    "400 digits and a fraction": b"7" * 400 + b".5",
    "half an emoji": b'"\\ud83d"',
    "the other half": b'"\\ude00"',
    "a surrogate's bytes": b'"\xed\xa0\x80"',
    "half a letter": b'"\xe4\xb8"',
    "a byte of no letter": b'"\xff\xfe"',
    "a control character": b'"\x00"',
    "1,020 levels": b"[" * 1020 + b"]" * 1020,
    "50,000 levels": b"[" * 50_000 + b"]" * 50_000,
}
"""Values that parsers read differently, or not at all. In a request they are invalid JSON."""

REPEATED_KEYS: Mapping[str, bytes] = {
    "a key that comes twice": b'{"a":1,"a":2}',
    "a key that is escaped once": b'[{"b":{"a":1,"c":"a","\\u0061":1}}]',
}
"""Values with a key that comes twice, of which parsers read the first or the last."""

BROKEN_JSON: Mapping[str, bytes] = {
    "nothing": b"",
    "the beginning of an object": b"{",
    "the beginning of 5,000 arrays": b"[" * 5000,
    "the beginning of 10,000 objects": b'{"a":' * 10_000,
    "400 digits in an open array": b"[" + b"7" * 400,
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "bytes of no letter": b"\xff" * 100,
    "two objects": b"{}{}",
    "a form": b"a=b&c=d",
    "parts": b"--x\r\n\r\n--x--",
}
"""Texts that are not JSON, whatever stands in them. A request with such a body is invalid JSON."""

INTEGERS: Sequence[int] = (
    *(0, -1, 255, 256, 65535, 65536, 2**31, 2**32),
    *(2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1),
)
"""Integers at and beyond the limits of 8, 16, 32 and 64 bits, and of a float's precision."""

VALUES: Sequence[Any] = (
    *(None, True, 0, -1, 2**63, 2**64 - 1, 10**400, 1.5, 1e308, "", "x", "9" * 5000, "\0\r\n\x7f"),
    *([], {}, [[]], [None], [{}], {"": None}, {"a": [{"a": {}}]}, [0] * 1000),
)
"""Values of all types, for fields that expect another type or another range."""

LENGTHS: Mapping[str, bytes] = {
    "negative": b"-1",
    "plus": b"+5",
    "hex": b"0x5",
    "list": b"5, 5",
    "underscore": b"1_0",
    "overflow": b"9" * 25,
    "2-to-64": b"%d" % (2**64 - 1),
    "2-to-64-and-5": b"%d" % (2**64 + 5),
    "letters": b"abc",
    "inner-space": b"5 5",
}
"""Values of Content-Length that are no length, or none that a body can have. Who reads 5 in one of
them reads the rest of the body as another message."""

CHUNK_SIZES: Mapping[str, bytes] = {
    "negative": b"-5",
    "overflow": b"1" + b"0" * 30,
    "17-digits": b"1" + b"0" * 16,
    "text": b"zz",
    "empty": b"",
    "0x": b"0x5",
    "underscore": b"1_0",
    "plus": b"+5",
}
"""Sizes of a chunk that are invalid, or larger than 64 bits (RFC 9112, section 7.1)."""

WAITS: Sequence[bytes] = (
    *(b"", b"soon", b"nan", b"inf", b"-inf", b"1e400", b"-1", b"1_000", b"0x10", b"1, 2"),
    *(b"\xb2", b"\xd9\xa1", b"\xff", b"9" * 5000),
    *(b"Mon, 99 Jan 2026 99:99:99 GMT", b"Mon, 99 Foo 0000 99:99:99 XYZ"),
    b"Mon, 01 Jan 999999999999 00:00:00 GMT",
    b"Mon, 01 Jan 2026 00:00:00 +99999999999999999999",
)
"""Values of Retry-After that cannot be read. Some of them are numbers for Python."""

_OUTSIDE = (
    *("..;/admin/status", ";/../files", "a;b/../x", "..%3Badmin", "%c0%ae%c0%ae/x", "%e0%80%ae/x"),
    *("%f0%80%80%ae/x", "%f8%80%80%80%ae/x", "../admin/status", "../secret", "./files", ".%2e/x"),
    *("%2e./x", "%2E/x", "%2e%2e/x", "%252e%252e/x", "%25%32%65/x", "files%2f..%2fx", "/x"),
    *("/files", "fil\xe9s", "fil\xc3\xa9s", ""),
)
_BELOW_FILES = (
    *("..", "../../x", "./x", "/x", "", "..\\x", "a\\b", "a b", "\xe9", "%", "%00", "%0a", "%7f"),
    *("%0d%0ax", "%0d%0aset-cookie:a", "%2e%2e/x", "%2E./x", "%2e%2e%2fx", "%5c..%5cx", "a%2fb"),
    *("a%5Cb", "%252e%252e", "..%00/x", "..%3b/x", "...;/x", "%c0%ae%c0%ae/%c0%af/x"),
    "%ef%bc%8e%ef%bc%8e/x",
)
# Some servers read these as a dot segment, a slash or the end of the path: path parameters
# (Tomcat), overlong UTF-8, `%u` (IIS), decoding twice, NFKC, trailing blanks, best-fit mappings
# (Windows).
_AMBIGUOUS = (
    "..; ..;x .; .;x ;x a;b x%3bc %3b %2e %2E%2e .%2e %2e. %252e %25 ... .x ..x ..%20 %20.. +.. "
    "%20 %c0%ae %c0%ae%c0%ae %c0%af %e0%80%ae %e0%80%af %f0%80%80%ae %c1%9c %ff %80 %ed%a0%80 "
    "%uff0e %u002e %ef%bc%8e %ef%bc%8f %e2%80%a4 %e2%80%a5 %e2%80%a6 %e2%92%88 %c2%bd %e2%88%95 "
    "%e2%81%84 %ef%bc%bc %ef%bc%85 %2f %5c .. . x%3f x%23 x%0a x%7f %c2%80 x%c2%a0 %2 %zz %"
).split(" ")
_QUERIES = ("a=%0d%0ax", "a=%0d\tb", "a=%00", "a=%", "a=%zz", "%u002e")

PATHS: Sequence[bytes] = tuple(
    dict.fromkeys(
        path.encode("latin-1")
        for path in (
            "//v1/files",
            *(f"/v1/{path}" for path in _OUTSIDE),
            *(f"/v1/files/{path}" for path in _BELOW_FILES),
            *(f"/v1/files/{segment}{rest}" for rest in ("", "/x") for segment in _AMBIGUOUS),
            *(f"/v1/files?{query}" for query in _QUERIES),
        )
    )
)
"""Targets of requests that some servers read as leaving `/v1`, or as having another path or header.
None may reach an upstream."""
