"""Every Prometheus series of the gateway, defined once.

Label values come from the configuration and the artifact, never from a client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeVar, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = CONTENT_TYPE_LATEST

SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names where the workers of one gateway keep their values: by it the library
decides, when it is imported, how values are kept (README of prometheus_client: "Multiprocess
Mode")."""

NO_MODEL = "none"
"""The `model` of requests that were refused before one was chosen."""

# From a stage that only looks something up, to a request that waits in a long queue.
_STAGE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
# From the sandbox's milliseconds to a long reasoning answer.
_UPSTREAM_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_PROBABILITY_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_REGRET_BUCKETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_TOKEN_BUCKETS = (32, 64, 128, 192, 256, 320, 384, 448, 512)
_BYTE_BUCKETS = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)


M = TypeVar("M", Counter, Histogram)

Together = Literal["sum", "min", "max"]
"""How the gauges of several workers are shown as one; those that have ended take no part."""

_MODES: Mapping[Together, Literal["livesum", "livemin", "livemax"]] = {
    "sum": "livesum",
    "min": "livemin",
    "max": "livemax",
}

_STATUSES = frozenset({*HTTPStatus, 499, 529})
"""Those that are registered, nginx' and ours for a client that left, Anthropic's "overloaded"."""

# Workers' files have no such series, and one worker is to show what several do.
disable_created_metrics()  # type: ignore[no-untyped-call] # the library's own lack


@dataclass(frozen=True, slots=True)
class Series:
    """What is known of a series before it has a value; `name` is that of its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str
    together: Together | None = None
    """Of gauges alone."""


class Metrics:
    """The series, in a registry of their own: two gateways in a process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series: list[Series] = []
        self._children: dict[tuple[object, ...], Counter | Histogram] = {}
        self._define_requests()
        self._define_router()
        self._define_timings()
        self._define_usage()
        self._define_troubles()
        self._define_refusals()
        self._define_reloads()
        self._define_releases()
        self._define_answers()
        self._define_feedback()
        self._define_log()

    def _define_requests(self) -> None:
        self.requests = self._counter(
            "requests",
            "Chat requests that have ended, by the model asked, the kind of policy that chose it "
            "(theta, drift or none), and the HTTP status that the client got; 499 for a client "
            "that left.",
            "model",
            "policy",
            "status",
        )
        self.decisions = self._counter(
            "decisions",
            "Decisions of the router, by the arm chosen and the reason.",
            "arm",
            "reason",
        )
        self.build_info = self._gauge(
            "build_info", "1, with the version that is running.", "version"
        )
        self.artifact_info = self._gauge(
            "artifact_info",
            "1, with the artifact that decides; 0, with one that has decided before it.",
            "name",
            "encoder",
            "commit",
        )

    def _define_router(self) -> None:
        self.chosen_probability = self._histogram(
            "chosen_probability",
            "Probability of a correct answer that the router gave to the arm that it chose.",
            _PROBABILITY_BUCKETS,
            "arm",
        )
        self.expected_regret = self._histogram(
            "expected_regret",
            "Probability of a correct answer that a decision gave up to save cost: the most "
            "probable arm's less the chosen one's.",
            _REGRET_BUCKETS,
        )
        self.packed_tokens = self._histogram(
            "packed_tokens", "Tokens of the encoder's input.", _TOKEN_BUCKETS
        )
        self.request_bytes = self._histogram(
            "request_bytes", "Size of routed requests' bodies.", _BYTE_BUCKETS
        )
        self.cache_lookups = self._counter(
            "cache_lookups",
            "Lookups by cache (predictions: what the model said of the same conversation;"
            " signatures, turns: tokenized tool signatures and turns) and outcome (hit, miss).",
            "cache",
            "outcome",
        )

    def _define_timings(self) -> None:
        self.stage_seconds = self._histogram(
            "stage_seconds",
            "Time that a request spent in a stage of the gateway's own: body (until it was "
            "read), queue (waiting for a thread), parse, pack, classify, select.",
            _STAGE_BUCKETS_S,
            "stage",
        )
        self.latency_budget_seconds = self._gauge(
            "latency_budget_seconds", "How long a decision may take, as configured."
        )
        self.decisions_over_budget = self._counter(
            "decisions_over_budget",
            "Decisions that took longer than the latency budget, of those in decision_seconds.",
        )
        self.decisions_queued = self._gauge(
            "decisions_queued",
            "Requests that wait for a thread to decide.",
            together="sum",
        )
        self.decision_seconds = self._histogram(
            "decision_seconds",
            "From a read request body to its decision: waiting for a thread, parsing, deciding.",
            _STAGE_BUCKETS_S,
        )
        self.upstream_seconds = self._histogram(
            "upstream_seconds",
            "From the request to the upstream until the end of its answer.",
            _UPSTREAM_BUCKETS_S,
            "model",
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the request to the upstream until a streamed answer's first output.",
            _UPSTREAM_BUCKETS_S,
            "model",
        )

    def _define_usage(self) -> None:
        self.tokens = self._counter(
            "tokens",
            "Tokens by kind: prompt, of which cached, and completion, of which reasoning; and by "
            "who counted them: upstream, or gateway where an answer broke off or has no usage.",
            "model",
            "kind",
            "source",
        )
        self.cost_usd = self._counter(
            "cost_usd",
            "Tokens at list price, where both are known, by who counted the tokens.",
            "model",
            "source",
        )
        self.routed_cost_usd = self._counter(
            "routed_cost_usd",
            "Cost of routed requests that could be priced for the baseline model too.",
            "model",
        )
        self.baseline_cost_usd = self._counter(
            "baseline_cost_usd",
            "What the same requests would have cost at the baseline model's price for the same "
            "tokens, by the model that answered; less routed_cost_usd it is what was saved.",
            "model",
        )
        self.unpriced = self._counter(
            "unpriced_answers",
            "Good answers whose cost is unknown, by what is missing: usage, price.",
            "model",
            "missing",
        )

    def _define_troubles(self) -> None:
        self.client_disconnects = self._counter(
            "client_disconnects", "Clients that left before their answer was complete."
        )
        self.broken_streams = self._counter(
            "broken_streams", "Streams that broke after their first byte was passed on.", "model"
        )
        self.attempts = self._counter(
            "upstream_attempts",
            "Tries of a deployment by outcome: answered, unreachable, timeout, broken, status, "
            "error_body, malformed, refused, unfit, busy. A request may have several.",
            "model",
            "deployment",
            "outcome",
        )
        self.fallbacks = self._counter(
            "fallbacks",
            "Requests that ended at another model, by the model chosen and that one.",
            "chosen",
            "model",
        )
        self.router_failures = self._counter(
            "router_failures",
            "Requests that a release could not decide, by release; they were answered anyway.",
            "release",
        )
        self.breaker_openings = self._counter(
            "breaker_openings", "Times that a deployment was left alone.", "deployment"
        )
        self.deployments_available = self._gauge(
            "deployments_available",
            "Deployments that may be asked: those that are not left alone.",
            together="min",
        )
        self.breaker_open = self._gauge(
            "breaker_open", "1 while a deployment is left alone.", "deployment"
        )
        self.store_errors = self._counter(
            "store_errors", "Operations that the store lost, by operation.", "operation"
        )

    def _define_refusals(self) -> None:
        self.refused_callers = self._counter(
            "refused_callers",
            "Requests refused for who sent them, by OpenAI's error code.",
            "code",
        )
        self.shed_requests = self._counter(
            "shed_requests",
            "Requests refused because the gateway does enough already, or is about to end, by "
            "reason: overloaded, decisions_queued, too_many_requests, shutting_down.",
            "reason",
        )
        self.requests_in_flight = self._gauge(
            "requests_in_flight",
            "Requests that were let in and are not answered to their end.",
            together="sum",
        )
        self.tasks = self._gauge(
            "tasks",
            "asyncio tasks that are alive. They follow the requests in flight: a number that grows "
            "without them is a leak.",
            together="sum",
        )

    def _define_reloads(self) -> None:
        self.shared_state_up = self._gauge(
            "shared_state_up",
            "1 while the state that replicas share can be read, 0 while it is away and each goes "
            "by its own; always 1 without Redis.",
            together="min",
        )
        self.publication_serial = self._gauge(
            "publication_serial",
            "The publication that is served, by all workers; 0 without one.",
            together="min",
        )
        self.reloads = self._counter(
            "reloads",
            "Takings-up of a changed configuration or publication, by kind (config, artifact) "
            "and outcome (taken, refused).",
            "kind",
            "outcome",
        )
        self.last_reload_successful = self._gauge(
            "last_reload_successful",
            "1 where the last taking-up of this kind (config, artifact) succeeded, 0 where it was "
            "refused; starting counts as one.",
            "kind",
            together="min",
        )
        self.last_reload_timestamp_seconds = self._gauge(
            "last_reload_timestamp_seconds", "When that was, in Unix seconds.", "kind"
        )

    def _define_releases(self) -> None:
        self.release_requests = self._counter(
            "release_requests", "Routed requests that have ended, by release.", "release"
        )
        self.release_failures = self._counter(
            "release_failures",
            "Routed requests that failed by the upstream's or the gateway's fault, by release.",
            "release",
        )
        self.release_cost_usd = self._counter(
            "release_cost_usd", "Cost of routed requests where it is known, by release.", "release"
        )
        self.canary_withdrawals = self._counter(
            "canary_withdrawals",
            "Canaries that this gateway withdrew, by the bound that they exceeded.",
            "bound",
        )
        self.shadow_decisions = self._counter(
            "shadow_decisions",
            "Decisions of the shadow release, by whether it agrees on the model: yes, no, failed, "
            "or dropped where too many were waiting.",
            "agrees",
        )

    def _define_answers(self) -> None:
        self.tool_calls = self._counter(
            "tool_calls",
            "Tool calls in answers, by model and whether they fit their tool's schema: yes, no "
            "(arguments that break it, or are no JSON), unknown_tool, unchecked.",
            "model",
            "fits",
        )
        self.weak_evidence = self._counter(
            "weak_evidence",
            "Calls that the conversation's next turn spoke against, by arm and kind: tool_error, "
            "repeated_call. They may have been right all the same.",
            "arm",
            "kind",
        )

    def _define_feedback(self) -> None:
        self.feedback = self._counter(
            "feedback",
            "Decisions that clients gave feedback on, by arm and verdict: correct, wrong, or "
            "expected where the calls that were expected are judged later.",
            "arm",
            "verdict",
        )
        self.calibration_decisions = self._counter(
            "calibration_decisions",
            "Decisions with a verdict, by the tenth that the chosen arm's probability is in: 0.0 "
            "to 0.9.",
            "bin",
        )
        self.calibration_predicted = self._counter(
            "calibration_predicted", "The same, their probabilities added up.", "bin"
        )
        self.calibration_correct = self._counter(
            "calibration_correct", "The same, those that were correct.", "bin"
        )

    def _define_log(self) -> None:
        self.log_lines = self._counter(
            "decision_log_lines", "Lines written to the decision log, by type.", "type"
        )
        self.log_dropped = self._counter(
            "decision_log_dropped",
            "Lines that the decision log lost, by reason: full (too many waited), failed (they "
            "could not be written).",
            "reason",
        )
        self.log_queued = self._gauge(
            "decision_log_queued",
            "Lines that wait to be written to the decision log.",
            together="sum",
        )
        self.log_up = self._gauge(
            "decision_log_up",
            "1 while the decision log can be written; 1 without one.",
            together="min",
        )
        self.spans_dropped = self._counter(
            "spans_dropped", "Spans that the trace collector did not get."
        )

    @property
    def series(self) -> tuple[Series, ...]:
        """Every series, in the order in which they are defined."""
        return tuple(self._series)

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format (`CONTENT_TYPE`), of all workers as one."""
        if SHARED_DIRECTORY not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # the library's own lack
        return generate_latest(registry)

    def child(self, series: M, *labels: str) -> M:
        """Return what `series.labels` does, looked up once: that took 2 us, ten times a request."""
        key = (series, *labels)
        known = self._children.get(key)
        if known is None:
            known = self._children[key] = series.labels(*labels)
        return cast("M", known)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._series.append(Series(f"switchcraft_{name}_total", "counter", labels, text))
        return Counter(f"switchcraft_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        name = f"switchcraft_{name}"
        self._series.append(Series(name, "histogram", labels, text))
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str, together: Together = "max") -> Gauge:
        """Define a gauge, which is to be set: a function or a removal would stay in one worker."""
        name = f"switchcraft_{name}"
        self._series.append(Series(name, "gauge", labels, text, together))
        mode = _MODES[together]
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)


def status_label(status: int) -> str:
    """Return a status as a label: what upstreams make up shares one label a class."""
    return str(int(status)) if status in _STATUSES else f"{status // 100}xx"
