"""What the sandbox has seen, for tests to count."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import dataclass, field

from router_service.core.messages import Json


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A chat request as it arrived: its headers in their order, and its body's very bytes."""

    headers: tuple[tuple[str, str], ...]
    body: bytes

    def to_json(self) -> dict[str, Json]:
        """Return it as `GET /sandbox/requests` shows it."""
        return {
            "headers": [list(header) for header in self.headers],
            "body_base64": base64.b64encode(self.body).decode(),
        }


@dataclass(slots=True)
class Seen:
    """Counts of chat requests; each ends as one of the last four, or is still in flight."""

    requests: int = 0
    by_model: Counter[str] = field(default_factory=Counter)
    completed: int = 0
    """Answered to the end, faultily or not, unless counted below."""
    cancelled: int = 0
    """The client went away before the end."""
    failed: int = 0
    """Answered with an error status, asked for or not."""
    cut: int = 0
    """Broken off, as asked for."""

    def to_json(self) -> dict[str, Json]:
        """Return it as `GET /sandbox/stats` shows it."""
        ended = self.completed + self.cancelled + self.failed + self.cut
        return {
            "requests": self.requests,
            "by_model": dict(self.by_model),
            "completed": self.completed,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "cut": self.cut,
            "in_flight": self.requests - ended,
        }
