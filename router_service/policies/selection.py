"""Selection: expected costs, probabilities and a policy -> one arm, with the reason.

A cost in USD is the product of tokens or seconds and their prices. It is the expected cost of an
arm, or the actual cost of an answer. The paper describes the policies in section 3.3.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from router_service.apis.usage import Usage
from router_service.core.decision_record import label_policy
from router_service.core.errors import PolicyError

TOKENS_PER_MTOK = 1_000_000
SECONDS_PER_HOUR = 3_600

Number = TypeVar("Number", float, NDArray[np.float64])
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(BaseModel):
    """Price of a model: USD per million tokens, USD per hour of its machine, or both added up.

    A missing price is unknown and never 0. Both token prices, the hourly price, or all three are
    required. Cached input and cache writes without their own price cost as much as other
    input. Reasoning without its own price costs as much as other output.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_usd_per_mtok: NonNegative | None = None
    output_usd_per_mtok: NonNegative | None = None
    cached_input_usd_per_mtok: NonNegative | None = None
    cache_write_usd_per_mtok: NonNegative | None = None
    reasoning_usd_per_mtok: NonNegative | None = None
    long_prompts: tuple[LongPromptPrice, ...] = ()
    usd_per_hour: NonNegative | None = Field(
        None, description="Price of the machine that the arm runs on."
    )

    @model_validator(mode="after")
    def _check_complete(self) -> Price:
        if (self.input_usd_per_mtok is None) != (self.output_usd_per_mtok is None):
            raise ValueError("set both input_usd_per_mtok and output_usd_per_mtok, or neither")
        if not (self.has_token_prices or self.has_hourly_price):
            raise ValueError("set input_usd_per_mtok and output_usd_per_mtok, or usd_per_hour")
        starts = [longer.above_prompt_tokens for longer in self.long_prompts]
        if starts != sorted(starts):
            raise ValueError("sort long_prompts by above_prompt_tokens, from short to long")
        return self

    @property
    def has_token_prices(self) -> bool:
        """Whether a price per token is set."""
        return self.input_usd_per_mtok is not None

    @property
    def has_hourly_price(self) -> bool:
        """Whether a price per hour is set."""
        return self.usd_per_hour is not None

    def cost_usd(self, input_tokens: Number, output_tokens: Number, seconds: Number) -> Number:
        """Return the cost of tokens and seconds, ignoring prices for caching and reasoning."""
        input_usd = input_tokens * (self.input_usd_per_mtok or 0.0)
        output_usd = output_tokens * (self.output_usd_per_mtok or 0.0)
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return (input_usd + output_usd) / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR

    def cost_of(self, usage: Usage, seconds: float) -> float:
        """Return the cost of an answer with this usage and duration; each token is counted once."""
        price = self
        for longer in self.long_prompts:
            if usage.prompt_tokens > longer.above_prompt_tokens:
                price = longer.price
        read, wrote = price.input_usd_per_mtok or 0.0, price.output_usd_per_mtok or 0.0
        tokens_usd = 0.0
        for tokens, own, default in (
            (usage.uncached_tokens, read, read),
            (usage.cached_tokens, price.cached_input_usd_per_mtok, read),
            (usage.cache_write_tokens, price.cache_write_usd_per_mtok, read),
            (usage.completion_tokens - usage.reasoning_tokens, wrote, wrote),
            (usage.reasoning_tokens, price.reasoning_usd_per_mtok, wrote),
        ):
            tokens_usd += tokens * (default if own is None else own)
        time_usd = seconds * (self.usd_per_hour or 0.0)
        return tokens_usd / TOKENS_PER_MTOK + time_usd / SECONDS_PER_HOUR


class LongPromptPrice(BaseModel):
    """Price of all tokens of a request with more than `above_prompt_tokens` prompt tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    above_prompt_tokens: int = Field(ge=1)
    price: Price


class ArmProfile(BaseModel):
    """Usage and cost of an arm on the training queries (paper, appendix on the cost model).

    `input_tokens` and `output_tokens` are means over the queries, as the arm's provider counts
    them, and `seconds` is the mean duration. A value is 0 if it was not measured and has no price.
    Together with the price they give the mean profiled cost, including the effect of long answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: NonNegative
    output_tokens: NonNegative
    seconds: NonNegative = 0.0
    price: Price
    n: int = Field(ge=1, description="Training queries profiled.")

    def cost_usd(self, price: Price | None = None) -> float:
        """Return the expected cost of one request at `price`, or else at the profile's price."""
        price = price or self.price
        return price.cost_usd(self.input_tokens, self.output_tokens, self.seconds)


LEAST_PRICE_USD = 1e-12
"""Replaces a price of 0, at which no arm is worth its cost, as a divisor."""

DRIFT_TOLERANCE = 1e-9
"""Tolerance for rounding: an arm whose probability is exactly `p_max - delta` must pass."""


class Reason(StrEnum):
    """Reason for choosing an arm."""

    THRESHOLD = "threshold"
    """The cheapest arm whose probability reaches the threshold."""
    DRIFT = "drift"
    """The cheapest arm within delta of the most probable one."""
    UTILITY = "utility"
    """The arm with the best probability for its cost, at a price of a correct answer."""
    ARGMAX = "argmax"
    """The most probable arm, because no arm reaches the threshold."""
    UNREAD = "unread"
    """The most probable arm, because part of the request could not be read."""
    RISK = "risk"
    """The policy's choice among the arms that reach the probability which the offered tools demand,
    or the most probable arm, because none reaches it."""
    UNFAMILIAR = "unfamiliar"
    """The most accurate arm on the training data, because the request is unlike all of that."""
    EXPLORED = "explored"
    """An arm drawn at random, to learn about arms that the policy does not choose."""
    STICKY = "sticky"
    """The arm of the conversation's last request, because switching to another does not pay."""
    SWITCHED = "switched"
    """Another arm than that of the conversation's last request, because switching pays."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Policy: the cheapest arm with probability >= theta, or else the most probable arm."""

    theta: float

    def __str__(self) -> str:
        return f"theta={self.theta:g}"


@dataclass(frozen=True, slots=True)
class Drift:
    """Policy: the cheapest arm within delta of the highest probability (paper, appendix)."""

    delta: float

    def __str__(self) -> str:
        return f"drift={self.delta:g}"


@dataclass(frozen=True, slots=True)
class Utility:
    """Policy: the arm with the highest probability minus its expected cost divided by a price."""

    price_usd: float
    """What one more correct answer is worth."""

    def __str__(self) -> str:
        return f"utility={self.price_usd:g}"

    def value(self, probability: Number, cost_usd: Number) -> Number:
        """Return the value of an arm, or of many arms, in correct answers."""
        return probability - cost_usd / max(self.price_usd, LEAST_PRICE_USD)


Policy = Threshold | Drift | Utility


@dataclass(frozen=True, slots=True)
class Verified:
    """Policy: ask arms step by step, until a better answer is not worth the cost of another one.

    It is not part of `Policy`, because it needs the answers of arms in addition to the router's
    probabilities.
    """

    price_usd: float
    """What one more correct answer is worth."""
    otherwise: Policy | None = None
    """The policy for requests that cannot be verified; None is `Manifest.choose_once`."""

    def __str__(self) -> str:
        return f"verified={self.price_usd:g}"


AnyPolicy_co = TypeVar("AnyPolicy_co", bound=Policy | Verified, covariant=True)


@dataclass(frozen=True, slots=True)
class NamedPolicy(Generic[AnyPolicy_co]):
    """A policy, and the name or goal by which it was asked for."""

    rule: AnyPolicy_co
    name: str | None = None
    """A name such as `economy`, a goal such as `accuracy=best`, or None if neither was used."""

    def __str__(self) -> str:
        return label_policy(str(self.rule), self.name)

    @property
    def kind(self) -> str:
        """The name, or the kind of the goal or rule; clients choose their numbers freely."""
        return (self.name or str(self.rule)).partition("=")[0]


VERIFIED = "verified"
"""Name of the policy that verifies answers, at the price of the artifact's operating point."""

DEFAULT = "default"
"""Name of the policy of requests that select none."""

FAST = "fast"
"""Name of the policy that chooses once in an artifact whose default policy verifies answers."""


def is_verified(rule: str) -> bool:
    """Return whether a rule verifies answers: `verified` or `verified=PRICE`."""
    return rule.partition("=")[0].strip() == VERIFIED


def choosing_name(policies: Mapping[str, str]) -> str:
    """Return the name of the policy for requests whose answers are not verified.

    It is the default policy if that chooses once, or else `fast`. `policies` are rules or goals by
    name. Raises PolicyError if there is no such policy.
    """
    if DEFAULT not in policies:
        raise PolicyError(DEFAULT, "one policy must have this name", param="policies")
    if not is_verified(policies[DEFAULT]):
        return DEFAULT
    if is_verified(policies.get(FAST, VERIFIED)):
        problem = (
            f"as the default, it needs a policy named {FAST!r} that chooses once, for requests that"
            " cannot be verified"
        )
        raise PolicyError(policies[DEFAULT], problem, param="policies")
    return FAST


_RULES: dict[str, type[Policy | Verified]] = {
    "theta": Threshold,
    "drift": Drift,
    "utility": Utility,
    "verified": Verified,
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Index of the chosen arm, and the reason."""

    arm: int
    reason: Reason


def parse_policy(text: str, *, param: str = "model") -> Policy | Verified:
    """Read `theta=0.5`, `drift=0.1`, `utility=0.002` or `verified=0.002`.

    Raises PolicyError; `param` is the field of the request that holds the text.
    """
    rule, _, number = (part.strip() for part in text.partition("="))
    if rule not in _RULES:
        problem = (
            "write theta=P or drift=P with P from 0 to 1, or utility=PRICE or verified=PRICE with "
            "PRICE in USD"
        )
        similar = difflib.get_close_matches(rule, (*_RULES, "accuracy", "usd_per_1k"), n=1)
        if similar:
            problem = f"did you mean {similar[0]}={number}?"
        raise PolicyError(text, problem, param=param)
    try:
        value = float(number)
    except ValueError as exc:
        raise PolicyError(text, f"{number!r} is not a number", param=param) from exc
    kind = _RULES[rule]
    is_price = kind in {Utility, Verified}
    if is_price and not 0.0 <= value < math.inf:
        raise PolicyError(text, f"the price {number} is not a number of USD", param=param)
    if not is_price and not 0.0 <= value <= 1.0:  # false for NaN too
        problem = f"{number} is outside 0 to 1"
        if 1 < value <= 100:
            problem += f"; for {number}%, write {rule}={value / 100:g}"
        raise PolicyError(text, problem, param=param)
    return kind(value)


def choose_once(policy: Policy | Verified, *, param: str = "model") -> Policy:
    """Return a policy that chooses one arm before any answer; raises PolicyError for others."""
    if isinstance(policy, Verified):
        problem = "it needs the answers of models, which only a gateway gets; use another policy"
        raise PolicyError(str(policy), problem, param=param)
    return policy


def select(probabilities: Sequence[float], costs_usd: Sequence[float], policy: Policy) -> Selection:
    """Choose an arm by its probability and expected cost, (arms,) each.

    Of arms with equal cost, or of equal value, the more probable one is chosen, then the earlier.
    """
    best = most_probable(probabilities, costs_usd)
    match policy:
        case Threshold(theta):
            floor, reason = theta, Reason.THRESHOLD
        case Drift(delta):
            floor, reason = probabilities[best] - delta - DRIFT_TOLERANCE, Reason.DRIFT
        case Utility():
            return Selection(ranking(probabilities, costs_usd, policy)[0], Reason.UTILITY)
    passing = [arm for arm, p in enumerate(probabilities) if p >= floor]
    if not passing:
        return Selection(best, Reason.ARGMAX)
    cheapest = min(passing, key=lambda arm: (costs_usd[arm], -probabilities[arm], arm))
    return Selection(cheapest, reason)


def select_rows(
    probabilities: NDArray[np.float64], costs_usd: NDArray[np.float64], policy: Policy
) -> NDArray[np.int64]:
    """Return the arm that `select` chooses for each row, (rows,).

    `probabilities` and `costs_usd` are (rows, arms). Raises ValueError if there are no arms or a
    probability is not a number.
    """
    if not probabilities.shape[1] or np.isnan(probabilities).any():
        raise ValueError("needs a probability for every arm, without NaN")
    likely = np.lexsort((costs_usd, -probabilities))
    match policy:
        case Utility():
            value = policy.value(probabilities, costs_usd)
            return np.lexsort((costs_usd, -probabilities, -value))[:, 0]
        case Threshold(theta):
            passes = probabilities >= theta
        case Drift(delta):
            highest = probabilities.max(axis=1, keepdims=True)
            passes = probabilities >= highest - delta - DRIFT_TOLERANCE
    passing_costs_usd = np.where(passes, costs_usd, np.inf)
    cheapest = np.lexsort((-probabilities, passing_costs_usd))[:, 0]
    return np.where(passes.any(axis=1), cheapest, likely[:, 0])


def least_probability(probabilities: Sequence[float], policy: Policy) -> float:
    """Return the probability that an arm must reach under a policy, or 0 without a minimum."""
    match policy:
        case Threshold(theta):
            return theta
        case Drift(delta):
            return max(probabilities) - delta
        case Utility():
            return 0.0


def ranking(
    probabilities: Sequence[float], costs_usd: Sequence[float], policy: Policy | None
) -> tuple[int, ...]:
    """Return the arms in the order in which they are tried.

    Each arm is the one that `select` would choose among the remaining arms. Without a policy, it is
    the most probable of them.
    """
    likely = sorted(
        range(len(probabilities)), key=lambda arm: (-probabilities[arm], costs_usd[arm], arm)
    )
    match policy:
        case None:
            return tuple(likely)
        case Threshold(theta):
            passing = [arm for arm in likely if probabilities[arm] >= theta]
            passing.sort(key=lambda arm: costs_usd[arm])
            return (*passing, *likely[len(passing) :])
        case Utility():
            likely.sort(key=lambda arm: -policy.value(probabilities[arm], costs_usd[arm]))
            return tuple(likely)
        case Drift(delta):
            order = []
            while likely:
                chosen = likely[0]
                floor = probabilities[chosen] - delta - DRIFT_TOLERANCE
                for arm in likely:
                    if probabilities[arm] < floor:
                        break
                    if costs_usd[arm] < costs_usd[chosen]:
                        chosen = arm
                likely.remove(chosen)
                order.append(chosen)
            return tuple(order)


@dataclass(frozen=True, slots=True)
class Draw:
    """An arm that was drawn, and the probability of drawing it."""

    arm: int
    propensity: float


def explore(chosen: int, arms: int, share: float, draw: float) -> Draw:
    """Draw one of `arms` arms uniformly with probability `share`, or else take the chosen one.

    `draw` is uniform in [0, 1). The propensities of all arms add up to 1 (epsilon-greedy).
    """
    # A draw below `share` is uniform in [0, share), so it can also select the arm.
    arm = min(int(draw / share * arms), arms - 1) if draw < share else chosen
    return Draw(arm, share / arms + (1 - share) * (arm == chosen))


def most_probable(probabilities: Sequence[float], costs_usd: Sequence[float]) -> int:
    """Return the arm with the highest probability; of equal ones the cheapest, then the first.

    Raises ValueError if there are no arms or a probability is not a number.
    """
    if not probabilities or any(math.isnan(p) for p in probabilities):
        raise ValueError(f"needs a probability for every arm, without NaN: {list(probabilities)}")
    return min(
        range(len(probabilities)), key=lambda arm: (-probabilities[arm], costs_usd[arm], arm)
    )
