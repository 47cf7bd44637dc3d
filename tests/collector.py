"""Trace collector: receives OTLP over HTTP like the OpenTelemetry collector, and keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.serving import served

Attributes = dict[str, str | int | float | bool]


def attributes_of(values: Iterable[KeyValue]) -> Attributes:
    """Return attributes, decoded."""
    return {v.key: getattr(v.value, v.value.WhichOneof("value") or "string_value") for v in values}


@dataclass
class Collector:
    """The received spans."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    resources: list[Attributes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    async def take(self, request: Request) -> Response:
        """Receive spans."""
        self.paths.add(request.url.path)
        self.headers.append(dict(request.headers))
        sent = ExportTraceServiceRequest.FromString(await request.body())
        for group in sent.resource_spans:
            self.resources.append(attributes_of(group.resource.attributes))
            for scoped in group.scope_spans:
                self.spans += scoped.spans
        return Response(media_type="application/x-protobuf")

    def named(self, start: str) -> list[Span]:
        """Return the spans whose names start with this text, in the order of their start."""
        found = (span for span in self.spans if span.name.startswith(start))
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def only(self, start: str) -> Span:
        """Return the only span whose name starts with this text."""
        (span,) = self.named(start)
        return span


@contextmanager
def collecting() -> Iterator[Collector]:
    """Serve a collector."""
    collector = Collector()
    app = Starlette(routes=[Route("/{path:path}", collector.take, methods=["POST"])])
    with served(app) as url:
        collector.url = url
        yield collector
