"""Ports and addresses of other servers, checked before anything is sent there.

The system's resolver takes a port modulo 65536, so that port 99999 is really 34463, and Python's
`int` reads signs, underscores and the digits of any script. Neither says a word. What is checked
here has one meaning for every parser.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import parse_qsl, urlsplit

HTTP = frozenset({"http", "https"})
PROXIES = frozenset({"http", "https", "socks5", "socks5h"})
REDIS = frozenset({"redis", "rediss", "unix"})

MAX_PORT = 65535

_NO_PORT = f"the port must be a whole number from {{}} to {MAX_PORT}, in digits"
_DIGITS = re.compile(r"[0-9]{1,5}", re.ASCII)
_UNSAFE = re.compile(r"[\s\\\x00-\x20\x7f]")
_HOST = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:]+)(?::(?P<port>.*))?")


def read_port(value: object, *, least: int = 0) -> int:
    """Return a configured port; raises ValueError if the value is not a port number.

    Port 0 lets the system choose a port to listen on; a port to connect to is at least 1. The error
    does not quote the text, because a password with a slash in it looks like a port.
    """
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        number = int(value)
    if number is None or not least <= number <= MAX_PORT:
        raise ValueError(_NO_PORT.format(least))
    return number


def check_http_address(address: str, *, has_query: bool = True) -> str:
    """Return the address of an HTTP server; raises ValueError, which does not quote it."""
    if not has_query and ("?" in address or "#" in address):
        raise ValueError("the address must have neither '?' nor '#': paths are added at its end")
    _check(address, HTTP)
    return address


def check_proxy_address(address: str) -> str:
    """Return the address of a proxy, with or without a scheme; raises ValueError as above."""
    _check(address if "://" in address else f"http://{address}", PROXIES)
    return address


def check_redis_address(address: str) -> str:
    """Return the address of a Redis server; raises ValueError as above."""
    scheme, _, rest = address.partition("://")
    if scheme.lower() == "unix":
        return address
    _check(address, REDIS, needs_host=False)
    # The driver would take these instead of the address's own.
    named = {name.lower() for name, _ in parse_qsl(rest.partition("?")[2], keep_blank_values=True)}
    if named & {"host", "port", "path"}:
        raise ValueError("write host and port before the slash, not behind '?'")
    return address


def host_in_address(host: str) -> str:
    """Return a host as it stands in an address: IPv6 in brackets; raises ValueError."""
    if _UNSAFE.search(host) or set(host) & set("/?#@"):
        raise ValueError("must be a host name or an IP address alone")
    if ":" not in host:
        return host
    _check_ipv6(host.strip("[]"))
    return f"[{host.strip('[]')}]"


def _check(address: str, schemes: Collection[str], *, needs_host: bool = True) -> None:
    scheme, separator, rest = address.partition("://")
    if not separator or scheme.lower() not in schemes:
        allowed = " or ".join(f"{name}://" for name in sorted(schemes))
        raise ValueError(f"the address must start with {allowed}")
    if _UNSAFE.search(address):
        raise ValueError("the address has a space, a backslash or a control character")
    place = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if not place and not needs_host:
        return
    found = _HOST.fullmatch(place)
    if found is None:
        raise ValueError("the address has no host, or an IPv6 address without brackets")
    if found["host"].startswith("["):
        _check_ipv6(found["host"][1:-1])
    if found["port"]:
        read_port(found["port"], least=1)
    try:
        urlsplit(address)
    except ValueError:  # a character that means '/', '@' or ':' after normalization, for one
        raise ValueError("the address cannot be read; write its host plainly") from None


def _check_ipv6(text: str) -> None:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("what stands in brackets is not an IPv6 address") from None
