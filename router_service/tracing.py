"""Spans of one request: the request, its decision with its stages, and calls to upstreams.

Names and attributes follow the semantic conventions 1.37.0 for HTTP and generative AI; our own
attributes begin with `switchcraft.`. No span contains content. `telemetry.otlp` exports spans.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.trace import (
    NoOpTracer,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from router_service.apis.encoding import fix_surrogates
from router_service.apis.registry import APIS
from router_service.core.errors import UpstreamError, UpstreamRefusedError
from router_service.core.resources import Stage
from router_service.settings.deployments import PROVIDERS

AttributeValue = str | int | float | bool

_OPERATIONS = {"/completions": "text_completion", "/embeddings": "embeddings"}
"""`gen_ai.operation.name` by the path below an upstream's base URL, for other paths than those of
the APIs, which chat."""

_RENAMED = {"gemini": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}
_PROVIDERS_BY_HOST = {
    urlsplit(provider.api_base).hostname: _RENAMED.get(name, name)
    for name, provider in reversed(tuple(PROVIDERS.items()))
}
_METHODS = frozenset("GET HEAD POST PUT PATCH DELETE OPTIONS".split())
_W3C = TraceContextTextMapPropagator()


@dataclass(slots=True)
class UpstreamSpan:
    """Span of an upstream call that is in progress."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that continue the trace at the upstream, instead of the client's own trace headers.
    Empty if the request is not traced: then the client's headers are forwarded."""
    status: int | None = None
    """Status of the upstream's answer, to be set once it is known."""


UNTRACED_SPAN = UpstreamSpan()
"""Span of all upstream calls that are not traced."""


@dataclass(slots=True)
class _OpenSpan:
    """Span that is ended with the request, because some attributes are only known then."""

    span: Span
    end_ns: int | None = None


class Trace:
    """Spans of one request; they are ended together when the request ends.

    If the tracer creates no spans, like OpenTelemetry's no-op tracer, the methods do nothing, and
    all requests may share one object.
    """

    def __init__(self, tracer: Tracer, path: str, headers: Mapping[str, str]) -> None:
        """Begin a request's span. If the request has W3C trace headers, continue their trace."""
        self._tracer = tracer
        self._began_ns, self._began_s = time.time_ns(), time.perf_counter()
        # Use a new context, because other libraries may have put a span into the current context.
        parent = _W3C.extract(headers, Context())
        self._server = tracer.start_span(
            "request",
            parent,
            SpanKind.SERVER,
            {"url.path": path, "url.scheme": "http"},
            start_time=self._began_ns,
        )
        self._context = set_span_in_context(self._server, parent)
        span_context = self._server.get_span_context()
        self.trace_id = format_trace_id(span_context.trace_id) if span_context.is_valid else None
        """Trace id as 32 hexadecimal digits (W3C Trace Context); None if there is no trace."""
        self._calls: list[_OpenSpan] = []
        self._children: list[_OpenSpan] = []

    @contextmanager
    def upstream_span(
        self, base_url: str, model: str, method: str, path: str
    ) -> Iterator[UpstreamSpan]:
        """Trace a request to an upstream, by its name of the model, while the block runs."""
        parts = urlsplit(base_url)
        attributes: dict[str, AttributeValue] = {
            "http.request.method": method,
            "server.address": parts.hostname or "",
            "server.port": parts.port or (443 if parts.scheme == "https" else 80),
        }
        name = method
        operation = "chat" if APIS.at(path) else _OPERATIONS.get(path)
        if operation is not None:
            name = f"{operation} {model}"
            attributes["gen_ai.operation.name"] = operation
            attributes["gen_ai.provider.name"] = provider_name(base_url)
            attributes["gen_ai.request.model"] = model
        opened = self._start(name, SpanKind.CLIENT, attributes)
        self._calls.append(opened)
        headers: dict[str, str] = {}
        _W3C.inject(headers, set_span_in_context(opened.span, self._context))
        span = UpstreamSpan(headers)
        try:
            with self._timed(opened):
                yield span
        finally:
            _set_status(opened.span, span.status, is_failure=400)

    @contextmanager
    def candidate_span(self, arm: str, model: str, step: int) -> Iterator[Trace]:
        """Trace a candidate answer while the block runs; yield the trace for its upstream calls."""
        if self.trace_id is None:
            yield self
            return
        attributes: dict[str, AttributeValue] = {
            "switchcraft.arm": arm,
            "switchcraft.model": model,
            "switchcraft.step": step,
        }
        opened = self._start("candidate", SpanKind.INTERNAL, attributes)
        self._children.append(opened)
        candidate = copy.copy(self)
        candidate._server = opened.span
        candidate._context = set_span_in_context(opened.span, self._context)
        candidate._calls = []
        try:
            with self._timed(opened):
                yield candidate
        finally:
            self._children += candidate._calls

    def record_decision(self, stages: Sequence[Stage], error_type: str | None) -> None:
        """Add a span for the decision, with one for each of its stages."""
        if not stages or not self._server.is_recording():
            return
        ends_s = [stage.started_s + stage.seconds for stage in stages]
        decision = self._tracer.start_span(
            "decide", self._context, start_time=self._unix_ns(stages[0].started_s)
        )
        context = set_span_in_context(decision)
        for stage, end_s in zip(stages, ends_s, strict=True):
            began_ns = self._unix_ns(stage.started_s)
            span = self._tracer.start_span(stage.name, context, start_time=began_ns)
            span.end(self._unix_ns(end_s))
        if error_type is not None:
            _set_error(decision, error_type)
        decision.end(self._unix_ns(ends_s[-1]))

    def record_response(
        self,
        *,
        response_id: str | None,
        response_model: str | None,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        failure: str | None,
    ) -> None:
        """Add the answer's attributes to the span of the last upstream call, if they are known.

        `failure` is its kind if the answer failed after a good start.
        """
        if not self._calls:
            return
        span = self._calls[-1].span
        attributes = {
            "gen_ai.response.id": fix_surrogates(response_id or "") or None,
            "gen_ai.response.model": fix_surrogates(response_model or "") or None,
            "gen_ai.usage.input_tokens": prompt_tokens,
            "gen_ai.usage.output_tokens": completion_tokens,
        }
        span.set_attributes({name: v for name, v in attributes.items() if v is not None})
        if failure is not None:
            _set_error(span, failure)

    def set_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Add the gateway's attributes to the request's span, except those that are None."""
        if self._server.is_recording():
            known = {f"switchcraft.{name}": v for name, v in attributes.items() if v is not None}
            self._server.set_attributes(known)

    def end(self, method: str, route: str | None, status: int) -> None:
        """End all spans of the request; `route` is the matched URL pattern, or None."""
        if self.trace_id is None:
            return
        known_method = method if method in _METHODS else "_OTHER"
        self._server.set_attribute("http.request.method", known_method)
        if route is not None:
            self._server.set_attribute("http.route", route)
        self._server.update_name(" ".join(filter(None, (known_method, route))))
        _set_status(self._server, status, is_failure=500)
        for opened in (*self._calls, *self._children):
            opened.span.end(opened.end_ns)
        self._server.end(self._unix_ns(time.perf_counter()))

    def _start(
        self, name: str, kind: SpanKind, attributes: Mapping[str, AttributeValue]
    ) -> _OpenSpan:
        now_ns = self._unix_ns(time.perf_counter())
        span = self._tracer.start_span(name, self._context, kind, attributes, start_time=now_ns)
        return _OpenSpan(span)

    @contextmanager
    def _timed(self, opened: _OpenSpan) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            # Record the error's type, never its message, because that may quote a request.
            error_type = type(exc).__name__
            if isinstance(exc, UpstreamError):
                error_type = str(exc.failure)
            if isinstance(exc, UpstreamRefusedError):
                error_type = str(exc.status)
            _set_error(opened.span, error_type)
            raise
        finally:
            opened.end_ns = self._unix_ns(time.perf_counter())

    def _unix_ns(self, perf_s: float) -> int:
        """Convert a moment of `time.perf_counter` to Unix time in nanoseconds."""
        return self._began_ns + round((perf_s - self._began_s) * 1e9)


UNTRACED = Trace(NoOpTracer(), "", {})
"""Trace of requests that are not traced."""


def provider_name(base_url: str) -> str:
    """Return `gen_ai.provider.name` of a base URL; a self-hosted server counts as `openai`."""
    host = urlsplit(base_url).hostname or ""
    if host.endswith(".openai.azure.com"):
        return "azure.ai.openai"
    if host.startswith("bedrock-runtime.") and ".amazonaws.com" in host:
        return "aws.bedrock"
    if host.endswith(("aiplatform.googleapis.com", ".rep.googleapis.com")):
        return "gcp.vertex_ai"
    return _PROVIDERS_BY_HOST.get(host, "openai")


def _set_status(span: Span, status: int | None, *, is_failure: int) -> None:
    if status is not None:
        span.set_attribute("http.response.status_code", status)
        if status >= is_failure:
            _set_error(span, str(status))


def _set_error(span: Span, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)
