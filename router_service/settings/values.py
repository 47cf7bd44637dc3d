"""What an operator configures, as frozen values that are read once."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import unquote_plus, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from router_service.core.addresses import check_http_address, check_redis_address, read_port
from router_service.core.artifact import SHIPPED
from router_service.core.capabilities import Capabilities
from router_service.core.cost import Price
from router_service.core.keys import digest_of

NEVER_FORWARDED = frozenset(
    "authorization api-key x-api-key cookie proxy-authorization openai-organization openai-project "
    "host connection keep-alive te trailer transfer-encoding upgrade content-length content-type "
    "content-encoding accept-encoding expect user-agent".split()
)
"""Request headers that are the client's credentials, or that belong to one connection."""

ADDRESSED_BY_MODEL = frozenset(
    "/chat/completions /completions /embeddings /audio/transcriptions /audio/translations "
    "/audio/speech /images/generations /images/edits".split()
)
"""Endpoints that Azure's older address has below the model's; others take it in the body (Azure
OpenAI reference: "Data plane inference")."""

ADMIN = "admin"
"""The name of the admin key in logs and records."""
METRICS = "metrics"
"""The name of the metrics key in logs."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, BeforeValidator(read_port)]
"""A port to listen on; 0 takes a free one."""
TargetPort = Annotated[int, BeforeValidator(partial(read_port, least=1))]
"""A port to connect to."""
Name = Annotated[str, Field(min_length=1)]
HttpAddress = Annotated[str, AfterValidator(partial(check_http_address, has_query=False))]
HeaderName = Annotated[str, BeforeValidator(lambda value: str(value).lower())]


def _usable(key: SecretStr) -> SecretStr:
    digest_of(key.get_secret_value())
    return key


def _redis(address: SecretStr) -> SecretStr:
    check_redis_address(address.get_secret_value())
    return address


RedisAddress = Annotated[SecretStr, AfterValidator(_redis)]
"""The address of a Redis server, which may hold its password."""

ClientKey = Annotated[SecretStr, AfterValidator(_usable)]
"""A key that clients send, plain or as `sha256:HEX`."""


class Frozen(BaseModel):
    """A section of the configuration; inputs stay out of its error messages: they hold keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Timeouts(Frozen):
    """How long a deployment may take."""

    connect_s: Seconds = 5.0
    """To reach it, TLS included."""
    first_byte_s: Seconds = 300.0
    """From the request to the first byte of the answer: what is not streamed comes after all of
    the thinking."""
    idle_s: Seconds = 120.0
    """Longest silence between two parts of an answer."""
    total_s: Seconds = 900.0
    """From the request to the end of the answer."""
    write_s: Seconds = 30.0
    """Longest stall while a request is sent."""
    pool_s: Seconds = 5.0
    """Longest wait for a connection where all of the deployment's are in use."""


class Deployment(Frozen):
    """One place that serves a model: an account with a provider, or a server of one's own."""

    upstream_model: Name
    """What the upstream calls the model."""
    listed_as: Name | None = None
    """What price lists call it, where the upstream's name for it is one that the operator gave."""
    base_url: str = Field(repr=False)
    """What comes before `/chat/completions`, without a slash at its end."""
    model_path: str = ""
    """What comes between the two where the address names the model, as Azure's older one does."""
    query: str = ""
    """What comes behind `?` in every address; Azure has its API version there."""
    api_key: SecretStr | None = None
    key_header: Literal["authorization", "api-key"] = "authorization"
    """Which header carries the key: Azure has one of its own."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Its share of the model's requests, beside the weights of the others."""
    timeouts: Timeouts = Timeouts()

    def url(self, path: str, query: str = "") -> str:
        """Return the full address of an endpoint, such as `/chat/completions`.

        A client's query goes along, but for what the configuration says itself.
        """
        joined = _without(query, _parameters(self.query), self.query) if self.query else query
        model_path = self.model_path if path in ADDRESSED_BY_MODEL else ""
        return f"{self.base_url}{model_path}{path}" + (f"?{joined}" if joined else "")

    @cached_property
    def origin(self) -> str:
        """Scheme, host and port: what connections are pooled by."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @cached_property
    def id(self) -> str:
        """What metrics, logs and shared state know it by: the same in every replica.

        The key takes part, for two accounts are two deployments; 32 bits of a hash tell nothing
        of it.
        """
        key = self.api_key.get_secret_value() if self.api_key else ""
        facts = "\0".join((self.base_url, self.query, self.upstream_model, key))
        return f"{self.upstream_model}@{hashlib.sha256(facts.encode()).hexdigest()[:8]}"


def _without(query: str, names: frozenset[str], ending: str) -> str:
    """Return a query without these parameters, however they are written, and with this ending."""
    kept = (part for part in query.split("&") if not names & _parameters(part))
    return "&".join(filter(None, (*kept, ending)))


def _parameters(query: str) -> frozenset[str]:
    """Return the names of a query's parameters as the most lenient server reads them.

    Some decode names, ignore their case, take `;` for `&`, or `a[]` for `a`.
    """
    parts = unquote_plus(query).replace(";", "&").split("&")
    names = (part.partition("=")[0].partition("[")[0].strip() for part in parts)
    return frozenset(name.casefold() for name in names)


class Model(Frozen):
    """A model of the pool: the name that clients and arms use, and where it is served."""

    name: Name
    """`model_name` of the file."""
    deployments: Annotated[tuple[Deployment, ...], Field(min_length=1)]
    price: Price | None = None
    """List price where the file has one; None is unknown, and never free. The first deployment's
    that has one counts for all: an arm costs one price."""
    capabilities: Capabilities = Capabilities()
    """What it is known to lack; routed requests that need it go to other models."""
    fallbacks: tuple[str, ...] = ()
    """Models that answer in its place, in this order, where a request named it and it failed."""


class RetrySettings(Frozen):
    """How often a request may be tried again."""

    max_retries: Annotated[int, Field(ge=0)] = 2
    """Further tries of one model, on its other deployments first; the next model has its own."""
    budget_share: Share = 0.2
    """Tries beyond the first, over all requests: more would multiply an outage's load."""
    budget_floor_per_s: Annotated[float, Field(ge=0)] = 2.0
    """Tries beyond the first that a gateway with few requests has nevertheless."""
    backoff_s: Seconds = 0.2
    """Longest wait before the first retry on the same deployment; it doubles with each, and is
    drawn at random between 0 and this (AWS Architecture Blog, "Exponential Backoff And Jitter")."""
    max_backoff_s: Seconds = 5.0
    """Longest wait; an upstream that asks for more by `Retry-After` is left for another."""
    idempotency_keys: bool = False
    """Whether upstreams honour the request header `Idempotency-Key`. A request that may create
    something, such as a batch, is sent once, because a broken connection does not show whether the
    upstream acted on it. With this setting it is tried again if it has the header and its model
    has a single deployment."""


class BreakerSettings(Frozen):
    """When a deployment is left alone for a while."""

    allowed_fails: Annotated[int, Field(ge=0)] = 3
    """Failures within the window that open its breaker with the next one."""
    window_s: Seconds = 60.0
    cooldown_s: Seconds = 5.0
    """How long it stays open; one request then tries, and doubles it where it fails."""
    max_cooldown_s: Seconds = 60.0


class UpstreamSettings(Frozen):
    """The file's `upstreams` section: what holds for every deployment that says nothing else."""

    timeouts: Timeouts = Timeouts()
    retries: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    max_connections: Count = 500
    """To one provider or server; one that hangs takes none of the others'."""


class RouterSettings(Frozen):
    """The file's `router` section: what decides, and for which models."""

    artifact: Path = SHIPPED
    """Directory of the artifact; relative paths are the working directory's."""
    publication: Literal["redis"] | Path | None = None
    """Where `switchcraft-train publish` points at what to serve in the artifact's place: a
    directory, or `redis` for `server.redis_url`. The artifact above serves while nothing usable
    is published there."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What the artifact's graph runs on; `cuda` needs the package's extra `gpu`, and its graph for
    `cuda` where it has one."""
    arms: Mapping[str, str] = Field(default_factory=dict)
    """Model by arm of the artifact; one that is not here goes to the model of its own name, and
    is never chosen where there is none."""
    default_policy: str | None = None
    """Policy of plain requests, by name or rule; the artifact's where it is not given."""
    chat_model: str | None = None
    """Model for requests without tools, of which the router knows nothing. By default the model
    of the arm with the lowest profiled cost: agents send their tools along with every turn, and
    what comes without any is side work such as a title or a summary."""
    baseline_model: str | None = None
    """Model of the pool that savings are counted against: what the routed requests would have
    cost at its price for the same tokens. Without it nothing is counted."""
    latency_budget_s: Seconds = 0.025
    """How long a decision may take, from the read body to the choice: one that takes longer is
    counted, and is obeyed all the same."""
    unknown_prices: Literal["refuse", "allow"] = "refuse"
    """Whether a model may have no price in the file, in the price list or in the artifact; what
    its answers cost is then unknown wherever it shows, and never 0."""
    model_name: Name = "switchcraft"
    """The name that asks for routing; a policy is appended as in `switchcraft:economy`."""
    pass_through: str | None = None
    """Model whose first deployment's upstream answers everything under `/v1/` that the gateway does
    not serve itself, such as files and conversations; without it that is answered by 404."""
    pass_through_shared: bool = False
    """Whether all client keys may use whatever that upstream stores. If not, and with more than one
    client key, a key reaches only what it has created through this gateway, as far back as
    `server.response_ttl_s` and `max_responses`; lists and everything else need the admin key."""
    exploration_share: Share = 0.0
    """Share of the routed requests for which an arm is drawn from those that could serve them, each
    as likely as the others, in place of the policy's choice; a log of such decisions can judge arms
    that the policy does not choose."""
    forward_headers: tuple[HeaderName, ...] = ()
    """Request headers that upstreams get in addition to the standard ones."""

    @field_validator("forward_headers")
    @classmethod
    def _harmless(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in NEVER_FORWARDED:
                raise ValueError(f"the header {name!r} is never forwarded; leave it out")
        return names


class ServerSettings(Frozen):
    """The file's `server` section: the gateway's own process."""

    host: str = "127.0.0.1"
    port: Port = 8080
    workers: Count = 1
    """Processes that serve the port together, each on a core of its own; more than one share
    their state in `redis_url`."""
    max_body_bytes: Count = 10 * 1024 * 1024
    """Larger request bodies are refused with status 413."""
    body_timeout_s: Seconds = 60.0
    """Longest time that a request's body may take to arrive; after it comes status 408."""
    max_header_bytes: Count = 32 * 1024
    """Larger request lines and headers, together, are refused with status 431."""
    header_timeout_s: Seconds = 10.0
    """Longest time that a request's headers may take to arrive; after it comes status 408."""
    write_timeout_s: Seconds = 60.0
    """Longest time that a client may read nothing of its answer; then it is cut off."""
    max_connections: Count = 4096
    """Client connections that a process holds, at most half of its limit of open files. Beyond it
    the connection that has been idle for longest is closed."""
    max_requests_in_flight: Count = 1000
    """Requests under `/v1/` that are answered at a time; more are refused with status 503."""
    max_requests_in_flight_per_key: Count | None = None
    """The same for one key, with status 429. By default a key may use three times what is free, so
    that one busy key leaves a quarter to others. Each process counts for itself."""
    max_buffered_bytes: Count = 256 * 1024 * 1024
    """Memory that the bodies and answers of all requests in flight may take. Beyond it requests are
    refused with status 503, or with 429 if their key uses more than three times what is free, and
    answers are passed on as they arrive. Bodies and answers count three times: they are copied."""
    max_queued_decisions: Annotated[int, Field(ge=0)] = 500
    """Requests that wait for a decision; more are refused with status 503."""
    max_decision_wait_s: Seconds = 5.0
    """Longest wait for a decision to begin; what waits longer is refused with status 503."""
    decision_threads: Count = min(4, os.cpu_count() or 1)
    """Decisions made at the same time; the model's runtime releases the interpreter's lock."""
    drain_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """How long requests are served on after the process was asked to stop, while readiness says
    that none should come: what a load balancer takes to see it, some 5 s."""
    shutdown_timeout_s: Count = 30
    """How long answers in flight may go on after that, while new requests are refused."""
    redis_url: RedisAddress | None = None
    """Where replicas share state; without it each keeps its own in memory."""
    decision_ttl_s: Count = 24 * 3600
    """How long `GET /v1/decisions/{id}` knows a decision."""
    response_ttl_s: Count = 30 * 24 * 3600
    """How long it is known which deployment holds a response of the Responses API: as long as
    OpenAI keeps one."""
    max_responses: Count = 50_000
    """Of these kept in memory, 0.7 KB each; the oldest go first. Redis has no such limit."""
    max_decisions: Count = 10_000
    """Decisions kept in memory, about 1 KB each; the oldest go first. Redis has no such limit."""


class KeySettings(Frozen):
    """The file's `keys` section; without any key, everyone who can connect may use the gateway.

    Each is a key in plain text, or `sha256:` and its hash, as `switchcraft key` writes it.
    """

    api: Mapping[Name, ClientKey] = Field(default_factory=dict)
    """Keys of clients, by the name that logs know them by."""
    admin: ClientKey | None = None
    """The key for `/metrics`, `/openapi.json` and `/admin/`; it is good for everything else too."""
    metrics: ClientKey | None = None
    """A key for `GET /metrics` only, so that Prometheus need not hold the admin key."""

    @field_validator("api")
    @classmethod
    def _clients(cls, keys: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        if ADMIN in keys:
            raise ValueError(f"{ADMIN!r} is what keys.admin is known by; give it another name")
        return keys

    @model_validator(mode="after")
    def _metrics_key_is_separate(self) -> Self:
        if self.metrics is None:
            return self
        if METRICS in self.api:
            raise ValueError(f"{METRICS!r} is the name of keys.metrics; rename keys.api.{METRICS}")
        keys = {where: digest_of(key) for where, key in self.by_path().items()}
        metrics = keys.pop("keys.metrics")
        for where, digest in keys.items():
            if hmac.compare_digest(digest, metrics):
                raise ValueError(f"keys.metrics is the same key as {where}; make another one")
        return self

    def by_path(self) -> dict[str, str]:
        """Return all keys by where they stand in the file."""
        keys = {f"keys.api.{name}": key for name, key in self.api.items()}
        keys |= {} if self.admin is None else {"keys.admin": self.admin}
        keys |= {} if self.metrics is None else {"keys.metrics": self.metrics}
        return {where: key.get_secret_value() for where, key in keys.items()}


class TracingSettings(Frozen):
    """The file's `tracing` section: where OpenTelemetry spans go; nowhere by default.

    The exporter reads the standard `OTEL_EXPORTER_OTLP_*` variables (certificate, compression,
    timeout, further headers), the queue `OTEL_BSP_SCHEDULE_DELAY`.
    """

    otlp_endpoint: HttpAddress | None = Field(default=None, repr=False)
    """Base address of a collector that takes OTLP over HTTP, such as `http://collector:4318`; spans
    go to `/v1/traces` below it."""
    headers: Mapping[Name, SecretStr] = Field(default_factory=dict)
    """What the collector wants with each request, its key for one."""
    sample_share: Share = 1.0
    """Of the requests that begin a trace here; one that a client began is kept as the client says
    in `traceparent`."""
    service_name: Name | None = None
    """What the spans' service is called; by default `OTEL_SERVICE_NAME`, else `switchcraft`."""


class LoggingSettings(Frozen):
    """The file's `logging` section."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written; a request's line is `info`, a probe's `debug`. No level has
    prompts, answers or keys."""


class DecisionLogSettings(Frozen):
    """The file's `decision_log` section: what is kept of decisions for those who train on them."""

    path: Path | None = None
    """Folder of the log's files, which workers and replicas may share; without it there is none."""
    content: bool = False
    """Whether requests, answers and expected calls are kept in full; else hashes of them are."""
    evidence: bool = False
    """Whether a conversation's next turn is searched for weak evidence against its last calls."""
    check_calls: bool = True
    """Whether the tool calls of answers are held against their tools' schemas, log or none."""
    retention_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """How long a line is kept at most; files are deleted whole, by when they were begun. A
    clock that jumps deletes nothing early: then, and after a stop of more than a week, only the
    time counts for which a gateway has run."""
    max_file_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """A file that has reached this many millions of bytes is followed by another."""
    max_queued: Count = 1000
    """Answers that wait to be written; more are dropped and counted, for no request waits."""


class Settings(Frozen):
    """All of the configuration; one that names no models is completed by `Settings.sandbox`."""

    models: tuple[Model, ...] = ()
    aliases: Mapping[str, str] = Field(default_factory=dict)
    """Further names that clients may ask for, and the model that each stands for."""
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    keys: KeySettings = KeySettings()
    tracing: TracingSettings = TracingSettings()
    logging: LoggingSettings = LoggingSettings()
    decision_log: DecisionLogSettings = DecisionLogSettings()
    source: str = "the default configuration"
    """Where it was read from, for error messages."""
    without_effect: tuple[str, ...] = ()
    """What is accepted in the file but does not do here what it does in LiteLLM: each with its
    dotted path, and what happens instead."""

    @classmethod
    def sandbox(
        cls,
        base_url: str,
        arms: Sequence[str],
        *,
        server: ServerSettings | None = None,
        upstreams: UpstreamSettings | None = None,
    ) -> Settings:
        """Return settings under which each arm is a model of that name on one sandbox."""
        upstreams = upstreams or UpstreamSettings()
        url, timeouts = base_url.rstrip("/"), upstreams.timeouts
        served = (Deployment(upstream_model=a, base_url=url, timeouts=timeouts) for a in arms)
        return cls(
            models=tuple(Model(name=d.upstream_model, deployments=(d,)) for d in served),
            server=server or ServerSettings(),
            upstreams=upstreams,
            source="the sandbox",
        )
