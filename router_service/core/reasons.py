"""Reasons: why a model answered, in one word for programs and in a few words for people."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Reason why a model answered.

    `label` is what people read in a list of decisions. `policies.explanations` has the sentences.
    """

    label: str

    def __new__(cls, value: str, label: str) -> Self:
        """Create a member from its value and its label."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.label = label
        return member

    # Reasons of policies.
    THRESHOLD = "threshold", "cheapest above the threshold"
    """The cheapest arm whose probability reaches the threshold."""
    DRIFT = "drift", "cheapest near the best"
    """The cheapest arm within delta of the most probable one."""
    UTILITY = "utility", "best value"
    """The arm with the best probability for its cost, at a price of a correct answer."""
    ARGMAX = "argmax", "most probable, none above the threshold"
    """The most probable arm, because no arm reaches the threshold."""
    POLICY = "policy", "the policy's choice"
    """The arm that the policy chooses; the reason of policies without a reason of their own."""

    # Reasons of the router, whatever the policy.
    UNREAD = "unread", "most probable, a part was not readable"
    """The most probable arm, because part of the request could not be read."""
    UNFAMILIAR = "unfamiliar", "most accurate, the request is unlike the training data"
    """The most accurate arm on the training data, because the request is unlike all of that."""
    EXPLORED = "explored", "drawn at random to learn"
    """An arm drawn at random, to learn about arms that the policy does not choose."""
    STICKY = "sticky", "same model as before"
    """The arm of the conversation's last request, because switching to another does not pay."""
    SWITCHED = "switched", "a change of model pays"
    """Another arm than that of the conversation's last request, because switching pays."""
    BUDGET = "budget", "fits into the rest of the budget"
    """The policy's choice among the models that cost no more than what is left of a budget."""

    # Reasons of the gateway: a model answered that the router did not choose.
    PINNED = "pinned", "named by the request"
    """The request names a model of the pool."""
    CHAT = "chat", "no tools in the request"
    """The request has no tools; only tool calls are routed."""
    SESSION = "session", "one model for a coding agent's session"
    """A coding agent's session has one model: the cheapest whose success in whole tasks is close to
    that of the best."""
    FALLBACK = "fallback", "the first choice failed"
    """The chosen model failed, and the next one answered."""
    UNDECIDED = "undecided", "the router failed"
    """The router failed; the gateway chose the arm with the highest profiled cost as the safest."""
    CONTINUED = "continued", "holds the earlier response"
    """The request continues a response. Only the provider that stored the response can answer."""
    UNROUTED = "unrouted", "no configured model is routed"
    """The router knows none of the configured models, so `router.chat_model` answered."""
    PASSED = "passed", "passed to an upstream unread"
    """The request was passed to an upstream unread; such requests have no decision record."""

    # Reasons of verified answers.
    VERIFIED = "verified", "accepted by the verifier"
    """The answer was accepted among candidate answers, by the verifier's estimate."""
    TEXT = "text", "text, as expected"
    """The answer is text, as the router expected, and was delivered without verification."""
    UNGROUNDED = "ungrounded", "a risky value is not confirmed"
    """The best candidate calls a risky tool with an invented value, so it is unverified."""


ROUTER_REASONS = (
    Reason.UNREAD,
    Reason.UNFAMILIAR,
    Reason.EXPLORED,
    Reason.STICKY,
    Reason.SWITCHED,
    Reason.BUDGET,
)
"""The router's reasons, whatever the policy."""
