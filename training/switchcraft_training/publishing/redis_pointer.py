"""The pointer to the releases in use, in a Redis key that gateways read.

Importing this module raises MissingExtraError if the extra `redis` is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from router_service.core.addresses import check_redis_address
from router_service.core.errors import MissingExtraError, PublicationError
from router_service.core.releases import POINTER_KEY, Publication

try:
    from redis import Redis
    from redis.exceptions import RedisError, WatchError
except ModuleNotFoundError as exc:
    raise MissingExtraError("publishing to Redis", "", "redis") from exc

TIMEOUT_S = 5.0


class RedisPointer:
    """Pointer in a Redis key."""

    is_beside_releases = False

    def __init__(self, url: str) -> None:
        """Connect on first use; raises PublicationError if the address is invalid."""
        # A password may contain any character that separates the parts of an address, so the
        # address is cut at the last "@".
        scheme, _, rest = url.partition("://")
        self.name = f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
        try:
            check_redis_address(url)
        except ValueError as exc:
            raise PublicationError(self.name, str(exc)) from None
        try:
            self._redis = Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
            )
        except ValueError:
            # Without `from exc`, because urllib's message quotes what it takes for the port.
            # That is the password if the password contains a slash.
            problem = "is not a valid Redis address; check the host and the port"
            raise PublicationError(self.name, problem) from None

    def read(self) -> Publication | None:
        """Return the publication in the key."""
        with self._raising_unavailable():
            return self._parse(self._redis.get(POINTER_KEY))

    def move(self, update: Callable[[Publication | None], Publication]) -> Publication:
        """Replace the key's value; call `update` again if another publisher was faster."""
        with self._raising_unavailable(), self._redis.pipeline() as pipeline:
            while True:
                pipeline.watch(POINTER_KEY)  # type: ignore[no-untyped-call]  # untyped in redis-py
                publication = update(self._parse(pipeline.get(POINTER_KEY)))
                pipeline.multi()
                pipeline.set(POINTER_KEY, publication.to_json())
                with suppress(WatchError):
                    pipeline.execute()
                    return publication

    def _parse(self, text: object) -> Publication | None:
        return Publication.parse(text, self.name) if isinstance(text, bytes) else None

    @contextmanager
    def _raising_unavailable(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as exc:
            problem = f"is not reachable ({type(exc).__name__}); check the address and the server"
            raise PublicationError(self.name, problem) from exc
