"""Stores in the memory of one process, and the pointer of a publication directory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic

from pydantic_core import to_json

from router_service.core.errors import StoreError
from router_service.core.releases import MAX_POINTER_BYTES, POINTER_FILE
from router_service.store.base import CoolDown, R, Snapshot


class MemoryStore(Generic[R]):
    """Store for the last `max_records` records, which expire after `ttl_s` seconds.

    Records are kept as JSON, as in Redis: a routed decision takes 1.2 KB as JSON and 5.1 KB as an
    object. Writing one takes 0.01 ms.
    """

    def __init__(self, *, ttl_s: float, max_records: int, clock: Callable[[], float]) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._ttl_s = ttl_s
        self._max_records = max_records
        self._clock = clock
        self._records: OrderedDict[str, tuple[float, type[R], bytes]] = OrderedDict()

    async def put(self, record: R) -> None:
        """Keep a record. The oldest records are dropped if there are too many."""
        self.keep(record)

    async def add(self, record: R) -> bool:
        """Keep a record if its id is new, and return whether it was."""
        is_new = self.find(record.id) is None
        if is_new:
            self.keep(record)
        return is_new

    async def get(self, record_id: str) -> R | None:
        """Return a record that has not expired."""
        return self.find(record_id)

    def keep(self, record: R) -> None:
        """Keep a record, as `put` does."""
        self._records[record.id] = (self._clock() + self._ttl_s, type(record), to_json(record))
        self._records.move_to_end(record.id)
        while len(self._records) > self._max_records:
            self._records.popitem(last=False)

    def find(self, record_id: str) -> R | None:
        """Return a record that has not expired. This may be called from any thread."""
        kept = self._records.get(record_id)
        if kept is None:
            return None
        expires, kind, record = kept
        if self._clock() >= expires:
            self._records.pop(record_id, None)
            return None
        return kind.model_validate_json(record)

    async def aclose(self) -> None:
        """Drop all records."""
        self._records.clear()


class MemorySharedState:
    """Shared state of a gateway with one replica. It never contains a publication."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start empty. `clock` returns seconds and never goes back."""
        self._clock = clock
        self._ends_s: dict[str, float] = {}
        self._rejections: dict[str, str] = {}

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the cool-downs of these deployments."""
        now_s = self._clock()
        self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > now_s}
        found = {name: self._ends_s[name] for name in deployment_ids if name in self._ends_s}
        return Snapshot({name: CoolDown(end_s, end_s - now_s) for name, end_s in found.items()})

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether this process has rejected a release."""
        return release_key in self._rejections

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down, or extend one that ends earlier."""
        end_s = self._clock() + duration_s
        self._ends_s[deployment_id] = max(end_s, self._ends_s.get(deployment_id, end_s))

    async def reject(self, release_key: str, reason: str) -> None:
        """Record a rejection."""
        self._rejections[release_key] = reason

    async def aclose(self) -> None:
        """Do nothing, because there is no connection."""


def read_pointer(directory: Path) -> bytes | None:
    """Return the pointer's text, or None if nothing is published. Raise StoreError.

    A longer text than allowed is cut one byte after the limit, so that parsing it fails.
    """
    try:
        with (directory / POINTER_FILE).open("rb") as file:
            return file.read(MAX_POINTER_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError("read the publication", f"{directory}: {exc.strerror}") from exc
