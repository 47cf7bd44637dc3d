"""What the sandbox has seen, for tests to count."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from router_service.core.messages import Json


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request as it arrived: path, headers in their order, and the body's very bytes."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def to_json(self) -> dict[str, Json]:
        """Return it as `GET /sandbox/requests` shows it."""
        return {
            "path": self.path,
            "headers": [list(header) for header in self.headers],
            "body_base64": base64.b64encode(self.body).decode(),
        }


class Ending(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    """Answered to the end, faultily or not, unless it is one of the others."""
    CANCELLED = "cancelled"
    """The client went away before the end."""
    FAILED = "failed"
    """Answered with an error, asked for or not: as a status, in the body, or as a last event."""
    CUT = "cut"
    """Broken off, as asked for."""


@dataclass(slots=True)
class Counts:
    """How many requests there were, and how they ended; those that did not are in flight."""

    requests: int = 0
    endings: Counter[Ending] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Json]:
        """Return each count by its name."""
        ended = {ending.value: self.endings[ending] for ending in Ending}
        in_flight = self.requests - self.endings.total()
        return {"requests": self.requests, **ended, "in_flight": in_flight}


@dataclass(slots=True)
class Seen:
    """Counts of inference requests: of all, and of those whose model could be read, by model."""

    total: Counts = field(default_factory=Counts)
    by_model: defaultdict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))

    def to_json(self) -> dict[str, Json]:
        """Return it as `GET /sandbox/stats` shows it."""
        by_model = {model: counts.to_json() for model, counts in self.by_model.items()}
        return {**self.total.to_json(), "by_model": by_model}
