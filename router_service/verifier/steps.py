"""Verification: candidate answers, and what to do with them next."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from router_service.apis.answers import ParsedAnswer
from router_service.apis.capabilities import Feature
from router_service.apis.conversation import CLIENT_TOOLS, Conversation, Json, as_list
from router_service.core.decision_record import StopReason, VerificationStop
from router_service.core.values import request_value
from router_service.policies.verified import Verified


@request_value(frozen=True, slots=True)
class ArmAnswer:
    """A complete answer of an arm, as the verifier sees it."""

    arm: str
    answer: ParsedAnswer | None
    """None if the answer could not be read, because it is too large."""
    is_usable: bool = True
    """Whether a client can use the answer (`checker.usability`)."""

    @property
    def is_text(self) -> bool:
        """Whether the answer is text without tool calls."""
        return self.answer is not None and self.answer.is_text


@dataclass(frozen=True, slots=True)
class VerificationLimits:
    """Limits on the effort to verify one answer, and the price of time."""

    max_candidates: int = 3
    """Largest number of arms that are asked, including those that fail and the fallback."""
    max_cost_usd: float = math.inf
    """Largest cost of all candidates and the fallback together."""
    max_added_latency_s: float = math.inf
    """Longest time from the first complete candidate until one is accepted."""
    usd_per_second: float = 0.0
    """What a second of waiting costs."""

    @property
    def allow_goals(self) -> bool:
        """Whether goals may choose verified policies, which were measured with 3 candidates."""
        return self.max_candidates >= NO_LIMITS.max_candidates


NO_LIMITS = VerificationLimits()


@request_value(frozen=True, slots=True)
class VerificationState:
    """State of one request's verification: its rules, and the arms that were asked so far."""

    policy: Verified
    arms: Collection[str]
    """Arms that may be asked, unless they were asked before."""
    candidates: Sequence[ArmAnswer] = ()
    failed: Collection[str] = ()
    """Arms that were asked and gave no answer."""
    limits: VerificationLimits = NO_LIMITS
    costs_usd: Mapping[str, float] = field(default_factory=dict)
    """What this request is expected to cost with each arm; without it, what a usual one costs."""
    elapsed_s: float = 0.0
    """Time since the first candidate was complete."""
    grounded_tools: Collection[str] = ()
    """Tools that no accepted answer calls with an invented argument, unless a second arm gives the
    same value."""
    excluded: Mapping[str, StopReason] = field(default_factory=dict)
    """Arms that a limit excludes, besides those that the router finds by `limits`."""


class UnverifiedReason(StrEnum):
    """Reason why the answer to a request with the policy `verified` was not verified."""

    NO_TOOLS = "no_tools"
    """The request offers no tools; only tool calls are verified."""
    SEVERAL_CHOICES = "several_choices"
    """The request asks for more than one choice (`n`)."""
    STORED = "stored"
    """The provider would store the response, and rejected candidates with it. `store` is true by
    default in the Responses API."""
    BACKGROUND = "background"
    """The request starts a background job."""
    SERVER_TOOLS = "server_tools"
    """The request offers tools that the provider runs itself, such as web search."""
    ATTACHMENTS = "attachments"
    """The request has images, audio or files, which the verifier cannot see."""
    CONTINUED = "continued"
    """The request continues a response, whose turns the verifier cannot see."""
    UNREAD = "unread"
    """A part of the request could not be read."""
    FAR_OFF = "far_off"
    """The request is unlike all those that the verifier was measured with: it has no words, another
    script, or more tools."""
    ROUTER_FAILED = "router_failed"
    """The router or its verifier failed."""
    OVERLOADED = "overloaded"
    """No decision thread was free in time."""
    CANDIDATES_FAILED = "candidates_failed"
    """All candidates failed; the next model answered without verification."""
    TEXT = "text"
    """The router expected no tool call, and the first answer is text, which is not delayed."""
    UNGROUNDED = "ungrounded"
    """The answer calls a risky tool with a value that nobody said, and no other model confirmed
    it."""


@request_value(frozen=True, slots=True)
class Step:
    """Decision about the candidates so far: accept one of them, or ask further arms.

    If there are no candidates and the limits exclude every arm, it does neither.
    """

    accept: str | None
    """The arm whose answer to deliver, or None."""
    ask: tuple[str, ...]
    """Arms to ask next, in parallel if there are several; empty if `accept` is set."""
    p_correct: Mapping[str, float]
    """Probability that a candidate is correct, by its arm, for all candidates so far."""
    expected_gain: float
    """Expected increase of the probability of a correct answer if the arms are asked."""
    expects_text: bool = False
    """Whether the answer of the arm to ask is delivered unverified if it begins with text."""
    unverified: UnverifiedReason | None = None
    """Why the accepted answer is not verified; None if it is."""
    ungrounded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Invented arguments of risky tools, such as `delete_file.path`, by the arm that gave them."""
    stop: VerificationStop | None = None
    """Why no further arm is asked; None if one is, or if the accepted answer is not verified."""


_ATTACHMENTS = frozenset((Feature.IMAGES, Feature.AUDIO, Feature.FILES))


def why_unverifiable(
    body: Mapping[str, Json],
    conversation: Conversation,
    features: Collection[str],
    *,
    is_continued: bool = False,
    is_stored_by_default: bool = False,
) -> UnverifiedReason | None:
    """Return why the answer to a decoded request cannot be verified, or None if it can be.

    `features` are those that the request requires of a model. `is_stored_by_default` says whether
    its API stores answers unless the request forbids it.
    """
    if is_continued:
        return UnverifiedReason.CONTINUED
    if not conversation.has_tools:
        return UnverifiedReason.NO_TOOLS
    store = body.get("store")
    tools = [tool for tool in as_list(body.get("tools")) if isinstance(tool, dict)]
    is_clients = all(tool.get("type", "function") in CLIENT_TOOLS for tool in tools)
    obstacles = {
        UnverifiedReason.SEVERAL_CHOICES: Feature.SEVERAL_CHOICES in features,
        UnverifiedReason.ATTACHMENTS: not _ATTACHMENTS.isdisjoint(features),
        UnverifiedReason.BACKGROUND: bool(body.get("background")),
        UnverifiedReason.STORED: (store is not False if is_stored_by_default else bool(store)),
        UnverifiedReason.SERVER_TOOLS: not is_clients or bool(body.get("web_search_options")),
        UnverifiedReason.UNREAD: bool(conversation.unread),
    }
    return next((reason for reason, applies in obstacles.items() if applies), None)
