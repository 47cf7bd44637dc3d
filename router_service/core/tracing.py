"""What is told of a request to those who trace it; what is here makes no spans.

The rooms that handle a request know these classes alone; `telemetry.tracing` makes spans of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from router_service.core.stages import Stage

Fact = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Callee:
    """Who is called, for what."""

    base_url: str
    model: str
    """What the upstream calls the model."""
    method: str
    path: str
    """Below the upstream's base address."""


@dataclass(slots=True)
class Outgoing:
    """One call of an upstream, while it goes on."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """What goes with it in place of the client's own trace; empty where that goes on."""
    status: int | None = None
    """What the upstream answered."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of an answer when it has ended; None where it is not."""

    response_id: str | None = None
    response_model: str | None = None
    """What the upstream says that it is."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    failure: str | None = None
    """How it failed after its start was good."""


class Trace:
    """One request's; this one is of a request that nobody traces."""

    trace_id: str | None = None
    """32 hexadecimal digits (W3C Trace Context)."""

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Span the decision for as long as the block runs."""
        yield

    @contextmanager
    def calling(self, callee: Callee) -> Iterator[Outgoing]:  # noqa: ARG002 - for those that trace
        """Span a call of an upstream for as long as the block runs."""
        yield Outgoing()

    def decided(self, stages: Sequence[Stage]) -> None:
        """Span what the decision took its time for."""

    def answered(self, told: Told) -> None:
        """Complete the last call of an upstream."""

    def note(self, facts: Mapping[str, Fact | None]) -> None:
        """Add facts of our own, by their names in the log line; None is left out."""

    def end(self, method: str, route: str | None, status: int) -> None:
        """Close the request and what belongs to it; `route` is a pattern, None where none fits."""


class Tracer:
    """Begins traces; this one begins none."""

    def begin(self, path: str, headers: Mapping[str, str]) -> Trace:  # noqa: ARG002
        """Begin a request's trace, or go on with the one that its headers tell of."""
        return UNTRACED

    async def aclose(self) -> None:
        """Send what waits, for a bounded time."""


UNTRACED = Trace()
"""Has no state, so that all requests may share it."""
