"""Redaction of a deployment's credentials in its upstream's answers.

An upstream knows the key that it was sent. Error messages, debug pages and proxies repeat request
headers. Without redaction the key would then reach clients, logs, traces and decision records.

Three secrets are removed: the key, the password of a `base_url`, and the `Basic` credentials made
of the password. Prefixes of 12 characters or more are removed too, because providers repeat them.
Secrets are found in plain text, with the escapes of JSON, HTML or URLs, and inside base64. An
upstream that hides the key on purpose cannot be stopped, because it can encode the key in any way.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from urllib.parse import quote

import httpx
from pydantic import SecretStr

MARK = b"[redacted]"
"""Replacement for a secret. It is valid within a JSON string, a header and a URL."""

PREFIX_CHARACTERS = 12
"""Length of a secret's prefix that is removed even if the rest does not follow."""

MIN_CHARACTERS = 8
"""Shorter secrets are not searched for, because they would also be found in ordinary text."""

_PLACEHOLDER = re.compile(r"(?=.{0,11}\Z)[a-z]+(?:[ ._-][a-z]+)*")
"""Placeholders such as `lm-studio` and `not-needed`, which are configured as keys for servers that
check no key. Texts of 12 characters or more count as secrets instead."""

_PUBLIC = re.compile(r"sk-ant-[a-z]+\d\d-|eyJ[\w-]*\.eyJ")
"""The beginning of every Anthropic key and of every JWT. It is not secret, and documentation
contains it."""
_SECRET_CHARACTERS = 4
"""How many characters after a public beginning belong to the prefix that is searched for. The first
12 characters of a `sk-proj-` key contain 4 secret characters too."""


def _escape_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _escape_by_number(text: str) -> str:
    """Escape HTML's special characters by their code points, as .NET and Go do in JSON."""
    return re.sub(r"[+<>&'\"`]", lambda found: f"\\u{ord(found[0]):04X}", text)


def _lower_hex(text: str) -> str:
    return re.sub(r"\\u[0-9A-F]{4}|%[0-9A-F]{2}", lambda found: found[0].lower(), text)


_SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    _escape_json,
    lambda text: _escape_json(text).replace("/", "\\/"),  # PHP
    _escape_by_number,
    lambda text: _lower_hex(_escape_by_number(text)),
    lambda text: quote(text, safe=""),
    lambda text: _lower_hex(quote(text, safe="")),
    html.escape,
    lambda text: text.translate(str.maketrans("+/", "-_")),  # URL-safe base64
)
"""Ways to write a text, character by character. Most keys look the same in all of them."""


class Secrets:
    """The credentials of one deployment, in every form that is searched for."""

    def __init__(self, forms: Iterable[tuple[bytes, bytes]]) -> None:
        """Search for `forms`, which are pairs of an identifying prefix and the whole secret."""
        self._forms = tuple(dict.fromkeys(forms))
        self._prefixes = tuple(dict.fromkeys(prefix for prefix, _ in self._forms))
        self._pattern = re.compile(b"|".join(map(re.escape, self._prefixes)))
        self._bytes = frozenset(b"".join(whole for _, whole in self._forms))

    def found_in(self, data: bytes) -> bool:
        """Return whether `data` contains a secret."""
        # A single regular expression for all prefixes takes 15 times as long for 16 KB.
        for prefix in self._prefixes:  # noqa: SIM110
            if prefix in data:
                return True
        return False

    def open_bytes(self, data: bytes) -> int:
        """Return how many bytes at the end may be the start of an incomplete secret."""
        if not data or data[-1] not in self._bytes:
            return 0
        longest = 0  # length of the longest suffix that is a proper prefix of a form
        for _, whole in self._forms:
            start = data.find(whole[:1], max(0, len(data) - len(whole) + 1))
            while start >= 0 and not whole.startswith(data[start:]):
                start = data.find(whole[:1], start + 1)
            if start >= 0:
                longest = max(longest, len(data) - start)
        return longest

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Return `data` without secrets, and separately its last bytes that may start a secret."""
        parts: list[bytes] = []
        position = 0
        while found := self._pattern.search(data, position):
            start = found.start()
            end = max(_match_end(form, data, start) for form in self._forms)
            parts.append(data[position:start])
            if end == len(data) == start + self.open_bytes(data[start:]):
                return b"".join(parts), data[start:]
            parts.append(MARK)
            position = end
        end = len(data) - self.open_bytes(data[position:])
        return b"".join((*parts, data[position:end])), data[end:]

    def redacted(self, data: bytes) -> bytes:
        """Return complete data without its secrets, or the same object if it has none."""
        if not self.found_in(data):
            return data
        clean, rest = self.split(data)
        return clean + (MARK if self.found_in(rest) else rest)


def _match_end(form: tuple[bytes, bytes], data: bytes, start: int) -> int:
    """Return where a secret ends that begins at `start`, or `start` if its prefix is not there.

    If the data differs from the secret or ends after the prefix, the end of the equal part counts.
    """
    prefix, whole = form
    if not data.startswith(prefix, start):
        return start
    least, most = len(prefix), len(whole)
    while least < most:
        middle = (least + most + 1) // 2
        if data.startswith(whole[:middle], start):
            least = middle
        else:
            most = middle - 1
    return start + least


class Redactor:
    """Filter that removes secrets from one body as its parts arrive.

    Bytes at the end of a part that may be the start of a secret wait for the next part. A part that
    has neither a secret nor such bytes is returned unchanged.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""
        self.has_found = False
        """Whether a secret has been removed."""

    def feed(self, part: bytes) -> bytes:
        """Return what can be forwarded now.

        Searching an event of 270 bytes takes 1.0 us, in addition to the 9 us for reading it.
        Searching 16 KB takes 16 us (`git show b14921b:benchmarks/redaction.py`).
        """
        data = self._held + part if self._held else part
        if self._secrets.found_in(data):
            clean, self._held = self._secrets.split(data)
            self.has_found = self.has_found or clean + self._held != data
            return clean
        open_bytes = self._secrets.open_bytes(data)
        if open_bytes == 0:
            self._held = b""
            return data
        self._held = data[-open_bytes:]
        return data[:-open_bytes]

    def end(self) -> bytes:
        """Return the bytes that still wait when the body ends, without secrets."""
        held, self._held = self._held, b""
        clean = self._secrets.redacted(held)
        self.has_found = self.has_found or clean is not held
        return clean


def secrets_of(base_url: str, api_key: SecretStr | None) -> Secrets | None:
    """Return the secrets in a deployment's address and key, or None if there are none."""
    texts: list[str] = []
    if api_key is not None:
        texts.append(api_key.get_secret_value().strip())
    try:
        url = httpx.URL(base_url)
        if url.userinfo:  # the password, and the header that is made of it (RFC 7617)
            texts.append(url.password or url.username)
            texts.append(b64encode(f"{url.username}:{url.password}".encode()).decode())
    except httpx.InvalidURL:
        pass  # no request is sent to an invalid address
    return secrets_in(texts)


def secrets_in(texts: Iterable[str]) -> Secrets | None:
    """Return the secrets to remove for these texts, or None without any text to search for.

    Placeholders and texts that are too short are not searched for.
    """
    forms: list[tuple[bytes, bytes]] = []
    for text in texts:
        if len(text) < MIN_CHARACTERS or _PLACEHOLDER.fullmatch(text):
            continue
        public = _PUBLIC.match(text)
        count = max(PREFIX_CHARACTERS, public.end() + _SECRET_CHARACTERS if public else 0)
        shifted = [
            (_within_base64(text[:count], shift), _within_base64(text, shift)) for shift in range(3)
        ]
        for prefix, whole in ((text[:count], text), *shifted):
            forms += [(spell(prefix).encode(), spell(whole).encode()) for spell in _SPELLINGS]
    return Secrets(forms) if forms else None


def _within_base64(text: str, shift: int) -> str:
    """Return a text in base64 as it appears after `shift` other bytes in the same group of three.

    Characters that also depend on bytes before or after the text are left out.
    """
    data = text.encode()
    encoded = b64encode(bytes(shift) + data)
    return encoded[-(-shift * 8 // 6) : (shift + len(data)) * 8 // 6].decode()
