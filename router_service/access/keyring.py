"""The keys of the configuration and of the database, found by the hashes of their secrets.

The address that a gateway may listen on depends on its keys.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from sqlalchemy import Connection, Row, or_, select

from router_service.access.key import NO_LIMITS, Budget, BudgetPeriod, Key, Limits, Permission, Team
from router_service.core.addresses import is_loopback
from router_service.core.errors import DatabaseError
from router_service.core.keys import digest_of, is_weak
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import keys, state, teams
from router_service.settings import ADMIN, METRICS, KeySettings, Settings

REFRESH_S = 0.25
"""Interval at which changes are looked for. A revocation must hold everywhere within a second."""

COMPARE_NAMES_S = 10.0
"""Interval at which names of the configuration are compared with those of the database."""

LOOPBACK = "127.0.0.1"

_log = logging.getLogger("switchcraft.access")

_CLIENT = frozenset({Permission.CALL})
_ADMIN = frozenset(Permission)


class KeyRing:
    """The keys of a configuration, and those of the database.

    Salt and key stretching, which passwords need, are not used: secrets are long and random, so
    that they cannot be guessed, and stretching would slow down every request. A key is looked up by
    the SHA-256 of its secret. The time of a look-up depends on the hash only, which tells a client
    nothing about the secrets of others.
    """

    def __init__(self, keys: Iterable[tuple[str, Key]], stored: StoredKeys | None = None) -> None:
        """Store keys with their secrets, each in plain text or as `sha256:HEX`.

        `stored` are the keys of the database; None if there is no database. Of two keys with the
        same secret, the last one counts, and those of the database come first. Raise ValueError as
        `digest_of` does.
        """
        self._keys = {digest_of(secret): key for secret, key in keys}
        self._clients = sum(key.permissions == _CLIENT for key in self._keys.values())
        self._stored = stored or StoredKeys()
        self._has_database = stored is not None
        self._shared_names: frozenset[str] = frozenset()

    @classmethod
    def from_settings(cls, settings: KeySettings, stored: StoredKeys | None = None) -> KeyRing:
        """Return the keys of a configuration."""
        keys = [
            (secret.get_secret_value(), Key(name, _CLIENT)) for name, secret in settings.api.items()
        ]
        if settings.metrics is not None:
            scraper = Key(METRICS, frozenset({Permission.METRICS}))
            keys.append((settings.metrics.get_secret_value(), scraper))
        if settings.admin is not None:  # the last one, so that it precedes an API key that is equal
            keys.append((settings.admin.get_secret_value(), Key(ADMIN, _ADMIN)))
        return cls(keys, stored)

    @property
    def is_open(self) -> bool:
        """True if there is no key at all; every client that can connect is then allowed."""
        return not self._keys and self._stored.is_empty and not self.may_be_incomplete

    @property
    def callers(self) -> int:
        """The number of keys of clients, with those that were revoked."""
        return self._clients + self._stored.count

    @property
    def may_be_incomplete(self) -> bool:
        """Whether the database could not be read yet, so that an unknown key may be valid."""
        return self._has_database and not self._stored.is_loaded

    def find(self, secret: bytes, permission: Permission) -> Key | None:
        """Return the key with this secret and permission."""
        digest = hashlib.sha256(secret).digest()
        key = self._keys.get(digest) or self._stored.find(digest)
        return key if key is not None and permission in key.permissions else None

    def warn_of_shared_names(self) -> None:
        """Log each name that both a key of the configuration and one of the database have."""
        shared = self._stored.having_key({key.name for key in self._keys.values() if key.name})
        for name in sorted(shared - self._shared_names):
            _log.warning(
                "two keys have the same name, so each reads the requests of the other, and usage "
                "counts them together: rename keys.api.%s, because a key of the database keeps its "
                "name: name=%r", name, name,
            )  # fmt: skip
        self._shared_names = shared


class StoredKeys:
    """The valid keys of the database, kept in memory and refreshed by the database's thread.

    100,000 keys take about 40 MB in each process.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Know no keys yet; `clock` returns Unix seconds."""
        self._clock = clock
        self._by_digest: dict[bytes, Key] = {}
        self._previous: dict[bytes, tuple[Key, float]] = {}
        """Keys by the hash of a secret that was rotated, with the time until which it is valid."""
        self._digests: dict[str, tuple[bytes, ...]] = {}
        """Hashes of a key's secrets by its name, also of those that are not valid any more."""
        self._teams: dict[str, Team] = {}
        self._has_had_keys = False
        self._revision = -1
        self._identity: int | None = None
        """Identity of the database that was read."""
        self._refreshing = threading.Lock()
        self.is_loaded = False
        """Whether the database has been read. Before, an unknown key may be a valid one."""

    @property
    def is_empty(self) -> bool:
        """Whether no key was ever seen, not even a revoked one.

        If the database is replaced by an empty one, the gateway must not open itself to everyone.
        """
        return not self._has_had_keys

    @property
    def count(self) -> int:
        """The number of keys in the database, with those that were revoked."""
        return len(self._digests)

    def having_key(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the names that a key of the database has, even a revoked one."""
        return frozenset(names) & self._digests.keys()

    def find(self, digest: bytes) -> Key | None:
        """Return the valid key whose secret has this SHA-256."""
        key = self._by_digest.get(digest)
        if key is None:
            previous = self._previous.get(digest)
            if previous is None or self._clock() >= previous[1]:
                return None
            key = previous[0]
        if key.expires_s is not None and self._clock() >= key.expires_s:
            return None
        return key

    def refresh(self, database: Database) -> None:
        """Read the keys and teams that have changed; raises DatabaseError.

        The database's thread calls this regularly, and a thread that has changed something does so
        at once.
        """
        with self._refreshing:
            known, self._revision = self._revision, -1  # if this fails, everything is read again
            with database.read() as connection:
                query = select(state.c.value).where(state.c.name == "revision")
                revision = connection.execute(query).scalar_one()
                identity = database.identity(connection)
                if revision == known and identity == self._identity:
                    self._revision = known
                    return
                # A backup has another identity or an older revision, or the database was away.
                is_restored = identity != self._identity or not 0 <= known <= revision
                if not is_restored:
                    self._revision = known
                changed = connection.execute(select(teams).where(teams.c.revision > self._revision))
                found = {row.name: Team(row.name, read_limits(row)) for row in changed}
                self._teams |= found
                is_changed = keys.c.revision > self._revision
                if self.is_loaded and found:  # the keys of a changed team refer to the old team
                    is_changed = or_(is_changed, keys.c.team.in_(found))
                rows = connection.execute(select(keys).where(is_changed)).all()
            for row in rows:
                self._take_key(row)
            if is_restored:
                for name in self._digests.keys() - {row.name for row in rows}:
                    for digest in self._digests.pop(name):
                        self._by_digest.pop(digest, None)
                        self._previous.pop(digest, None)
            self._revision, self._identity, self.is_loaded = revision, identity, True

    def _take_key(self, row: Row[Any]) -> None:
        """Replace what is known of a key.

        Requests look for keys meanwhile, so a secret that stays valid is found at every moment.
        """
        known = self._digests.get(row.name, ())
        current: dict[bytes, Key] = {}
        previous: dict[bytes, tuple[Key, float]] = {}
        digests = [bytes.fromhex(row.digest)]
        if row.previous_digest is not None:
            digests.append(bytes.fromhex(row.previous_digest))
        if row.revoked_s is None:
            key = Key(
                name=row.name,
                permissions=_ADMIN if row.is_admin else _CLIENT,
                team=self._teams.get(row.team) if row.team else None,
                limits=read_limits(row),
                models=None if row.models is None else frozenset(row.models),
                policies=None if row.policies is None else tuple(row.policies),
                expires_s=row.expires_s,
            )
            current[digests[0]] = key
            previous |= dict.fromkeys(digests[1:], (key, row.previous_until_s))
        self._digests[row.name] = tuple(digests)
        self._has_had_keys = True
        self._previous |= previous
        self._by_digest |= current
        for digest in known:
            if digest not in current:
                self._by_digest.pop(digest, None)
            if digest not in previous:
                self._previous.pop(digest, None)


def has_keys(connection: Connection) -> bool:
    """Return whether a database has any key, even a revoked one."""
    return connection.execute(select(keys.c.name).limit(1)).first() is not None


def read_limits(row: Row[Any]) -> Limits:
    """Return the limits in a row of `keys` or `teams`."""
    budget = None
    if row.budget_nusd is not None:
        budget = Budget(row.budget_nusd / NANO, BudgetPeriod(row.budget_period))
    limits = Limits(row.requests_per_minute, row.tokens_per_minute, row.parallel_requests, budget)
    return NO_LIMITS if limits == NO_LIMITS else limits


def permitted_listen_host(settings: Settings, *, has_stored_keys: bool = False) -> str:
    """Return the address that the gateway may listen on, and log a warning if it is unsafe.

    Without any key, in the configuration or in the database, this is a loopback address. Raises
    ConfigError if a key can be guessed and the gateway would be reachable from other machines.
    """
    host, keys = settings.server.host, settings.keys.by_path()
    if not keys and has_stored_keys:
        return host
    if not keys:
        _log.warning(
            "no key is configured: any client that can connect may use this gateway and read its "
            "metrics; run `switchcraft keys create NAME --admin`, or set keys.api or "
            "general_settings.master_key"
        )
        if is_loopback(host):
            return host
        _log.warning(
            "listening only on %s instead of %s; restart the gateway when there is a key",
            LOOPBACK, host,
        )  # fmt: skip
        return LOOPBACK
    if keys.keys() == {"keys.metrics"} and not has_stored_keys:
        _log.warning("keys.metrics is the only key, so no client can be served; set keys.api")
    for path, key in keys.items():
        if not is_weak(key):
            continue
        problem = (
            "the key is short or copied from an example, and can be guessed; create one with "
            "`switchcraft key`"
        )
        if not is_loopback(host):
            remedy = f"or set server.host or --host to {LOOPBACK}"
            raise settings.error(path, f"{problem}, {remedy}")
        _log.warning("%s: %s: %s", settings.source, path, problem)
    return host


def has_stored_keys(settings: Settings) -> bool:
    """Return whether the database has keys, without creating it; False if it cannot be read."""
    if settings.database.url is None:
        return False
    with closing(Database(settings.database.url.get_secret_value())) as database:
        try:
            if database.examine() is None:
                return False
            with database.read() as connection:
                return has_keys(connection)
        except DatabaseError:
            return False
