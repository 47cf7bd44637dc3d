"""The router: predict which arms answer correctly, then choose one by a policy.

    from router_service import Router

    decision = Router.load().decide({"messages": [...], "tools": [...]})
    print(decision.arm, decision.cost_usd[decision.arm])

`Router.decide` takes a request body. The gateway calls the two halves separately: `predict` runs
the model and belongs in a thread; `choose` applies a policy and takes microseconds.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from router_service.apis.conversation import (
    Conversation,
    Json,
    ToolSpec,
    Turn,
    decode_object,
    parse_conversation,
)
from router_service.artifact import NO_VERIFIER, SHIPPED, Artifact
from router_service.core.decision_record import StopReason, VerificationStop
from router_service.core.errors import ArtifactError, PolicyError
from router_service.core.reasons import Reason
from router_service.core.resources import (
    Cache,
    StageName,
    Timer,
    shared_cache,
    stop_if_abandoned,
)
from router_service.core.values import request_value
from router_service.measurement.goals import goal_policy, parse_goal, reach_goals
from router_service.measurement.held_out import describe_pool, goal_points
from router_service.policies.base import LEAST_PRICE_USD, Policy, by_probability
from router_service.policies.costs import Price
from router_service.policies.registry import DEFAULT, choose_once
from router_service.policies.threshold import Threshold
from router_service.policies.verified import VERIFIED, Verified, is_verified
from router_service.predictor.familiarity import Familiarity
from router_service.predictor.model import Classifier, Execution, Graph, has_cuda
from router_service.predictor.packing import PackedView, Packer
from router_service.verifier.answer_features import (
    Candidates,
    Question,
    unconfirmed_arguments,
)
from router_service.verifier.graphs import NextStep, StepTerms, Verifier
from router_service.verifier.steps import Step, UnverifiedReason, VerificationState

PREDICTIONS_BYTES = 8 * 2**20
"""Size of the prediction cache: 1,200 requests of an agent, at 6 KB each."""


_tool_lists: Cache[tuple[ToolSpec, ...], object] = shared_cache("tool_lists", 8 * 2**20)
"""A small object that stands for a list of tools in the keys of predictions. Otherwise, each
prediction would keep its tools, which may take megabytes and which the cache did not count."""


@request_value(frozen=True, slots=True)
class Decision:
    """The arm chosen for one conversation, with everything that the choice was based on."""

    arm: str
    probabilities: Mapping[str, float]
    """Probability of a correct answer, by arm."""
    cost_usd: Mapping[str, float]
    """Expected cost of a request of average length by arm; inside a tool loop, of this request."""
    policy: str
    reason: Reason
    packed_tokens: int
    ranking: tuple[str, ...]
    """All candidate arms in the order to try them: first `arm`, then the arm that the policy
    chooses among the rest, and so on."""
    propensity: float = 1.0
    """Probability with which this arm was chosen; 1 without exploration."""
    features: tuple[float, ...] = ()
    """Structural features, in the order of the artifact's manifest."""
    familiarity: float | None = None
    """How much the request resembles the training data, from 0 to 1; None if the artifact cannot
    tell."""
    probability: float = field(init=False, repr=False, compare=False)
    """Probability of a correct answer from the chosen arm."""
    expected_regret: float = field(init=False, repr=False, compare=False)
    """Probability of a correct answer that the choice gives up to save cost."""

    def __post_init__(self) -> None:
        """Compute `probability` and `expected_regret` of the chosen arm."""
        probability = self.probabilities[self.arm]
        object.__setattr__(self, "probability", probability)
        regret = max(self.probabilities.values()) - probability
        object.__setattr__(self, "expected_regret", regret)

    def moved(
        self, arm: str, reason: Reason, cost_usd: Mapping[str, float] | None = None
    ) -> Decision:
        """Return the decision for an arm, with the other arms in the same order after it.

        `cost_usd` replaces the expected costs of some arms.
        """
        others = (other for other in self.ranking if other != arm)
        costs_usd = {**self.cost_usd, **(cost_usd or {})}
        return replace(self, arm=arm, reason=reason, ranking=(arm, *others), cost_usd=costs_usd)


@request_value(frozen=True, slots=True)
class Prediction:
    """The model's output for one conversation, and the features of its input."""

    probabilities: tuple[float, ...]
    """Probability of a correct answer, for all measured arms of the artifact in its order. For
    unfamiliar requests, they are shrunk towards the arms' base rates."""
    features: tuple[float, ...]
    packed_tokens: int
    p_no_call: float | None = None
    """Probability that the request asks for no tool call; None if the artifact cannot tell."""
    familiarity: float | None = None
    """How much the request resembles the training data, from 0 to 1; None if the artifact cannot
    tell."""
    seconds: float = 0.0
    """How long packing and classifying took."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The arm that a policy chooses for given probabilities and costs."""

    policy: str
    arm: str
    reason: Reason
    floor: float | None
    """Least probability that an arm needs under the policy; None if it needs none."""


class Router:
    """A loaded artifact that decides for conversations; safe to share between threads."""

    def __init__(
        self,
        artifact: Artifact,
        *,
        device: str = "cpu",
        prices: Mapping[str, Price] | None = None,
        arms: Collection[str] | None = None,
        relatives: Iterable[Router] = (),
    ) -> None:
        """Load the artifact's model.

        `device` is where the model should run; if the artifact has no graph for it, the CPU is used
        and `Router.execution` has a warning. `prices` replaces list prices of the cost profile, by
        arm. `arms` restricts the choice (default: all of the artifact's arms). The figures of
        `Router.artifact` are then computed again for these arms at these prices. `relatives` are
        routers to share loaded files and caches with.
        Raises ArtifactError if the artifact lacks one of the arms, if `arms` is empty, or if the
        model cannot run on the device.
        """
        self.artifact = artifact
        manifest = artifact.manifest
        self.measured_prices: Mapping[str, Price] = {
            arm: usage.price for arm, usage in manifest.profile.items()
        }
        """The prices that the artifact's figures were measured at, by arm."""
        chosen = set(manifest.arms if arms is None else arms)
        self._check_arms(chosen)
        self._columns = [column for column, arm in enumerate(manifest.arms) if arm in chosen]
        self.arms: tuple[str, ...] = tuple(manifest.arms[column] for column in self._columns)
        relatives = tuple(relatives)
        # A packer changes the tokenizer's settings, so each tokenizer has one packer.
        same_tokenizer = [r for r in relatives if r.artifact.tokenizer is artifact.tokenizer]
        self._packer = (
            same_tokenizer[0]._packer
            if same_tokenizer
            else Packer(manifest.packing, artifact.tokenizer)
        )
        self._device = device if device in manifest.models else "cpu"
        path = artifact.model_path(self._device)
        self._model = (
            self._device,
            manifest.files[path.relative_to(artifact.directory).as_posix()],
        )
        same_model = [r for r in relatives if r._model == self._model]
        costs_usd = manifest.costs_usd(prices)
        cost_of_arm_usd = dict(zip(manifest.arms, costs_usd, strict=True))
        self._cost_of_arm_usd = {arm: cost_of_arm_usd[arm] for arm in self.arms}
        self._column_of_arm = {arm: column for column, arm in enumerate(manifest.arms)}
        self._all_costs_usd = np.full(len(manifest.arms), math.inf)
        """Costs of all of the artifact's arms; infinite for those that are not in the pool."""
        self._all_costs_usd[self._columns] = [*self._cost_of_arm_usd.values()]
        self._seconds_of_arm = {arm: usage.seconds for arm, usage in manifest.profile.items()}
        self._seconds = np.array([self._seconds_of_arm[arm] for arm in manifest.arms])
        # The graph and the figures of a pool take 0.1 s each, so a thread loads the graph.
        with ThreadPoolExecutor(1) as thread:
            loading = None if same_model else thread.submit(Graph, path, device=self._device)
            # The manifest's figures are those of all measured arms at their profiled prices.
            if not chosen.issuperset(manifest.measured_arms) or costs_usd != manifest.costs_usd():
                self.artifact = describe_pool(artifact, self.arms, prices or {})
            graph = same_model[0]._classifier.graph if loading is None else loading.result()
        self._classifier: Classifier = Classifier(
            path,
            arms=len(manifest.measured_arms),
            calibration=manifest.calibration,
            device=self._device,
            graph=graph,
        )
        warning = None if device == self._device else _unused_device(manifest.name)
        self.execution: Execution = Execution(path.name, graph.provider, warning)
        """The graph that predicts, and what runs it."""
        known = manifest.familiarity
        features = manifest.packing.features
        self._familiarity = None if known is None else Familiarity(known, features)
        self._verifier, self._verifier_of_unfamiliar = _load_verifiers(artifact)
        if self.unmeasured:  # the other verifier reads what the router expects of each arm
            self._verifier = self._verifier_of_unfamiliar
        manifest = self.artifact.manifest
        # Agents ask for the same goal with every request, and finding its rule takes 0.2 ms.
        verified = partial(goal_points, self.artifact)
        self._goal_policy = lru_cache(1000)(
            partial(goal_policy, manifest=manifest, verified=verified)
        )
        same_predictions = [
            relative
            for relative in same_model
            if relative._packer is self._packer
            and relative.artifact.manifest.calibration == manifest.calibration
            and relative.artifact.manifest.familiarity == manifest.familiarity
        ]
        self._predictions: Cache[tuple[tuple[Turn, ...], object], Prediction] = (
            same_predictions[0]._predictions if same_predictions else Cache(PREDICTIONS_BYTES)
        )

    @cached_property
    def base_rates(self) -> tuple[float, ...]:
        """Share of correct answers of each measured arm of the artifact."""
        rates = self.artifact.manifest.base_rates
        return tuple(rates[arm] for arm in self.artifact.manifest.measured_arms if arm in rates)

    @cached_property
    def unmeasured(self) -> Mapping[str, float]:
        """The arms of which no answer is known, with their assumed accuracies.

        They are the artifact's last ones, and take part in verified answers only.
        """
        facts = self.artifact.manifest.onboarded.items()
        return {arm: each.accuracy.value for arm, each in facts if not each.answers}

    @classmethod
    def load(cls, path: Path | str = SHIPPED) -> Router:
        """Load an artifact directory (default: the one that the package ships), and verify it.

        Raises ArtifactError if a file's hash or a canary request's probability is wrong.
        """
        router = cls(Artifact.load(Path(path)))
        router.check_canaries()
        return router

    def decide(
        self,
        request_body: Mapping[str, Json] | bytes | str,
        policy: Policy | str = DEFAULT,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Return the arm that should answer a Chat Completions request.

        `request_body` is the request as JSON text or as a decoded object; only `messages` and
        `tools` are read. `policy` is the name of a policy that chooses once (`fast`), a rule
        (`theta=0.5`, `drift=0.1`) or a goal (`accuracy=best@95`). If the artifact's default policy
        verifies answers, `default` means its policy `fast` here. `arms` restricts the choice to
        some of `Router.arms`. Takes some milliseconds of CPU time, or much less if the prediction
        for the same conversation is cached.

        Raises InvalidRequestError if the body is not a request, PolicyError for an unknown policy,
        and ArtifactError for an unknown arm.
        """
        if isinstance(request_body, bytes | str):
            request_body = decode_object(request_body)
        if policy == DEFAULT:
            policy = self.artifact.manifest.choose_once.rule
        elif isinstance(policy, str):
            policy = choose_once(self.policy(policy, param="policy"), param="policy")
        if arms is not None:
            self._check_arms(arms)
        return self.decide_conversation(parse_conversation(request_body), policy, arms)

    def decide_conversation(
        self,
        conversation: Conversation,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Return the decision for a parsed conversation; CPU-bound.

        `arms` are the router's arms that can serve the conversation, at least one (default: all).
        """
        return self.choose(conversation, self.predict(conversation), policy, arms)

    def cached(self, conversation: Conversation) -> Prediction | None:
        """Return an earlier prediction for the same conversation, if any; takes some 0.02 ms."""
        return self._predictions.get((conversation.turns, _tool_lists.get(conversation.tools)))

    def predict(self, conversation: Conversation, timer: Timer | None = None) -> Prediction:
        """Return the model's prediction, from the cache if there is one; CPU-bound.

        `timer` gets the stages `pack` and `classify`. Raises ValueError if the model returns NaN.
        """
        # The key omits parts of the request that could not be parsed: the model does not see them.
        tools = _tool_lists.get(conversation.tools)
        if tools is None:
            tools = object()
            size_bytes = sum(tool.size_bytes for tool in conversation.tools)
            _tool_lists.put(conversation.tools, tools, size_bytes)
        key = conversation.turns, tools
        # A request for the same conversation may have finished while this one was queued.
        known = self._predictions.get(key)
        if known is not None:
            return known
        timer = timer or Timer(time.perf_counter)
        started_s = time.perf_counter()
        stop_if_abandoned()
        packed = self._packer.pack(conversation)
        timer.end(StageName.PACK)
        stop_if_abandoned()
        probabilities, demand = self._classifier.predict_with_demand([packed])
        row: Sequence[float] = probabilities[0].tolist()
        timer.end(StageName.CLASSIFY)
        if any(map(math.isnan, row)):
            raise ValueError(f"the model returned NaN: {row}")
        familiarity: float | None = None
        if self._familiarity is not None:
            familiarity = self._familiarity.of(packed.features)
            row = self._familiarity.shrink(row, self.base_rates, familiarity)
        prediction = Prediction(
            tuple(row),
            packed.features,
            len(packed.token_ids),
            None if demand is None else float(demand[0, 0]),
            familiarity,
            time.perf_counter() - started_s,
        )
        # An estimate of the memory.
        size_bytes = 32 * (len(row) + len(packed.features))
        for turn in conversation.turns:
            size_bytes += 300 + len(turn.text)
            size_bytes += sum(300 + len(call.arguments) for call in turn.tool_calls)
        self._predictions.put(key, prediction, size_bytes)
        return prediction

    def choose(
        self,
        conversation: Conversation,
        prediction: Prediction,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Return the decision that a policy makes from a prediction; takes some 0.03 ms.

        By default, `policy` is the artifact's policy that chooses once, and `arms` are all of the
        router's arms. Arms that are not measured come last; the most accurate one is chosen if
        there are no others.
        """
        policy = policy or self.artifact.manifest.choose_once.rule
        able = [arm for arm in self.arms if arms is None or arm in arms]
        assumed = [arm for arm in able if arm in self.unmeasured]
        probabilities = (*prediction.probabilities, *self.unmeasured.values())

        def decide(arms: Sequence[str], policy: Policy) -> Decision:
            return decide_among(
                arms,
                [probabilities[self._column_of_arm[arm]] for arm in arms],
                [self._cost_of_arm_usd[arm] for arm in arms],
                policy,
                prediction,
                is_unread=bool(conversation.unread),
            )

        if not assumed:
            return decide(able, policy)
        last = decide(assumed, Threshold(1.0))
        if len(assumed) == len(able):
            return last
        decision = decide([arm for arm in able if arm not in assumed], policy)
        return replace(
            decision,
            probabilities={**decision.probabilities, **last.probabilities},
            cost_usd={**decision.cost_usd, **last.cost_usd},
            ranking=(*decision.ranking, *last.ranking),
        )

    def is_unfamiliar(self, prediction: Prediction) -> bool:
        """Return whether a request is unlike those that the router was measured on."""
        known, familiarity = self.artifact.manifest.familiarity, prediction.familiarity
        return known is not None and familiarity is not None and familiarity < known.limit

    def is_far_off(self, conversation: Conversation) -> bool:
        """Return whether a request is unlike all those that answers were verified for."""
        spec = self.artifact.manifest.verifier
        unfamiliar = None if spec is None else spec.unfamiliar
        return unfamiliar is not None and not unfamiliar.measured.include(conversation)

    def next_step(
        self, question: Question, prediction: Prediction, state: VerificationState
    ) -> Step:
        """Return which candidate to accept, or which arms to ask next; CPU-bound.

        `question` is the request, and `prediction` the router's for it. Unfamiliar requests, and
        those inside of a tool loop, have a verifier of their own. If the router expects no tool
        call, the first answer is accepted without verification if it is text. A candidate that
        cannot be used counts as a failed arm, with the probability 0. Without other candidates and
        without an arm that may be asked, the step names no arm. Raises PolicyError if the artifact
        has no verifier.
        """
        # The verifier of familiar requests has seen no tool loop: at its end, it expects another
        # call, and it accepts one that was made before.
        is_like_plain = not (self.is_unfamiliar(prediction) or question.results_so_far)
        verifier = self._verifier if is_like_plain else self._verifier_of_unfamiliar
        if verifier is None:
            raise PolicyError(str(state.policy), NO_VERIFIER)
        manifest, limits = self.artifact.manifest, state.limits
        candidates = [candidate for candidate in state.candidates if candidate.is_usable]
        unusable = [candidate.arm for candidate in state.candidates if not candidate.is_usable]
        expects_text = verifier.spec.expects_text(prediction.p_no_call)
        if expects_text and len(candidates) == 1 and candidates[0].is_text:
            return Step(candidates[0].arm, (), {}, 0.0, unverified=UnverifiedReason.TEXT)
        expects_text = expects_text and not candidates
        costs_usd = {**self._cost_of_arm_usd, **state.costs_usd}
        seconds_of = self._seconds_of_arm
        column_of = self._column_of_arm
        asked = [*(candidate.arm for candidate in state.candidates), *state.failed]
        left_usd = limits.max_cost_usd - sum(costs_usd[arm] for arm in asked)
        left_s = limits.max_added_latency_s - state.elapsed_s
        able: list[str] = []
        excluded = {arm: state.excluded[arm] for arm in self.arms if arm in state.excluded}
        for arm in self.arms:
            if arm not in state.arms or arm in asked:
                continue
            if len(asked) >= limits.max_candidates:
                excluded[arm] = StopReason.MAX_CANDIDATES
            elif costs_usd[arm] > left_usd:
                excluded[arm] = StopReason.MAX_COST
            elif candidates and seconds_of[arm] > left_s:
                excluded[arm] = StopReason.MAX_ADDED_LATENCY
            else:
                able.append(arm)
        answers = {
            column_of[candidate.arm]: question.read(candidate.answer) for candidate in candidates
        }
        impossible = dict.fromkeys(unusable, 0.0)
        if not (able or answers):
            return Step(None, (), impossible, 0.0)
        stop_if_abandoned()
        ungrounded = unconfirmed_arguments(question, answers, state.grounded_tools)
        # Two arms are asked at once only if no time is left to ask one after the other, and if the
        # first answer is probably a call.
        fastest_s = min((seconds_of[arm] for arm in able), default=0.0)
        may_ask_two = limits.max_candidates > 1 and not expects_text
        is_last = fastest_s > left_s and may_ask_two
        price_usd = max(state.policy.price_usd, LEAST_PRICE_USD)
        costs, waits = self._all_costs_usd / price_usd, None
        if limits.usd_per_second > 0:
            waits = limits.usd_per_second * self._seconds / price_usd
            costs += waits
        step = verifier.choose_step(
            verifier.beliefs(prediction.features, prediction.probabilities),
            Candidates.of(question, answers),
            costs,
            [column_of[arm] for arm in able],
            StepTerms(
                is_last=is_last,
                waits=waits if may_ask_two else None,
                floor=state.policy.floor,
                excluded=[column_of[arm] for arm in excluded],
                refused=ungrounded,
            ),
        )
        ask = tuple(manifest.arms[column] for column in step.ask)
        if sum(costs_usd[arm] for arm in ask) > left_usd:
            ask = ask[:1]
        return Step(
            accept=None if step.accept is None else manifest.arms[step.accept],
            ask=ask,
            p_correct={manifest.arms[column]: p for column, p in step.p_correct.items()}
            | impossible,
            expected_gain=step.gain,
            expects_text=expects_text,
            unverified=UnverifiedReason.UNGROUNDED if step.accept in ungrounded else None,
            ungrounded={manifest.arms[column]: paths for column, paths in ungrounded.items()},
            stop=None if step.accept is None else self._stop(step, able, excluded, costs_usd),
        )

    def _stop(
        self,
        step: NextStep,
        able: Sequence[str],
        excluded: Mapping[str, StopReason],
        costs_usd: Mapping[str, float],
    ) -> VerificationStop:
        """Return why a step accepts a candidate, by the arms that it might have asked."""
        if step.left_out is None:
            limit = next(iter(excluded.values()), StopReason.NO_MODEL_LEFT)
            return VerificationStop(reason=StopReason.SURE if able else limit)
        arm = self.artifact.manifest.arms[step.left_out]
        return VerificationStop(
            reason=excluded.get(arm, StopReason.NOT_WORTH),
            arm=arm,
            expected_gain=step.left_out_gain,
            expected_cost_usd=costs_usd[arm],
        )

    def policy(
        self, text: str | None = None, *, param: str = "model", verified_goals: bool = False
    ) -> Policy | Verified:
        """Return the policy for a name (`economy`), a rule (`theta=0.5`) or a goal.

        None is the artifact's default. A goal such as `accuracy=best@95` becomes the rule that was
        measured to reach it; with `verified_goals`, this may be a verified policy. Raises
        PolicyError, which names `param` as the request's field.
        """
        manifest = self.artifact.manifest
        name = text or DEFAULT
        if is_verified(name) and name != VERIFIED:
            return manifest.policy(name, param=param)  # a price of the request's own has no floor
        rule = name if is_verified(name) else manifest.policies.get(name, name)
        if rule == name and not is_verified(name) and "=" not in name:
            known = sorted({*manifest.policies, VERIFIED})
            problem = f"no policy has this name; use one of {', '.join(known)}"
            similar = difflib.get_close_matches(name, known, n=1)
            if similar:
                problem = f"did you mean {similar[0]!r}?"
            raise PolicyError(name, problem, param=param)
        goal = parse_goal(rule, param=param)
        if goal is None:
            return manifest.measured_policy(rule, param=param)
        return self._goal_policy(goal, param=param, verified_goals=verified_goals)

    def reach_goals(self, *, verified_goals: bool) -> None:
        """Give the policies with a goal, such as the default, the rules that reach these goals.

        Verified rules count only with `verified_goals`. Measuring them may take seconds. Until
        then, the default policy is `verified`, and other policies choose once, if the arms or
        prices are not those of training. A pool with arms that are not measured keeps its rules.
        """
        if self.unmeasured:
            return
        verified = goal_points(self.artifact) if verified_goals else ()
        manifest = reach_goals(self.artifact.manifest, verified)
        self.artifact = replace(self.artifact, manifest=manifest)

    def predict_batch(self, conversations: Sequence[Conversation]) -> list[list[float]]:
        """Return the probability that each arm of the artifact is correct, (conversations, arms).

        Does not use the cache.
        """
        packed = [self._packer.pack(conversation) for conversation in conversations]
        rows: list[list[float]] = self._classifier.predict(packed).tolist()
        return rows

    def check_canaries(self) -> None:
        """Replay the artifact's canary requests; raises ArtifactError if a probability is off."""
        self.artifact.check_canaries(self.predict_batch, self._device)

    def view(self, conversation: Conversation) -> PackedView:
        """Return what the model sees of a conversation; CPU-bound, like a prediction."""
        packed = self._packer.pack(conversation)
        return PackedView.of(packed, self.artifact.manifest.packing, self.artifact.tokenizer)

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """The router's caches by name; some may be shared with other routers."""
        return {"predictions": self._predictions, **self._packer.caches}

    def _check_arms(self, arms: Collection[str]) -> None:
        """Raise ArtifactError if `arms` is empty or if the artifact lacks one of them."""
        known = self.artifact.manifest.arms
        unknown = sorted(set(arms) - set(known))
        if unknown or not arms:
            problem = f"the artifact has no arms {unknown}" if unknown else "no arm was given"
            raise ArtifactError(self.artifact.directory, f"{problem}; use some of {list(known)}")


def _load_verifiers(artifact: Artifact) -> tuple[Verifier | None, Verifier | None]:
    """Return the verifiers of familiar and of unfamiliar requests, which may be the same one."""
    spec = artifact.manifest.verifier
    if spec is None:
        return None, None
    verifier = Verifier(artifact.directory, spec)
    if spec.unfamiliar is None:
        return verifier, verifier
    return verifier, Verifier(artifact.directory, spec, spec.unfamiliar)


def _unused_device(artifact: str) -> str:
    """Return the warning that a GPU is configured, but the artifact has no graph for it."""
    text = (
        f"router.device is cuda, but the artifact {artifact} has no graph for GPUs: its graph for"
        " CPUs runs on the CPU. Serve an artifact that was trained with `cuda_graph: true`, or set"
        " router.device: cpu"
    )
    if not has_cuda():
        text += ". Here, the other artifact would not load: ONNX Runtime is built without CUDA"
    return text


def decide_among(
    arms: Sequence[str],
    probabilities: Sequence[float],
    costs_usd: Sequence[float],
    policy: Policy,
    prediction: Prediction,
    *,
    is_unread: bool,
) -> Decision:
    """Return the policy's decision among these arms, with all of them ranked.

    `probabilities` and `costs_usd` have one value for each arm. `prediction` provides the features
    and the length of the input; it may cover more arms. If part of the request is unread, because
    it could not be parsed, the most probable arm is chosen: a probability for part of a request
    does not justify using a cheaper arm.
    """
    chosen = policy.choose(probabilities, costs_usd)
    reason = Reason.UNREAD if is_unread else chosen.reason
    order: Sequence[int]
    if is_unread:
        order = by_probability(probabilities, costs_usd)
    else:
        order = policy.ranking(probabilities, costs_usd)
    return Decision(
        arm=arms[order[0]],
        probabilities=dict(zip(arms, probabilities, strict=True)),
        cost_usd=dict(zip(arms, costs_usd, strict=True)),
        policy=str(policy),
        reason=reason,
        packed_tokens=prediction.packed_tokens,
        ranking=tuple([arms[index] for index in order]),
        features=prediction.features,
        familiarity=prediction.familiarity,
    )


def explored(decision: Decision, share: float, draw: float) -> Decision:
    """Return the decision with its propensity set, and with a random arm for a share of draws.

    `draw` is uniform in [0, 1), and the propensities of all arms add up to 1 (epsilon-greedy). If
    the random arm fails, the other arms are tried in the policy's order. Requests with unread parts
    are not explored, because nothing could be learned from them.
    """
    if decision.reason is Reason.UNREAD:
        return decision
    arms = len(decision.ranking)
    # A draw below `share` is uniform in [0, share), so it can also select the arm.
    drawn = min(int(draw / share * arms), arms - 1) if draw < share else 0
    found = replace(decision, propensity=share / arms + (1 - share) * (drawn == 0))
    return found.moved(decision.ranking[drawn], Reason.EXPLORED) if drawn else found


def choices(decision: Decision, policies: Iterable[Policy]) -> Iterator[Choice]:
    """Yield what other policies choose from the decision's probabilities and costs."""
    arms, probabilities = list(decision.probabilities), list(decision.probabilities.values())
    costs_usd = [decision.cost_usd[arm] for arm in arms]
    is_unread = decision.reason is Reason.UNREAD
    for policy in policies:
        chosen = policy.choose(probabilities, costs_usd)
        yield Choice(
            policy=str(policy),
            arm=decision.arm if is_unread else arms[chosen.arm],
            reason=Reason.UNREAD if is_unread else chosen.reason,
            floor=None if is_unread else policy.least_probability(probabilities),
        )
