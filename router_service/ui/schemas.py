"""What the page is told, beside what has a type of its own elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from router_service import __version__
from router_service.core.artifact import Encoder, FrontierPoint, Measure, Provenance
from router_service.core.cost import ArmProfile
from router_service.core.goals import pareto_front
from router_service.lifecycle.engine import Engine
from router_service.requests.pool import arm_prices
from router_service.requests.recent import MAX_RECENT, Recent
from router_service.store.base import DecisionRecord


class RecentDecision(BaseModel):
    """A decision in one row; never what the request said."""

    id: str
    created: float
    model: str
    arm: str | None
    reason: str
    policy: str | None
    status: int
    ending: str
    latency_s: float
    first_byte_s: float | None
    actual_cost_usd: float | None

    @classmethod
    def of(cls, record: DecisionRecord) -> RecentDecision:
        """Take from a record what a row shows."""
        return cls.model_validate(record, from_attributes=True)


class RecentDecisions(BaseModel):
    """The last decisions of one process, newest first."""

    limit: int
    decisions: tuple[RecentDecision, ...]

    @classmethod
    def of(cls, recent: Recent) -> RecentDecisions:
        """List what is kept."""
        rows = map(RecentDecision.of, recent.newest_first())
        return cls(limit=MAX_RECENT, decisions=tuple(rows))


class ArmCard(BaseModel):
    """An arm of the artifact."""

    arm: str
    model: str | None
    """The pool's model that plays it; one without is never chosen."""
    cost_usd: float
    """Expected of a request, at the gateway's prices."""
    profile: ArmProfile


class ArtifactCard(BaseModel):
    """What decides: where it comes from, and what it was measured to do."""

    name: str
    version: str
    """Of the gateway."""
    encoder: Encoder
    budget_tokens: int
    tool_budget_tokens: int
    template: str
    features: int
    """How many structural counts the model has beside the tokens."""
    calibration: str
    policies: Mapping[str, str]
    model_name: str
    """What a request asks for to be routed."""
    default_policy: str
    """Of this gateway."""
    frontier: tuple[FrontierPoint, ...]
    efficient: tuple[str, ...]
    """Policies of the frontier that no cheaper one matches."""
    metrics: Mapping[str, Measure]
    arms: tuple[ArmCard, ...]
    provenance: Provenance

    @classmethod
    def of(cls, engine: Engine) -> ArtifactCard:
        """Describe an engine's artifact."""
        manifest, packing = engine.manifest, engine.manifest.packing
        return cls(
            name=manifest.name,
            version=__version__,
            encoder=manifest.encoder,
            budget_tokens=packing.budget_tokens,
            tool_budget_tokens=packing.tool_budget_tokens,
            template=packing.template,
            features=len(packing.features),
            calibration=manifest.calibration.method,
            policies=manifest.policies,
            model_name=engine.settings.router.model_name,
            default_policy=str(engine.explainer.default_policy),
            frontier=manifest.frontier,
            efficient=tuple(point.policy for point in pareto_front(manifest.frontier)),
            metrics=manifest.metrics,
            arms=_arms(engine),
            provenance=manifest.provenance,
        )


def _arms(engine: Engine) -> tuple[ArmCard, ...]:
    manifest, by_arm = engine.manifest, engine.pool.by_arm
    costs_usd = manifest.costs_usd(arm_prices(engine.settings))
    cards = (
        ArmCard(
            arm=arm,
            model=by_arm[arm].name if arm in by_arm else None,
            cost_usd=cost_usd,
            profile=manifest.profile[arm],
        )
        for arm, cost_usd in zip(manifest.arms, costs_usd, strict=True)
    )
    return tuple(sorted(cards, key=lambda card: card.cost_usd))
