"""Web page at `GET /ui`, and its JSON API."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import orjson
from fastapi import APIRouter, FastAPI, Query
from pydantic import AfterValidator, BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from router_service import __version__
from router_service.apis.registry import APIS
from router_service.artifact import Encoder, FrontierPoint, Manifest, Measure, Provenance
from router_service.http.auth import UI_DESCRIPTION_PATH, UI_PATH
from router_service.http.transfer import (
    call_of,
    gateway_of,
    json_answer,
    read_body,
    read_database,
    unless_client_leaves,
)
from router_service.measurement.advice import Advice
from router_service.measurement.agent_tasks import TaskAdvice, TaskKind
from router_service.measurement.goals import pareto_front
from router_service.measurement.held_out import HELD_OUT
from router_service.policies.base import Control
from router_service.policies.costs import ArmProfile
from router_service.policies.registry import controls
from router_service.policies.verified import VERIFIED
from router_service.predictor.model import Execution
from router_service.requests.explain import Explained
from router_service.requests.mapping import Basis, UnroutedModel
from router_service.requests.parsing import Endpoint
from router_service.runtime.engine import Engine
from router_service.telemetry.comparisons import ComparedModel, read_comparisons
from router_service.ui.verified_steps import PlaygroundAnswer

FOLDER = Path(__file__).parent / "web"

_POLICIES = re.compile(r"^policies:\n(?: .*\n)*", re.MULTILINE)
"""The policies of a training configuration."""

routes = APIRouter(prefix=UI_PATH, include_in_schema=False)
static = StaticFiles(directory=FOLDER / "static")


def _check_name(name: str) -> str:
    if name not in APIS.names:
        raise ValueError(f"use one of these: {', '.join(APIS.names)}")
    return name


ApiName = Annotated[str, AfterValidator(_check_name)]
"""Name of an API of the registry."""


class ArmCard(BaseModel):
    """An arm of the artifact."""

    arm: str
    model: str
    """Configured model of this arm."""
    basis: Basis
    """Why this model serves the arm; `stand_in` if it is not the measured one."""
    cost_usd: float
    """Expected cost of a request at the gateway's prices."""
    accuracy: Measure | None
    """Held-out accuracy of this arm alone; None if it was not measured."""
    profile: ArmProfile


class ArtifactCard(BaseModel):
    """The artifact: its provenance, its policies and its measured results."""

    name: str
    version: str
    """Version of the gateway."""
    encoder: Encoder
    budget_tokens: int
    tool_budget_tokens: int
    template: str
    features: int
    """Number of structural features."""
    calibration: str
    execution: Execution
    policies: Mapping[str, str]
    rules: tuple[Control, ...]
    """All kinds of rules, with what the page shows of them."""
    model_name: str
    """Model name that a client sends to have a request routed."""
    default_policy: str
    """Default policy of this gateway."""
    expected: tuple[str, ...]
    """Sentences on what this policy is expected to reach, and on the best addition to the pool."""
    frontier: tuple[FrontierPoint, ...]
    efficient: tuple[str, ...]
    """Policies of the frontier that are more accurate than every cheaper policy."""
    is_sandbox: bool
    """Whether a sandbox answers for every model, because no models are configured."""
    verified_policy: str | None
    """The policy `verified` with its price; None if the artifact has no verifier."""
    verified_frontier: tuple[FrontierPoint, ...]
    verified_efficient: tuple[str, ...]
    metrics: Mapping[str, Measure]
    estimated_arms: tuple[str, ...]
    """Arms that joined without retraining: frontier and metrics are estimates of what they add."""
    arms: tuple[ArmCard, ...]
    known_arms: int
    """Number of arms of the artifact, also of those that no model is configured for."""
    has_held_out: bool
    """Whether the artifact has the predictions that advice on pools needs."""
    unrouted: tuple[UnroutedModel, ...]
    """Models that the router never chooses."""
    knowledge: str | None
    """What the figures were measured on, and when."""
    provenance: Provenance
    """Its configuration has the policies of this gateway, as `training_config` writes them."""

    @classmethod
    def describe(cls, engine: Engine) -> ArtifactCard:
        """Describe an engine's artifact; the first call may take some seconds."""
        manifest, packing, by_arm = engine.manifest, engine.manifest.packing, engine.pool.by_arm
        mapping = engine.pool.mapping
        costs_usd = manifest.costs_usd(engine.pool.prices)
        verified = engine.explainer.verified_points()
        arms = (
            ArmCard(
                arm=arm,
                model=by_arm[arm].name,
                basis=mapping.bases[arm],
                cost_usd=cost_usd,
                accuracy=engine.explainer.accuracies.get(arm),
                profile=manifest.profile[arm],
            )
            for arm, cost_usd in zip(manifest.arms, costs_usd, strict=True)
            if arm in by_arm
        )
        return cls(
            name=manifest.name,
            version=__version__,
            encoder=manifest.encoder,
            budget_tokens=packing.budget_tokens,
            tool_budget_tokens=packing.tool_budget_tokens,
            template=packing.template,
            features=len(packing.features),
            calibration=manifest.calibration.method,
            execution=engine.execution,
            policies=manifest.named_rules,
            rules=controls(),
            model_name=engine.settings.router.model_name,
            default_policy=str(engine.explainer.default_policy),
            expected=engine.explainer.expectation(),
            frontier=manifest.frontier,
            efficient=tuple(point.policy for point in pareto_front(manifest.frontier)),
            is_sandbox=engine.settings.is_sandbox,
            verified_policy=str(manifest.policy(VERIFIED)) if manifest.verifier else None,
            verified_frontier=verified,
            verified_efficient=tuple(point.policy for point in pareto_front(verified)),
            metrics=manifest.metrics,
            estimated_arms=manifest.estimated_arms,
            arms=tuple(sorted(arms, key=lambda card: card.cost_usd)),
            known_arms=len(manifest.measured_arms),
            has_held_out=HELD_OUT in manifest.files,
            unrouted=mapping.unrouted,
            knowledge=str(manifest.knowledge) if manifest.knowledge else None,
            provenance=manifest.provenance.model_copy(update={"config": training_config(manifest)}),
        )


def training_config(manifest: Manifest) -> str:
    """Return the training configuration with the manifest's policies.

    The manifest is their owner: training finds rules by goals and by the verifier's price, and a
    gateway with other models or prices finds them again. So each rule is a comment where the
    configuration has a goal, or the policy `verified` without its price.
    """
    rules, lines = manifest.named_rules, ["policies:"]
    for name, rule in manifest.policies.items():
        written = manifest.policy_goals.get(name, rule)
        comment = "" if written == rules[name] else f"  # here {rules[name]}"
        lines.append(f"  {name}: {written}{comment}")
    block = "\n".join([*lines, ""])
    return _POLICIES.sub(lambda _: block, manifest.provenance.config)


@routes.get("")
async def page() -> FileResponse:
    """Return the HTML page."""
    return FileResponse(FOLDER / "index.html")


@routes.get("/")
async def page_with_slash() -> RedirectResponse:
    """Redirect to the page.

    The address is relative, because a proxy may serve the gateway below a prefix.
    """
    return RedirectResponse(f"..{UI_PATH}", status_code=308)


@routes.get(UI_DESCRIPTION_PATH.removeprefix(UI_PATH))
async def openapi(request: Request) -> Response:
    """Return the OpenAPI description, which the page shows; in a thread, as it takes 0.5 s."""
    app: FastAPI = request.app
    body = await read_database(request, lambda: orjson.dumps(app.openapi()))
    return json_answer(request, body)


@routes.post("/api/explain")
async def explain(
    request: Request,
    api: Annotated[ApiName, Query()] = APIS.names[0],
    policy: Annotated[str | None, Query()] = None,
) -> Explained:
    """Decide for a request body and explain the decision, without calling a model."""
    gateway = gateway_of(request)
    body = await read_body(call_of(request), request.receive, gateway.server)
    async with gateway.engine as engine:
        explained = gateway.decisions.run(
            call_of(request).key.name,
            len(body),
            engine.explainer.explain,
            Endpoint.of(APIS.named(api)),
            body,
            policy,
        )
        return await unless_client_leaves(request, explained)


@routes.post("/api/ask/{api}")
async def ask(request: Request, api: ApiName) -> Response:
    """Route and answer a request as the public API does, for users of the page."""
    return PlaygroundAnswer(Endpoint.of(APIS.named(api)), request)


@routes.get("/api/artifact")
async def artifact(request: Request) -> ArtifactCard:
    """Return the artifact that makes decisions now, with its provenance and measured results."""
    return await asyncio.to_thread(ArtifactCard.describe, gateway_of(request).engine)


@routes.get("/api/advice")
async def advice(request: Request, *, known: bool = False) -> Advice:
    """Return which few models are enough: of the configured ones, or of all that are known."""
    explainer = gateway_of(request).engine.explainer
    return await asyncio.to_thread(explainer.advise, knows_all=known)


@routes.get("/api/comparisons", response_model=tuple[ComparedModel, ...])
async def compared_models(request: Request) -> Response:
    """Return how the answers of `router.compare.model` compare with the delivered ones."""
    database = gateway_of(request).database
    if database.failure is not None:
        raise database.failure  # at once, instead of after the connection's timeout

    def read() -> bytes:
        models = read_comparisons(database.database)
        return orjson.dumps([each.model_dump(mode="json") for each in models])

    return json_answer(request, await read_database(request, read))


@routes.get("/api/tasks/{task}")
async def tasks(request: Request, task: TaskKind) -> TaskAdvice:
    """Return which of the configured models to use for whole tasks of a kind."""
    explainer = gateway_of(request).engine.explainer
    return await asyncio.to_thread(explainer.advise_on_tasks, task)
