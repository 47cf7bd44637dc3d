"""Routes other than the model APIs: model list, decisions, feedback, health, metrics, reloads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from router_service.access.key import Key
from router_service.apis.conversation import decode_object
from router_service.artifact import FrontierPoint
from router_service.core.decision_record import LoggedCall, Verdict
from router_service.core.errors import InvalidRequestError
from router_service.core.refusals import model_not_allowed, model_not_found
from router_service.core.releases import Publication, Track
from router_service.core.strict_json import check_integers
from router_service.http.auth import UI_PATH
from router_service.http.schemas import DECISIONS, ERRORS, OPERATIONS, feedback_request
from router_service.http.transfer import call_of, gateway_of, read_body, read_by
from router_service.policies.base import Control
from router_service.policies.explanations import ExplainedDecision, explain_record
from router_service.policies.registry import DEFAULT, controls
from router_service.predictor.model import Execution
from router_service.requests.feedback import ClientFeedback
from router_service.requests.planning import CLAUDE_PREFIX, Planner
from router_service.runtime.gateway import Gateway
from router_service.runtime.reloading import ReloadFailure, ReloadReport
from router_service.telemetry.metrics import CONTENT_TYPE

MAX_FEEDBACK_BYTES = 1024 * 1024
MAX_EXPECTED_CALLS = 128
MAX_ID_CHARACTERS = 100

_FIELDS = frozenset({"decision_id", "correct", "expected"})
_CALL_FIELDS = frozenset({"name", "arguments"})

routes = APIRouter(responses=ERRORS)


class ModelCard(BaseModel):
    """A model in OpenAI's format; its creation time is unknown, so `created` is 0."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "switchcraft"


class ModelList(BaseModel):
    """A list of models in OpenAI's format."""

    object: str = "list"
    data: list[ModelCard]


class AnthropicModel(BaseModel):
    """A model in Anthropic's format; its release is unknown, so `created_at` is the epoch."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: Literal["1970-01-01T00:00:00Z"] = "1970-01-01T00:00:00Z"
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None
    """The context window, if it is known."""
    max_tokens: int | None = None
    """Longest answer, if it is known."""


class AnthropicModelList(BaseModel):
    """A list of models in Anthropic's format."""

    data: list[AnthropicModel]
    has_more: bool = False
    first_id: str | None
    last_id: str | None


class CodexTruncation(BaseModel):
    """Limit on the output of a tool that Codex keeps."""

    mode: Literal["tokens"] = "tokens"
    limit: int = 10_000


class CodexModel(BaseModel):
    """A model in the format of Codex, which does not list a model without one of these fields."""

    slug: str
    display_name: str
    description: None = None
    supported_reasoning_levels: tuple[()] = ()
    shell_type: Literal["shell_command"] = "shell_command"
    visibility: Literal["list"] = "list"
    supported_in_api: Literal[True] = True
    priority: int
    """Place in the list; the first model is the default."""
    availability_nux: None = None
    upgrade: None = None
    base_instructions: str = (
        "You are a coding agent in the Codex CLI. You work in the user's workspace with the tools "
        "that you have. Follow the user's instructions and the AGENTS.md files, change files with "
        "apply_patch, test what you change, and report briefly what you have done."
    )
    """System prompt, which only older versions of Codex read."""
    supports_reasoning_summaries: Literal[False] = False
    support_verbosity: Literal[False] = False
    default_verbosity: None = None
    apply_patch_tool_type: Literal["freeform"] = "freeform"
    truncation_policy: CodexTruncation = CodexTruncation()
    supports_parallel_tool_calls: Literal[True] = True
    context_window: int | None
    max_context_window: int | None
    experimental_supported_tools: tuple[()] = ()


class CodexModelList(BaseModel):
    """A list of models in the formats of Codex and of OpenAI."""

    object: str = "list"
    data: list[ModelCard]
    models: list[CodexModel]


class PolicyCard(BaseModel):
    """A named policy, and what its rule achieved on held-out queries."""

    name: str
    """Name that follows the model's, as in `switchcraft:economy`."""
    rule: str
    goal: str | None
    """The goal by which the rule was chosen, or None if the rule is fixed."""
    measured: FrontierPoint | None
    """Results of the mapped arms at the configured prices; None if the rule was not measured."""


class PolicyList(BaseModel):
    """The named policies of the artifact that decides now."""

    object: str = "list"
    default: str
    """Rule or goal of requests that select no policy."""
    data: list[PolicyCard]
    rules: tuple[Control, ...]
    """All kinds of rules, with the meaning and the range of their numbers."""
    estimated_arms: tuple[str, ...]
    """Arms that joined without retraining: figures are estimates of what they add."""


class FeedbackReceipt(BaseModel):
    """Answer to feedback: the decision's id and the verdict that was recorded."""

    decision_id: str
    verdict: Verdict


@routes.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def root(request: Request) -> Response:
    """Redirect browsers to the page, and answer programs that probe the gateway with 200."""
    if "text/html" in request.headers.get("accept", ""):
        # A relative address, because a proxy may serve the gateway below a prefix.
        return RedirectResponse(UI_PATH.removeprefix("/"))
    return Response("Switchcraft\n", media_type="text/plain")


@routes.get("/docs", include_in_schema=False)
async def docs() -> RedirectResponse:
    """Show people the API on the page."""
    return RedirectResponse(f"{UI_PATH.removeprefix('/')}#api")


@routes.get("/v1/models", tags=[DECISIONS], summary="List the models")
async def list_models(request: Request) -> CodexModelList | ModelList | AnthropicModelList:
    """List every name that a request with this key may have in its field `model`.

    The format is Anthropic's if the request has the header `anthropic-version`, and Codex's if the
    query has `client_version`.
    """
    planner, key = gateway_of(request).engine.releases.stable, call_of(request).key
    names = planner.names_for(key)
    if not _speaks_messages(request):
        cards = [ModelCard(id=name) for name in names]
        if "client_version" not in request.query_params:
            return ModelList(data=cards)
        models = []
        for place, name in enumerate(names):
            window = planner.limits_for(name, key).context_window_tokens
            models.append(
                CodexModel(
                    slug=name,
                    display_name=name,
                    priority=place,
                    context_window=window,
                    max_context_window=window,
                )
            )
        return CodexModelList(data=cards, models=models)
    aliases = {f"{CLAUDE_PREFIX}{name}": name for name in names}
    aliases = {alias: name for alias, name in aliases.items() if planner.unalias(alias) == name}
    listed = [
        _anthropic_model(planner, key, shown, name)
        for shown, name in (*aliases.items(), *zip(names, names, strict=True))
    ]
    ids = [model.id for model in listed]
    return AnthropicModelList(
        data=listed, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None
    )


def _speaks_messages(request: Request) -> bool:
    """Return whether a client reads Anthropic's format, as Claude Code does in all requests."""
    agent = request.headers.get("user-agent", "")
    return "anthropic-version" in request.headers or agent.startswith(("claude-code", "claude-cli"))


def _anthropic_model(planner: Planner, key: Key, shown: str, name: str) -> AnthropicModel:
    limits = planner.limits_for(name, key)
    return AnthropicModel(
        id=shown,
        display_name=name,
        max_input_tokens=limits.context_window_tokens,
        max_tokens=limits.max_output_tokens,
    )


@routes.get("/v1/models/{model:path}", tags=[DECISIONS], summary="Get a model")
async def get_model(request: Request, model: str) -> ModelCard | AnthropicModel:
    """Return one model; its name may contain slashes, or match one of `router.aliases`."""
    planner, key = gateway_of(request).engine.releases.stable, call_of(request).key
    name, allowed = planner.unalias(model), planner.names_for(key)
    if not planner.has_name(name):
        patterns = gateway_of(request).engine.pool.models.patterns
        raise model_not_found(model[:200], (*allowed, *patterns))
    if not planner.may_name(key, name):
        raise model_not_allowed(model[:200], allowed)
    if _speaks_messages(request):
        return _anthropic_model(planner, key, model, name)
    return ModelCard(id=model)


@routes.get("/v1/policies", tags=[DECISIONS], summary="List the policies")
async def list_policies(request: Request) -> PolicyList:
    """List the named policies, with their rules and figures for the mapped arms."""
    engine = gateway_of(request).engine
    manifest = engine.manifest
    verified = await asyncio.to_thread(engine.explainer.verified_points)
    points = {p.policy: p for p in (*manifest.frontier, *verified)}
    cards = [
        PolicyCard(
            name=name, rule=rule, goal=manifest.policy_goals.get(name), measured=points.get(rule)
        )
        for name, rule in manifest.named_rules.items()
        if name != DEFAULT
    ]
    return PolicyList(
        default=str(engine.explainer.default_policy),
        data=cards,
        rules=controls(),
        estimated_arms=manifest.estimated_arms,
    )


@routes.get("/v1/decisions/{decision_id}", tags=[DECISIONS], summary="Get a decision")
async def get_decision(request: Request, decision_id: str) -> ExplainedDecision:
    """Return the decision record of a request that has ended, and why its model answered.

    An API key can read only the decisions of its own requests; the admin key can read all.
    """
    gateway = gateway_of(request)
    record = await gateway.feedback.decision(decision_id[:100], call_of(request).key)
    return explain_record(record, gateway.engine.pool.labels)


@routes.post(
    "/v1/feedback",
    openapi_extra=feedback_request(MAX_EXPECTED_CALLS),
    tags=[DECISIONS],
    summary="Say whether an answer was correct",
)
async def give_feedback(request: Request) -> FeedbackReceipt:
    """Record whether an answer was correct, or which calls were expected.

    Feedback may be sent again with another verdict; training uses the last one.
    """
    gateway = gateway_of(request)
    body = await read_body(call_of(request), request.receive, gateway.server, MAX_FEEDBACK_BYTES)
    given = await read_by(_parse_feedback, request, body)
    verdict = await gateway.feedback.take(given, call_of(request).key)
    return FeedbackReceipt(decision_id=given.decision_id, verdict=verdict)


def _parse_feedback(body: bytes) -> ClientFeedback:
    """Parse a feedback body; raises InvalidRequestError at the first invalid field.

    This does not use pydantic, which collects the errors of all items at 3 us and 1 KB for each.
    """
    fields = decode_object(body)
    check_integers(body)  # the decision log would round them
    kinds = {"correct", "expected"} & fields.keys()
    if len(kinds) != 1:
        raise InvalidRequestError(
            "Send exactly one of 'correct' (true or false) and 'expected' (the calls that would "
            "have been correct).",
            param="correct",
            code="missing_required_parameter" if not kinds else "invalid_value",
        )
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise _invalid(min(unknown)[:MAX_ID_CHARACTERS], "there is no such field. Remove it")
    decision_id, correct = fields.get("decision_id"), fields.get("correct")
    if not isinstance(decision_id, str) or not 0 < len(decision_id) <= MAX_ID_CHARACTERS:
        raise _invalid("decision_id", f"send a string of 1 to {MAX_ID_CHARACTERS} characters")
    if "expected" not in fields:
        if not isinstance(correct, bool):
            raise _invalid("correct", "send true or false")
        return ClientFeedback(decision_id, correct=correct)
    calls = fields["expected"]
    if not isinstance(calls, list) or len(calls) > MAX_EXPECTED_CALLS:
        raise _invalid("expected", f"send an array of at most {MAX_EXPECTED_CALLS} calls")
    for index, call in enumerate(calls):
        path = f"expected.{index}"
        if not isinstance(call, dict) or call.keys() - _CALL_FIELDS:
            raise _invalid(path, "send an object with only 'name' and 'arguments'")
        if not isinstance(call.get("name"), str):
            raise _invalid(f"{path}.name", "send the name of a tool")
        if not isinstance(call.get("arguments"), dict):
            raise _invalid(f"{path}.arguments", "send the arguments as an object, not as a string")
    expected = tuple(LoggedCall(name=call["name"], arguments=call["arguments"]) for call in calls)
    return ClientFeedback(decision_id, expected=expected)


def _invalid(param: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{param}': {remedy}.", param=param, code="invalid_value")


# Routes for operators.


class Health(BaseModel):
    """Answer of a process that is alive."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Readiness of this gateway for requests; an unreachable store does not change `status`."""

    status: Literal["ready", "draining"]
    artifact: str
    graph: str
    """File of the artifact with the model that runs."""
    provider: str
    """Execution provider of ONNX Runtime that runs it: `CPUExecutionProvider`, or
    `CUDAExecutionProvider` for a GPU."""
    store: Literal["ok", "away"]
    routing: Literal["none"] | None = None
    """`none` if the router knows none of the configured models; otherwise left out."""


class LiteLLMReadiness(BaseModel):
    """Readiness in LiteLLM's format; the gateway has no database."""

    status: Literal["healthy", "draining"]
    db: Literal["Not connected"] = "Not connected"


_DRAINING: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "The process is shutting down"}
}


class ReleaseStatistics(BaseModel):
    """Results of one release on this gateway since a canary release began."""

    release: Track
    requests: int
    error_share: float
    mean_cost_usd: float
    """Mean over the requests whose cost is known."""


class OpenDeployment(BaseModel):
    """A deployment whose circuit is open, so that no request is sent to it."""

    deployment: str
    """Its id in metrics and logs."""
    models: tuple[str, ...]
    """The models that it serves."""
    address: str
    cause: str
    """The failure that opened the circuit."""
    closes_in_s: float
    """Seconds until the next request probes the deployment."""


class HeldBytes(BaseModel):
    """Memory that a cache or a store takes."""

    bytes: int
    limit_bytes: int
    """Beyond it, the oldest entries are dropped."""


class DatabaseStatus(BaseModel):
    """The database of keys, teams, budgets and usage, as this process sees it."""

    place: str
    """The SQLite file, `postgresql://HOST/NAME`, or `memory`."""
    state: Literal["up", "away"]
    """While the database is away, requests continue with the last known keys and budgets."""
    unreachable_s: float
    cause: str | None
    """Why the database cannot be used."""


class GatewayStatus(BaseModel):
    """The release that serves, and the last reload that failed."""

    artifact: str
    """Name of the artifact that decides."""
    execution: Execution
    """The graph that predicts and what runs it, with a warning if `router.device` is not used."""
    publication: Publication | None
    """The publication that is served, without a canary release that was rolled back."""
    tried: tuple[ReleaseStatistics, ...]
    open_circuits: tuple[OpenDeployment, ...]
    shared_state: str
    """`up` or `away`."""
    database: DatabaseStatus
    last_refusal: ReloadFailure | None
    held_memory: Mapping[str, HeldBytes]
    """What this process keeps for later requests: caches, and records of each kind."""


@routes.head("/healthz", include_in_schema=False)
@routes.get("/healthz", tags=[OPERATIONS], summary="Liveness")
async def healthz() -> Health:
    """Return whether the process is alive."""
    return Health()


@routes.head("/readyz", include_in_schema=False)
@routes.get(
    "/readyz",
    responses=_DRAINING,
    response_model_exclude_none=True,
    tags=[OPERATIONS],
    summary="Readiness",
)
async def readyz(request: Request, response: Response) -> Readiness:
    """Return whether new requests are served, with status 503 once a shutdown has begun.

    The gateway is never unready at startup, because it listens only with a loaded artifact.
    """
    gateway = gateway_of(request)
    store: Literal["ok", "away"] = "ok" if gateway.is_store_reachable else "away"
    status: Literal["ready", "draining"] = "draining" if gateway.drain.has_begun else "ready"
    response.status_code = 503 if gateway.drain.has_begun else 200
    engine = gateway.engine
    routing: Literal["none"] | None = None if engine.pool.by_arm else "none"
    return Readiness(
        status=status,
        artifact=engine.manifest.name,
        graph=engine.execution.graph,
        provider=engine.execution.provider,
        store=store,
        routing=routing,
    )


@routes.get("/health/liveliness", tags=[OPERATIONS], summary="Liveness, as LiteLLM names it")
@routes.get("/health/liveness", tags=[OPERATIONS], summary="Liveness, as LiteLLM names it")
async def liveliness() -> str:
    """Return that the process is alive, even while it drains, so that it is not killed."""
    return "I'm alive!"


@routes.get(
    "/health/readiness",
    responses=_DRAINING,
    tags=[OPERATIONS],
    summary="Readiness, as LiteLLM names it",
)
async def readiness(request: Request, response: Response) -> LiteLLMReadiness:
    """Return whether requests are served, in LiteLLM's format."""
    has_begun = gateway_of(request).drain.has_begun
    response.status_code = 503 if has_begun else 200
    return LiteLLMReadiness(status="draining" if has_begun else "healthy")


@routes.get("/metrics", response_class=Response, tags=[OPERATIONS], summary="Metrics")
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    gateway = gateway_of(request)
    gateway.recorder.flush()
    return Response(gateway.metrics.exposition(), headers={"content-type": CONTENT_TYPE})


@routes.post("/admin/reload", tags=[OPERATIONS], summary="Reload the configuration")
async def reload(request: Request) -> ReloadReport:
    """Read the configuration again and apply all of it, or nothing if any part is invalid."""
    return await gateway_of(request).reloader.reload()


@routes.get("/admin/status", tags=[OPERATIONS], summary="What is being served")
async def status(request: Request) -> GatewayStatus:
    """Return the release that serves, what is unreachable, and the last reload that failed."""
    gateway = gateway_of(request)
    failure = gateway.database.failure
    trial = gateway.engine.releases.trial
    statistics = (
        ReleaseStatistics(
            release=track,
            requests=tally.requests,
            error_share=tally.error_share,
            mean_cost_usd=tally.mean_cost_usd,
        )
        for track, tally in (trial.tallies.items() if trial else ())
    )
    return GatewayStatus(
        artifact=gateway.engine.manifest.name,
        execution=gateway.engine.execution,
        publication=gateway.reloader.publication,
        tried=tuple(statistics),
        open_circuits=tuple(_open_deployments(gateway)),
        shared_state="up" if gateway.syncer.is_reachable else "away",
        database=DatabaseStatus(
            place=gateway.database.database.place,
            state="up" if failure is None else "away",
            unreachable_s=round(gateway.database.unreachable_s, 1),
            cause=None if failure is None else failure.problem,
        ),
        last_refusal=gateway.reloader.last_failure,
        held_memory={
            name: HeldBytes(bytes=held.size_bytes, limit_bytes=held.max_bytes)
            for name, held in sorted(gateway.held_memory().items())
        },
    )


def _open_deployments(gateway: Gateway) -> Iterator[OpenDeployment]:
    """Yield the deployments of the current configuration whose circuit is open."""
    models = gateway.engine.pool.models.used
    deployments = {deployment.id: deployment for m in models for deployment in m.deployments}
    for deployment_id, circuit in sorted(gateway.breakers.open_circuits().items()):
        deployment = deployments.get(deployment_id)
        if deployment is None:  # removed by a reload
            continue
        yield OpenDeployment(
            deployment=deployment_id,
            models=tuple(sorted({m.name for m in models if deployment in m.deployments})),
            address=deployment.address,
            cause=circuit.cause or "another replica has opened the circuit; its log has the cause",
            closes_in_s=round(circuit.left_s, 1),
        )
