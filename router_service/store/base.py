"""Interfaces of the stores, and the records and shared state that they keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

from router_service.core.decision_log import StoredRecord


class UpstreamObject(StoredRecord):
    """An object that an upstream stores: a response, or for example a file or a conversation.

    Its id is the one that clients use.
    """

    kind: ClassVar[str] = "response"

    model: str
    """The pool's model that created it."""
    deployment_id: str
    """The deployment that stores it."""
    owner: str | None = None
    """Name of the key that created it. None without keys, and in records of older versions."""


class FeedbackMark(StoredRecord):
    """A mark for a decision that has had feedback, so that metrics count it once."""

    kind: ClassVar[str] = "feedback"


class RememberedCall(StoredRecord):
    """A tool call of an answer, to be compared with the conversation's next turn.

    The id is a hash of the call's own id and of its owner.
    """

    kind: ClassVar[str] = "call"

    decision_id: str
    arm: str
    tool: str
    """The tool's name, or a hash of it if content is not kept."""
    arguments_sha256: str


class EvidenceMark(StoredRecord):
    """A mark for a call with evidence against it, so that it counts once."""

    kind: ClassVar[str] = "evidence"


R = TypeVar("R", bound=StoredRecord)


class RecordStore(Protocol[R]):
    """Store for records of one kind, which expire. Each operation raises StoreError."""

    async def put(self, record: R) -> None:
        """Keep a record under its id."""

    async def add(self, record: R) -> bool:
        """Keep a record if its id is new, and return whether it was."""

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None if it is unknown or has expired."""

    async def aclose(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down of a deployment that a replica has started."""

    end_s: float
    """When it ends, by the shared state's own clock. It identifies the cool-down."""
    left_s: float
    """Seconds until then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shared state at one moment, as far as a gateway has asked for it."""

    cool_downs: Mapping[str, CoolDown] = field(default_factory=dict)
    """Cool-downs that have not ended, by deployment."""
    publication: bytes | None = None
    """The pointer's text (see `core.releases`), cut one byte after `MAX_POINTER_BYTES`, or None if
    nothing is published."""


class SharedState(Protocol):
    """State that replicas share. Every operation raises StoreError if it is unreachable."""

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the pointer and the cool-downs of these deployments, in one round trip."""

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a replica has rejected a release."""

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down. Of two cool-downs, the one that ends later counts.

        It cannot be ended early, because no request is sent that could show a recovery.
        """

    async def reject(self, release_key: str, reason: str) -> None:
        """Record that no replica should try a release again."""

    async def aclose(self) -> None:
        """Close the connections."""
