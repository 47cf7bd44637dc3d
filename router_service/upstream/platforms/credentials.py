"""Credentials that expire: fetched in a thread, and replaced before they expire."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from router_service.core.errors import CredentialsError
from router_service.upstream.redaction import MARK, Secrets, secrets_in

T = TypeVar("T")

MAX_EARLY_S = 600.0
"""How long before their end credentials are replaced, if they live long enough."""

EARLY_SHARE = 0.25
"""Share of the remaining life after which a replacement is fetched, if that is later. Libraries and
metadata services return the same token again until a few minutes before its end."""

CLOCK_SKEW_S = 5.0
"""Credentials count as expired this long before their end, because clocks differ and requests take
time to arrive."""

RETRY_S = 10.0
"""Least time between a failed fetch and the next one, while there are valid credentials, and
between a refusal by the upstream and the fetch that it causes."""

FAILURE_HOLD_S = 2.0
"""How long a failed fetch answers for all requests if there are no valid credentials."""

MAX_WAIT_S = 30.0
"""How long a request waits for the first credentials."""

_OPAQUE = re.compile(rb"[A-Za-z0-9_.+=-]{24,}")
"""What may be a token. It is one if it has digits and both cases, which names and ids rarely have
together: ids of requests have lower-case letters only."""

_log = logging.getLogger("switchcraft.credentials")

# The vendors' libraries log what token servers have answered, with the tokens that these quote. The
# gateway logs each failure itself.
for _name in ("azure", "botocore", "google", "msal"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class Credentials(Generic[T]):
    """Credentials for requests to a platform, valid until `expires_s` (Unix time)."""

    value: T
    secrets: tuple[str, ...]
    """The texts in `value` that must not reach clients or logs."""
    expires_s: float = math.inf
    renew_s: float = math.inf
    """When a replacement is fetched (Unix time). Credentials without an end may have one too,
    because a person or a program may replace them in a file."""


class CredentialSource(Generic[T]):
    """The credentials of one account; safe to share between threads and event loops.

    Requests wait only if there are no valid credentials. A failed renewal is logged and repeated,
    and until the old credentials expire, no request notices it.
    """

    def __init__(
        self,
        title: str,
        fetch: Callable[[], Credentials[T]],
        remedy: str,
        *,
        secrets: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Get credentials by `fetch`, which may block and raise anything.

        `title` names the platform, `remedy` says what an operator can do about a failure, and
        `secrets` are removed from what is logged.
        """
        self._title = title
        self._fetch = fetch
        self._remedy = remedy
        self._clock = clock
        self._configured = tuple(secrets)
        self._read: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._running: Future[Credentials[T]] | None = None
        self._current: Credentials[T] | None = None
        self._failure: CredentialsError | None = None
        self._failed_s = -math.inf
        self._fetched_s = -math.inf
        self.secrets: Secrets | None = secrets_in(self._configured)
        """The configured and the current secrets, which are removed from answers."""

    def current(self) -> Credentials[T] | None:
        """Return the credentials if they are valid; renew them in the background if it is time."""
        found, now_s = self._current, self._clock()
        if found is None or now_s >= found.expires_s - CLOCK_SKEW_S:
            return None
        if now_s >= found.renew_s and now_s >= self._failed_s + RETRY_S:
            self._replace(found)
        return found

    def note_secrets(self, *texts: str) -> None:
        """Note what a fetch has read from files and the environment.

        If the fetch fails, these texts are removed from its error: servers quote what they get.
        """
        self._read = texts

    async def wait(self) -> Credentials[T]:
        """Return valid credentials, fetched if necessary. Raises CredentialsError."""
        before, found = self._current, self.current()
        if found is not None:
            return found
        if self._failure is not None and self._clock() < self._failed_s + FAILURE_HOLD_S:
            raise self._failure
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                # Shielded, because other requests may wait for the same fetch.
                return await asyncio.shield(asyncio.wrap_future(self._replace(before)))
        except TimeoutError as exc:
            raise self._error(f"no answer within {MAX_WAIT_S:g} s") from exc

    def start(self) -> None:
        """Begin to fetch the first credentials, so that no request has to wait for them."""
        if self._current is None:
            self._replace(None)

    def refuse(self) -> None:
        """Renew the credentials in the background, because an upstream has refused them."""
        before = self._current
        if self._clock() >= max(self._fetched_s, self._failed_s) + RETRY_S:
            self._replace(before)

    def _replace(self, before: Credentials[T] | None) -> Future[Credentials[T]]:
        """Fetch credentials in a thread, unless others have replaced those `before` already."""
        with self._lock:
            if self._running is None and self._current is not None and self._current is not before:
                done: Future[Credentials[T]] = Future()
                done.set_result(self._current)
                return done
            if self._running is None:
                self._running = Future()
                thread = threading.Thread(
                    target=self._run, args=(self._running,), name="credentials", daemon=True
                )
                thread.start()
            return self._running

    def _run(self, future: Future[Credentials[T]]) -> None:
        try:
            found = self._fetch()
        except Exception as exc:  # noqa: BLE001 - whatever the vendors' libraries raise
            error = self._error(str(exc) or type(exc).__name__)
            error.__cause__ = exc
            with self._lock:
                self._failure, self._failed_s, self._running = error, self._clock(), None
            _log.warning("%s", error)
            future.set_exception(error)
            return
        now_s = self._clock()
        early_s = min(MAX_EARLY_S, EARLY_SHARE * max(0.0, found.expires_s - now_s))
        renew_s = min(found.renew_s, found.expires_s - early_s)
        found = Credentials(found.value, found.secrets, found.expires_s, renew_s)
        with self._lock:
            self._current, self._fetched_s, self._running = found, now_s, None
            self._failure = None
            self.secrets = secrets_in((*self._configured, *found.secrets))
        future.set_result(found)

    def _error(self, problem: str) -> CredentialsError:
        text = problem.encode(errors="replace")
        for secrets in (self.secrets, secrets_in(self._read)):
            if secrets is not None:
                text = secrets.redacted(text)
        # The vendors' libraries read files and ask services that the gateway does not know.
        text = _OPAQUE.sub(lambda found: MARK if _is_opaque(found[0]) else found[0], text)
        return CredentialsError(self._title, text.decode(errors="replace"), self._remedy)


def _is_opaque(word: bytes) -> bool:
    return not (word.islower() or word.isupper()) and any(byte in b"0123456789" for byte in word)


def secrets_of_environment(*names: str) -> tuple[str, ...]:
    """Return the values of environment variables, and the text of the files that `_FILE` names."""
    texts: list[str] = []
    for name in names:
        value = os.environ.get(name, "")
        if name.endswith("_FILE"):
            with suppress(OSError, UnicodeDecodeError):  # the vendor's library says what is wrong
                texts.append(Path(value).read_text(encoding="utf-8").strip())
        else:
            texts.append(value)
    return tuple(texts)
