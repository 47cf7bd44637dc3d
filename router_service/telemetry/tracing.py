"""OpenTelemetry spans of requests, decisions and calls of upstreams, sent as OTLP over HTTP.

Names and attributes are those of the semantic conventions 1.37.0, HTTP and generative AI, beside
our own under `switchcraft.`. No span has content. Loaded only where a collector is configured.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio.to_thread
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import Span, SpanKind, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router_service import __version__
from router_service.core.errors import UpstreamError, UpstreamRefusedError
from router_service.core.tracing import (
    AttributeValue,
    ResponseInfo,
    Stage,
    Trace,
    Tracer,
    UpstreamCall,
    UpstreamSpan,
)
from router_service.settings import TracingSettings
from router_service.settings.deployments import PROVIDERS

TRACES_PATH = "/v1/traces"

MAX_WAITING_SPANS = 2048
"""About 2 KB each; what comes while so many wait is dropped, and counted."""

CLOSE_TIMEOUT_S = 3.0
"""How long the end of the process waits for a collector."""

OPERATIONS = {
    "/chat/completions": "chat",
    "/responses": "chat",
    "/completions": "text_completion",
    "/embeddings": "embeddings",
}
"""`gen_ai.operation.name` by the path below an upstream's base address; other calls have none."""

_RENAMED = {"gemini": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
_PROVIDERS_BY_HOST = {
    urlsplit(provider.api_base).hostname: _RENAMED.get(name, name)
    for name, provider in reversed(tuple(PROVIDERS.items()))
}
_METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())
_W3C = TraceContextTextMapPropagator()
_log = logging.getLogger("switchcraft.tracing")


class OtlpTracer(Tracer):
    """Sends spans to a collector from a thread of its own; no request waits for it."""

    def __init__(self, settings: TracingSettings, on_dropped: Callable[[int], None]) -> None:
        """Send to `settings.otlp_endpoint`; `on_dropped` gets how many spans were lost."""
        # The SDK logs each failure, with the collector's address; `_Queue` tells of an outage once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        endpoint = f"{(settings.otlp_endpoint or '').rstrip('/')}{TRACES_PATH}"
        self._queue = _Queue(OTLPSpanExporter(endpoint, headers=headers), on_dropped)
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_share)),
            resource=_resource(settings),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._queue)
        schema_url = Schemas.V1_37_0.value
        self._tracer = provider.get_tracer("switchcraft", __version__, schema_url=schema_url)

    def begin(self, path: str, headers: Mapping[str, str]) -> Trace:
        """Begin a request's trace, or go on with the one that its headers tell of."""
        return _RequestTrace(self._tracer, path, headers)

    async def aclose(self) -> None:
        """Send what waits, for `CLOSE_TIMEOUT_S` at most."""
        # A daemon: a collector that hangs must not hold up the end of the process.
        closing = threading.Thread(target=self._queue.shutdown, name="tracing-end", daemon=True)
        closing.start()
        await anyio.to_thread.run_sync(closing.join, CLOSE_TIMEOUT_S)


class _Queue(SpanProcessor):
    """The SDK's queue, with what it loses counted, and one log line an outage."""

    def __init__(self, exporter: SpanExporter, on_dropped: Callable[[int], None]) -> None:
        self._on_dropped = on_dropped
        self._lock = threading.Lock()
        self._waiting = 0
        sender = _Sender(exporter, self._sent)
        # One more than may wait: the SDK's own queue never fills, for what it drops is not told.
        self._batches = BatchSpanProcessor(sender, max_queue_size=MAX_WAITING_SPANS + 1)
        self._is_away = False

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that has ended, unless too many wait."""
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
        """Send what waits."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def _sent(self, count: int, *, is_taken: bool) -> None:
        with self._lock:
            self._waiting -= count
        if not is_taken:
            self._on_dropped(count)
        if is_taken is self._is_away:
            self._is_away = not is_taken
            told = "does not take spans, they are dropped; see tracing.otlp_endpoint"
            _log.warning("the trace collector %s", "takes spans again" if is_taken else told)


class _Sender(SpanExporter):
    """An exporter that tells how each batch fared."""

    def __init__(self, exporter: SpanExporter, on_sent: Callable[..., None]) -> None:
        self._exporter = exporter
        self._on_sent = on_sent

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; tried again by the exporter for as long as its timeout."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._on_sent(len(spans), is_taken=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Give up what is tried again."""
        self._exporter.shutdown()


@dataclass(slots=True)
class _Open:
    """A span that is written when the request has ended, for what belongs to it is known then."""

    span: Span
    end_ns: int | None = None


class _RequestTrace(Trace):
    """The spans of one request, written together when it has ended."""

    def __init__(self, tracer: OtelTracer, path: str, headers: Mapping[str, str]) -> None:
        self._tracer = tracer
        self._began_ns, self._began_s = time.time_ns(), time.perf_counter()
        # A context of its own: what another library has put into the present one is not ours.
        self._client = _W3C.extract(headers, Context())
        attributes = {"url.path": path, "url.scheme": "http"}
        self._server = tracer.start_span(
            "request", self._client, SpanKind.SERVER, attributes, start_time=self._began_ns
        )
        self._inside = set_span_in_context(self._server, self._client)
        self.trace_id = format_trace_id(self._server.get_span_context().trace_id)
        self._decision: _Open | None = None
        self._calls: list[_Open] = []

    @contextmanager
    def decision_span(self) -> Iterator[None]:
        """Span the decision for as long as the block runs."""
        opened = self._decision = _Open(self._start("decide"))
        with self._timed(opened):
            yield

    @contextmanager
    def upstream_span(self, call: UpstreamCall) -> Iterator[UpstreamSpan]:
        """Span a call of an upstream; the upstream goes on with our trace."""
        opened = _Open(self._start(_call_name(call), SpanKind.CLIENT, _call_attributes(call)))
        self._calls.append(opened)
        headers: dict[str, str] = {}
        _W3C.inject(headers, set_span_in_context(opened.span, self._inside))
        outgoing = UpstreamSpan(headers)
        try:
            with self._timed(opened):
                yield outgoing
        finally:
            _note_status(opened.span, outgoing.status, is_failure=400)

    def record_stages(self, stages: Sequence[Stage]) -> None:
        """Span what the decision took its time for."""
        if self._decision is None or not self._server.is_recording():
            return
        inside = set_span_in_context(self._decision.span)
        for stage in stages:
            began_ns = self._ns(stage.started_s)
            span = self._tracer.start_span(stage.name, inside, start_time=began_ns)
            span.end(self._ns(stage.started_s + stage.seconds))

    def record_response(self, response: ResponseInfo) -> None:
        """Complete the last call of an upstream."""
        if not self._calls:
            return
        span = self._calls[-1].span
        attributes = {
            "gen_ai.response.id": response.response_id,
            "gen_ai.response.model": response.response_model,
            "gen_ai.usage.input_tokens": response.prompt_tokens,
            "gen_ai.usage.output_tokens": response.completion_tokens,
        }
        _set(span, attributes)
        if response.failure is not None:
            _fail(span, response.failure)

    def set_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Add facts of our own to the request's span."""
        _set(self._server, {f"switchcraft.{name}": fact for name, fact in attributes.items()})

    def end(self, method: str, route: str | None, status: int) -> None:
        """Write all spans of the request."""
        known = method if method in _METHODS else "_OTHER"
        self._server.update_name(" ".join(filter(None, (known, route))))
        _set(self._server, {"http.request.method": known, "http.route": route})
        _note_status(self._server, status, is_failure=500)
        for opened in filter(None, (self._decision, *self._calls)):
            opened.span.end(opened.end_ns)
        self._server.end(self._ns(time.perf_counter()))

    def _start(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> Span:
        now_ns = self._ns(time.perf_counter())
        return self._tracer.start_span(name, self._inside, kind, attributes, start_time=now_ns)

    @contextmanager
    def _timed(self, opened: _Open) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            _fail(opened.span, _error_type(exc))
            raise
        finally:
            opened.end_ns = self._ns(time.perf_counter())

    def _ns(self, perf_s: float) -> int:
        """Return the Unix time, in nanoseconds, of a moment of `time.perf_counter`."""
        return self._began_ns + round((perf_s - self._began_s) * 1e9)


def _resource(settings: TracingSettings) -> Resource:
    """Return what the spans are of; `create` adds what `OTEL_RESOURCE_ATTRIBUTES` says."""
    variables = OTELResourceDetector().detect().attributes
    name = settings.service_name or variables.get("service.name") or "switchcraft"
    instance = {"service.version": __version__, "service.instance.id": str(uuid.uuid4())}
    return Resource.create({"service.name": name, **instance})


def _call_name(call: UpstreamCall) -> str:
    operation = OPERATIONS.get(call.path)
    return call.method if operation is None else f"{operation} {call.model}"


def _call_attributes(call: UpstreamCall) -> dict[str, AttributeValue]:
    parts = urlsplit(call.base_url)
    attributes: dict[str, AttributeValue] = {
        "http.request.method": call.method,
        "server.address": parts.hostname or "",
        "server.port": parts.port or (443 if parts.scheme == "https" else 80),
    }
    operation = OPERATIONS.get(call.path)
    if operation is not None:
        attributes["gen_ai.operation.name"] = operation
        attributes["gen_ai.provider.name"] = provider_name(call.base_url)
        attributes["gen_ai.request.model"] = call.model
    return attributes


def provider_name(base_url: str) -> str:
    """Return `gen_ai.provider.name` by an address; of a server of one's own what it speaks."""
    host = urlsplit(base_url).hostname or ""
    if host.endswith(".openai.azure.com"):
        return "azure.ai.openai"
    return _PROVIDERS_BY_HOST.get(host, "openai")


def _error_type(exc: BaseException) -> str:
    """Return what an error is counted as; never its message, which may quote a request."""
    if isinstance(exc, UpstreamRefusedError):
        return str(exc.status)
    return str(exc.failure) if isinstance(exc, UpstreamError) else type(exc).__name__


def _note_status(span: Span, status: int | None, *, is_failure: int) -> None:
    if status is not None:
        span.set_attribute("http.response.status_code", status)
        if status >= is_failure:
            _fail(span, str(status))


def _fail(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


def _set(span: Span, attributes: Mapping[str, AttributeValue | None]) -> None:
    span.set_attributes({name: fact for name, fact in attributes.items() if fact is not None})
