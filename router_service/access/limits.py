"""Rate limits and limits of parallel requests, of keys and their teams.

No library fits. `limits` and `throttled-py` check one limit at a time, so that a request which the
second limit refuses has already taken from the first. They correct no amount afterwards. In memory,
`limits` 5.8 takes 8 us for one limit and `throttled-py` 3.5 takes 7 us, where `store.memory` takes
4 us for the six limits of a key and its team, and their settlement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from router_service.access.budgets import Reservation
from router_service.access.key import Key
from router_service.access.pacing import Allowance
from router_service.apis.api import RateState, RawHeader, openai_headers
from router_service.apis.registry import APIS
from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.core.errors import AdmissionError
from router_service.core.record import Record
from router_service.store.shared_limits import SharedLimits
from router_service.store.store import MINUTE_US, Correction, LimitDemand, fits

BUSY_RETRY_S = 1.0
"""Time after which a client should try again if it has too many requests in flight."""

MAX_KEYS = 10_000
"""Largest number of keys whose limits are kept ready, and whose usual tokens are remembered."""

MEAN_WEIGHT = 0.1
"""Weight of the last request in the usual numbers of tokens."""

FIRST_ANSWER_TOKENS = 256.0
"""Tokens of an answer that are expected before a key has had one."""


class LimitKind(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a key or a team."""

    subject: str
    """`key:NAME` or `team:NAME`."""
    kind: LimitKind
    size: int
    """The most in a minute, or at the same time."""
    unit: bytes = field(init=False)
    """The kind, for headers."""
    name: str = field(init=False)
    """Name in the store."""

    def __post_init__(self) -> None:
        """Write the names once, because every request uses them."""
        object.__setattr__(self, "unit", self.kind.encode())
        object.__setattr__(self, "name", f"{self.subject}:{self.kind}")

    def cost_us(self, amount: int) -> int:
        """Return for how long an amount uses a rate."""
        return amount * MINUTE_US // self.size

    def demand(self, amount: int = 1) -> LimitDemand:
        """Return what a request takes.

        A request that is larger than the whole limit is admitted if nothing is in use; the next
        requests then wait until all of it is paid back. Otherwise it could never succeed.
        """
        if self.kind is LimitKind.PARALLEL:
            return LimitDemand(self.name, self.size - 1, None)
        cost_us = self.cost_us(amount)
        return LimitDemand(self.name, max(0, MINUTE_US - cost_us), cost_us)

    def left(self, used_us: int) -> int:
        """Return what is left of a rate."""
        return max(0, (MINUTE_US - used_us) * self.size // MINUTE_US)


class UsualTokens:
    """The tokens of a key's requests, as far as they can be known before the answer.

    They are estimated from the size of the body, and corrected by what the key's requests have used
    so far: their bodies may have images, and their answers may be long or verified.
    """

    def __init__(self) -> None:
        self._share = 1.0
        """Usual share of the tokens that follow from the size: less with images."""
        self._more = FIRST_ANSWER_TOKENS
        """Usual number of tokens beyond those that follow from the size."""

    def estimate(self, size_bytes: int) -> int:
        """Return the expected tokens of a request, at least 1."""
        return max(1, round(size_bytes / CHARACTERS_PER_TOKEN * self._share + self._more))

    def learn(self, size_bytes: int, tokens: int) -> None:
        """Learn from a request that has used tokens."""
        by_size = max(1.0, size_bytes / CHARACTERS_PER_TOKEN)
        self._share += MEAN_WEIGHT * (min(1.0, tokens / by_size) - self._share)
        self._more += MEAN_WEIGHT * (max(0.0, tokens - by_size) - self._more)


class KeyLimits:
    """The limits of a key and of its team, ready for its requests."""

    def __init__(self, key: Key, usual: UsualTokens) -> None:
        """Read the limits of a key, whose requests usually have so many tokens."""
        self.key = key
        self.usual = usual
        found = [
            Limit(subject, kind, size)
            for subject, limits in key.limited
            for kind, size in (
                (LimitKind.REQUESTS, limits.requests_per_minute),
                (LimitKind.TOKENS, limits.tokens_per_minute),
                (LimitKind.PARALLEL, limits.parallel_requests),
            )
            if size is not None
        ]
        self.tokens = [limit for limit in found if limit.kind is LimitKind.TOKENS]
        self.fixed = [limit for limit in found if limit.kind is not LimitKind.TOKENS]
        """The limits of which each request takes 1."""
        self.demands = [limit.demand() for limit in self.fixed]
        """What each request takes of `fixed`."""
        self.slots = [limit.name for limit in self.fixed if limit.kind is LimitKind.PARALLEL]
        """The names of the limits of parallel requests."""


@dataclass(slots=True)
class Admission:
    """A request that has been read and asks for admission, and what it has taken when admitted."""

    id: str
    """The id of the decision that will be made."""
    key: Key
    path: str
    """The path below `/v1`, such as `/chat/completions`."""
    size_bytes: int
    """Size of the body."""
    reports_tokens: bool = True
    """Whether the record will have the tokens that the request uses. If it is false, the request is
    passed to an upstream without being parsed, or only counts tokens."""
    headers: Sequence[RawHeader] = ()
    """Headers of the response about rate limits, which replace those of the upstream."""
    limits: KeyLimits | None = None
    """The limits that the request has taken from; None if its key has none."""
    tokens: int = 0
    """The estimated tokens; 0 if no limit counts them."""
    allowance: Allowance | None = None
    """What the budgets of the key and its team allow; None without a budget."""
    reservation: Reservation | None = None


class RateLimits:
    """Admits requests within the limits of their keys and teams, and corrects what they took."""

    def __init__(
        self, store: SharedLimits, on_refused: Callable[[LimitKind], None] = lambda _: None
    ) -> None:
        """Keep what is in use in a store; `on_refused` gets the limit that refused a request."""
        self._store = store
        self._on_refused = on_refused
        self._keys: dict[str | None, KeyLimits] = {}

    async def admit(self, admission: Admission) -> None:
        """Take what a request needs; raises AdmissionError, and then nothing is taken."""
        key = admission.key
        if not key.limited:
            return
        found = self._keys.get(key.name)
        if found is None or found.key is not key:
            found = self._remember(key, found)
        limits, demands = found.fixed, found.demands
        if found.tokens and admission.reports_tokens:
            admission.tokens = tokens = found.usual.estimate(admission.size_bytes)
            limits = [*limits, *found.tokens]
            demands = [*demands, *[limit.demand(tokens) for limit in found.tokens]]
        if not demands:
            return
        used = await self._store.take(admission.id, demands)
        if not fits(demands, used):
            raise self._refusal(admission, limits, demands, used)
        after = [use + (demand[2] or 0) for demand, use in zip(demands, used, strict=True)]
        admission.limits = found
        admission.headers = _headers(admission.path, limits, after)

    def settle(self, admission: Admission, record: Record | None) -> None:
        """Correct the tokens by those that were used, and free the slots."""
        found, estimated = admission.limits, admission.tokens
        if found is None:
            return
        corrections = [Correction(name, None, admission.id) for name in found.slots]
        used = used_tokens(record) if estimated else None
        if used is not None:  # else no limit counts tokens, or the upstream does not report them
            if used > 0:
                found.usual.learn(admission.size_bytes, used)
            if used != estimated:
                corrections += [
                    Correction(
                        limit.name, limit.cost_us(used) - limit.cost_us(estimated), admission.id
                    )
                    for limit in found.tokens
                ]
        self._store.settle(admission.id, corrections)

    async def aclose(self) -> None:
        """Send the last corrections."""
        await self._store.aclose()

    def _remember(self, key: Key, before: KeyLimits | None) -> KeyLimits:
        if before is None and len(self._keys) >= MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        usual = UsualTokens() if before is None else before.usual
        self._keys[key.name] = found = KeyLimits(key, usual)
        return found

    def _refusal(
        self,
        admission: Admission,
        limits: Sequence[Limit],
        demands: Sequence[LimitDemand],
        used: Sequence[int],
    ) -> AdmissionError:
        """Return the error for the limit for which the client has to wait longest."""

        def wait_s(place: int) -> float:
            demand, excess = demands[place], used[place] - demands[place].most
            wait_s = BUSY_RETRY_S if demand.cost_us is None else excess / 1e6
            return wait_s if excess > 0 else 0.0

        place = max(range(len(limits)), key=wait_s)
        limit, longest_s = limits[place], wait_s(place)
        self._on_refused(limit.kind)
        again = f"Try again in {math.ceil(longest_s * 1000) / 1000:g} s."
        match limit.kind:
            case LimitKind.REQUESTS:
                problem = f"may send {limit.size} requests a minute, and has sent them. {again}"
            case LimitKind.PARALLEL:
                problem = (
                    f"may have {limit.size} requests at the same time, and has them. Try again "
                    "when one of them has ended."
                )
            case LimitKind.TOKENS:
                problem = (
                    f"may use {limit.size} tokens a minute, of which {limit.left(used[place])} are "
                    f"left. This request is expected to use {admission.tokens}. {again}"
                )
        owner, _, name = limit.subject.partition(":")
        return AdmissionError(
            f"Rate limit reached: the {owner} {name!r} {problem}",
            code="rate_limit_exceeded",
            kind="tokens" if limit.kind is LimitKind.TOKENS else "requests",
            retry_after_s=longest_s,
            headers=_headers(admission.path, limits, used),
        )


def used_tokens(record: Record | None) -> int | None:
    """Return the tokens of all answers of a request, with those that were read from caches.

    None means that an answer's tokens are not known; a request without an answer has used none.
    """
    if record is None:
        return 0
    known = [each for each in record.answers if each.prompt_tokens is not None]
    if not known and record.status < 400:
        return None
    return sum((each.prompt_tokens or 0) + (each.completion_tokens or 0) for each in known)


def _headers(path: str, limits: Sequence[Limit], used: Sequence[int]) -> tuple[RawHeader, ...]:
    """Return the headers about rates. Of two limits of a kind, the one with less left is shown."""
    least: dict[bytes, tuple[Limit, int, int]] = {}
    for limit, use in zip(limits, used, strict=True):
        if limit.kind is not LimitKind.PARALLEL:
            left = limit.left(use)
            shown = least.get(limit.unit)
            if shown is None or left < shown[2]:
                least[limit.unit] = limit, use, left
    api = APIS.below(path) if least else None
    headers: list[RawHeader] = []
    for limit, use, left in least.values():
        rate = RateState(limit.unit, limit.size, left, use / 1e6)
        headers += openai_headers(rate) if api is None else api.rate_headers(rate, time.time())
    return tuple(headers)
