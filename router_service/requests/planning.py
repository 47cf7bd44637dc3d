"""Plan a request: which models may answer it, in which order, and why."""

from __future__ import annotations

import logging
import math
import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from router_service.access.budgets import ExpectedCost
from router_service.access.key import NO_KEY, Key
from router_service.access.pacing import Allowance
from router_service.apis.capabilities import Capabilities
from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.artifact import Artifact
from router_service.core.decision_record import BudgetChange
from router_service.core.reasons import Reason
from router_service.core.refusals import (
    POLICY_NOT_ALLOWED,
    RESPONSE_ELSEWHERE,
    may_use,
    model_not_allowed,
    model_not_found,
    response_not_found,
)
from router_service.core.releases import CanaryTrial, Track
from router_service.core.resources import (
    Timer,
)
from router_service.measurement.agent_tasks import TaskAdvice, advise_on_tasks
from router_service.measurement.expectations import EstimateErrors, measure_errors
from router_service.measurement.goals import name_policy
from router_service.policies.base import Policy
from router_service.policies.caching import EXPECTED_REQUESTS, choose_in_loop, costs_over
from router_service.policies.registry import DEFAULT, NamedPolicy
from router_service.policies.risk import Risk
from router_service.policies.threshold import Threshold
from router_service.policies.verified import VERIFIED, Verified
from router_service.predictor.familiarity import BEST, ROUTE
from router_service.requests.agents import is_coding_session, pool_candidates
from router_service.requests.parsing import ParsedRequest
from router_service.requests.policy_headers import NO_HEADERS, POLICY_HEADER, PolicyHeaders
from router_service.requests.pool import Pool, capable_models, lacks, untranslatable
from router_service.requests.turns import ConversationTurn
from router_service.router import Decision, Prediction, Router, explored
from router_service.settings import Model, RouterSettings, match_wildcard
from router_service.store.records import UpstreamObject
from router_service.verifier.steps import (
    UnverifiedReason,
)

_log = logging.getLogger("switchcraft.planning")

_MARKER = re.compile(r"(?<=[^\s\]])\s?(?:\[[^\[\]]*\]){1,3}$")
"""What clients append for themselves, such as Claude Code's `[1m]` for a long context window."""

CLAUDE_PREFIX = "claude-"

MAX_LISTS = 200
"""Largest number of keys' lists of models for which pools are kept."""

MAX_POLICIES = 1_000
"""Largest number of policies that are kept by what requests ask for, which clients choose freely.
"""

MOST_ACCURATE: NamedPolicy[Policy] = NamedPolicy(Threshold(1.0), BEST)
"""Policy of unfamiliar requests that the most accurate arm answers. Its rule holds at familiarity
0, where all probabilities are base rates; above it, the planner moves the choice to that arm."""

SESSION_POINTS = {"quality": 0.0, "economy": 5.0}
"""What these policies mean for a coding agent's session: the points of success that they give up.
"""

TYPICAL_OUTPUT_TOKENS = 300
"""Assumed length of an answer if nothing is known about it, unless the request allows less."""

LONGEST_OUTPUT_TOKENS = 128_000
"""Assumed longest answer of a model that has no `max_output_tokens`; that of GPT-5 is the longest.
"""


@dataclass(slots=True)
class Plan:
    """The models that may answer a request, with the policy and the reason.

    The planner fills it from top to bottom: `Planner.prepare` as far as `budget`, and the rest once
    the router has predicted.
    """

    request: ParsedRequest
    planner: Planner
    """The planner of the release that decides."""
    policy_headers: PolicyHeaders = NO_HEADERS
    """Each release looks up the wanted policy among its own policies."""
    baseline: Model | None = None
    """The model whose price is the reference for savings."""
    trial: CanaryTrial | None = None
    """Counts how this request ends, if a canary release is running."""
    track: Track = Track.STABLE
    canary_failed: bool = False
    """Whether the canary should have decided but failed, so that the stable release decided."""

    reason: Reason = Reason.UNDECIDED
    models: tuple[Model, ...] = ()
    """The models to try, in this order; the chosen model is the first."""
    arms: frozenset[str] = frozenset()
    """The arms that the router chooses among; empty if the request is not routed."""
    risk: Risk | None = None
    """How much harm the offered tools can do; None if the configuration does not ask."""
    policy: NamedPolicy[Policy | Verified] | None = None
    """The policy by which the request is answered; None if it is not routed."""
    unverified: UnverifiedReason | None = None
    """Why the answer is not verified, although the wanted policy verifies answers."""
    names_policy: bool = True
    """Whether the request, or its tools' risk, names the policy. If not, the policy is the
    default, which `router.unfamiliar` replaces for unfamiliar requests."""
    budget: BudgetChange | None = None
    """How a budget has changed the policy; None if it has not."""

    prediction: Prediction | None = None
    """The router's prediction; None if the request is not routed, or if the router failed."""
    is_unfamiliar: bool = False
    """Whether the request is unlike the training data."""
    conversation: ConversationTurn | None = None
    """State of the conversation from earlier requests; None if conversations are not followed."""
    conversation_id: str | None = None
    """Equal for all requests of a conversation, which go to the same deployment of a model while
    that works, because a prompt is cached by one account. None if no choice depends on it."""
    decision: Decision | None = None
    """The router's decision, which was made from `prediction`."""

    @property
    def verified(self) -> Verified | None:
        """The rule by which candidates are asked and verified; None if they are not."""
        policy = self.policy
        return policy.rule if policy is not None and isinstance(policy.rule, Verified) else None

    @property
    def first_arm(self) -> str | None:
        """The arm that a verified tool loop asks first; None if the verifier chooses."""
        decision = self.decision
        is_kept = decision is not None and decision.reason in {Reason.STICKY, Reason.SWITCHED}
        return decision.arm if is_kept and decision is not None else None

    @property
    def choosing_rule(self) -> Policy:
        """The rule that orders the models."""
        return self.planner.choosing_policy(self.policy).rule

    def leave_unverified(self, reason: UnverifiedReason) -> None:
        """Answer by the policy that chooses once, because the answer cannot be verified."""
        self.unverified = reason
        if self.verified is not None:
            self.policy = self.planner.choosing_policy(self.policy)

    @property
    def is_named(self) -> bool:
        """Whether the request names its model, so that only its fallbacks may replace it."""
        return self.reason in {Reason.PINNED, Reason.CONTINUED}

    def expected_cost(self, max_answers: int = 1) -> ExpectedCost:
        """Return what the request is expected to cost, and at most if models answer it.

        A verified answer starts with what its chosen arm is expected to cost, and at most
        `max_answers` arms answer.
        """
        request, models = self.request, self.models
        if self.decision is None:
            usd = _cost_usd(request, models[0])
        else:
            usd = self.planner.cost_usd(self, self.decision.arm)
        most_usd = sorted((_most_usd(request, model) for model in models), reverse=True)
        if self.is_named:
            models = models[:1]  # `within` changes no model that the request names
        # An answer may be very short, and nobody is refused while money is left.
        least_usd = min(_cost_usd(request, model, output_tokens=0) for model in models)
        return ExpectedCost(usd, min(usd, least_usd), sum(most_usd[:max_answers]))

    def costs_usd(self) -> Mapping[str, float]:
        """Return what this request is expected to cost with each arm of the decision."""
        assert self.decision is not None  # noqa: S101 - for types; only called for routed requests
        return {arm: self.planner.cost_usd(self, arm) for arm in self.decision.ranking}

    @property
    def router_failed(self) -> bool:
        """Whether the release that should have decided failed to decide."""
        return self.canary_failed or self.reason is Reason.UNDECIDED


@dataclass(frozen=True, slots=True)
class _Policies:
    """The policies of one artifact, as far as requests have asked for them."""

    artifact: Artifact
    choose_once: NamedPolicy[Policy]
    """The policy of requests whose answers are not verified."""
    by_text: dict[tuple[str | None, bool], NamedPolicy[Policy | Verified]]
    """By what a request asks for, and whether a goal may be reached by a verified policy."""


@dataclass(frozen=True, slots=True)
class _AllowedModels:
    """What a key's list of models allows."""

    names: frozenset[str]
    """Names that requests may have: of models, without aliases, of wildcards, and of the router."""
    pool: Pool
    """The pool with only the models that may answer."""

    def allows(self, model_name: str) -> bool:
        """Return whether requests may name a model; the name is no alias."""
        return is_listed(model_name, self.names)


def is_listed(name: str, names: Collection[str]) -> bool:
    """Return whether a name is on a list, or matches one of the list's wildcards."""
    return name in names or any(
        match_wildcard(each, name) is not None for each in names if "*" in each
    )


class Planner:
    """Plans requests with one release's router; safe to share between threads."""

    def __init__(self, router: Router, pool: Pool, settings: RouterSettings) -> None:
        """Plan with a router for a pool, as the section `router` of the configuration says.

        Raises InvalidRequestError for an alias of an unknown name.
        """
        self.router = router
        self._pool = pool
        self.model_name = model_name = settings.model_name
        """The model name that requests routing."""
        self._default_policy = settings.default_policy
        self._aliases = settings.known_aliases
        can_verify = router.artifact.manifest.verifier is not None
        is_verified = settings.unfamiliar == VERIFIED
        self._unfamiliar = BEST if is_verified and not can_verify else settings.unfamiliar
        self._unfamiliar_below = settings.unfamiliar_below
        self.exploration_share = settings.exploration_share
        self.fallback_on_refusal = settings.fallback_on_refusal
        self.risk = settings.risk
        self.labels = pool.labels
        """What people read for each arm."""
        self.terms = pool.terms
        """What each arm charges."""
        self._agents = settings.agents
        self._task_candidates = {each.name: each for each in pool_candidates(pool)}
        self._advised: dict[tuple[tuple[str, ...], float], TaskAdvice] = {}
        """Advice on coding tasks for the pools that were asked for lately."""
        self.baseline = pool.baseline
        best_arm = router.artifact.manifest.best_single_arm
        self.baseline_arm: str | None = None
        """The arm whose probability is the reference for accuracy."""
        if pool.baseline is not None:
            self.baseline_arm = self.arm_of(pool.baseline, best_arm)
        self.policy_errors: EstimateErrors | None = None
        """Errors of expected accuracies; None before `measure_errors`, or if it finds none."""
        manifest = router.artifact.manifest
        policies = (name for name in manifest.named_rules if name != DEFAULT)
        routed = (model_name, *(f"{model_name}:{name}" for name in policies))
        self.names = (*(routed if pool.chat_models else ()), *pool.models)
        """Every model name that a request may have, the router's own first."""
        costs_usd = dict(zip(manifest.arms, manifest.costs_usd(), strict=True))
        by_cost = sorted(pool.by_arm, key=lambda arm: (-costs_usd[arm], arm))
        arms = {pool.by_arm[arm].name: arm for arm in reversed(by_cost)}
        # Each model once, with one of its arms: all arms of a model can serve the same requests.
        for target in self._aliases.values():
            if target not in pool.models:
                name, _, suffix = target.partition(":")
                if name != model_name:
                    raise model_not_found(target, self.names)
                if suffix:
                    router.policy(suffix)
        self._known_policies = _Policies(router.artifact, manifest.choose_once, {})
        self._allowed_by_list: dict[frozenset[str], _AllowedModels] = {}
        """What each list of models of a key allows, for the lists that were used lately."""
        self._dearest_first = [(arms[model.name], model) for model in pool.models_for(by_cost)]
        self.dearest = self._dearest_first[0] if self._dearest_first else None
        """The arm with the highest profiled cost, and its model; None without arms."""

    def prepare(self, request: ParsedRequest, headers: PolicyHeaders = NO_HEADERS) -> Plan:
        """Return the plan as far as it is known without a prediction.

        If the plan has `arms`, call `choose` to complete it. Without this call, it is the plan for
        a failed router, with the most expensive arms first. If the request continues a response,
        call `continued`.

        Raises InvalidRequestError.
        """
        key, pool, wanted = headers.key, self.pool_for(headers.key), request.model
        models = self._pool.models
        pinned = models.known(wanted)
        if pinned is None:
            wanted = self.unalias(wanted)
            is_router = wanted.partition(":")[0] == self.model_name
            pinned = models.known(wanted) if is_router else models.get(wanted)
        if pinned is None:
            return self._prepare_routed(request, headers, pool, wanted)
        self.check_model(key, wanted)
        plan = Plan(request, self, headers, pool.baseline)
        plan.reason = Reason.PINNED if request.continues is None else Reason.CONTINUED
        if request.continues is None:
            plan.models = pool.pinned(pinned, request)
        return plan

    def _prepare_routed(
        self, request: ParsedRequest, headers: PolicyHeaders, pool: Pool, wanted: str
    ) -> Plan:
        """Return the plan of a request for the router, whose name and policy are `wanted`."""
        key, is_routed = headers.key, request.endpoint.is_routed
        name, _, suffix = wanted.partition(":")
        if not (is_routed and name == self.model_name):
            served = (*self.names_for(key), *self._pool.models.patterns)
            known = [n for n in served if is_routed or n.partition(":")[0] != self.model_name]
            raise model_not_found(request.model[:200], tuple(known))
        if key.models is not None:
            if headers.policy:
                wanted = f"{name}:{headers.policy}"
            self.check_model(key, wanted)
            if not pool.chat_models and self._pool.chat_models:
                raise model_not_allowed(wanted, self.names_for(key))
        plan = Plan(request, self, headers, pool.baseline)
        pool.check_routable(self.model_name)
        conversation = request.conversation
        if self.risk.has_demands:
            plan.risk = self.risk.rules.highest(conversation.tools)
        policy = self.policy(suffix or None, headers, plan.risk)
        asked = suffix if headers.policy is None else headers.policy
        is_default = asked in {"", DEFAULT}
        is_demanded = is_default and self.risk.policy(plan.risk) is not None
        if not is_demanded:
            asked_name = policy.name or (DEFAULT if is_default else None)
            policy, plan.budget = self._within_budget(
                policy, asked_name, headers.allowance, may_verify=headers.verified_budget
            )
        is_named = not is_default or key.policies is not None
        plan.names_policy = is_named or is_demanded or plan.budget is not None
        self._set_policy(plan, policy)
        if request.continues is not None:
            plan.reason, plan.policy = Reason.CONTINUED, None
        elif session := self._session_models(plan, pool, asked):
            plan.reason, plan.policy, plan.models = Reason.SESSION, None, session
        elif not (conversation.has_tools and pool.by_arm):
            plan.reason = Reason.UNROUTED if conversation.has_tools else Reason.CHAT
            plan.policy = None
            plan.models = capable_models(pool.chat_models, request)
        else:
            able = capable_models(pool.arm_models, request)
            names = {model.name for model in able}
            arms = [arm for arm, model in pool.by_arm.items() if model.name in names]
            plan.arms = frozenset(arms)
            # Until the router has chosen, the order is that for a failed router.
            plan.models = tuple([m for arm, m in self._dearest_first if arm in plan.arms])
        return plan

    def _session_models(self, plan: Plan, pool: Pool, asked: str) -> tuple[Model, ...]:
        """Return the models for a coding agent's session, the chosen one first.

        They are empty for other requests, and if fewer than two of the models were measured. A
        policy that a budget, a key or the tools' risk demands counts as for other requests.
        """
        headers, points = plan.policy_headers, self._agents.within_points
        if points is None or plan.budget is not None:
            return ()
        is_default = asked in {"", DEFAULT}
        wanted = (self._default_policy or "") if is_default else asked
        if wanted in SESSION_POINTS:
            points = SESSION_POINTS[wanted]
        elif plan.names_policy:
            return ()
        tools = (tool.name for tool in plan.request.conversation.tools)
        if not is_coding_session(tools, headers.user_agent):
            return ()
        able = {
            model.name: model
            for model in pool.models.values()
            if model.name in self._task_candidates and not lacks(model, plan.request)
        }
        advice = self._advise(tuple(able), points)
        if advice.chosen is None:
            return ()
        others = [each.model for each in advice.models if each.model != advice.chosen]
        others += [m.name for _, m in self._dearest_first if m.name in advice.unknown]
        return tuple(able[name] for name in (advice.chosen, *others))

    def _advise(self, names: tuple[str, ...], points: float) -> TaskAdvice:
        known = self._advised.get((names, points))
        if known is None:
            candidates = [self._task_candidates[name] for name in names]
            known = advise_on_tasks(candidates, "coding", points)
            if len(self._advised) >= MAX_LISTS:
                self._advised.clear()
            self._advised[names, points] = known
        return known

    def _set_policy(self, plan: Plan, policy: NamedPolicy[Policy | Verified]) -> None:
        """Set the policy of a request, and why it is not verified if the policy would do so."""
        plan.policy, plan.unverified = policy, None
        if isinstance(policy.rule, Verified) and plan.request.unverifiable is not None:
            plan.leave_unverified(plan.request.unverifiable)

    def find_named(self, request: ParsedRequest) -> Model | None:
        """Return the model that a request names, or None if it names the router or nothing known.

        Raises InvalidRequestError for a model without a price.
        """
        return self._pool.models.get(self.unalias(request.model))

    def unalias(self, model: str) -> str:
        """Return the name that a client's model name stands for, which may be the same.

        A client's marker is not a part of the name, unless the configuration has it too. Claude
        Code lists only names that begin with `claude-`. So each of the router's has such a one too,
        if an alias leads from there to the router.
        """
        if model.endswith("]") and model not in self.names and model not in self._aliases:
            model = _MARKER.sub("", model)
        is_known = model.partition(":")[0] == self.model_name or model in self._pool.models
        if not is_known:
            for pattern, target in self._aliases.items():
                if fnmatchcase(model, pattern):
                    own = model.removeprefix(CLAUDE_PREFIX)
                    routers = {each.partition(":")[0] for each in (own, target)}
                    names_policy = routers == {self.model_name} and ":" in own
                    return own if names_policy else target
        return model

    def models_for(self, name: str, key: Key = NO_KEY) -> tuple[Model, ...]:
        """Return the models that may answer a key's requests for a name.

        Raises InvalidRequestError.
        """
        wanted, pool = self.unalias(name), self.pool_for(key)
        if wanted not in self._pool.models and wanted.partition(":")[0] != self.model_name:
            raise model_not_found(name[:200], self.names_for(key))
        self.check_model(key, wanted)
        if wanted in pool.models:
            return (pool.models[wanted],)
        pool.check_routable(self.model_name)
        return pool.arm_models or pool.chat_models

    def names_for(self, key: Key) -> tuple[str, ...]:
        """Return every model name that a key's requests may have, the router's own first."""
        if not key.is_restricted:
            return self.names
        return tuple(name for name in self.names if self.may_name(key, name))

    def limits_for(self, name: str, key: Key) -> Capabilities:
        """Return the longest input and answer that a name allows; `name` is no alias.

        The router's are those of its largest model, because longer requests go to larger models.
        """
        pool = self.pool_for(key)
        named = pool.models.get(name)
        models = (pool.arm_models or pool.chat_models) if named is None else (named,)

        def largest(limits: Iterable[int | None]) -> int | None:
            return max(filter(None, limits), default=None)

        return Capabilities(
            context_window_tokens=largest(m.capabilities.context_window_tokens for m in models),
            max_output_tokens=largest(m.capabilities.max_output_tokens for m in models),
        )

    def has_name(self, name: str) -> bool:
        """Return whether requests may have a model name, which is no alias."""
        return name in self.names or name in self._pool.models

    def check_model(self, key: Key, name: str) -> None:
        """Raise InvalidRequestError unless a key's requests may name a model.

        The name is known, and no alias.
        """
        if key.models is not None and not self.may_name(key, name, with_policy=False):
            raise model_not_allowed(name[:200], self.names_for(key))

    def may_name(self, key: Key, name: str, *, with_policy: bool = True) -> bool:
        """Return whether a key allows a name, and also the policy in it if `with_policy`."""
        model = self._pool.models.get(name)
        if model is not None:
            # Of a wildcard's models, some have only the name of the wildcard.
            names = {model.name, name} if "*" in model.name else {model.name}
            return key.models is None or any(map(self._allowed(key.models).allows, names))
        router, _, policy = name.partition(":")
        if with_policy and policy and not key.allows_policy(policy):
            return False
        if key.models is None:
            return True
        allowed = self._allowed(key.models).names
        return router in allowed or f"{router}:{policy or DEFAULT}" in allowed

    def pool_for(self, key: Key) -> Pool:
        """Return the pool with only the models that may answer a key's requests."""
        return self._pool if key.models is None else self._allowed(key.models).pool

    def _allowed(self, listed: frozenset[str]) -> _AllowedModels:
        """Return what a key's list of models allows.

        If no model is on the list, but only names of the router, the router may choose any model.
        Only models on the list get requests that are passed through.
        """
        known = self._allowed_by_list.get(listed)
        if known is not None:
            return known
        pool, unaliased = self._pool, {self.unalias(name) for name in listed}
        models = {pool.models[name].name for name in unaliased if name in pool.models}
        names = frozenset(models | {name for name in unaliased if name not in pool.models})
        models |= {name for name in unaliased if "*" in name}

        def passes(name: str) -> bool:
            return is_listed(name, models)

        def is_allowed(name: str) -> bool:
            return not models or passes(name)

        dearest = (model for _, model in self._dearest_first if is_allowed(model.name))
        pool = pool.restricted(is_allowed, passes=passes, other_baseline=next(dearest, None))
        if len(self._allowed_by_list) >= MAX_LISTS:
            self._allowed_by_list.clear()
        self._allowed_by_list[listed] = known = _AllowedModels(names, pool)
        return known

    def continued(self, plan: Plan, held: UpstreamObject | None) -> None:
        """Set the model of a request that continues a response which `held` describes.

        Raises InvalidRequestError if no configured model can be assumed to have the response,
        or if the request names a model that is not served by the provider
        that stored the response.
        """
        request = plan.request
        continues = request.continues
        assert continues is not None  # noqa: S101 - for types; only called for such requests
        pool = self.pool_for(plan.policy_headers.key)
        holder, pinned = pool.holder(held), pool.models.get(self.unalias(request.model))
        if holder is None or untranslatable(holder, request):
            raise response_not_found(continues.id[:200], param=continues.param)
        if pinned is not None and pinned.name != holder.name:
            beside = pool.at_same_account(holder, pinned)
            if beside is None:
                raise RESPONSE_ELSEWHERE.error(
                    identifier=continues.id[:200], model=pinned.name, holder=holder.name
                )
            holder = beside
        plan.models = (holder,)

    def predict(self, plan: Plan, timer: Timer | None = None) -> None:
        """Add the router's prediction, unless the router fails; CPU-bound."""
        try:
            plan.prediction = self.router.predict(plan.request.conversation, timer)
        except Exception:  # noqa: BLE001 - no failure of the router may fail the request
            _log.exception("router failed, falling back to the most expensive arm")

    def adapt(self, plan: Plan, prediction: Prediction) -> None:
        """Mark an unfamiliar request; one that is far off gets the policy for those.

        A policy that the request names stays, and so does one that its tools' risk demands. A
        default policy that verifies answers keeps its price. If the policy for unfamiliar requests
        verifies answers, the arms count by their accuracy in training: what the router believes of
        a request that it cannot read must not decide which arm is asked first. What cannot be
        verified gets the most accurate arm, and so does what is unlike all that was measured.
        """
        familiarity = prediction.familiarity
        if familiarity is None or not self.router.is_unfamiliar(prediction):
            return
        plan.is_unfamiliar = True
        is_far = familiarity < self._unfamiliar_below
        if plan.names_policy or self._unfamiliar == ROUTE or not is_far:
            return
        headers = plan.policy_headers
        policy: NamedPolicy[Policy | Verified] = MOST_ACCURATE
        if self._unfamiliar == VERIFIED and plan.policy is not None and plan.verified is not None:
            policy = plan.policy
        elif self._unfamiliar != BEST:
            policy = self._find_policy(self._unfamiliar, "model", headers)
        unverifiable = None
        if isinstance(policy.rule, Verified):
            unverifiable = plan.request.unverifiable
            if unverifiable is None and self.router.is_far_off(plan.request.conversation):
                unverifiable = UnverifiedReason.FAR_OFF
        if unverifiable is not None:
            policy = MOST_ACCURATE
        was_to_be_verified = plan.verified is not None or plan.unverified is not None
        policy, plan.budget = self._within_budget(
            policy,
            policy.name,
            headers.allowance,
            may_verify=headers.verified_budget or was_to_be_verified,
        )
        self._set_policy(plan, policy)
        plan.unverified = plan.unverified or unverifiable
        if plan.verified is not None:
            plan.prediction = replace(prediction, probabilities=self.router.base_rates)

    def _within_budget(
        self,
        policy: NamedPolicy[Policy | Verified],
        name: str | None,
        allowance: Allowance | None,
        *,
        may_verify: bool,
    ) -> tuple[NamedPolicy[Policy | Verified], BudgetChange | None]:
        """Return the policy, or the one by which a budget replaces it, with what has changed.

        `name` is what the request asks for, or None for the rule itself. With `may_verify`, a
        verified policy may replace one that chooses once.
        """
        if allowance is None:
            return policy, None
        change = allowance.change(str(policy.rule), name, verified_goals=may_verify)
        if change is None:
            return policy, None
        rule = self.router.artifact.manifest.measured_policy(change.policy)
        if isinstance(rule, Verified):
            rule = replace(rule, otherwise=allowance.choose_once(change.expected_cost_usd))
        return NamedPolicy(rule, change.asked), change

    def choose(self, plan: Plan, prediction: Prediction) -> None:
        """Choose an arm by the plan's policy."""
        conversation = plan.request.conversation
        policy, arms = plan.choosing_rule, plan.arms
        if plan.verified is None:
            arms = arms - self.router.unmeasured.keys() or arms
        decision = self.router.choose(conversation, prediction, policy, arms)
        if plan.policy is MOST_ACCURATE and decision.reason is not Reason.UNREAD:
            decision = self._most_accurate(decision)
        if plan.conversation is not None:
            decision = self._continue_loop(
                decision, plan.conversation, is_verified=plan.verified is not None
            )
        plan.prediction = prediction
        self._set_decision(plan, decision)

    def _set_decision(self, plan: Plan, decision: Decision) -> None:
        plan.decision, plan.reason = decision, decision.reason
        plan.models = self._pool.models_for(decision.ranking)

    def _most_accurate(self, decision: Decision) -> Decision:
        """Return the decision for the arms by falling base rate."""
        rates = self.router.artifact.manifest.base_rates
        arms = sorted(decision.ranking, key=lambda arm: (-rates[arm], decision.cost_usd[arm]))
        return replace(decision, arm=arms[0], reason=Reason.UNFAMILIAR, ranking=tuple(arms))

    def _continue_loop(
        self, decision: Decision, turn: ConversationTurn, *, is_verified: bool
    ) -> Decision:
        """Return the decision for a request of a conversation.

        If it continues a tool loop, the last arm is kept, or a cheaper one replaces it, and the
        decision has the costs of this request. Any arm may replace the last one for a verified
        answer, and otherwise only the one that the policy has chosen.
        """
        state, probabilities = turn.state, decision.probabilities
        arms = list(decision.ranking)
        if not (turn.is_in_loop and state.arm in arms):
            return decision
        costs_usd = costs_over(arms, self.terms, state, turn.request, EXPECTED_REQUESTS)
        p_escalated = {decision.arm: 0.0} if decision.arm in arms else {}
        if is_verified:
            p_escalated = {arm: state.p_escalated(arm, probabilities[arm]) for arm in arms}
        chosen = choose_in_loop(arms, costs_usd, state, p_escalated)
        costs_usd = costs_over(arms, self.terms, state, turn.request, 1)
        return decision.moved(
            arms[chosen.arm], chosen.reason, dict(zip(arms, costs_usd, strict=True))
        )

    def cost_usd(self, plan: Plan, arm: str) -> float:
        """Return what a planned request is expected to cost with an arm.

        The cost that policies use is a mean over the training queries. If the prompt is longer than
        theirs, it counts as it is. In a conversation, it counts without what is cached of it.
        """
        decision, terms, turn = plan.decision, self.terms[arm], plan.conversation
        assert decision is not None  # noqa: S101 - for types; only called for routed requests
        if turn is not None and turn.state.arm is not None:
            return costs_over((arm,), self.terms, turn.state, turn.request, 1)[0]
        usual_usd = decision.cost_usd[arm]
        tokens = plan.request.requirements.input_tokens
        return max(usual_usd, terms.price.cost_usd(tokens, terms.output_tokens, terms.seconds))

    def within(self, plan: Plan, allowance_usd: float) -> None:
        """Leave a plan only the models whose expected cost is at most the allowance.

        The same policy chooses among them. If no model fits, the cheapest one answers. A model that
        the request names stays.
        """
        decision = plan.decision
        if plan.is_named:
            plan.models = plan.models[:1]
            return
        if decision is None or plan.prediction is None:
            by_cost = sorted(plan.models, key=lambda model: _cost_usd(plan.request, model))
            fitting = [m for m in plan.models if _cost_usd(plan.request, m) <= allowance_usd]
            models = tuple(fitting or by_cost[:1])
            plan.reason = plan.reason if models[0] == plan.models[0] else Reason.BUDGET
            plan.models = models
            return
        costs_usd = plan.costs_usd()
        arms = [arm for arm in decision.ranking if costs_usd[arm] <= allowance_usd]
        arms = arms or [min(decision.ranking, key=lambda arm: costs_usd[arm])]
        if arms[0] == decision.arm:
            decision = replace(decision, ranking=tuple(arms))
        else:
            conversation = plan.request.conversation
            chosen = self.router.choose(conversation, plan.prediction, plan.choosing_rule, arms)
            decision = replace(
                decision, arm=chosen.arm, reason=Reason.BUDGET, ranking=chosen.ranking,
                propensity=1.0,
            )  # fmt: skip
        self._set_decision(plan, decision)

    def measure_errors(self) -> None:
        """Measure the errors of expected accuracies; the first call may take a second."""
        if self.baseline_arm is not None:
            self.policy_errors = measure_errors(self.router.artifact, self.baseline_arm)

    def arm_of(self, model: Model, chosen: str | None = None) -> str | None:
        """Return an arm that a model serves; the chosen one, if it is one of these."""
        arms = [arm for arm, served in self._pool.by_arm.items() if served.name == model.name]
        return chosen if chosen in arms else next(iter(arms), None)

    def models_by_arm(self, decision: Decision) -> Mapping[str, Model]:
        """Return the arms of a decision with their models, each model once, the best arm first."""
        arms = {self._pool.by_arm[arm].name: arm for arm in reversed(decision.ranking)}
        return {arm: self._pool.by_arm[arm] for arm in decision.ranking if arm in arms.values()}

    def explore(self, plan: Plan) -> None:
        """Choose a random arm for the exploration share of requests.

        The plan's decision has the propensity: the probability with which its arm was chosen. Some
        requests are not explored: tool loops of conversations that are followed, and requests to be
        verified. Their accepted answers could not be weighted, because the arm also depends on the
        answers.
        """
        if plan.decision is None or plan.verified is not None or self.exploration_share == 0:
            return
        if plan.conversation is not None and plan.conversation.is_in_loop:
            return
        draw = random.random()  # noqa: S311 - not a secret
        self._set_decision(plan, explored(plan.decision, self.exploration_share, draw))

    def policy(
        self, suffix: str | None, headers: PolicyHeaders, risk: Risk | None = None
    ) -> NamedPolicy[Policy | Verified]:
        """Return the policy of the header, else of the model name's suffix.

        A request that names no policy has the one for its tools' `risk`, or else the default. If
        its key does not allow these, it has the first policy of the key's list.

        Raises InvalidRequestError.
        """
        is_in_header = headers.policy is not None
        text, param = (headers.policy, POLICY_HEADER) if is_in_header else (suffix, "model")
        key = headers.key
        if text is None or text == DEFAULT:
            text = self._default_for(key, self.risk.policy(risk))
        elif not key.allows_policy(text):
            raise POLICY_NOT_ALLOWED.error(
                param=param, policy=text[:80], may_use=may_use(key.policies or ())
            )
        return self._find_policy(text, param, headers)

    def _find_policy(
        self, text: str | None, param: str, headers: PolicyHeaders
    ) -> NamedPolicy[Policy | Verified]:
        """Return the policy that a text stands for; raises PolicyError.

        Agents ask for the same one with every request, and finding it takes 0.05 ms.
        """
        key, known = (text, headers.verified_goals), self._policies.by_text
        found = known.get(key)
        if found is None:
            if len(known) >= MAX_POLICIES:
                known.clear()
            rule = self.router.policy(text, param=param, verified_goals=headers.verified_goals)
            found = known[key] = name_policy(text, rule)
        return found

    @property
    def _policies(self) -> _Policies:
        """The policies of the router's artifact, which `Router.reach_goals` replaces."""
        artifact, known = self.router.artifact, self._known_policies
        if known.artifact is not artifact:
            known = self._known_policies = _Policies(artifact, artifact.manifest.choose_once, {})
        return known

    def _default_for(self, key: Key, demanded: str | None) -> str | None:
        """Return the policy of requests that name none; None is the artifact's default.

        `demanded` is the policy that the tools' risk demands, if it does. The default may be
        allowed by its name or by its rule.
        """
        if demanded is not None and key.allows_policy(demanded):
            return demanded
        default = self._default_policy
        if key.policies is None or key.allows_policy(DEFAULT):
            return default
        if key.allows_policy(default or str(self.router.policy())):
            return default
        for policy in key.policies:
            if not policy.endswith("*"):
                return policy
        raise POLICY_NOT_ALLOWED.error(param="model", policy=DEFAULT, may_use=may_use(key.policies))

    def choosing_policy(self, policy: NamedPolicy[Policy | Verified] | None) -> NamedPolicy[Policy]:
        """Return the policy by which an arm is chosen if the answer is not verified."""
        rule = None if policy is None else policy.rule
        if isinstance(rule, Verified):
            rule = rule.otherwise
        if policy is None or rule is None:
            return self._policies.choose_once
        return NamedPolicy(rule, policy.name)


def _cost_usd(
    request: ParsedRequest, model: Model, *, output_tokens: int = TYPICAL_OUTPUT_TOKENS
) -> float:
    """Return what a request is expected to cost with a model; 0 if its price is unknown."""
    if model.price is None:
        return 0.0
    needs = request.requirements
    tokens = needs.input_tokens
    if request.endpoint.api is None:  # neither parsed, nor answered with a usual length
        tokens = request.body.size_bytes // CHARACTERS_PER_TOKEN
    if request.max_output_tokens is not None:
        output_tokens = min(output_tokens, request.max_output_tokens)
    return model.price.cost_usd(tokens, output_tokens * request.answers, 0)


def _most_usd(request: ParsedRequest, model: Model) -> float:
    """Return the most that a request may cost with a model; 0 if its price is unknown.

    A token has at least one byte. How many tokens a file or an earlier answer has, to which the
    request only refers, is known from the model's context window at most.
    """
    if model.price is None:
        return 0.0
    known = model.capabilities
    window_tokens = known.context_window_tokens or math.inf
    prompt_tokens = min(window_tokens, request.body.size_bytes)
    if request.refers_to_more and window_tokens < math.inf:
        prompt_tokens = window_tokens
    longest_tokens = known.max_output_tokens or min(window_tokens, LONGEST_OUTPUT_TOKENS)
    output_tokens = longest_tokens
    if request.max_output_tokens is not None:
        output_tokens = min(request.max_output_tokens, known.max_output_tokens or window_tokens)
    seconds = max(deployment.timeouts.total_s for deployment in model.deployments)
    return model.price.most_usd(prompt_tokens, output_tokens * request.answers, seconds)
