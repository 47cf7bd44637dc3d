"""What requests take from the limits of their keys and teams, and what is given back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router_service.access.key import Key, Limits
from router_service.access.limits import (
    Admission,
    LimitKind,
    RateLimits,
    UsualTokens,
)
from router_service.core.errors import AdmissionError
from router_service.core.record import AnswerResult, Record
from router_service.store.memory import MemoryStore
from router_service.store.shared_limits import SharedLimits
from router_service.store.store import Correction, LimitDemand
from tests.clock import Clock
from tests.records import make_record
from tests.stores import LIMITS, RemoteStore

pytestmark = pytest.mark.anyio


def answered(prompt_tokens: int | None = 100, completion_tokens: int | None = 50) -> Record:
    """Return the record of a request whose answer has so many tokens."""
    answer = AnswerResult(
        "small", 1.0, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
    )
    return make_record(answers=(answer,))


class Requests:
    """Requests of one process, with what they take."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.refused: list[LimitKind] = []
        store = SharedLimits(MemoryStore(LIMITS, self.clock), pytest.fail)
        self.limits = RateLimits(store, self.refused.append)
        self._sent = 0

    def send(self, key: Key, size_bytes: int = 400) -> Admission:
        """Admit a request; raises AdmissionError."""
        self._sent += 1
        sent = Admission(f"dec_{self._sent}", key, "/chat/completions", size_bytes)
        asyncio.run(self.limits.admit(sent))
        return sent

    def end(self, sent: Admission, record: Record | None = None) -> None:
        """Settle a request."""
        self.limits.settle(sent, record or answered())


def tokens_left(sent: Admission) -> int:
    """Return how many tokens were left after a request was admitted."""
    return int(dict(sent.headers)[b"x-ratelimit-remaining-tokens"])


def limited(tokens_per_minute: int) -> Key:
    """Return a key with a limit of tokens."""
    return Key("ci", limits=Limits(tokens_per_minute=tokens_per_minute))


def test_tokens_are_replaced_by_those_that_were_used() -> None:
    """What was estimated too high is given back, and what was too low is added."""
    requests, key = Requests(), limited(6000)
    sent = requests.send(key)
    assert tokens_left(sent) == 6000 - (400 // 4 + 256)
    requests.end(sent)
    for used in (200, 4000):
        requests.end(requests.send(key), answered(used - 50))
    last = requests.send(key, 0)
    assert last.tokens > 256, "the key's answers are longer than expected"
    assert tokens_left(last) == 6000 - (150 + 200 + 4000) - last.tokens


@pytest.mark.parametrize(
    ("record", "used"),
    [
        (make_record(status=502), 0),
        (answered(), 150),
        (answered(None, None), 356),
    ],
)
def test_only_known_tokens_are_corrected(record: Record, used: int) -> None:
    """A request without an answer has used none.

    An answer without counts, such as speech, keeps the estimate.
    """
    requests, key = Requests(), limited(60_000)
    requests.end(requests.send(key), record)
    after = requests.send(key)
    assert tokens_left(after) == 60_000 - used - after.tokens


def test_tokens_of_all_answers_count() -> None:
    """Rejected candidates, answers that no client can use, and the accepted one are counted."""
    requests, key = Requests(), limited(60_000)
    answers = answered().answers * 3
    requests.end(requests.send(key), make_record(answers=answers))
    after = requests.send(key)
    assert 60_000 - tokens_left(after) - after.tokens == 450


def test_a_request_beyond_the_whole_limit_is_admitted_if_nothing_is_used() -> None:
    """It could never succeed otherwise; later requests wait until it is paid back."""
    requests, key = Requests(), limited(1000)
    sent = requests.send(key, 8000)
    with pytest.raises(AdmissionError) as caught:
        requests.send(key, 8000)
    assert caught.value.retry_after_s == pytest.approx(2256 / 1000 * 60, abs=0.1)
    requests.end(sent, answered(2000))
    requests.clock.now_s += 60
    with pytest.raises(AdmissionError):
        requests.send(key, 400)
    requests.clock.now_s += 70
    requests.send(key, 8000)
    assert requests.refused == [LimitKind.TOKENS] * 2


def test_estimates_follow_what_a_key_uses() -> None:
    """Long answers raise the estimate; images, whose bytes are few tokens, lower it."""
    usual = UsualTokens()
    for _ in range(60):
        usual.learn(4000, 1000 + 5000)
    assert usual.estimate(4000) == pytest.approx(6000, rel=0.02)
    for _ in range(60):
        usual.learn(4_000_000, 1500)
    assert usual.estimate(4_000_000) < 20_000
    assert usual.estimate(0) >= 1


def test_limits_hold_in_the_process_while_the_store_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No request fails for it; it is logged once, counted, and the store is left alone a while."""
    clock, errors = Clock(), list[str]()
    store = RemoteStore(clock)
    two = LimitDemand("key:ci:requests", 30_000_000, 30_000_000)
    slot = LimitDemand("key:ci:parallel", 4, None)

    async def run() -> None:
        limits = SharedLimits(store, errors.append, clock)
        assert list(await limits.take("a", [two, slot])) == [0, 0]
        store.is_away = True
        assert list(await limits.take("b", [two, slot])) == [0, 0]
        assert list(await limits.take("c", [two, slot])) == [30_000_000, 1]
        assert list(await limits.take("d", [two, slot])) == [60_000_000, 2], "refused"
        assert errors == ["limit"], "it was tried once"
        limits.settle(
            "c", [Correction(two.name, -30_000_000, "c"), Correction(slot.name, None, "c")]
        )
        assert list(await limits.take("e", [two, slot])) == [30_000_000, 1]
        store.is_away = False
        clock.now_s += 20
        assert list(await limits.take("f", [two, slot])) == [10_000_000, 1]
        assert len(caplog.records) == 2
        await limits.aclose()

    with caplog.at_level(logging.WARNING, "switchcraft.store"):
        asyncio.run(run())
    assert "limits hold in each process by itself" in caplog.messages[0]
    assert "reachable again" in caplog.messages[1]


async def test_slots_that_end_while_the_store_is_away_are_freed_when_it_is_back() -> None:
    """The store learns of them with the next request, so that no slot stays held."""
    clock = Clock()
    store = RemoteStore(clock)
    slot = LimitDemand("key:ci:parallel", 4, None)
    limits = SharedLimits(store, lambda _: None, clock)
    for holder in "ab":
        await limits.take(holder, [slot])
    store.is_away = True
    limits.settle("a", [Correction(slot.name, None, "a")])
    await limits.take("c", [slot])
    limits.settle("b", [Correction(slot.name, None, "b")])
    await asyncio.sleep(0)  # nothing can be sent
    store.is_away = False
    clock.now_s += 20
    await limits.take("d", [slot])
    await limits.aclose()
    assert list(await store.take("e", [slot])) == [1], "only d holds a slot"
