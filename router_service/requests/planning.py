"""A request body -> which models may answer it, in which order, and why."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

from router_service.core.artifact import Artifact
from router_service.core.cache import Cache
from router_service.core.capabilities import Requirements, read_requirements
from router_service.core.errors import (
    ModelNotFoundError,
    ResponseElsewhereError,
    ResponseNotFoundError,
    SwitchcraftError,
)
from router_service.core.messages import ChatRequest, Conversation, Reference, decode_object
from router_service.core.packing import PackedView
from router_service.core.selection import Policy, Reason
from router_service.core.tracing import Stage
from router_service.requests.endpoints import Endpoint
from router_service.requests.pool import Pool, capable
from router_service.router import Decision, explored
from router_service.settings import Model
from router_service.store.base import UpstreamObject
from router_service.upstream.body_template import BodyTemplate

_log = logging.getLogger("switchcraft.planning")

POLICY_HEADER = "x-switchcraft-policy"

Holders = Callable[[Reference], UpstreamObject | None]
"""Says who holds what a request goes on from, and None where it is not known."""


_Decide = Callable[[Conversation, Policy, Collection[str]], Decision | None]
"""Decides among arms for a conversation; None where the router failed."""


class GatewayReason(StrEnum):
    """Why a model answered that the router did not choose."""

    PINNED = "pinned"
    """The request names a model of the pool."""
    CHAT = "chat"
    """The request has no tools, of which alone the router knows."""
    FALLBACK = "fallback"
    """The chosen model failed, and the next one answered."""
    UNDECIDED = "undecided"
    """The router failed: the arm with the highest profiled cost, which is the surest guess."""
    CONTINUED = "continued"
    """The request goes on from a response, and only who holds that can answer."""


class DecidingRouter(Protocol):
    """What the gateway needs of a router; `router.Router` is one."""

    artifact: Artifact

    @property
    def caches(self) -> Mapping[str, Cache[Any, Any]]:
        """What is remembered, by name; some may be shared with other routers."""

    def policy(self, text: str | None = None, *, param: str = "model") -> Policy:
        """Resolve a policy; raises PolicyError."""

    def decide(
        self,
        conversation: Conversation,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Choose one of these arms for a conversation, and rank the others; CPU-bound."""

    def recall(
        self,
        conversation: Conversation,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision | None:
        """Choose likewise, at once, or return None where the model must be asked."""

    def view(self, conversation: Conversation) -> PackedView:
        """Show what the model sees of a conversation."""


class NotRecalledError(Exception):
    """The model has to be asked about this request."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a request and its conversation are known by where nothing of them is kept.

    Hashed when somebody wants it: only logs do.
    """

    _body: bytes
    _conversation: Conversation

    @property
    def body_sha256(self) -> str:
        """Of the whole body as it came."""
        return sha256(self._body).hexdigest()

    @property
    def conversation(self) -> str:
        """32 hexadecimal digits, the same at each of a conversation's turns."""
        opening = "\0".join(self._conversation.opening).encode(errors="surrogatepass")
        return sha256(opening).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was read, once, for all who plan it."""

    endpoint: Endpoint
    request: ChatRequest
    wanted: Requirements
    body: BodyTemplate
    fingerprint: Fingerprint

    @classmethod
    def read(cls, endpoint: Endpoint, body: bytes) -> Asked:
        """Read a request body, or find what was read of the same; raises InvalidRequestError."""
        asked = _read.get((endpoint, body))
        if asked is None:
            asked = cls._of(endpoint, body)
            _read.put((endpoint, body), asked, _READ_BYTES + 2 * len(body))
        return asked

    @classmethod
    def _of(cls, endpoint: Endpoint, body: bytes) -> Asked:
        decoded = decode_object(body)
        request = endpoint.parse(decoded)
        wanted = read_requirements(decoded, request.conversation, endpoint.path)
        fingerprint = Fingerprint(body, request.conversation)
        return cls(endpoint, request, wanted, BodyTemplate.of(body), fingerprint)


_READ_BYTES = 2_000
"""Memory that a read request takes beside the body and its texts, about; tools are others', too."""
_read: Cache[tuple[Endpoint, bytes], Asked] = Cache(max_bytes=12 * 2**20)
"""The same body comes again where answers are sampled or a client tries again: 0.15 ms each."""


class Track(StrEnum):
    """Which of the published releases decides."""

    STABLE = "stable"
    CANARY = "canary"


class Trial(Protocol):
    """What learns how the requests of either release ended."""

    def observe(self, track: Track, *, has_failed: bool, cost_usd: float | None) -> None:
        """Take note of one request; on the event loop."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be asked of whom; `decision` and `policy` are None without the router."""

    endpoint: Endpoint
    candidates: tuple[Model, ...]
    """Who is asked: the chosen model, and after it those that answer where it fails."""
    reason: Reason | GatewayReason
    stream: bool
    body: BodyTemplate
    fingerprint: Fingerprint
    artifact: Artifact
    """Whose router decides, or would."""
    policy: Policy | None = None
    decision: Decision | None = None
    track: Track = Track.STABLE
    trial: Trial | None = None
    """Who is to learn how this ends."""
    router_failed: bool = False
    """Whether the track's own release could not decide: the stable one did instead, or nobody."""
    shadow_arm: Future[str | None] | None = None
    """What a shadow release will have chosen; None where it failed."""
    baseline: Model | None = None
    """Whose price savings are counted against."""
    stages: tuple[Stage, ...] = ()
    """How long the gateway's own work took, from reading the body to the choice."""

    @property
    def model(self) -> Model:
        """The chosen model."""
        return self.candidates[0]


class Planner:
    """Plans requests; CPU-bound, and may be shared by threads."""

    def __init__(
        self,
        router: DecidingRouter,
        pool: Pool,
        *,
        model_name: str,
        default_policy: Policy,
        exploration_share: float = 0.0,
    ) -> None:
        """Plan with a router for a pool; `model_name` asks for routing."""
        self.router = router
        self._pool = pool
        self._model_name = model_name
        self._default_policy = default_policy
        self._exploration_share = exploration_share
        self.policy_names = tuple(
            name for name in router.artifact.manifest.policies if name != "default"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every model name that a request may have, the router's own first."""
        routed = (f"{self._model_name}:{name}" for name in self.policy_names)
        return (self._model_name, *routed, *self._pool.models)

    def plan(
        self, asked: Asked, policy: str | None = None, holders: Holders = lambda _: None
    ) -> Plan:
        """Decide for a request; `policy` is that of the header, and goes before the name's.

        Raises ModelNotFoundError, PolicyError, NoCapableModelError, ResponseNotFoundError and
        ResponseElsewhereError.
        """
        return self._plan(asked, policy, holders, self._decide)

    def recall(
        self, asked: Asked, policy: str | None = None, holders: Holders = lambda _: None
    ) -> Plan:
        """Decide as `plan` does, at once; raises NotRecalledError where the model must be asked."""
        return self._plan(asked, policy, holders, self._recall)

    def _plan(self, asked: Asked, policy: str | None, holders: Holders, decide: _Decide) -> Plan:
        endpoint, request, wanted = asked.endpoint, asked.request, asked.wanted
        plan = partial(
            Plan,
            endpoint,
            stream=request.stream,
            body=asked.body,
            baseline=self._pool.baseline,
            fingerprint=asked.fingerprint,
            artifact=self.router.artifact,
        )
        pinned = self._pool.models.get(request.model)
        name, _, suffix = request.model.partition(":")
        if pinned is None and not (endpoint.is_routed and name == self._model_name):
            raise ModelNotFoundError(request.model[:200], self._names_at(endpoint))
        if request.continues is not None:
            held = holders(request.continues)
            candidate = self._continuing(request.continues, held, pinned)
            return plan((candidate,), GatewayReason.CONTINUED)
        if pinned is not None:
            return plan(self._pool.pinned(pinned, wanted), GatewayReason.PINNED)
        chosen = self.policy(suffix or None, policy)
        if not request.has_tools:
            return plan(capable(self._pool.chat_models, wanted), GatewayReason.CHAT)
        able = self._pool.capable_arms(wanted)
        decision = decide(request.conversation, chosen, able)
        if decision is None:
            guess = self._dearest_first(able)
            return plan(guess, GatewayReason.UNDECIDED, policy=chosen, router_failed=True)
        candidates = self._pool.playing(decision.ranking)
        return plan(candidates, decision.reason, policy=chosen, decision=decision)

    def explored(self, plan: Plan) -> Plan:
        """Return a plan of this planner's, for a share of requests with another arm."""
        if plan.decision is None or self._exploration_share == 0:
            return plan
        draw = random.random()  # noqa: S311 - nobody gains by guessing it
        decision = explored(plan.decision, self._exploration_share, draw)
        candidates = self._pool.playing(decision.ranking)
        return replace(plan, candidates=candidates, reason=decision.reason, decision=decision)

    def _decide(
        self, conversation: Conversation, policy: Policy, arms: Collection[str]
    ) -> Decision | None:
        try:
            return self.router.decide(conversation, policy, arms)
        except SwitchcraftError:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, it must not cost a request
            _log.exception("the router failed, the request goes to the dearest arm")
            return None

    def _recall(
        self, conversation: Conversation, policy: Policy, arms: Collection[str]
    ) -> Decision:
        decision = self.router.recall(conversation, policy, arms)
        if decision is None:
            raise NotRecalledError
        return decision

    def _dearest_first(self, arms: Collection[str]) -> tuple[Model, ...]:
        manifest = self.router.artifact.manifest
        costs_usd = dict(zip(manifest.arms, manifest.costs_usd(), strict=True))
        return self._pool.playing(sorted(arms, key=lambda arm: (-costs_usd[arm], arm)))

    def _names_at(self, endpoint: Endpoint) -> tuple[str, ...]:
        return self.names if endpoint.is_routed else tuple(self._pool.models)

    def _continuing(
        self, continues: Reference, held: UpstreamObject | None, pinned: Model | None
    ) -> Model:
        holder = self._pool.holder(held)
        if holder is None:
            raise ResponseNotFoundError(continues.id[:200], param=continues.param)
        if pinned is None or pinned.name == holder.name:
            return holder
        beside = self._pool.beside(holder, pinned)
        if beside is None:
            raise ResponseElsewhereError(continues.id[:200], pinned.name, holder.name)
        return beside

    def policy(self, suffix: str | None, header: str | None) -> Policy:
        """Return the policy of a model name's suffix or of the header; raises PolicyError."""
        text, param = (header, POLICY_HEADER) if header is not None else (suffix, "model")
        if text in {None, "default"}:
            return self._default_policy
        return self.router.policy(text, param=param)
