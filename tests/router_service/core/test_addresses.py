"""Ports and addresses: those that every parser reads alike, and those that are refused."""

from __future__ import annotations

import pytest

from router_service.core.addresses import (
    check_http_address,
    check_proxy_address,
    check_redis_address,
    read_port,
)

NOT_A_PORT: list[object] = [
    99999, 65536, -1, "99999", "65536", "-1", "+80", "8_0", "8 0", "0x50", "80.0", "1e2", "",
    "\uff18\uff10", "\u0668\u0660", "\u00b2", 80.0, True, None, "080808", b"80",
]  # fmt: skip


@pytest.mark.parametrize("value", NOT_A_PORT)
def test_invalid_ports_are_refused(value: object) -> None:
    """Signs, underscores, other digits and larger numbers are refused and not quoted."""
    with pytest.raises(ValueError, match="whole number from 0 to 65535") as caught:
        read_port(value)
    assert not value or str(value) not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://h", "https://h/v1", "HTTP://h:1", "http://h:65535/v1", "http://h:/v1",
        "http://[::1]:8080/v1", "https://[2001:db8::1]/", "http://u:p@h:80/v1", "http://127.0.0.1:1",
        "https://münchen.example/v1", "http://my_host:80",
    ],
)  # fmt: skip
def test_http_addresses_are_accepted(address: str) -> None:
    """Names, IPv4 and bracketed IPv6 addresses are accepted, with and without a port."""
    assert check_http_address(address) == address


@pytest.mark.parametrize(
    "place",
    [
        "h:99999", "h:65536", "h:0", "h:00", "h:-1", "h:+80", "h:8_0", "h:\uff18\uff10", "h:80:80",
        "", ":80", "::1", "::1:80", "[::1", "::1]", "[::1]80", "[]:80", "[h]:80", "[::1]:99999",
        "[::1]:0", "h h", "h\\@evil", "h\n", "h\t:80", "u:p@h:99999", "u@:80", "h:http",
        "h\uff1a99999", "h\uff0fx",
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "/v1"])
def test_ambiguous_addresses_are_refused(place: str, end: str) -> None:
    """An address that two parsers may read differently is refused for every kind of server."""
    for check in (check_http_address, check_proxy_address):
        with pytest.raises(ValueError, match=r"port|address|must"):
            check(f"http://{place}{end}")
    if place:  # Redis has a default host
        with pytest.raises(ValueError, match=r"port|address|must"):
            check_redis_address(f"redis://{place}{end}")


def test_redis_addresses() -> None:
    """Host and port are only allowed before the slash, not in the query."""
    for address in (
        "redis://h",
        "rediss://u:p@h:6380/1?x=1",
        "unix:///run/redis.sock",
        "redis:///0",
    ):
        assert check_redis_address(address) == address
    for query in ("port=99999", "host=evil", "a=1&PORT=1", "path=/x", "port="):
        with pytest.raises(ValueError, match="before the slash"):
            check_redis_address(f"redis://h/0?{query}")


def test_errors_do_not_quote_passwords() -> None:
    """Text that looks like a port may be part of a password with a slash in it."""
    for check in (check_http_address, check_redis_address, check_proxy_address):
        scheme = "redis" if check is check_redis_address else "http"
        with pytest.raises(ValueError, match="port") as caught:
            check(f"{scheme}://u:planted/secret@h:80")
        assert "planted" not in f"{caught.value!r}"
