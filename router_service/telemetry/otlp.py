"""Export of spans to an OpenTelemetry collector by OTLP over HTTP; imported only if configured.

Importing this module raises ConfigError if the extra `otlp` is not installed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence

import anyio.to_thread

from router_service import __version__
from router_service.core.errors import ConfigError, missing_extra
from router_service.settings import TracingSettings

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.semconv.schemas import Schemas
except ModuleNotFoundError as exc:
    raise ConfigError("the configuration", "tracing.otlp_endpoint", missing_extra("otlp")) from exc

TRACES_PATH = "/v1/traces"

CLOSE_TIMEOUT_S = 3.0
"""How long shutdown waits for the collector."""

_log = logging.getLogger("switchcraft.tracing")


class OtlpExport:
    """OpenTelemetry tracer whose spans a background thread sends to a collector."""

    def __init__(self, settings: TracingSettings, on_dropped: Callable[[int], None]) -> None:
        """Send to `settings.otlp_endpoint`; `on_dropped` gets the size of each lost batch."""
        # Silence the SDK, which logs the collector's address with each failure. Our exporter logs
        # one line per outage instead.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        endpoint = f"{(settings.otlp_endpoint or '').rstrip('/')}{TRACES_PATH}"
        exporter = _ReportingExporter(OTLPSpanExporter(endpoint, headers=headers), on_dropped)
        self._spans = BatchSpanProcessor(exporter)
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
        provider.add_span_processor(self._spans)
        schema_url = Schemas.V1_37_0.value
        self.tracer = provider.get_tracer("switchcraft", __version__, schema_url=schema_url)

    async def aclose(self) -> None:
        """Send the waiting spans, for at most `CLOSE_TIMEOUT_S`."""
        # A daemon thread, so that a collector that hangs does not delay the end of the process.
        closing = threading.Thread(target=self._spans.shutdown, name="tracing-end", daemon=True)
        closing.start()
        await anyio.to_thread.run_sync(closing.join, CLOSE_TIMEOUT_S)


class _ReportingExporter(SpanExporter):
    """Exporter that counts the spans of failed batches, and logs one line per outage."""

    def __init__(self, exporter: SpanExporter, on_dropped: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._on_dropped = on_dropped
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; the exporter retries until its timeout."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            is_failing = result is not SpanExportResult.SUCCESS
            if is_failing:
                self._on_dropped(len(spans))
            if is_failing and not self._is_failing:
                _log.warning(
                    "trace collector accepts no spans: dropping them; check tracing.otlp_endpoint"
                )
            elif self._is_failing and not is_failing:
                _log.warning("trace collector accepts spans again")
            self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        """Stop the exporter, including its retries."""
        self._exporter.shutdown()
