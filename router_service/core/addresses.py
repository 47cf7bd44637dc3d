"""Checks of ports, and of addresses of other servers before the gateway connects to them.

The system's resolver takes a port modulo 65536, so that port 99999 is really 34463, and Python's
`int` reads signs, underscores and the digits of any script. Neither reports an error. An address
that passes these checks means the same to every parser.
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
    """Return a configured port. Raises ValueError if the value is not a port number.

    Port 0 lets the system choose a port to listen on; a port to connect to is at least 1. The error
    does not quote the text, because it may be part of a password: in `user:pass/word@host`, `pass`
    is parsed as the port.
    """
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        number = int(value)
    if number is None or not least <= number <= MAX_PORT:
        raise ValueError(_NO_PORT.format(least))
    return number


def check_http_address(address: str, *, has_query: bool = True) -> str:
    """Return the address of an HTTP server if it is valid; `has_query` allows a query.

    Raises ValueError, whose message does not quote the address.
    """
    if not has_query and ("?" in address or "#" in address):
        raise ValueError("the address must not contain '?' or '#': paths are added at its end")
    _check(address, HTTP)
    return address


def check_proxy_address(address: str) -> str:
    """Return the address of a proxy, with or without a scheme, if it is valid.

    Raises ValueError, whose message does not quote the address.
    """
    _check(address if "://" in address else f"http://{address}", PROXIES)
    return address


def check_redis_address(address: str) -> str:
    """Return the address of a Redis server if it is valid.

    Raises ValueError, whose message does not quote the address.
    """
    scheme, _, rest = address.partition("://")
    if scheme.lower() == "unix":
        return address
    _check(address, REDIS, needs_host=False)
    # The Redis driver would use these parameters instead of the host and port before the slash.
    named = {name.lower() for name, _ in parse_qsl(rest.partition("?")[2], keep_blank_values=True)}
    if named & {"host", "port", "path"}:
        raise ValueError("the address must have host and port before the slash, not after '?'")
    return address


def host_in_address(host: str) -> str:
    """Return a host in the form that a URL needs: IPv6 in brackets. Raises ValueError."""
    if _UNSAFE.search(host) or set(host) & set("/?#@"):
        raise ValueError("must be only a host name or an IP address")
    if ":" not in host:
        return host
    _check_ipv6(host.strip("[]"))
    return f"[{host.strip('[]')}]"


def is_loopback(host: str) -> bool:
    """Return whether a browser would resolve a host name or address to this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check(address: str, schemes: Collection[str], *, needs_host: bool = True) -> None:
    scheme, separator, rest = address.partition("://")
    if not separator or scheme.lower() not in schemes:
        allowed = " or ".join(f"{name}://" for name in sorted(schemes))
        raise ValueError(f"the address must start with {allowed}")
    if _UNSAFE.search(address):
        raise ValueError("the address must not contain a space, a backslash or a control character")
    host_and_port = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if not host_and_port and not needs_host:
        return
    found = _HOST.fullmatch(host_and_port)
    if found is None:
        raise ValueError("the address has no host, or its IPv6 address is not in brackets")
    if found["host"].startswith("["):
        _check_ipv6(found["host"][1:-1])
    if found["port"]:
        read_port(found["port"], least=1)
    try:
        urlsplit(address)
    except ValueError:  # for example, a character that normalizes to '/', '@' or ':'
        raise ValueError("the address cannot be parsed; write its host in ASCII") from None


def _check_ipv6(text: str) -> None:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("the host contains ':' or brackets, but is not an IPv6 address") from None
