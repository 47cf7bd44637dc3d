"""Routers with fixed probabilities and the real selection; one verifies answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from router_service.apis.conversation import Conversation
from router_service.artifact import (
    CANARIES,
    NO_VERIFIER,
    TOKENIZER,
    Artifact,
    Encoder,
    Manifest,
    Provenance,
)
from router_service.core.errors import PolicyError
from router_service.core.resources import Cache, Timer
from router_service.policies.base import Policy
from router_service.policies.costs import ArmProfile, Price
from router_service.policies.verified import Verified
from router_service.predictor.familiarity import FamiliaritySpec
from router_service.predictor.model import Execution
from router_service.predictor.packing import PackedView, PackingSpec
from router_service.router import Decision, Prediction, Router, decide_among
from router_service.verifier.answer_features import Question
from router_service.verifier.graphs import MeasuredRequests, UnfamiliarGraphs, VerifierSpec
from router_service.verifier.steps import Step, UnverifiedReason, VerificationState

PROBABILITIES = {"small": 0.3, "medium": 0.7, "large": 0.9}
PRICES = {"small": 1.0, "medium": 2.0, "large": 10.0}
POLICIES = {"default": "theta=0.5", "economy": "theta=0.2", "quality": "theta=0.8"}


def manifest(
    arms: Sequence[str] = tuple(PROBABILITIES), policies: Mapping[str, str] = POLICIES
) -> Manifest:
    """Return a manifest whose arms cost as `PRICES` says, in USD per million tokens."""
    profile = {arm: _profile(PRICES[arm]) for arm in arms}
    return Manifest(
        schema_version=1,
        name="fake",
        arms=tuple(arms),
        encoder=Encoder(name="none", parameters=1, hidden_size=1, layers=1),
        packing=PackingSpec(),
        policies=policies,
        profile=profile,
        provenance=Provenance(
            created="2026-01-01", commit="0000000", config="", seed=0, data_sha256="", versions={}
        ),
        models={"cpu": "model.onnx"},
        files=dict.fromkeys(("model.onnx", TOKENIZER, CANARIES), ""),
    )


class FakeRouter(Router):
    """Router with fixed probabilities; `asked` keeps the conversations."""

    def __init__(
        self,
        probabilities: Mapping[str, float] | None = None,
        policies: Mapping[str, str] = POLICIES,
    ) -> None:
        self.probabilities = dict(probabilities or PROBABILITIES)
        self.p_no_call: float | None = None
        self.familiarity: float | None = None
        """Familiarity of every request; `with_familiarity` sets it."""
        described = manifest(tuple(self.probabilities), policies)
        self.artifact = Artifact(Path(), described, Tokenizer(WordLevel({"[UNK]": 0})))
        self.execution = Execution("model.onnx", "CPUExecutionProvider")
        self.arms = tuple(self.probabilities)
        self.asked: list[Conversation] = []

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """Return no caches."""
        return {}

    def cached(self, conversation: Conversation) -> Prediction | None:
        """Return no prediction: every conversation is new."""
        del conversation
        return None

    def policy(
        self, text: str | None = None, *, param: str = "model", verified_goals: bool = False
    ) -> Policy | Verified:
        """Resolve a policy by name or rule."""
        del verified_goals
        manifest = self.artifact.manifest
        return manifest.policy(manifest.policies.get(text or "default", text or ""), param=param)

    def predict(self, conversation: Conversation, timer: Timer | None = None) -> Prediction:
        """Return the fixed probabilities."""
        del timer
        self.asked.append(conversation)
        probabilities = tuple(self.probabilities.values())
        return Prediction(
            probabilities,
            (),
            packed_tokens=7,
            p_no_call=self.p_no_call,
            familiarity=self.familiarity,
        )

    def choose(
        self,
        conversation: Conversation,
        prediction: Prediction,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Choose among these arms by the real selection."""
        manifest = self.artifact.manifest
        costs_usd = dict(zip(manifest.arms, manifest.costs_usd(), strict=True))
        probabilities = dict(zip(manifest.arms, prediction.probabilities, strict=True))
        able = [arm for arm in manifest.arms if arms is None or arm in arms]
        return decide_among(
            able,
            [probabilities[arm] for arm in able],
            [costs_usd[arm] for arm in able],
            policy or manifest.choose_once.rule,
            prediction,
            is_unread=bool(conversation.unread),
        )

    def next_step(
        self, question: Question, prediction: Prediction, state: VerificationState
    ) -> Step:
        """Refuse, like an artifact without a verifier."""
        del question, prediction
        raise PolicyError(str(state.policy), NO_VERIFIER)

    def view(self, conversation: Conversation) -> PackedView:
        """Return an empty view."""
        del conversation
        return PackedView(pieces=(), features={}, tokens=7, budget_tokens=512)


class VerifyingRouter(FakeRouter):
    """Router that asks groups of arms in their order, and trusts answers by arm.

    It accepts the most probable candidate if its probability is at least 0.5, or if no further arm
    can be asked. If `p_no_call` is at least 0.9, it accepts a first text unverified. `steps` keeps
    the states of all calls.
    """

    def __init__(
        self,
        groups: Sequence[tuple[str, ...]] = (("small",), ("medium",), ("large",)),
        trust: Mapping[str, float] | None = None,
        *,
        is_broken: bool = False,
        policies: Mapping[str, str] = POLICIES,
    ) -> None:
        super().__init__(policies=policies)
        spec = VerifierSpec(
            graph="verifier.onnx",
            gain_graph="gain.onnx",
            candidate_features=(),
            gain_features=(),
            reliabilities=tuple(self.probabilities.values()),
            price_usd=0.002,
            streams_text_from=0.9,
            unfamiliar=UnfamiliarGraphs(
                graph="verifier.onnx",
                gain_graph="gain.onnx",
                candidate_features=(),
                measured=MeasuredRequests(tools=10, scripts=("LATIN",)),
            ),
        )
        self.expects_text = spec.expects_text
        changed = self.artifact.manifest.model_copy(update={"verifier": spec})
        self.artifact = replace(self.artifact, manifest=changed)
        self.is_broken = is_broken
        """Whether it fails to judge candidates."""
        self.judging_s = 0.0
        """How long it takes to judge candidates."""
        self.groups = groups
        self.trust = {"small": 0.2, "medium": 0.4, "large": 0.9, **(trust or {})}
        self.steps: list[VerificationState] = []

    def next_step(
        self, question: Question, prediction: Prediction, state: VerificationState
    ) -> Step:
        """Accept the best candidate if it is trusted, or ask the next group."""
        del question
        self.steps.append(state)
        expects_text = self.expects_text(prediction.p_no_call)
        if expects_text and len(state.candidates) == 1 and state.candidates[0].is_text:
            arm = state.candidates[0].arm
            return Step(arm, (), {}, 0.0, unverified=UnverifiedReason.TEXT)
        trust = {c.arm: self.trust[c.arm] if c.answer else 0.0 for c in state.candidates}
        if state.candidates:
            time.sleep(self.judging_s)
            if self.is_broken:
                raise RuntimeError("a defect of the verifier")
        best = max(trust, key=lambda arm: trust[arm], default=None)
        groups = (tuple(arm for arm in group if arm in state.arms) for group in self.groups)
        ask = next(filter(None, groups), ())
        if best is not None and (trust[best] >= 0.5 or not ask):
            return Step(best, (), trust, 0.0)
        is_first = not state.candidates
        return Step(None, ask, trust, 0.1, expects_text=expects_text and is_first)


Fake = TypeVar("Fake", bound=FakeRouter)

BASE_RATES = {"small": 0.95, "medium": 0.9, "large": 0.85}
"""Accuracies of the arms, in another order than their probabilities."""


def with_familiarity(router: Fake, familiarity: float) -> Fake:
    """Let the router give every request this familiarity; its limit is 0.05."""
    spec = FamiliaritySpec(
        sizes=(("tools",),),
        mean=(0.0,),
        scale=(1.0,),
        precision=((1.0,),),
        distances=(0.0, 1.0),
        shares=(1.0, 0.0),
        queries=100,
        base_rates=BASE_RATES,
    )
    changed = router.artifact.manifest.model_copy(update={"familiarity": spec})
    router.artifact = replace(router.artifact, manifest=changed)
    router.familiarity = familiarity
    return router


def _profile(usd_per_mtok: float) -> ArmProfile:
    price = Price(input_usd_per_mtok=usd_per_mtok, output_usd_per_mtok=usd_per_mtok)
    return ArmProfile(input_tokens=100, output_tokens=10, price=price, n=1)
