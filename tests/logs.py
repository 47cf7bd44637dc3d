"""Gateways with a decision log, and readers of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from router_service.core.decision_record import (
    Line,
    LoggedDecision,
    LoggedEvidence,
    LoggedFeedback,
    read_line,
)
from router_service.settings import DecisionLogSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client
from tests.serving import ONE_TRY, wait_for


@dataclass(frozen=True)
class LoggingGateway:
    """A gateway whose decisions are logged in a folder."""

    http: httpx.Client
    folder: Path

    def ask(self, faults: str = "", **fields: object) -> httpx.Response:
        """Send a chat request; fields replace those of the default body."""
        headers = {"x-sandbox": faults} if faults else {}
        return self.http.post(CHAT, json=BODY | fields, headers=headers)

    def text(self) -> str:
        """Return the whole text of the log."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.jsonl")))

    def lines(self) -> list[Line]:
        """Return the log's complete lines, which are all valid; the last one may be incomplete."""
        complete, _, _ = self.text().rpartition("\n")
        return [read_line.validate_json(line) for line in complete.splitlines()]

    def decisions(self, least: int) -> list[LoggedDecision]:
        """Return the decisions once this many are written."""
        wait_for(lambda: len(self._of(LoggedDecision)) >= least, f"{least} decisions are logged")
        return self._of(LoggedDecision)

    def feedback(self, least: int) -> list[LoggedFeedback]:
        """Return the feedback once this many lines are written."""
        wait_for(lambda: len(self._of(LoggedFeedback)) >= least, f"{least} feedbacks are logged")
        return self._of(LoggedFeedback)

    def evidence(self, least: int) -> list[LoggedEvidence]:
        """Return the evidence once this many lines are written."""
        wait_for(lambda: len(self._of(LoggedEvidence)) >= least, f"{least} evidences are logged")
        return self._of(LoggedEvidence)

    def metric(self, series: str, headers: Mapping[str, str] | None = None) -> float:
        """Return a series' value by its name and labels as exposed, or 0 if it does not exist."""
        for line in self.http.get("/metrics", headers=headers).text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == f"switchcraft_{series}":
                return float(value)
        return 0.0

    def _of(self, kind: type[Any]) -> list[Any]:
        return [line for line in self.lines() if isinstance(line, kind)]


@contextmanager
def logging_gateway(
    upstream_url: str,
    folder: Path,
    router: FakeRouter | None = None,
    changes: Mapping[str, object] | None = None,
    **log: object,
) -> Iterator[LoggingGateway]:
    """Serve a gateway with these settings of its log; `changes` apply to all settings."""
    router = router or FakeRouter()
    base = Settings.sandbox(upstream_url, list(router.probabilities), upstreams=ONE_TRY)
    kept = DecisionLogSettings.model_validate({"path": folder, **log})
    settings = base.model_copy(update={"decision_log": kept, **(changes or {})})
    with gateway_client(settings, router) as http:
        yield LoggingGateway(http, folder)
