"""What is told of a request to those who trace it; what is here makes no spans.

The rooms that handle a request know these classes alone; `telemetry.tracing` makes spans of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

AttributeValue = str | int | float | bool


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """Who is called, for what."""

    base_url: str
    model: str
    """What the upstream calls the model."""
    method: str
    path: str
    """Below the upstream's base address."""


@dataclass(slots=True)
class UpstreamSpan:
    """One call of an upstream, while it goes on."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """What goes with it in place of the client's own trace; empty where that goes on."""
    status: int | None = None
    """What the upstream answered."""


@dataclass(frozen=True, slots=True)
class ResponseInfo:
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
    def decision_span(self) -> Iterator[None]:
        """Span the decision for as long as the block runs."""
        yield

    @contextmanager
    def upstream_span(self, call: UpstreamCall) -> Iterator[UpstreamSpan]:  # noqa: ARG002 - for those that trace
        """Span a call of an upstream for as long as the block runs."""
        yield UpstreamSpan()

    def record_stages(self, stages: Sequence[Stage]) -> None:
        """Span what the decision took its time for."""

    def record_response(self, response: ResponseInfo) -> None:
        """Complete the last call of an upstream."""

    def set_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> None:
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


Clock = Callable[[], float]
"""Returns seconds and never goes back."""


class StageName(StrEnum):
    """The gateway's own work on a request, in the order in which it is done."""

    BODY = "body"
    """Until the body was read."""
    PARSE = "parse"
    QUEUE = "queue"
    """Waiting for a thread; a large body waits before it is read."""
    PACK = "pack"
    CLASSIFY = "classify"
    SELECT = "select"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of one request; `started_s` is by the clock that timed it."""

    name: StageName
    started_s: float
    seconds: float


class Timer:
    """Times steps that follow each other: each begins where the last one ended."""

    def __init__(self, clock: Clock) -> None:
        """Begin the first step now."""
        self._clock = clock
        self._started_s = clock()
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps that have ended."""
        return tuple(self._stages)

    def end(self, name: StageName) -> None:
        """End the present step, and begin the next."""
        now_s = self._clock()
        self._stages.append(Stage(name, self._started_s, now_s - self._started_s))
        self._started_s = now_s
