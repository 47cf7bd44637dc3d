"""Every Prometheus series of the gateway, defined once.

Label values come from the configuration and the artifact, never from a client.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

NO_MODEL = "none"
"""The `model` of requests that were refused before one was chosen."""

# From a warm decision for a short request on one core, to one that waits in a long queue.
_DECISION_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
# From the sandbox's milliseconds to a long reasoning answer.
_UPSTREAM_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)


class Metrics:
    """The series, in a registry of their own: two gateways in a process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._define_requests()
        self._define_timings()
        self._define_usage()
        self._define_troubles()
        self._define_refusals()
        self._define_releases()

    def _define_requests(self) -> None:
        self.requests = Counter(
            "switchcraft_requests",
            "Chat requests that have ended, by the model asked, the kind of policy that chose it "
            "(theta, drift or none), and the HTTP status that the client got; 499 for a client "
            "that left.",
            ["model", "policy", "status"],
            registry=self.registry,
        )
        self.decisions = Counter(
            "switchcraft_decisions",
            "Decisions of the router, by the arm chosen and the reason.",
            ["arm", "reason"],
            registry=self.registry,
        )
        self.build_info = self._gauge(
            "build_info", "1, with the version that is running.", "version"
        )
        self.artifact_info = self._gauge(
            "artifact_info", "1, with the artifact that decides.", "name", "encoder", "commit"
        )

    def _define_timings(self) -> None:
        self.decision_seconds = Histogram(
            "switchcraft_decision_seconds",
            "From a read request body to its decision: waiting for a thread, parsing, deciding.",
            buckets=_DECISION_BUCKETS_S,
            registry=self.registry,
        )
        self.upstream_seconds = Histogram(
            "switchcraft_upstream_seconds",
            "From the request to the upstream until the end of its answer.",
            ["model"],
            buckets=_UPSTREAM_BUCKETS_S,
            registry=self.registry,
        )
        self.time_to_first_byte = Histogram(
            "switchcraft_time_to_first_byte_seconds",
            "From the request to the upstream until the first byte of its answer's body.",
            ["model"],
            buckets=_UPSTREAM_BUCKETS_S,
            registry=self.registry,
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
            "error_body, malformed, unfit, busy. A request may have several.",
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
        self.requests_in_flight = Gauge(
            "switchcraft_requests_in_flight",
            "Requests that were let in and are not answered to their end.",
            registry=self.registry,
        )

    def _define_releases(self) -> None:
        self.shared_state_up = self._gauge(
            "shared_state_up",
            "1 while the state that replicas share can be read, 0 while it is away and each goes "
            "by its own; always 1 without Redis.",
        )
        self.publication_serial = self._gauge(
            "publication_serial", "The publication that is served; 0 without one."
        )
        self.reloads = self._counter(
            "reloads",
            "Takings-up of a changed configuration or publication, by kind (config, artifact) "
            "and outcome (taken, refused).",
            "kind",
            "outcome",
        )
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

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"switchcraft_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"switchcraft_{name}", text, labels, registry=self.registry)
