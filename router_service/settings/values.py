"""The gateway's configuration: our own sections of the file, and the models it lists.

The docstrings of the fields are the descriptions in `docs/reference/settings.md` and in the JSON
Schema; see `reference.py`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    InstanceOf,
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)

from router_service.apis.api import UpstreamApi
from router_service.apis.capabilities import Capabilities
from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json, ToolSpec
from router_service.apis.registry import APIS
from router_service.apis.responses.api import RESPONSES
from router_service.artifact import SHIPPED, find_artifact
from router_service.core.addresses import (
    MAX_PORT,
    check_http_address,
    read_port,
)
from router_service.core.errors import ConfigError, ConfigProblem
from router_service.core.keys import begins_like_key, digest_of
from router_service.database.engine import check_database_address
from router_service.policies.costs import Price
from router_service.policies.risk import Risk, RiskRules
from router_service.policies.verified import VERIFIED
from router_service.settings.files import line_of
from router_service.settings.platforms import Platform, account_text
from router_service.store.opening import check_shared_address
from router_service.store.records import UpstreamObject
from router_service.store.store import Retention, StoreLimits
from router_service.verifier.steps import VerificationLimits

NEVER_FORWARDED = frozenset(
    "authorization api-key x-api-key cookie proxy-authorization openai-organization openai-project "
    "host connection keep-alive te trailer transfer-encoding upgrade content-length content-type "
    "content-encoding accept-encoding expect user-agent".split()
)
"""Request headers that `forward_headers` must not contain, because they carry the client's
credentials or belong to one connection."""

ADDRESSED_BY_MODEL = frozenset(
    "/chat/completions /completions /embeddings /audio/transcriptions /audio/translations "
    "/audio/speech /images/generations /images/edits".split()
)
"""Endpoints whose path contains the model in Azure's older API. For other endpoints, only the body
names the model (Azure OpenAI reference: "Data plane inference")."""

ADMIN = "admin"
"""Name of the admin key in logs and records."""
METRICS = "metrics"
"""Name of the metrics key in logs."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=MAX_PORT), BeforeValidator(read_port)]
"""A port to listen on; 0 chooses a free one."""
TargetPort = Annotated[int, Field(ge=1, le=MAX_PORT), BeforeValidator(partial(read_port, least=1))]
"""A port to connect to."""
Name = Annotated[str, Field(min_length=1)]
LogFormat = Literal["auto", "text", "json"]
Device = Literal["cpu", "cuda"]
HttpAddress = Annotated[str, AfterValidator(partial(check_http_address, has_query=False))]
HeaderName = Annotated[str, BeforeValidator(lambda value: str(value).lower())]


def _secret_check(check: Callable[[str], object]) -> AfterValidator:
    """Return a validator that applies a check to the value of a secret."""

    def validate(secret: SecretStr) -> SecretStr:
        check(secret.get_secret_value())
        return secret

    return AfterValidator(validate)


StoreAddress = Annotated[SecretStr, _secret_check(check_shared_address)]
"""The address of a backend that replicas share, secret because it may contain a password."""

DatabaseAddress = Annotated[SecretStr, _secret_check(check_database_address)]
"""The address of a database, secret because it may contain a password."""

ClientKey = Annotated[SecretStr, _secret_check(digest_of)]
"""A key that clients send, in plain text or as `sha256:HEX`."""


class Frozen(BaseModel):
    """Base of our sections. Validation errors do not quote the input, because it may be a key."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )


class Timeouts(Frozen):
    """Time limits for a request to a deployment."""

    connect_s: Seconds = 5.0
    """Longest time in seconds to open a connection, including TLS."""
    first_byte_s: Seconds = 300.0
    """Longest time in seconds from the request to the first byte of the answer. It is long because
    an answer that is not streamed only starts after the model has finished reasoning."""
    idle_s: Seconds = 120.0
    """Longest time in seconds between two parts of an answer."""
    total_s: Seconds = 900.0
    """Longest time in seconds from the first attempt of a request to the end of its answer. All
    attempts share it: candidates, retries and fallbacks. If deployments have different times, each
    one may answer until its own has passed."""
    write_s: Seconds = 30.0
    """Longest time in seconds that sending the request may stall."""
    pool_s: Seconds = 5.0
    """Longest time in seconds to wait for a free connection to the deployment."""
    hold_s: Seconds = 1.0
    """Longest silence in seconds during which the beginning of a stream is held back while it
    contains nothing of the answer. If it breaks meanwhile, another deployment answers. Afterwards,
    the client gets the beginning, and a break becomes an error event. A longer time saves more
    answers of models that reason silently, and lets clients wait longer for the first byte."""


class Deployment(Frozen):
    """One address and key that serves a model, such as an account with a provider."""

    upstream_model: Name
    """The upstream's name for the model."""
    shown_as: str | None = None
    """Name in identifiers instead of `upstream_model`. Without it, clients who choose the names of
    models (see `Wildcard`) could create any number of circuit breakers and series of metrics."""
    base_model: Name | None = None
    """The id or the name by which providers and price lists know the model, such as `azure/gpt-4o`,
    if the upstream's name was chosen by the operator."""
    base_url: str = Field(repr=False)
    """Part of the address before `/chat/completions`, without a trailing slash."""
    model_path: str = ""
    """Path between `base_url` and the endpoint, if the address contains the model (older Azure)."""
    query: str = ""
    """Query string that is added to every address, such as Azure's API version."""
    api_key: SecretStr | None = None
    key_header: Literal["authorization", "api-key", "x-api-key"] = "authorization"
    """Header that carries the key; Azure uses `api-key`, and Anthropic `x-api-key`."""
    apis: tuple[Annotated[InstanceOf[UpstreamApi], PlainSerializer(str)], ...] = (CHAT, RESPONSES)
    """The APIs that the upstream speaks, the preferred one first. Requests in another API are
    translated."""
    supports_reasoning: bool = False
    """Whether the model accepts a reasoning effort. Other models get translated requests without
    it."""
    sends_finish_reason: bool = True
    """Whether streams say why they ended. If not, their last event completes the answer."""
    platform: Platform | None = Field(default=None, repr=False)
    """How requests are addressed and authenticated, if that takes more than `base_url` and a
    key."""
    provider: str = ""
    """LiteLLM's name of the provider, whose rules translated requests follow; empty
    for an unknown server that is compatible with OpenAI."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Share of the model's requests, relative to the weights of its other deployments."""
    timeouts: Timeouts = Timeouts()
    parameters: Mapping[str, Json] = Field(default_factory=dict, repr=False)
    """Request parameters, such as `reasoning_effort`, that are added to requests without them. The
    names are those of the Chat Completions API."""

    @property
    def listed_as(self) -> str:
        """The model's name in price lists."""
        if self.base_model is None:
            return self.upstream_model
        return self.base_model.removeprefix("azure/").removeprefix("openai/")

    @property
    def account(self) -> tuple[str, str]:
        """The account that the deployment uses at its address; it contains secrets."""
        if self.platform is not None:
            return self.origin, account_text(self.platform)
        return self.origin, "" if self.api_key is None else self.api_key.get_secret_value()

    def url(self, path: str, query: str = "") -> str:
        """Return the full address of an endpoint, such as `/chat/completions`.

        The client's query is added, except for parameters that the configuration sets.
        """
        if self.query:
            own = _parameter_names(self.query)
            kept = (part for part in query.split("&") if not own & _parameter_names(part))
            query = "&".join(filter(None, (*kept, self.query)))
        model_path = self.model_path if path in ADDRESSED_BY_MODEL else ""
        return f"{self.base_url}{model_path}{path}" + (f"?{query}" if query else "")

    @cached_property
    def origin(self) -> str:
        """Scheme, host and port, which identify the connection pool."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @cached_property
    def address(self) -> str:
        """`base_url` without a user name and password, for logs and operators."""
        parts = urlsplit(self.base_url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @cached_property
    def id(self) -> str:
        """Identifier in metrics, logs and shared state, the same in every replica.

        The key is hashed too, because two accounts at one address are two deployments. 32 bits of
        the hash do not reveal the key. So are two reasoning efforts, because one of them may time
        out while the other answers.
        """
        key = self.api_key.get_secret_value() if self.api_key else ""
        model = self.shown_as or self.upstream_model
        facts = "\0".join((self.base_url, self.query, model, key))
        if self.platform is not None:
            facts += "\0" + account_text(self.platform)
        if self.parameters:
            facts += "\0" + json.dumps(dict(self.parameters), sort_keys=True, default=str)
        return f"{model}@{hashlib.sha256(facts.encode()).hexdigest()[:8]}"


def _parameter_names(query: str) -> frozenset[str]:
    """Return the names of a query's parameters as the most lenient server reads them.

    Some servers decode names, ignore case, read `;` as `&`, or read `a[]` as `a`.
    """
    parts = unquote_plus(query).replace(";", "&").split("&")
    names = (part.partition("=")[0].partition("[")[0].strip() for part in parts)
    return frozenset(name.casefold() for name in names)


class Model(Frozen):
    """A model that clients can name and arms can use, with its deployments."""

    name: Name
    """The `model_name` of the file."""
    deployments: Annotated[tuple[Deployment, ...], Field(min_length=1)]
    price: Price | None = None
    """Price given in the file; None means unknown, not free. If several deployments have prices,
    the first of these is used for all, because an arm has one price."""
    capabilities: Capabilities = Capabilities()
    """Known limits of the model; routed requests that exceed them go to other models."""
    fallbacks: tuple[str, ...] = ()
    """Models to try in this order if a request named this model and it failed."""
    provider: str = ""
    """The provider's name in the price list; empty if it is not listed."""

    @property
    def is_balanced(self) -> bool:
        """Whether several deployments share the model's requests by weight."""
        if len(self.deployments) == 1:
            return False
        weighted = sum([deployment.weight > 0 for deployment in self.deployments])
        return (weighted or len(self.deployments)) > 1


MAX_WILDCARD_NAME = 200
"""Longest name, in characters, of a model that a wildcard stands for."""


def match_wildcard(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what each `*` of a pattern stands for in a name, or None if the name does not match.

    Each `*` stands for one character or more.
    """
    if len(name) > MAX_WILDCARD_NAME or "*" in name:
        return None
    found = re.fullmatch("(.+)".join(map(re.escape, pattern.split("*"))), name)
    return None if found is None else found.groups()


@dataclass(frozen=True, slots=True)
class Wildcard:
    """Models that clients name freely within a pattern, such as `openai/*` in LiteLLM's files."""

    pattern: str
    """The `model_name` of the file."""
    entries: tuple[BaseModel, ...] = field(repr=False)
    """The entries of the file with this name. A reload compares them."""
    read: Callable[[str], Model] = field(repr=False, compare=False)
    """Returns the model of a name that matches; raises ConfigError."""


class RetrySettings(Frozen):
    """How often a failed request is tried again."""

    max_retries: Annotated[int, Field(ge=0)] = 2
    """Number of retries for each model, on its other deployments first."""
    budget_share: Share = 0.2
    """Retry budget: retries as a share (0 to 1) of all requests. Unlimited retries would multiply
    the load of an outage."""
    budget_floor_per_s: Annotated[float, Field(ge=0)] = 2.0
    """Retries per second that are always allowed, so that a gateway with little traffic can retry
    too."""
    backoff_s: Seconds = 0.2
    """Longest wait in seconds before the first retry on the same deployment. It doubles with each
    retry, and the wait is random between 0 and this value (AWS Architecture Blog, "Exponential
    Backoff And Jitter")."""
    max_backoff_s: Seconds = 5.0
    """Longest wait in seconds before any retry. If an upstream's `Retry-After` asks for more,
    another deployment is used."""
    idempotency_keys: bool = False
    """Whether upstreams honour the request header `Idempotency-Key`. A request that may create
    something, such as a batch, is sent only once, because a broken connection does not show whether
    the upstream acted on it. With this setting, such a request is retried if it has the header and
    its model has a single deployment."""


class BreakerSettings(Frozen):
    """When the circuit breaker stops requests to a failing deployment."""

    allowed_fails: Annotated[int, Field(ge=0)] = 3
    """Number of failures within the window that are tolerated; the next one opens the circuit."""
    window_s: Seconds = 60.0
    """Length in seconds of the window in which failures are counted."""
    cooldown_s: Seconds = 5.0
    """Time in seconds that the circuit stays open. Then one request is let through; if it fails,
    the time doubles."""
    max_cooldown_s: Seconds = 60.0
    """Longest time in seconds that the circuit stays open."""


class UpstreamSettings(Frozen):
    """Defaults for all deployments."""

    timeouts: Timeouts = Timeouts()
    retries: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    max_connections: Count = 500
    """Largest number of open connections to one provider or server. The limit is per server, so
    that a server that hangs cannot use up the connections of other servers. A key may hold three
    times as many as are free, so one busy key leaves a quarter to other keys."""


class VerificationSettings(Frozen):
    """Limits of the policy `verified`, which asks several models for candidate answers.

    A request can lower a limit with a header.
    """

    goals: bool = True
    """Whether a goal such as `accuracy=0.9` may choose a verified policy, which costs less for the
    same accuracy and is slower, because it may ask several models. Otherwise, goals choose among
    the policies that ask one model. Header: `x-switchcraft-verified-goals`."""

    max_candidates: Count = 3
    """Largest number of arms that one request asks: candidates that answer, those that fail, and a
    model that answers instead of them. An arm that did not get the request does not count. So a
    request is sent at most `max_candidates` times `upstreams.retries.max_retries` + 1 times. With
    1, no other model is asked if the first one fails. Header: `x-switchcraft-max-candidates`."""
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Largest cost in USD of one request, with all candidates and a model that answers instead of
    them; without it, the cost is not limited. An arm is asked only if its expected cost is within
    what is left. An attempt without an answer counts with its prompt. Header:
    `x-switchcraft-max-cost-usd`."""
    max_added_latency_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """Longest time in seconds to wait for further candidates after the first complete one. Then the
    best candidate so far is delivered. Header: `x-switchcraft-max-added-latency-s`."""
    usd_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What a second of waiting costs in USD. The expected duration of an arm's answer then counts
    like its cost, so that fast arms are preferred, slow ones are asked only if they gain more, and
    two are asked at once if the second is probably needed."""
    keep_alive_s: Seconds = 5.0
    """Time in seconds after which a streamed response begins with a keep-alive, and time between
    two of them, while candidates are checked, so that clients and proxies do not give up. It is a
    comment in Chat Completions, `response.created` and `response.in_progress` in Responses, and a
    `ping` in Messages."""

    @property
    def allows_goals(self) -> bool:
        """Whether goals may choose verified policies, unless a request says otherwise."""
        return self.goals and self.limits.allow_goals

    @cached_property
    def limits(self) -> VerificationLimits:
        """The limits, as the router reads them."""
        max_cost_usd = math.inf if self.max_cost_usd is None else self.max_cost_usd
        return VerificationLimits(
            self.max_candidates, max_cost_usd, self.max_added_latency_s, self.usd_per_second
        )


class RiskLevelSettings(Frozen):
    """Which tools have one level of risk, and what a request that offers such a tool demands."""

    tools: tuple[Name, ...] = ()
    """Patterns of the names of tools that have this level, such as `delete_*`. They take precedence
    over the tools' annotations."""
    policy: str | None = Field(None, json_schema_extra={"x-default": "`router.default_policy`"})
    """Policy of requests that do not name one, such as `verified` or `quality`."""
    grounded: bool | None = Field(None, json_schema_extra={"x-default": "true if destructive"})
    """Whether a verified answer may call such a tool only with values that the conversation or the
    tool's schema explains, or that a second model gives too."""


class RiskSettings(Frozen):
    """What a request demands if it offers tools that write or destroy.

    The most severe tool that a request offers decides. A tool's level is that of a pattern that
    matches its name, else that of its MCP annotations (`readOnlyHint`, `destructiveHint`), else a
    guess.
    """

    guess: bool = True
    """Whether to guess the level of other tools by the verbs in their names and by their
    descriptions. Without it, they demand nothing."""
    read_only: tuple[Name, ...] = ()
    """Patterns of the names of tools that change nothing."""
    writing: RiskLevelSettings = RiskLevelSettings()
    """Tools that add or change something in a way that can be undone."""
    destructive: RiskLevelSettings = RiskLevelSettings()
    """Tools that may delete, overwrite, spend or send something, or that run any command."""

    @cached_property
    def has_demands(self) -> bool:
        """Whether any level demands a policy, so that the risk of tools has to be known."""
        return self.writing.policy is not None or self.destructive.policy is not None

    @property
    def rules(self) -> RiskRules:
        """How the levels of tools are found."""
        patterns = {
            Risk.READ_ONLY: self.read_only,
            Risk.WRITING: self.writing.tools,
            Risk.DESTRUCTIVE: self.destructive.tools,
        }
        return RiskRules(patterns, guesses=self.guess)

    def grounded_tools(self, tools: Sequence[ToolSpec]) -> frozenset[str]:
        """Return the names of the tools that must be called with explained values."""
        levels = {
            Risk.WRITING: self.writing.grounded or False,
            Risk.DESTRUCTIVE: self.destructive.grounded is not False,
        }
        rules = self.rules
        risks = {tool.name: rules.risk_of(tool) for tool in tools} if any(levels.values()) else {}
        return frozenset(name for name, risk in risks.items() if risk and levels.get(risk))

    def policy(self, risk: Risk | None) -> str | None:
        """Return the policy of requests whose tools have this level and that name no policy."""
        if risk is Risk.WRITING:
            return self.writing.policy
        return self.destructive.policy if risk is Risk.DESTRUCTIVE else None


class ConversationSettings(Frozen):
    """Following tool loops: the arm that answered last is asked first.

    Providers charge less for the part of a prompt that they have cached. So the arm that served a
    conversation's last request is cheaper for the next one than its list price suggests.
    """

    enabled: bool = True
    """Whether the arm that answered last is asked first inside a tool loop, unless a cheaper one is
    expected to cost less over the next four requests. The user's messages are decided by
    themselves. With `false`, every request is."""


class AgentSettings(Frozen):
    """Sessions of coding agents, which are recognized by their tools and their client."""

    within_points: Annotated[float, Field(ge=0, le=100)] | None = 2.0
    """One model answers such a session: the cheapest whose measured success in whole coding tasks
    is at most so many points below the best of the pool. `switchcraft:quality` takes 0 instead, and
    `switchcraft:economy` 5. With `null`, or if fewer than two of the models were measured, such
    requests are routed like others."""


class CompareSettings(Frozen):
    """A second model that answers a share of the requests in the background, to compare with it.

    Its answers are never delivered and delay nothing. `switchcraft compare` and the page show how
    often it makes the same calls as the delivered answers, at which cost and in which time.
    """

    model: Name | None = None
    """Model of `model_list` that answers the requests a second time. Without it, nothing is
    compared."""
    share: Share = 0.02
    """Share (0 to 1) of the requests with tools whose delivered answer is complete. Requests that
    this model has answered, or must not get, are not compared; nor are those whose answers cannot
    be verified, for example because the provider would store them."""
    budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    """Most that the second answers may cost in 30 days, in USD. It is no part of the budgets of
    keys and teams."""


class RouterSettings(Frozen):
    """The routing decision, and the models it can choose."""

    artifact: Annotated[Path, AfterValidator(find_artifact)] = Field(
        default_factory=lambda: SHIPPED, json_schema_extra={"x-default": "the shipped artifact"}
    )
    """Directory of the artifact, or the name of the one that the package ships: `frontier-2025-12`,
    which is the default. A relative path starts at the working directory."""
    publication: Path | None = None
    """Directory in which `switchcraft-train publish` puts new artifacts. Replicas mount it. Until a
    usable artifact is published there, `router.artifact` serves."""
    device: Device = "cpu"
    """Device that runs the artifact's graph. `cuda` needs the package's extra `gpu` and an artifact
    with a graph for GPUs. Without such a graph, the CPU is used, with a warning."""
    arms: Mapping[str, str | None] = Field(default_factory=dict)
    """Model of `model_list` for each arm of the artifact. It is needed only if the model cannot be
    recognized: an arm that is not listed uses the first model whose deployments have one of the
    ids that the arm stands for. A model that the arm does not stand for is refused. With `null`,
    the arm is never chosen."""
    stand_ins: Mapping[str, str] = Field(default_factory=dict)
    """Models that serve an arm although they are not the model that the arm stands for. The router
    then uses the arm's probabilities and token counts for another model, so its figures do not
    hold. Startup, `check`, metrics and the page say so."""
    default_policy: str | None = Field(None, json_schema_extra={"x-default": "the artifact's"})
    """Policy of requests that do not name one: a policy's name, a rule such as `theta=0.5`, or a
    goal such as `within=1` or `accuracy=best`. The shipped artifact's is `within=0.5`: the cheapest
    measured rule that loses at most half a point against the best configured model. If the artifact
    verifies answers by default, `fast` turns that off, except for unfamiliar requests (see
    `unfamiliar`)."""
    unfamiliar: str = VERIFIED
    """What happens to a request that is unlike the training data of the artifact and names no
    policy: `verified` for a verified answer, at the default policy's price if that verifies
    answers, `best` for an answer of the most accurate configured
    model, `route` for the default policy, or another policy. The most accurate model also answers
    what cannot be verified, and everything if the artifact has no verifier."""
    unfamiliar_below: Share = 0.05
    """Familiarity below which that happens. The default is the artifacts' limit, below which 5% of
    the held-out queries are. With a lower value, requests between the two are decided by the
    default policy, with probabilities that trust the router less."""
    unknown_models: Literal["verify", "name_only"] = "verify"
    """What happens to models of `model_list` that the artifact has not measured. With `verify`,
    they take part in verified answers, and their accuracy is estimated from their price. With
    `name_only`, they answer only requests that name them."""
    last_resort: str | None = Field(
        None, json_schema_extra={"x-default": "the most accurate model by the estimates"}
    )
    """Model of `model_list` that you trust most, if the artifact has not measured it. It counts as
    more accurate than all others, so that it decides if cheaper models disagree."""
    chat_model: str | None = Field(
        None, json_schema_extra={"x-default": "the arm with the lowest profiled cost"}
    )
    """Model for requests without tools; only tool calls are routed. The default is cheap because
    agents send their tools with every turn, so a request without tools is side work, such as a
    title or a summary."""
    baseline_model: str | None = Field(
        None, json_schema_extra={"x-default": "the best single model of the artifact"}
    )
    """Model that savings and the expected accuracy are compared with: what the tokens of the routed
    requests would have cost at the price of this model, and how many answers it would have got
    right."""
    latency_budget_s: Seconds = 0.025
    """Time in seconds that a decision should take, from the complete body to the choice. Slower
    decisions are counted and still used."""
    unknown_prices: Literal["refuse", "allow"] = "refuse"
    """What to do if a model has no price in the file, the price list or the artifact. With
    `refuse`, startup fails. With `allow`, the cost of the model's answers is unknown, never 0."""
    model_name: Name = "switchcraft"
    """Model name that requests routing; a policy is appended as in `switchcraft:economy`."""
    aliases: Mapping[Name, Name | None] = Field(
        default_factory=dict, json_schema_extra={"x-default": "`claude-*: switchcraft`"}
    )
    """Further model names, for clients that insist on their own: patterns such as
    `claude-*-haiku-*`, each with `switchcraft`, `switchcraft:economy` or a model of `model_list`.
    The first pattern that matches counts, and the default comes last; `claude-*: null` takes it
    away. Names of models and LiteLLM's aliases come first."""
    pass_through: str | None = None
    """Model whose first deployment's upstream receives all requests under `/v1/` that the gateway
    does not serve itself, such as files and conversations. Without it they get status 404."""
    pass_through_shared: bool = False
    """Whether every client key may use everything that the upstream of `router.pass_through`
    stores. If false, and if there is more than one client key, a key can use only what it created
    through this gateway, within `server.response_ttl_s` and `server.max_responses`. Lists and
    everything else need the admin key."""
    fallback_on_refusal: bool = False
    """Whether another model is asked if one refuses to answer, or if its provider's content filter
    withholds the answer, before anything of it is sent. That is Anthropic's stop reason `refusal`,
    and OpenAI's `refusal` and `content_filter`. The next model's refusal is delivered. In verified
    answers, a refusal is delivered only if every model that may be asked refuses."""
    exploration_share: Share = 0.0
    """Share (0 to 1) of routed requests for which the arm is chosen at random among those that can
    serve the request, all equally likely. A log of such decisions can evaluate arms that the policy
    never picks. Requests with the policy `verified` are not explored."""
    verification: VerificationSettings = VerificationSettings()
    compare: CompareSettings = CompareSettings()
    risk: RiskSettings = RiskSettings()
    conversations: ConversationSettings = ConversationSettings()
    agents: AgentSettings = AgentSettings()
    forward_headers: tuple[HeaderName, ...] = ()
    """Request headers to send to upstreams, in addition to the standard ones."""

    @property
    def known_aliases(self) -> Mapping[str, str]:
        """The aliases, and after them the default for the names that Anthropic's clients use."""
        aliases = dict(self.aliases)
        aliases.setdefault("claude-*", self.model_name)
        return {pattern: target for pattern, target in aliases.items() if target is not None}

    @field_validator("publication")
    @classmethod
    def _is_directory(cls, directory: Path | None) -> Path | None:
        if directory == Path("redis"):
            raise ValueError("must be a directory that all replicas mount; Redis is not supported")
        return directory

    @field_validator("forward_headers")
    @classmethod
    def _has_no_credentials(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in NEVER_FORWARDED:
                raise ValueError(f"the header {name!r} is never forwarded; remove it")
        return names


class ServerSettings(Frozen):
    """The gateway's process: addresses, limits and shared state."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` accepts connections from other machines."""
    port: Port = 8080
    """Port to listen on; 0 chooses a free one."""
    max_body_bytes: Count = 10 * 1024 * 1024
    """Largest request body in bytes; larger ones get status 413."""
    body_timeout_s: Seconds = 60.0
    """Longest time in seconds to receive a request's body; slower requests get status 408."""
    max_header_bytes: Count = 32 * 1024
    """Largest request line and headers together, in bytes; larger ones get status 431."""
    header_timeout_s: Seconds = 10.0
    """Longest time in seconds to receive a request's headers; slower requests get status 408."""
    write_timeout_s: Seconds = 60.0
    """Longest time in seconds in which a client reads nothing of its answer; then the gateway
    closes the connection."""
    max_connections: Count = 4096
    """Largest number of client connections of each process, at most half of its limit of open
    files. At the limit, the connection that has been idle for the longest time is closed."""
    max_requests_in_flight: Count = 1000
    """Largest number of concurrent requests under `/v1/`; further requests get status 503."""
    max_requests_in_flight_per_key: Count | None = None
    """Largest number of concurrent requests of one key in each process; further requests get status
    429. By default, a key may have three times as many requests as are free, so that one busy key
    leaves a quarter to other keys."""
    max_buffered_bytes: Count = 192 * 1024 * 1024
    """Memory in bytes for the bodies and answers of all requests in flight, each counted three
    times because it is copied. At the limit, new requests get status 503, or 429 if their key uses
    more than three times the memory that is free. Answers are then relayed without buffering."""
    max_queued_decisions: Annotated[int, Field(ge=0)] = 500
    """Largest number of requests that wait for a decision, among those with bodies up to 64 KB and
    among those with larger ones; further requests get status 503."""
    max_decision_wait_s: Seconds = 5.0
    """Longest time in seconds that a request waits for its decision to start; then it gets status
    503."""
    decision_threads: Count = Field(
        default_factory=lambda: min(4, os.cpu_count() or 1),
        json_schema_extra={"x-default": "the number of CPU cores, at most 4"},
    )
    """Number of concurrent decisions. Threads suffice because the model's runtime releases the
    interpreter's lock. Bodies over 64 KB have one more thread, and keys share the threads' time."""
    drain_delay_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Time in seconds to keep serving after a stop signal, while the readiness probe fails. A load
    balancer needs about 5 s to notice."""
    shutdown_timeout_s: Count = 30
    """Time in seconds that running answers get to finish after `drain_delay_s`, while new requests
    are refused."""
    redis_url: StoreAddress | None = None
    """Address of the Redis in which replicas share state, such as `redis://:PASSWORD@host:6379/0`.
    Without Redis, each replica keeps its state in memory. Needs the extra `redis`."""
    decision_ttl_s: Count = 24 * 3600
    """Time in seconds that `GET /v1/decisions/{id}` can return a decision."""
    response_ttl_s: Count = 30 * 24 * 3600
    """Time in seconds that the gateway remembers which deployment stores a response of the
    Responses API. The default is as long as OpenAI keeps responses."""
    max_responses: Count = 50_000
    """Largest number of responses that the gateway remembers in memory (see `response_ttl_s`), 0.7
    KB each. The oldest ones of the key with most are dropped first. Redis has no such limit."""
    max_decisions: Count = 10_000
    """Largest number of decisions in memory, about 2 KB each; the oldest ones of the key with most
    are dropped first. Redis has no such limit."""

    @property
    def shared_store(self) -> str | None:
        """The address of the backend that replicas share, if there is one."""
        return None if self.redis_url is None else self.redis_url.get_secret_value()

    @property
    def store_limits(self) -> StoreLimits:
        """How long and how many records of each kind are kept."""
        return StoreLimits(
            Retention(self.decision_ttl_s, self.max_decisions),
            {UpstreamObject.kind: Retention(self.response_ttl_s, self.max_responses)},
        )


class KeySettings(Frozen):
    """API keys. Without any key, everyone who can connect may use the gateway.

    A key is written in plain text, or as `sha256:` and its hash, which `switchcraft key` prints.
    """

    api: Mapping[Name, ClientKey] = Field(default_factory=dict)
    """Client keys by name; the names appear in logs and metrics. On the page, a client key shows
    its own traffic and spend."""
    admin: ClientKey | None = None
    """Key for the whole page, `/metrics`, `/openapi.json` and `/admin/`; it also works as a client
    key."""
    metrics: ClientKey | None = None
    """Key for `GET /metrics` only, so that Prometheus does not need the admin key."""

    @field_validator("api")
    @classmethod
    def _has_no_reserved_name(cls, keys: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        if ADMIN in keys:
            raise ValueError(f"{ADMIN!r} is reserved for keys.admin; choose another name")
        if any(map(begins_like_key, keys)):
            raise ValueError(
                "a name looks like a key, and names appear in logs and metrics; write NAME: KEY"
            )
        return keys

    @model_validator(mode="after")
    def _metrics_key_is_separate(self) -> Self:
        if self.metrics is None:
            return self
        if METRICS in self.api:
            raise ValueError(f"{METRICS!r} is reserved for keys.metrics; rename keys.api.{METRICS}")
        keys = {where: digest_of(key) for where, key in self.by_path().items()}
        metrics = keys.pop("keys.metrics")
        for where, digest in keys.items():
            if hmac.compare_digest(digest, metrics):
                raise ValueError(f"keys.metrics is the same key as {where}; use another key")
        return self

    @property
    def has_clients(self) -> bool:
        """Whether a client can be served with a key of the configuration."""
        return bool(self.api) or self.admin is not None

    def by_path(self) -> dict[str, str]:
        """Return all keys by their path in the file."""
        keys = {f"keys.api.{name}": key for name, key in self.api.items()}
        keys |= {} if self.admin is None else {"keys.admin": self.admin}
        keys |= {} if self.metrics is None else {"keys.metrics": self.metrics}
        return {where: key.get_secret_value() for where, key in keys.items()}


class TracingSettings(Frozen):
    """Export of OpenTelemetry spans, which is off by default and needs the extra `otlp`.

    The exporter also reads the standard `OTEL_EXPORTER_OTLP_*` variables (certificate, compression,
    timeout, further headers), and its queue reads `OTEL_BSP_SCHEDULE_DELAY`.
    """

    otlp_endpoint: HttpAddress | None = Field(default=None, repr=False)
    """Base address of a collector that accepts OTLP over HTTP, such as `http://collector:4318`;
    spans are sent to `/v1/traces` below it."""
    headers: Mapping[Name, SecretStr] = Field(default_factory=dict)
    """Headers of each request to the collector, such as its API key."""
    sample_share: Share = 1.0
    """Share (0 to 1) of traces to keep, among those that start at this gateway. For a trace that a
    client started, the client decides in its `traceparent` header."""
    service_name: Name | None = Field(
        None, json_schema_extra={"x-default": "`OTEL_SERVICE_NAME`, or `switchcraft`"}
    )
    """Service name of the spans."""


class LoggingSettings(Frozen):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log. Requests are logged at `info`, failed requests at `warning`, probes at
    `debug`. Prompts, answers and keys are not logged at any level."""
    format: LogFormat = "auto"
    """`json` writes one JSON object per line, `text` writes aligned columns for people, and `auto`
    writes text if standard error is a terminal, otherwise JSON."""


class DecisionLogSettings(Frozen):
    """The decision log: files of decisions to train and evaluate with."""

    path: Path | None = None
    """Directory of the log's files, which replicas may share. Without it there is no
    decision log."""
    content: bool = False
    """Whether to log requests, answers and expected calls in full; otherwise their hashes are
    logged."""
    evidence: bool = False
    """Whether to search each next turn of a conversation for weak evidence that the tool calls
    before it were wrong."""
    check_calls: bool = True
    """Whether to check the tool calls of answers against the schemas of their tools. This does not
    need the log."""
    retention_days: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """Longest time in days to keep a line. Only whole files are deleted, by the time of their first
    line."""
    max_file_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """Size in millions of bytes at which a new file is started."""
    max_queued: Count = 1000
    """Largest number of answers that wait to be written. Further answers are dropped and counted,
    because requests do not wait for the log."""


class DatabaseSettings(Frozen):
    """The database of keys, teams, budgets and usage: an SQLite file, or PostgreSQL.

    Requests never wait for it. It contains no part of any request.
    """

    url: DatabaseAddress | None = Field(
        None,
        json_schema_extra={"x-default": "`sqlite:///~/.local/state/switchcraft/switchcraft.db`"},
    )
    """Address such as `sqlite:////var/lib/switchcraft/switchcraft.db` or
    `postgresql://USER:PASSWORD@HOST/NAME`. An SQLite file must be on a local disk, and gateways of
    this machine can share it. Replicas on several machines need PostgreSQL and the extra
    `postgres`. The default follows `XDG_STATE_HOME`; the sandbox has a file of its own."""
    grace_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3600.0
    """Time in seconds that requests continue with the last known keys and budgets while the
    database is unreachable. Afterwards, keys with a budget get status 503 until it answers."""
    max_pending_rows: Count = 20_000
    """Largest number of rows in memory that wait to be written. Beyond it, usage is no longer
    counted, but budgets still are."""


class UsageSettings(Frozen):
    """Sums of requests, tokens, costs and errors by time, model, policy, key and team.

    The section also has the limits of the list of recent requests.
    """

    enabled: bool = True
    """Whether to keep both; budgets work without."""
    retention_days: Count = 400
    """Time in days that daily sums are kept. Sums for minutes are kept for 2 hours, and those for
    hours for 2 days."""
    max_rows: Count = 1_000_000
    """Largest number of rows in the database, about 100 bytes each: those of sums, and those of
    latency histograms, of which a row of sums has one to three. At the limit, the oldest rows are
    deleted."""
    recent_requests: Annotated[int, Field(ge=0)] = 100_000
    """Number of requests that live traffic and `GET /v1/requests` list, about 500 bytes each: their
    models, costs and endings, but nothing of their content. Older requests are deleted; 0 lists
    none."""
    recent_days: Count = 7
    """Time in days that a request is listed."""


class BudgetSettings(Frozen):
    """What happens as the budgets of keys and teams run out."""

    cheaper_first: bool = True
    """Whether requests get a cheaper policy before a budget refuses them."""
    curve: tuple[tuple[Share, Share], ...] | None = Field(
        None, json_schema_extra={"x-default": "so that the budget lasts until its period ends"}
    )
    """Pairs of the share of a budget that is spent, and the largest expected cost from then on,
    relative to the policy that would apply otherwise: `[[0.5, 0.7], [0.8, 0.4]]`. Between two
    pairs, the first one applies. A budget without a period, and every budget if `usage.enabled` is
    false, uses `[[0.5, 0.75], [0.75, 0.5], [0.9, 0.25]]` by default."""
    max_wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5.0
    """Longest time in seconds that a request waits while the rest of its budget is reserved for
    requests in flight; then it gets status 429 with `retry-after`."""


class Settings(Frozen):
    """The whole configuration. If it has no models, the gateway uses `Settings.sandbox` instead."""

    models: tuple[Model, ...] = ()
    aliases: Mapping[str, str] = Field(default_factory=dict)
    """Additional names (aliases) that clients may use, each with the model it stands for."""
    wildcards: tuple[
        Annotated[InstanceOf[Wildcard], PlainSerializer(lambda each: each.pattern)], ...
    ] = ()
    """Patterns for the names of further models, the most specific one first."""
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    keys: KeySettings = KeySettings()
    tracing: TracingSettings = TracingSettings()
    logging: LoggingSettings = LoggingSettings()
    decision_log: DecisionLogSettings = DecisionLogSettings()
    database: DatabaseSettings = DatabaseSettings()
    """Without an address, the database is in memory, and lost when the process ends."""
    usage: UsageSettings = UsageSettings()
    budgets: BudgetSettings = BudgetSettings()
    source: str = "the default configuration"
    """File that the settings were read from, for error messages."""
    lines: Mapping[str, int] = Field(default_factory=dict, repr=False)
    """The line of each setting in the file, by its dotted path."""
    overrides: Mapping[str, tuple[str, str]] = Field(default_factory=dict, repr=False)
    """Where a value comes from that overrides the file's: by the setting's dotted path, the place
    and the name there, such as `("the command line", "--port")`."""
    has_default_database: bool = False
    """Whether `database.url` is the default file, because none is configured."""
    is_sandbox: bool = False
    """Whether a sandbox serves the models, because none are configured."""
    unsupported: tuple[ConfigProblem, ...] = ()
    """Each LiteLLM setting of the file that behaves differently here, with the consequence."""

    @property
    def has_models(self) -> bool:
        """Whether any model is configured; a wildcard counts."""
        return bool(self.models or self.wildcards)

    def error(self, where: str, problem: str) -> ConfigError:
        """Return the error for a setting that cannot be used; `where` is its dotted path."""
        if where in self.overrides:
            return ConfigError(*self.overrides[where], problem)
        line = line_of(where, self.lines)
        return ConfigError(self.source, problems=[ConfigProblem(where, problem, line)])

    def errors(self, problems: Mapping[str, str]) -> ConfigError:
        """Return the error for several settings of the file; the problems are by dotted path."""
        located = [ConfigProblem(w, p, line_of(w, self.lines)) for w, p in problems.items()]
        return ConfigError(self.source, problems=located)

    @classmethod
    def sandbox(
        cls,
        base_url: str,
        arms: Sequence[str],
        *,
        server: ServerSettings | None = None,
        upstreams: UpstreamSettings | None = None,
    ) -> Settings:
        """Return settings with one model for each arm, all served by one sandbox."""
        upstreams = upstreams or UpstreamSettings()
        url, timeouts = base_url.rstrip("/"), upstreams.timeouts
        apis = tuple(APIS)
        served = (
            Deployment(upstream_model=a, base_url=url, apis=apis, timeouts=timeouts) for a in arms
        )
        return cls(
            models=tuple(Model(name=d.upstream_model, deployments=(d,)) for d in served),
            server=server or ServerSettings(),
            upstreams=upstreams,
            source="the sandbox",
            is_sandbox=True,
        )
