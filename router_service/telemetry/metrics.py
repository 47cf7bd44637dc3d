"""Every Prometheus series of the gateway, defined once.

Label values come from the configuration and the artifact, never from a client. Series exist with 0
before they count, because Prometheus misses the first increase of a series that is new. A
definition names them (`starts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from itertools import product
from typing import Any, Generic, Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from router_service.checker.tool_checks import CallValidity
from router_service.core.decision_record import Verdict
from router_service.core.reasons import ROUTER_REASONS
from router_service.core.releases import Track
from router_service.policies.registry import GOALS, POLICIES, choosing_reasons
from router_service.policies.verified import Verified

CONTENT_TYPE = CONTENT_TYPE_LATEST

NO_MODEL = "none"
"""Label `model` of requests that were refused before a model was chosen."""
NO_RELEASE = "none"
"""Label `release` of requests that were not routed."""

# From a cache lookup to a request that waits in a long queue.
_STAGE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
# From the sandbox's milliseconds to a long reasoning answer.
_UPSTREAM_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_PROBABILITY_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_TOKEN_BUCKETS = (32, 64, 128, 192, 256, 320, 384, 448, 512)
_BYTE_BUCKETS = (256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)

BINS = 10
"""Number of bins for the chosen arm's probability in calibration metrics."""


def probability_bin(probability: float) -> str:
    """Return the lower end of a probability's bin; 1 is in the last bin."""
    # Rounded first, because 0.7 as a 32-bit float is slightly less than 0.7.
    return f"{min(int(round(probability * BINS, 6)), BINS - 1) / BINS:.1f}"


# Values of labels.
_BINS = tuple(probability_bin(number / BINS) for number in range(BINS))
_RELOADED = ("config", "artifact")
_SOURCES = ("upstream", "gateway")
_RELEASES = (NO_RELEASE, *Track)

M = TypeVar("M", Counter, Gauge, Histogram)
C = TypeVar("C", Counter, Histogram)

_KNOWN_STATUSES = frozenset({*HTTPStatus, 499, 529})
"""Registered statuses, nginx's 499 for a client that left, and Anthropic's 529 ("overloaded")."""

# They would double the series of counters, and Prometheus does not need them.
disable_created_metrics()


class Known(Enum):
    """Sets of label values that are known once an engine serves."""

    ARMS = auto()
    """The arms that have a model."""
    MODELS = auto()
    """The names of the models."""
    PRICED_MODELS = auto()
    """The models that have a price. Without one there is no series of costs: 0 would be wrong."""
    COMPARED_MODELS = auto()
    """The models whose cost is compared with that of the baseline model: both have a price."""


@dataclass(frozen=True, slots=True)
class Start:
    """Series that exist before they count: one for each combination of these label values."""

    values: tuple[Known | tuple[str, ...], ...]
    """The values of each label, in the order of the labels."""
    if_verified: bool
    """Whether the series exist only if the artifact has a verifier."""

    @property
    def is_fixed(self) -> bool:
        """Whether the series do not depend on the engine."""
        return not self.if_verified and not any(isinstance(each, Known) for each in self.values)


def _each(*values: Known | Iterable[str], if_verified: bool = False) -> Start:
    return Start(tuple(v if isinstance(v, Known) else tuple(v) for v in values), if_verified)


@dataclass(frozen=True)
class Series(Generic[M]):
    """Definition of a metric of `Metrics`; each instance of `Metrics` creates its own metric."""

    name: str
    """The name of its samples."""
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    text: str
    create: Callable[[CollectorRegistry], M]
    starts: Sequence[Start] = ()
    first: float = 0.0
    """The value with which series of a gauge start."""

    def __get__(self, instance: Metrics | None, owner: type[Metrics]) -> M:
        raise AttributeError("Metrics has series only on instances; use Metrics() instead")


def _counter(
    name: str, text: str, labels: str = "", starts: Sequence[Start] = ()
) -> Series[Counter]:
    """Define a counter; the names of labels are separated by spaces."""
    name, names = f"switchcraft_{name}", tuple(labels.split())
    return Series(
        f"{name}_total",
        "counter",
        names,
        text,
        lambda registry: Counter(name, text, names, registry=registry),
        starts,
    )


def _histogram(
    name: str, text: str, buckets: Sequence[float], labels: str = "", starts: Sequence[Start] = ()
) -> Series[Histogram]:
    name, names = f"switchcraft_{name}", tuple(labels.split())
    return Series(
        name,
        "histogram",
        names,
        text,
        lambda registry: Histogram(name, text, names, buckets=buckets, registry=registry),
        starts,
    )


def _gauge(
    name: str,
    text: str,
    labels: str = "",
    starts: Sequence[Start] = (),
    first: float = 0.0,
) -> Series[Gauge]:
    name, names = f"switchcraft_{name}", tuple(labels.split())
    return Series(
        name,
        "gauge",
        names,
        text,
        lambda registry: Gauge(name, text, names, registry=registry),
        starts,
        first,
    )


class Metrics:
    """All series, in a registry of their own, so that gateways in one process share no values."""

    # Requests and decisions.
    requests = _counter(
        "requests",
        "Requests to models that have ended, by the model that was called, the policy (its "
        f"name, such as economy, or else the kind of its rule or goal: {', '.join(POLICIES)}, "
        f"{', '.join(GOALS)}; or none), the HTTP status (499 if the client left, `broken` if a "
        "stream broke after its first byte was sent to the client), and the release that routed "
        "the request (none if it was not routed).",
        "model policy status release",
    )
    request_seconds = _histogram(
        "request_seconds",
        "Time from the arrival of a request for which a model was chosen to the end of its answer, "
        "by release, as in requests.",
        _UPSTREAM_BUCKETS_S,
        "release",
        starts=[_each(_RELEASES)],
    )
    failed_requests = _counter(
        "failed_requests",
        "Routed requests that failed because of the upstream or the gateway, by release. Unlike "
        "the statuses in requests, this leaves out what a client's own deadline may have caused.",
        "release",
        starts=[_each(Track)],
    )
    decisions = _counter(
        "decisions",
        "Router decisions, by chosen arm and reason.",
        "arm reason",
        starts=[
            _each(Known.ARMS, (*choosing_reasons(), *ROUTER_REASONS)),
            _each(Known.ARMS, Verified.reasons, if_verified=True),
        ],
    )
    build_info = _gauge("build_info", "1, labelled with the running version.", "version")
    artifact_info = _gauge(
        "artifact_info",
        "1, labelled with the artifact that decides, and with the graph and the execution provider "
        "of ONNX Runtime that run it (CPUExecutionProvider or CUDAExecutionProvider).",
        "name encoder commit graph provider",
    )
    chosen_probability = _histogram(
        "chosen_probability",
        "Predicted probability that the chosen arm answers correctly.",
        _PROBABILITY_BUCKETS,
        "arm",
        starts=[_each(Known.ARMS)],
    )
    unfamiliar_requests = _counter(
        "unfamiliar_requests",
        "Routed requests that are unlike the training data, by the arm that answered and the "
        "release.",
        "arm release",
        starts=[_each(Known.ARMS, Track)],
    )
    packed_tokens = _histogram("packed_tokens", "Tokens in the encoder's input.", _TOKEN_BUCKETS)
    request_bytes = _histogram("request_bytes", "Body size of routed requests.", _BYTE_BUCKETS)
    # Timings.
    stage_seconds = _histogram(
        "stage_seconds",
        "Time that a request spent in each stage of the gateway: body (reading the body), queue "
        "(waiting for a thread), parse, pack, classify, select.",
        _STAGE_BUCKETS_S,
        "stage",
    )
    decisions_over_budget = _counter(
        "decisions_over_budget",
        "Decisions in decision_seconds that took longer than the latency budget.",
    )
    decision_seconds = _histogram(
        "decision_seconds",
        "Time from a complete request body to its decision: waiting for a thread, parsing, "
        "deciding.",
        _STAGE_BUCKETS_S,
    )
    upstream_seconds = _histogram(
        "upstream_seconds",
        "Time from sending a request to the upstream to the end of its answer.",
        _UPSTREAM_BUCKETS_S,
        "model",
        starts=[_each(Known.MODELS)],
    )
    time_to_first_token = _histogram(
        "time_to_first_token_seconds",
        "Time from sending a request to the upstream to the first output of a streamed answer.",
        _UPSTREAM_BUCKETS_S,
        "model",
        starts=[_each(Known.MODELS)],
    )
    # Usage and cost.
    tokens = _counter(
        "tokens",
        "Tokens by kind (prompt, including cached; completion, including reasoning) and by source "
        "of the count: upstream, or gateway if an answer broke off or has no usage.",
        "model kind source",
        starts=[_each(Known.MODELS, ("prompt", "completion", "cached", "reasoning"), _SOURCES)],
    )
    cost_usd = _counter(
        "cost_usd",
        "Cost at list price if tokens and price are known, by source of the token count and by "
        "release, as in requests.",
        "model source release",
        starts=[_each(Known.PRICED_MODELS, _SOURCES, _RELEASES)],
    )
    compared_cost_usd = _counter(
        "compared_cost_usd",
        "Cost of routed requests for which the cost of the baseline model is known too, by the "
        "model that answered: what they have cost (answered_by: routed), and the price of the same "
        "tokens at the baseline model (baseline). The difference is the saving.",
        "model answered_by",
        starts=[_each(Known.COMPARED_MODELS, ("routed", "baseline"))],
    )
    expected_correct = _counter(
        "expected_correct",
        "Expected number of correct answers to the requests in estimated_requests: the sum of the "
        "calibrated probabilities of the answers (answered_by: routed), or of the answers that the "
        "baseline model would have given (baseline). The relative accuracy is their ratio.",
        "model policy release answered_by",
    )
    estimated_requests = _counter(
        "estimated_requests",
        "Routed requests with a complete answer for which the probability of a correct answer is "
        "known, of the model that answered and of the baseline model, by release.",
        "model policy release",
    )
    # Verified answers.
    candidates = _counter(
        "candidates",
        "Candidate answers of verified requests, by arm, release and outcome: accepted, rejected, "
        "failed (including those that no client can use, or that the gateway no longer waited "
        "for).",
        "arm release outcome",
        starts=[_each(Known.ARMS, Track, ("accepted", "rejected", "failed"), if_verified=True)],
    )
    verification_added_seconds = _histogram(
        "verification_added_seconds",
        "Latency that verification added: time from the first complete candidate answer until one "
        "was accepted.",
        _UPSTREAM_BUCKETS_S,
    )
    # Upstreams.
    attempts = _counter(
        "upstream_attempts",
        "Attempts to get an answer from a deployment, by outcome: answered, unreachable, timeout, "
        "broken, status, error_body, malformed, unusable, quota, refused, unfit, too_long, busy, "
        "cancelled. A request may need several attempts.",
        "model deployment outcome",
    )
    fallbacks = _counter(
        "fallbacks",
        "Requests that were not answered by the chosen model, by chosen and answering model.",
        "chosen model",
    )
    router_failures = _counter(
        "router_failures",
        "Requests for which a release failed to decide or to judge candidate answers, by release; "
        "a model answered them anyway.",
        "release",
        starts=[_each(Track)],
    )
    deployments_available = _gauge("deployments_available", "Deployments whose circuit is closed.")
    breaker_open = _gauge("breaker_open", "1 while a deployment's circuit is open.", "deployment")
    storage_errors = _counter(
        "storage_errors",
        "Operations of the store (put, get, limit, overflow, pause) and of the database (open, "
        "read, write, migrate) that failed.",
        "storage operation",
        starts=[
            _each(("store",), ("put", "get", "limit", "overflow", "pause")),
            _each(("database",), ("open", "read", "write", "migrate")),
        ],
    )
    dependency_up = _gauge(
        "dependency_up",
        "1 while the gateway can use what it depends on: shared_state (what replicas share; "
        "otherwise, the gateway uses its local state), database, decision_log (1 if none is "
        "configured).",
        "dependency",
    )
    lost_records = _counter(
        "lost_records",
        "Records that are lost, by kind (decision_log: lines; request_list: requests that live "
        "traffic does not list; spans) and reason: full (too many waited), failed (writing or "
        "sending failed).",
        "kind reason",
        starts=[
            _each(("decision_log",), ("full", "failed")),
            _each(("request_list",), ("full",)),
            _each(("spans",), ("failed",)),
        ],
    )
    # Refused requests and load.
    refused_requests = _counter(
        "refused_requests",
        "Requests that the gateway refused before it called a model, by cause: caller "
        "(authentication; the reason is OpenAI's error code), overload (overloaded, "
        "decisions_queued, lists_queued, too_many_requests, shutting_down), limit (of their key or "
        "team: requests, tokens a minute, parallel), budget (spent; reserved for other requests; "
        "unknown, because the database has been unreachable for too long).",
        "cause reason",
        starts=[
            _each(
                ("overload",),
                (
                    "overloaded",
                    "decisions_queued",
                    "lists_queued",
                    "too_many_requests",
                    "shutting_down",
                ),
            ),
            _each(("limit",), ("requests", "tokens", "parallel")),
            _each(("budget",), ("spent", "reserved", "unknown")),
        ],
    )
    requests_in_flight = _gauge(
        "requests_in_flight", "Admitted requests whose answers are not complete."
    )
    # Reloads and releases.
    publication_serial = _gauge(
        "publication_serial",
        "Serial number of the publication that is served; 0 without a publication.",
    )
    reloads = _counter(
        "reloads",
        "Reloads of a changed configuration or publication, by kind (config, artifact) and outcome "
        "(taken, refused).",
        "kind outcome",
        starts=[_each(_RELOADED, ("taken", "refused"))],
    )
    last_reload_successful = _gauge(
        "last_reload_successful",
        "1 if the last reload of this kind (config, artifact) succeeded, 0 if it was refused; the "
        "start counts as a reload.",
        "kind",
        starts=[_each(_RELOADED)],
        first=1.0,
    )
    canary_withdrawals = _counter(
        "canary_withdrawals",
        "Canary releases that this gateway rolled back, by the limit that they exceeded.",
        "bound",
        starts=[_each(("errors", "cost"))],
    )
    # Answers and feedback.
    tool_calls = _counter(
        "tool_calls",
        "Tool calls in answers, by model and whether they match their tool's schema: yes, no "
        "(arguments that violate it or are not JSON), unknown_tool, unchecked.",
        "model fits",
        starts=[_each(Known.MODELS, CallValidity)],
    )
    feedback = _counter(
        "feedback",
        "Decisions that received client feedback, by arm, release and verdict: correct, wrong, or "
        "expected if the client sent the expected calls, which are compared later.",
        "arm release verdict",
        starts=[_each(Known.ARMS, Track, Verdict)],
    )
    calibration_decisions = _counter(
        "calibration_decisions",
        "Decisions whose feedback says correct or wrong, by verdict and by the chosen arm's "
        "probability, rounded down to a tenth (0.0 to 0.9).",
        "bin verdict",
        starts=[_each(_BINS, (Verdict.CORRECT, Verdict.WRONG))],
    )
    calibration_predicted = _counter(
        "calibration_predicted",
        "Sum of the chosen arms' probabilities over the decisions in calibration_decisions.",
        "bin",
        starts=[_each(_BINS)],
    )

    def __init__(self) -> None:
        """Create all series that do not depend on an engine; `start` creates the others."""
        self.registry = CollectorRegistry()
        self._children: dict[tuple[object, ...], Counter | Histogram] = {}
        for name, definition in self.series().items():
            metric = vars(self)[name] = definition.create(self.registry)
            for start in definition.starts:
                if start.is_fixed:
                    self._start(metric, start, {}, definition.first)

    def start(self, known: Mapping[Known, Collection[str]], *, has_verifier: bool) -> None:
        """Create the series of an engine, which begin with 0 unless they exist already.

        `has_verifier` says whether its artifact can verify answers.
        """
        for name, definition in self.series().items():
            for start in definition.starts:
                if not start.is_fixed and (has_verifier or not start.if_verified):
                    self._start(vars(self)[name], start, known)

    @staticmethod
    def _start(
        metric: Counter | Gauge | Histogram,
        start: Start,
        known: Mapping[Known, Collection[str]],
        first: float = 0.0,
    ) -> None:
        values = [known[each] if isinstance(each, Known) else each for each in start.values]
        for labels in product(*values):
            child = metric.labels(*labels)
            if isinstance(child, Gauge):
                child.set(first)

    @staticmethod
    def series() -> Mapping[str, Series[Any]]:
        """Return every series by its attribute of `Metrics`, in the order of definition."""
        return {name: each for name, each in vars(Metrics).items() if isinstance(each, Series)}

    def exposition(self) -> bytes:
        """Return all series in Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def child(self, series: C, *labels: str) -> C:
        """Return `series.labels(*labels)`, or the series if it has no labels, from a cache.

        Without the cache, each of the ten calls per request took 2 us.
        """
        key = (series, *labels)
        known = self._children.get(key)
        if known is None:
            known = self._children[key] = series.labels(*labels) if labels else series
        return known  # pyrefly: ignore[bad-return]  # a cast would be a tenth of the time


def status_label(status: int) -> str:
    """Return a status as a label. Unregistered statuses share a label per class, such as `5xx`."""
    return str(int(status)) if status in _KNOWN_STATUSES else f"{status // 100}xx"
