"""The last decisions of this process, for people who watch."""

from __future__ import annotations

import secrets
from collections import deque

from router_service.core.decision_log import DecisionRecord

MAX_RECENT = 200
"""About 2 KB each."""


class Recent:
    """Keeps the newest decisions; on the event loop."""

    def __init__(self, max_records: int = MAX_RECENT) -> None:
        """Keep none yet."""
        self._records: deque[DecisionRecord] = deque(maxlen=max_records)
        self._process = secrets.token_hex(4)
        self._added = 0

    @property
    def version(self) -> str:
        """Another text after each decision, and in each process."""
        return f"{self._process}-{self._added}"

    def add(self, record: DecisionRecord) -> None:
        """Keep a decision, and let go of the oldest."""
        self._records.append(record)
        self._added += 1

    def newest_first(self) -> tuple[DecisionRecord, ...]:
        """Return what is kept."""
        return tuple(reversed(self._records))

    def get(self, decision_id: str) -> DecisionRecord | None:
        """Return one decision, or None where it is not among them any more."""
        return next((record for record in self._records if record.id == decision_id), None)
