"""Export of spans to an OpenTelemetry collector by OTLP over HTTP; imported only if configured.

Importing this module raises MissingExtraError if the extra `otlp` is not installed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence

import anyio.to_thread

from router_service import __version__
from router_service.core.errors import MissingExtraError
from router_service.settings import TracingSettings

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.semconv.schemas import Schemas
except ModuleNotFoundError as exc:
    raise MissingExtraError("the configuration", "tracing.otlp_endpoint", "otlp") from exc

TRACES_PATH = "/v1/traces"

MAX_WAITING_SPANS = 2048
"""Most spans that wait to be sent. More are dropped and counted. A span takes about 2 KB."""

CLOSE_TIMEOUT_S = 3.0
"""How long shutdown waits for the collector."""

_log = logging.getLogger("switchcraft.tracing")


class OtlpExport:
    """OpenTelemetry tracer whose spans a background thread sends to a collector."""

    def __init__(self, settings: TracingSettings, on_dropped: Callable[[int], None]) -> None:
        """Send to `settings.otlp_endpoint`; `on_dropped` receives the number of lost spans."""
        # Silence the SDK, which logs the collector's address with each failure. `_Queue` logs one
        # line per outage instead.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        endpoint = f"{(settings.otlp_endpoint or '').rstrip('/')}{TRACES_PATH}"
        self._queue = _Queue(OTLPSpanExporter(endpoint, headers=headers), on_dropped)
        # `Resource.create` adds the attributes of `OTEL_RESOURCE_ATTRIBUTES`.
        variables = OTELResourceDetector().detect().attributes
        resource = Resource.create(
            {
                "service.name": settings.service_name
                or variables.get("service.name")
                or "switchcraft",
                "service.version": __version__,
                "service.instance.id": str(uuid.uuid4()),
            }
        )
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_share)),
            resource=resource,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._queue)
        schema_url = Schemas.V1_37_0.value
        self.tracer = provider.get_tracer("switchcraft", __version__, schema_url=schema_url)

    async def aclose(self) -> None:
        """Send the waiting spans, for at most `CLOSE_TIMEOUT_S`."""
        # A daemon thread, so that a collector that hangs does not delay the end of the process.
        closing = threading.Thread(target=self._queue.shutdown, name="tracing-end", daemon=True)
        closing.start()
        await anyio.to_thread.run_sync(closing.join, CLOSE_TIMEOUT_S)


class _Queue(SpanProcessor):
    """The SDK's queue of spans, extended to count lost spans and to log one line per outage."""

    def __init__(self, exporter: SpanExporter, on_dropped: Callable[[int], None]) -> None:
        self._on_dropped = on_dropped
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_collector_failing = False
        sender = _ReportingExporter(exporter, self._sent)
        # The SDK does not report the spans that its queue drops. So that queue is larger than our
        # limit, and never fills.
        self._batches = BatchSpanProcessor(sender, max_queue_size=MAX_WAITING_SPANS + 1)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that has ended, unless the queue is full."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            is_full = self._waiting >= MAX_WAITING_SPANS
            self._waiting += not is_full
        if is_full:
            self._on_dropped(1)
        else:
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Send the waiting spans."""
        self._batches.shutdown()

    def _sent(self, count: int, succeeded: bool) -> None:
        with self._lock:
            self._waiting -= count
        if not succeeded:
            self._on_dropped(count)
        if succeeded and self._is_collector_failing:
            _log.warning("trace collector accepts spans again")
        elif not succeeded and not self._is_collector_failing:
            _log.warning(
                "trace collector accepts no spans: dropping them; check tracing.otlp_endpoint"
            )
        self._is_collector_failing = not succeeded


class _ReportingExporter(SpanExporter):
    """Exporter that reports the size and the success of each batch."""

    def __init__(self, exporter: SpanExporter, on_sent: Callable[[int, bool], None]) -> None:
        self._exporter = exporter
        self._on_sent = on_sent

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; the exporter retries until its timeout."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._on_sent(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Stop the exporter, including its retries."""
        self._exporter.shutdown()
