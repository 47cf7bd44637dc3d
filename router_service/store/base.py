"""What a store of records can do, and what it holds: decisions, and who holds a response."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

from router_service.core.decision_log import StoredRecord


class UpstreamObject(StoredRecord):
    """A response that an upstream stores, or another object, such as a file or a conversation.

    Its id is the one that clients know.
    """

    kind: ClassVar[str] = "response"

    model: str
    """The pool's model that made it."""
    deployment_id: str
    """The deployment that holds it."""
    owner: str | None = None
    """Name of the key that created it; None without keys, and in records of older versions."""


class FeedbackMark(StoredRecord):
    """That a decision has had feedback, which metrics count once."""

    kind: ClassVar[str] = "feedback"


class RememberedCall(StoredRecord):
    """A tool call of an answer, for what the conversation's next turn says of it.

    The id is a hash of the call's own, and of whose it is.
    """

    kind: ClassVar[str] = "call"

    decision_id: str
    arm: str
    tool: str
    """The tool's name, or a hash of it where content is not kept."""
    arguments_sha256: str


class EvidenceMark(StoredRecord):
    """That something was said against a call, which counts once."""

    kind: ClassVar[str] = "evidence"


R = TypeVar("R", bound=StoredRecord)


class RecordStore(Protocol[R]):
    """Keeps records of one kind for a while; each operation raises StoreError."""

    async def put(self, record: R) -> None:
        """Keep a record under its id."""

    async def add(self, record: R) -> bool:
        """Keep a record where its id is not there; False where it is, whoever put it there."""

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None where it is unknown or has expired."""

    async def aclose(self) -> None:
        """Let go of connections."""


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down that some gateway has begun."""

    end_s: float
    """When it ends, by the shared state's own clock: tells one cool-down from the next."""
    left_s: float
    """Seconds until then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a gateway reads of the shared state at one moment: nothing that it has not asked for."""

    cool_downs: Mapping[str, CoolDown] = field(default_factory=dict)
    """By deployment; those that are over are not here."""
    publication: bytes | None = None
    """The pointer as it is kept (`core.releases`), cut after `MAX_POINTER_BYTES` and one more;
    None if nothing is published."""


class SharedState(Protocol):
    """State that replicas share; every operation raises StoreError where it is unreachable."""

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the pointer and the cool-downs of these deployments, in one round trip."""

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether some replica has rejected a release."""

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Let a deployment rest; of two durations the one that ends later counts.

        There is no other end to it: nobody asks the deployment before, so nobody knows better.
        """

    async def reject(self, release_key: str, reason: str) -> None:
        """Let no replica try a release again."""

    async def aclose(self) -> None:
        """Let go of connections."""
