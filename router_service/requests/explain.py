"""Explains requests: the decision, what the router's model sees, what other policies choose.

Nothing is sent to an upstream, and nothing is stored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from threading import Lock

from pydantic import BaseModel, ConfigDict

from router_service.apis.conversation import as_list
from router_service.artifact import FrontierPoint
from router_service.core.reasons import Reason
from router_service.core.refusals import NOTHING_TO_ROUTE
from router_service.core.resources import StageName, Timer
from router_service.measurement.advice import Advice, advise, best_addition
from router_service.measurement.agent_tasks import TaskAdvice, TaskKind, advise_on_tasks
from router_service.measurement.held_out import served_points, single_accuracies
from router_service.measurement.operating_points import OperatingPoints
from router_service.measurement.unmeasured import EXPECTED
from router_service.policies.base import Policy
from router_service.policies.explanations import WITHOUT_CHOICE, explain_choice
from router_service.policies.registry import NamedPolicy, parse_policy
from router_service.policies.verified import VERIFIED, Verified
from router_service.predictor.packing import PackedView
from router_service.requests.agents import pool_candidates
from router_service.requests.parsing import Endpoint, ParsedRequest
from router_service.requests.planning import Planner
from router_service.requests.policy_headers import POLICY_HEADER, PolicyHeaders
from router_service.requests.pool import Pool
from router_service.router import Choice, Decision, Prediction, Router, choices
from router_service.settings import VerificationSettings
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import VerificationState

DEFAULT_POINTS = 0.5
"""Points below the best model that an addition to the pool may have, as the default policy."""


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The arm that a verified policy asks first."""

    policy: str
    arm: str


@dataclass(frozen=True, slots=True)
class VerificationView:
    """What verified policies do with a request."""

    requested: str | None
    """The verified policy that the request asks for, if any."""
    unverified: str | None
    """Why the answer to this request cannot be verified, or None if it can be."""
    expects_text: bool
    """Whether the first answer is delivered at once, unverified, if it is text."""
    instead: Choice
    """The choice if the answer cannot be verified."""
    explanation: str
    """Why the policy chooses the arm of `instead`, in one sentence."""
    chosen: FirstStep | None
    """The first step of the requested policy; None if it does not apply."""
    first_steps: tuple[FirstStep, ...]
    """The first step of each policy of the measured verified frontier, in its order; empty if the
    answer cannot be verified."""


@dataclass(frozen=True, slots=True)
class ArmView:
    """An arm's probability and expected cost, and the pool's model for it."""

    arm: str
    model: str
    probability: float
    cost_usd: float


class Explained(BaseModel):
    """The plan for a request, and the reasons for it."""

    model_config = ConfigDict(frozen=True)

    reason: str
    """Why the first candidate would answer: the router's reason, or the gateway's own."""
    overruled: str | None
    """Why the gateway itself chooses the model, as a clause; None if it does not."""
    candidates: tuple[str, ...]
    """Models in the order in which they would be tried."""
    chosen: Choice
    """The policy's choice; it is not used if the gateway itself chooses the model."""
    explanation: str
    """Why the policy chooses this arm, in one sentence."""
    familiarity: float | None
    """How much the request resembles the training data, from 0 to 1; None if the artifact cannot
    tell."""
    is_unfamiliar: bool
    """Whether the request is unlike the training data."""
    baseline: str | None
    """The arm that savings are compared with: `router.baseline_model`, or the most accurate one."""
    arms: tuple[ArmView, ...]
    """Arms that can serve the request, by increasing cost."""
    excluded: tuple[str, ...]
    """Arms of the pool that cannot serve the request, with the names of their models."""
    choices: tuple[Choice, ...]
    """The choice of each policy of the measured frontier, in the frontier's order."""
    explanations: tuple[str, ...]
    """Why each of these policies chooses its arm, in one sentence each."""
    verification: VerificationView | None
    """None if the artifact has no verifier."""
    view: PackedView
    decided_s: float
    """Duration of packing, classifying and selecting."""
    first_predicted_s: float | None
    """Duration of packing and classifying when the conversation was first seen; None if that was
    now, so that the prediction did not come from the cache."""
    unread: tuple[str, ...]
    """Paths of the request's parts that could not be parsed."""


class Explainer:
    """Explains requests by the stable release; CPU-bound, and safe to share between threads."""

    def __init__(
        self, router: Router, pool: Pool, planner: Planner, *, verified_goals: bool = False
    ) -> None:
        """Explain the plans of this planner and router.

        With `verified_goals`, a goal may choose a verified policy.
        """
        self._router = router
        self._pool = pool
        self._planner = planner
        self._model_name = planner.model_name
        self._settings = VerificationSettings(goals=verified_goals)
        frontier = router.artifact.manifest.frontier
        measured = (parse_policy(point.policy) for point in frontier)
        self._policies = tuple(p for p in measured if not isinstance(p, Verified))
        of_baseline = (arm for arm, model in pool.by_arm.items() if model is pool.baseline)
        self._baseline = next(of_baseline, router.artifact.manifest.best_single_arm)
        self.accuracies = single_accuracies(router.artifact)
        """Held-out accuracy of each arm alone; empty without held-out predictions."""
        self._advice = lru_cache(2)(partial(advise, router.artifact))
        self._advising = Lock()
        self._addition = lru_cache(1)(
            partial(best_addition, router.artifact, DEFAULT_POINTS, verified_goals=verified_goals)
        )

    def verified_points(self) -> tuple[FrontierPoint, ...]:
        """Return the measured points of verified policies as served; may take a second at first."""
        return served_points(self._router.artifact)

    def operating_points(self) -> OperatingPoints:
        """Return the measured points of all policies; the first call may take a second."""
        manifest = self._router.artifact.manifest
        return OperatingPoints.of(manifest, self.verified_points(), str(self.default_policy))

    def advise(self, *, knows_all: bool = False) -> Advice:
        """Return which few models are enough; the first call takes some seconds.

        They are chosen among the configured models, or among all that the artifact knows.
        """
        artifact = self._router.artifact
        arms = artifact.manifest.arms if knows_all else tuple(self._pool.by_arm)
        with self._advising:  # A second caller waits for the first one's advice.
            return self._advice(arms)

    def expectation(self) -> tuple[str, ...]:
        """Return sentences on what the default policy should reach, and on the best addition.

        They are empty if it was not measured. The first call takes some seconds.
        """
        if self._router.unmeasured:
            return (EXPECTED,)
        points, known = self.operating_points(), self.accuracies
        best, point = points.best_single, points.find(str(self.default_policy))
        arms = [arm for arm in known if arm in self._pool.by_arm]
        if point is None or best is None or not arms:
            return ()
        most_accurate = self._pool.labels[max(arms, key=lambda arm: known[arm].value)]
        with self._advising:
            addition = self._addition()
        accuracy = point.accuracy.value
        within = point.accuracy_interval
        interval = "" if within is None else f" [{within[0]:.1%}, {within[1]:.1%}]"
        first = (
            f"The default policy, {point.policy}, is expected to answer {accuracy:.1%}{interval} of"
            f" queries with unseen tools correctly, at {_share(point, best)} of the cost of"
            f" {most_accurate}, the most accurate model, which alone reaches"
            f" {best.accuracy.value:.1%}."
        )
        sentences = [first]
        if estimated := self._router.artifact.manifest.estimated_arms:
            sentences[0] += (
                f" This is estimated, because most answers of {', '.join(estimated)} were not"
                " recorded."
            )
        if addition is not None:
            added = ", ".join(arm for arm in addition.arms if arm not in self._pool.by_arm)
            sentences.append(
                f"The best addition is {added}: with it, {addition.point.accuracy.value:.1%} at"
                f" {_share(addition.point, best)} of that cost."
            )
        return tuple(sentences)

    def advise_on_tasks(self, task: TaskKind) -> TaskAdvice:
        """Return which of the configured models to use for whole tasks of a kind."""
        return advise_on_tasks(pool_candidates(self._pool, self._router.artifact), task)

    @property
    def default_policy(self) -> Policy | Verified:
        """The policy of requests that do not select one."""
        headers = PolicyHeaders(verification=self._settings)
        return self._planner.policy(None, headers).rule

    def explain(self, endpoint: Endpoint, body: bytes, policy: str | None = None) -> Explained:
        """Explain a request body; raises the errors of `ParsedRequest` and `Planner.prepare`."""
        if not self._pool.by_arm:
            raise NOTHING_TO_ROUTE.error(model=self._model_name, known=", ".join(self._pool.models))
        request = ParsedRequest(endpoint, body)
        conversation = request.conversation
        wanted = {} if policy is None else {POLICY_HEADER: policy}
        headers = PolicyHeaders(wanted, self._settings)
        plan = self._planner.prepare(request, headers)
        if plan.reason is Reason.CONTINUED:
            self._planner.continued(plan, None)
        # Predict even if the gateway chooses the model, so that the prediction can be shown.
        timer = Timer(time.perf_counter)
        is_known = self._router.cached(conversation) is not None
        prediction = self._router.predict(conversation, timer)
        is_pinned = plan.reason is Reason.PINNED
        wanted = self._planner.unalias(request.model)
        suffix = None if is_pinned else wanted.partition(":")[2] or None
        asked = self._planner.policy(suffix, headers, plan.risk)
        if plan.arms:
            before = plan.policy
            self._planner.adapt(plan, prediction)
            prediction = plan.prediction or prediction
            if plan.policy is not before:
                asked = plan.policy or asked
            self._planner.choose(plan, prediction)
        chosen_by = self._planner.choosing_policy(plan.policy or asked).rule
        decision = plan.decision or self._router.choose(
            conversation, prediction, chosen_by, tuple(self._pool.by_arm)
        )
        timer.end(StageName.SELECT)
        chosen = next(choices(decision, (chosen_by,)))
        if decision.reason is Reason.UNFAMILIAR:
            chosen = replace(chosen, arm=decision.arm, reason=Reason.UNFAMILIAR, floor=0.0)
        choices_of_frontier = tuple(choices(decision, self._policies))
        views = (
            ArmView(arm, self._pool.by_arm[arm].name, probability, decision.cost_usd[arm])
            for arm, probability in decision.probabilities.items()
        )
        return Explained(
            reason=plan.reason,
            overruled=WITHOUT_CHOICE.get(plan.reason),
            candidates=tuple(model.name for model in plan.models),
            chosen=chosen,
            explanation=self._explain(chosen, decision),
            familiarity=prediction.familiarity,
            is_unfamiliar=plan.is_unfamiliar,
            baseline=self._baseline,
            arms=tuple(sorted(views, key=lambda view: (view.cost_usd, -view.probability))),
            excluded=tuple(
                label
                for arm, label in self._pool.labels.items()
                if arm not in decision.probabilities
            ),
            choices=choices_of_frontier,
            explanations=tuple(self._explain(each, decision) for each in choices_of_frontier),
            verification=self._verification(request, asked, decision, prediction),
            view=self._router.view(conversation),
            decided_s=sum(stage.seconds for stage in timer.stages),
            first_predicted_s=prediction.seconds if is_known else None,
            unread=conversation.unread,
        )

    def _verification(
        self,
        request: ParsedRequest,
        policy: NamedPolicy[Policy | Verified],
        decision: Decision,
        prediction: Prediction,
    ) -> VerificationView | None:
        """Return what verified policies do with a request that asks for `policy`."""
        spec = self._router.artifact.manifest.verifier
        if spec is None:
            return None
        requested = policy.rule if isinstance(policy.rule, Verified) else None
        unverified = request.unverifiable
        conversation = request.conversation
        tools = as_list(request.decoded().get("tools"))
        question = Question(conversation, tools)
        arms = tuple(self._planner.models_by_arm(decision))

        def first_step(verified: Verified) -> FirstStep:
            state = VerificationState(verified, arms)
            step = self._router.next_step(question, prediction, state)
            return FirstStep(str(verified), step.ask[0])

        verified = policy if requested else NamedPolicy(self._router.policy(VERIFIED))
        instead = next(choices(decision, (self._planner.choosing_policy(verified).rule,)))
        can_verify = unverified is None
        policies = (parse_policy(point.policy) for point in self.verified_points())
        measured = [policy for policy in policies if isinstance(policy, Verified)]
        return VerificationView(
            requested=None if requested is None else str(requested),
            unverified=unverified,
            expects_text=spec.expects_text(prediction.p_no_call),
            instead=instead,
            explanation=self._explain(instead, decision),
            chosen=first_step(requested) if requested is not None and can_verify else None,
            first_steps=tuple(map(first_step, measured if can_verify else ())),
        )

    def _explain(self, choice: Choice, decision: Decision) -> str:
        """Return why a policy chooses an arm, in one sentence."""
        return explain_choice(
            choice.arm,
            choice.reason,
            choice.policy,
            decision.probabilities,
            decision.cost_usd,
            self._pool.labels,
        ).sentence


def _share(point: FrontierPoint, best: FrontierPoint) -> str:
    """Return the cost of a point as a share of the best single model's."""
    usd = best.cost_usd.value
    return f"{point.cost_usd.value / usd:.1%}" if usd else "any share"
