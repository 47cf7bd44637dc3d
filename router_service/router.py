"""Pack -> classify -> price -> select, as one Decision."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from router_service.core.artifact import Artifact
from router_service.core.cache import Cache
from router_service.core.cost import Price
from router_service.core.errors import ArtifactError, PolicyError
from router_service.core.goals import Goal, parse_goal, reach
from router_service.core.messages import Conversation, ToolSpec, Turn
from router_service.core.model import Classifier
from router_service.core.packing import PackedView, PackedViewer, Packer
from router_service.core.selection import (
    Policy,
    Reason,
    explore,
    least_probability,
    parse_policy,
    ranking,
    select,
)
from router_service.core.tracing import Clock, Stage, StageName, Timer

_Content = tuple[tuple[Turn, ...], tuple[ToolSpec, ...]]

PREDICTIONS_BYTES = 8 * 2**20
"""What a router remembers of the model's answers: 1,200 requests of an agent, at 6 KB each."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The arm chosen for one conversation, and all that it was chosen by.

    `ranking` holds the arms that it was chosen among: itself, then the one that the same policy
    chooses among the rest, and so on.
    """

    arm: str
    probabilities: Mapping[str, float]
    cost_usd: Mapping[str, float]
    policy: str
    reason: Reason
    packed_tokens: int
    ranking: tuple[str, ...]
    propensity: float = 1.0
    """The probability with which this arm was chosen."""
    features: tuple[float, ...] = ()
    """Structural counts, in the order of the artifact's manifest."""
    stages: tuple[Stage, ...] = ()
    """How long packing, classifying and selecting took, where a router timed them."""

    @property
    def probability(self) -> float:
        """The chosen arm's."""
        return self.probabilities[self.arm]

    @property
    def expected_regret(self) -> float:
        """What the choice gives up of the highest probability, to save cost."""
        return max(self.probabilities.values()) - self.probability


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model said of one conversation, and what it was shown."""

    probabilities: tuple[float, ...]
    """Of all arms of the artifact."""
    features: tuple[float, ...]
    packed_tokens: int

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        return 32 * (len(self.probabilities) + len(self.features))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chooses by a decision's probabilities and costs."""

    policy: str
    arm: str
    reason: Reason
    floor: float
    """What an arm's probability must reach; nothing where the reason is `unread`."""


class Router:
    """Decides for conversations; holds one loaded artifact, and may be shared by threads."""

    def __init__(
        self,
        artifact: Artifact,
        *,
        device: str = "cpu",
        prices: Mapping[str, Price] | None = None,
        arms: Collection[str] | None = None,
        clock: Clock = time.perf_counter,
        relatives: Iterable[Router] = (),
    ) -> None:
        """Load the artifact's model; `prices` replaces the profile's list prices by arm.

        `arms` are those to choose among (default: all of the artifact's), in whatever order;
        `clock` times the stages of a decision. `relatives` share what was loaded from the same
        files, and what they have computed with it.
        Raises ArtifactError where the artifact does not know one of them, or there is none.
        """
        manifest = artifact.manifest
        self.artifact = artifact
        self._clock = clock
        self._columns = _columns(artifact, manifest.arms if arms is None else arms)
        self.arms: tuple[str, ...] = tuple(manifest.arms[column] for column in self._columns)
        relatives = tuple(relatives)
        alike = next((r for r in relatives if r.artifact.tokenizer is artifact.tokenizer), None)
        # Made once for a tokenizer, which a packer takes over.
        self._packer: Packer = (
            alike._packer if alike else Packer(manifest.packing, artifact.tokenizer)
        )
        self._viewer: PackedViewer = (
            alike._viewer
            if alike
            else PackedViewer(manifest.packing, artifact.tokenizer, self._packer)
        )
        path = artifact.model_path(device)
        self._model = (device, manifest.files[path.relative_to(artifact.directory).as_posix()])
        twin = next((r for r in relatives if r._model == self._model), None)
        self._classifier: Classifier = Classifier(
            path,
            arms=len(manifest.arms),
            calibration=manifest.calibration,
            device=device,
            graph=twin._classifier.graph if twin else None,
        )
        costs_usd = manifest.costs_usd(prices)
        self._is_as_measured = (
            len(self._columns) == len(manifest.arms) and costs_usd == manifest.costs_usd()
        )
        self._costs_usd = [costs_usd[column] for column in self._columns]
        same = next((r for r in relatives if r._predicts_like(self)), None)
        self._predictions: Cache[_Content, Prediction] = (
            same._predictions if same else Cache(PREDICTIONS_BYTES)
        )

    def _predicts_like(self, other: Router) -> bool:
        is_same_model = self._packer is other._packer and self._model == other._model
        calibration = self.artifact.manifest.calibration
        return is_same_model and calibration == other.artifact.manifest.calibration

    @property
    def caches(self) -> dict[str, Cache[Any, Any]]:
        """What is remembered, by name; some may be shared with other routers."""
        return {"predictions": self._predictions, **self._packer.caches}

    @classmethod
    def load(cls, directory: Path) -> Router:
        """Load and verify an artifact directory, canaries included; raises ArtifactError."""
        router = cls(Artifact.load(directory))
        router.check_canaries()
        return router

    def check_canaries(self) -> None:
        """Replay the artifact's canaries; raises ArtifactError where a probability is off."""
        self.artifact.check_canaries(self.predict)

    def policy(self, text: str | None = None, *, param: str = "model") -> Policy:
        """Resolve a policy by name (`economy`), rule (`theta=0.5`) or goal (`accuracy=best@95`).

        None is the default one. A goal is reached by the rule that was measured to, where the
        router chooses among all arms at their profiled prices. Raises PolicyError, naming
        `param` as the field that it was asked in.
        """
        named = self.artifact.manifest.policies
        rule = named.get(text or "default")
        if rule is None and "=" not in (text or ""):
            known = ", ".join(sorted(named))
            raise PolicyError(text or "", f"known names are {known}", param=param)
        asked = rule or text or ""
        goal = parse_goal(asked, param=param)
        return parse_policy(asked, param=param) if goal is None else self._reach(goal, param)

    def _reach(self, goal: Goal, param: str) -> Policy:
        if not self._is_as_measured:
            problem = "goals hold for all arms of the artifact at their profiled prices alone"
            raise PolicyError(str(goal), problem, param=param)
        manifest = self.artifact.manifest
        point = reach(goal, manifest.frontier, manifest.best_single_accuracy, param=param)
        return parse_policy(point.policy)

    def predict(self, conversations: Sequence[Conversation]) -> list[list[float]]:
        """Return the probability that each arm of the artifact is correct, (conversations, all)."""
        packed = [self._packer.pack(conversation) for conversation in conversations]
        rows: list[list[float]] = self._classifier.predict(packed).tolist()
        return rows

    def view(self, conversation: Conversation) -> PackedView:
        """Show what the model sees of a conversation; CPU-bound, like a decision."""
        return self._viewer.view(conversation)

    def decide(
        self,
        conversation: Conversation,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Choose the arm for one conversation; CPU-bound, so call it off the event loop.

        `arms` are those of the router's that can serve it (default: all); there is at least one.
        """
        timer = Timer(self._clock)
        prediction = self._predictions.peek(_content(conversation))
        if prediction is None:
            prediction = self._predict(conversation, timer)
        return self._decided(conversation, prediction, policy, arms, timer)

    def recall(
        self,
        conversation: Conversation,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision | None:
        """Choose as `decide` would, where the model was asked about the very same conversation.

        None where it was not, or that is forgotten; takes some 0.05 ms.
        """
        timer = Timer(self._clock)
        prediction = self._predictions.get(_content(conversation))
        if prediction is None:
            return None
        return self._decided(conversation, prediction, policy, arms, timer)

    def _predict(self, conversation: Conversation, timer: Timer) -> Prediction:
        packed = self._packer.pack(conversation)
        timer.end(StageName.PACK)
        row: list[float] = self._classifier.predict([packed])[0].tolist()
        timer.end(StageName.CLASSIFY)
        prediction = Prediction(tuple(row), packed.features, len(packed.token_ids))
        size_bytes = prediction.size_bytes + _size_bytes(conversation)
        self._predictions.put(_content(conversation), prediction, size_bytes)
        return prediction

    def _decided(
        self,
        conversation: Conversation,
        prediction: Prediction,
        policy: Policy | None,
        arms: Collection[str] | None,
        timer: Timer,
    ) -> Decision:
        able = [index for index, arm in enumerate(self.arms) if arms is None or arm in arms]
        decision = decide_among(
            [self.arms[index] for index in able],
            [prediction.probabilities[self._columns[index]] for index in able],
            [self._costs_usd[index] for index in able],
            policy or self.policy(),
            packed_tokens=prediction.packed_tokens,
            is_unread=bool(conversation.unread),
        )
        timer.end(StageName.SELECT)
        return replace(decision, features=prediction.features, stages=timer.stages)


def decide_among(
    arms: Sequence[str],
    probabilities: Sequence[float],
    costs_usd: Sequence[float],
    policy: Policy,
    *,
    packed_tokens: int,
    is_unread: bool,
) -> Decision:
    """Choose one of these arms, and rank the others; probabilities and costs are (arms,) each."""
    chosen = select(probabilities, costs_usd, policy)
    # A probability for half a request is no ground to save money on.
    order = ranking(probabilities, costs_usd, None if is_unread else policy)
    return Decision(
        arm=arms[order[0]],
        probabilities=dict(zip(arms, probabilities, strict=True)),
        cost_usd=dict(zip(arms, costs_usd, strict=True)),
        policy=str(policy),
        reason=Reason.UNREAD if is_unread else chosen.reason,
        packed_tokens=packed_tokens,
        ranking=tuple(arms[index] for index in order),
    )


def explored(decision: Decision, share: float, draw: float) -> Decision:
    """Return a decision that may be for another arm than the policy's, with its propensity.

    `draw` is uniform in [0, 1). Where the arm fails, the policy's own order is tried. What part of
    could not be read is decided as before: nothing would be learned from it.
    """
    if decision.reason is Reason.UNREAD:
        return decision
    drawn = explore(0, len(decision.ranking), share, draw)
    arm = decision.ranking[drawn.arm]
    return replace(
        decision,
        arm=arm,
        reason=decision.reason if drawn.arm == 0 else Reason.EXPLORED,
        propensity=drawn.propensity,
        ranking=(arm, *(other for other in decision.ranking if other != arm)),
    )


def choices(decision: Decision, policies: Iterable[Policy]) -> Iterator[Choice]:
    """Yield what other policies choose by the same probabilities, without asking the model anew."""
    arms, probabilities = list(decision.probabilities), list(decision.probabilities.values())
    costs_usd = [decision.cost_usd[arm] for arm in arms]
    is_unread = decision.reason is Reason.UNREAD
    for policy in policies:
        chosen = select(probabilities, costs_usd, policy)
        yield Choice(
            policy=str(policy),
            arm=decision.arm if is_unread else arms[chosen.arm],
            reason=Reason.UNREAD if is_unread else chosen.reason,
            floor=least_probability(probabilities, policy),
        )


def _content(conversation: Conversation) -> _Content:
    """Return what a prediction follows from; what could not be read is not shown to the model."""
    return conversation.turns, conversation.tools


def _size_bytes(conversation: Conversation) -> int:
    """Return the memory that a conversation takes, about; its tools are others', too."""
    calls = (call for turn in conversation.turns for call in turn.tool_calls)
    called = sum(300 + len(call.arguments) for call in calls)
    return called + sum(300 + len(turn.text) for turn in conversation.turns)


def _columns(artifact: Artifact, arms: Collection[str]) -> list[int]:
    """Return where these arms stand among the artifact's outputs, in their order."""
    known = artifact.manifest.arms
    unknown = sorted(set(arms) - set(known))
    if unknown or not arms:
        problem = f"does not know the arms {unknown}" if unknown else "was asked for no arm"
        raise ArtifactError(artifact.directory, f"{problem}; it has {list(known)}")
    return [column for column, arm in enumerate(known) if arm in arms]
