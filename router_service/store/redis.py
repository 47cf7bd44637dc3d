"""Records, shared state and limits in Redis, for gateways with several replicas.

This is the only file that imports the Redis client. `store.opening` imports it when it is used.

Shared state has two keys: a sorted set of deployments by the end of their cool-downs, and a hash of
rejected releases. The ends of cool-downs are measured by Redis' clock, so that the replicas' clocks
do not matter.

Replicas of two versions may share the keys, so unknown content is ignored. A gateway reads only
members that it knows by name, and limited parts of values, so that other content under these keys
costs neither time nor memory.

Importing this module raises ConfigError if the extra `redis` is not installed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from router_service.core.errors import ConfigError, StoreError, missing_extra
from router_service.store.store import (
    MAX_USE_US,
    SETTING,
    SLOT_TTL_S,
    CoolDown,
    Correction,
    LimitDemand,
    Store,
    StoreLimits,
)

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
except ModuleNotFoundError as exc:
    raise ConfigError("the configuration", SETTING, missing_extra("redis")) from exc

KEY_PREFIX = "switchcraft:"
MAX_RECORD_BYTES = 256 * 1024
"""Longest record that is read. A decision among 30 arms takes 4 KB, so no gateway writes a record
that is longer than this."""
SOCKET_TIMEOUT_S = 0.2
"""Longest wait for Redis, which usually answers within 2 ms. A longer wait counts as an outage."""

COOL_DOWNS_KEY = "switchcraft:cool-downs"
REJECTIONS_KEY = "switchcraft:rejections"

COOL_DOWNS_TTL_S = 24 * 3600
"""Time from the start of the last cool-down until Redis deletes all of them. No cool-down lasts as
long. A fleet that was shut down leaves no data behind."""
REJECTIONS_TTL_S = 90 * 24 * 3600
"""Time from the last rejection until Redis deletes all of them. A release that is published again
gets a new release key, so old rejections do not apply to it."""

MAX_REASON_CHARACTERS = 500

MAX_TAKEN = 200
"""Largest number of requests that one script admits, so that it does not delay others."""
MAX_CORRECTIONS = 1000
"""Largest number of limits that one script corrects."""

_NOW_US = "local now = redis.call('TIME')\nnow = now[1] * 1000000 + now[2]\n"

_SET_RATE = f"""
local function set_rate(key, use)
  use = math.min(use, {MAX_USE_US})
  if use <= 0 then return redis.call('DEL', key) end
  redis.call('SET', key, string.format('%.0f', now + use), 'PX', math.ceil(use / 1000))
end
local function rate_in_use(key)
  local left = (tonumber(redis.call('GET', key)) or 0) - now
  return math.max(0, math.min(left, {MAX_USE_US}))
end
"""

TAKE_SCRIPT = f"""
{_NOW_US}{_SET_RATE}
local all, k, a = {{}}, 0, 1
while a < #ARGV do
  local holder, count, is_admitted = ARGV[a], tonumber(ARGV[a + 1]), true
  for i = 1, count do
    local key, use = KEYS[k + i]
    if ARGV[a + 2 * i + 1] == '' then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
      use = redis.call('ZCARD', key)
    else
      use = rate_in_use(key)
    end
    all[k + i] = use
    is_admitted = is_admitted and use <= tonumber(ARGV[a + 2 * i])
  end
  for i = 1, is_admitted and count or 0 do
    local key, cost = KEYS[k + i], ARGV[a + 2 * i + 1]
    if cost ~= '' then
      set_rate(key, all[k + i] + tonumber(cost))
    else
      redis.call('ZADD', key, now + {SLOT_TTL_S * 1e6:.0f}, holder)
      redis.call('PEXPIRE', key, {SLOT_TTL_S * 1e3:.0f})
    end
  end
  k, a = k + count, a + 2 + 2 * count
end
return all
"""
"""Takes all limits of a request or none, for several requests one after another. Arguments for each
request: the holder, the number of its limits, and for each of these the most that may be in use and
the cost, which is empty for a slot. Returns what was in use of each key."""

SETTLE_SCRIPT = f"""
{_NOW_US}{_SET_RATE}
for i, key in ipairs(KEYS) do
  local cost = ARGV[2 * i - 1]
  if cost == '' then
    redis.call('ZREM', key, ARGV[2 * i])
  else
    set_rate(key, rate_in_use(key) + tonumber(cost))
  end
end
"""
"""Corrects limits. Arguments for each key: the cost, which is empty for a slot, and the holder."""


class RedisStore(Store):
    """A Redis server, which all replicas use. Every operation raises StoreError if Redis fails.

    Records are under `switchcraft:KIND:ID` until they expire. A rate, under
    `switchcraft:limit:NAME`, is the Unix time in microseconds, by the clock of Redis, at which
    nothing of it is in use any more. Slots are a sorted set of requests by the time at which they
    expire.

    Operations on limits are sent one after another, so that a slot is never freed before it was
    taken. Requests that wait for their turn are sent together: a command takes 0.14 ms of processor
    time in this process, however many limits it has.
    """

    def __init__(self, url: str, limits: StoreLimits) -> None:
        """Connect on first use; raise ConfigError if the address is not a Redis address."""
        self._redis = _connect(url)
        self._limits = limits
        self._take = self._redis.register_script(TAKE_SCRIPT)
        self._settle = self._redis.register_script(SETTLE_SCRIPT)
        self._turn = asyncio.Lock()
        self._waiting: list[_Taking] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def put(self, kind: str, record_id: str, text: bytes, owner: str | None) -> None:  # noqa: ARG002
        """Store a record."""
        with _translate_errors(f"keep a {kind}"):
            await self._redis.set(_key(kind, record_id), text, ex=self._limits.of(kind).ttl_s)

    async def add(self, kind: str, record_id: str, text: bytes, owner: str | None) -> bool:  # noqa: ARG002
        """Store a record in one step if its id is new, and return whether it was stored."""
        ttl_s = self._limits.of(kind).ttl_s
        with _translate_errors(f"add a {kind}"):
            return bool(await self._redis.set(_key(kind, record_id), text, ex=ttl_s, nx=True))

    async def get(self, kind: str, record_id: str) -> bytes | None:
        """Return a record, or None if it is unknown."""
        with _translate_errors(f"look up a {kind}"):
            text = await self._redis.getrange(_key(kind, record_id), 0, MAX_RECORD_BYTES)
        return text if isinstance(text, bytes) and text else None

    async def cool_downs(self, deployment_ids: Collection[str]) -> Mapping[str, CoolDown]:
        """Return the cool-downs of these deployments, in one round trip."""
        names = list(deployment_ids)
        with _translate_errors("read the shared state"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.time()
            for name in names:
                pipeline.zscore(COOL_DOWNS_KEY, name)
            now, *ends = await pipeline.execute()
        now_s = _to_seconds(now)
        known = ((name, end_s) for name, end_s in zip(names, ends, strict=True) if end_s)
        return {
            name: CoolDown(end_s, end_s - now_s)
            for name, end_s in known
            if end_s > now_s and math.isfinite(end_s)
        }

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a replica has rejected a release."""
        with _translate_errors("look up a rejection"):
            return bool(await self._redis.hexists(REJECTIONS_KEY, release_key))

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down, or extend one that ends earlier."""
        with _translate_errors("share a cool-down"):
            now_s = _to_seconds(await self._redis.time())
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, "-inf", now_s)
            # Remove entries that end later than any cool-down can. Because of `gt`, such an entry
            # would not be replaced by the one that is written below.
            latest_s = now_s + max(COOL_DOWNS_TTL_S, duration_s)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, f"({latest_s}", "+inf")
            pipeline.zadd(COOL_DOWNS_KEY, {deployment_id: now_s + duration_s}, gt=True)
            pipeline.expire(COOL_DOWNS_KEY, COOL_DOWNS_TTL_S)
            await pipeline.execute()

    async def reject(self, release_key: str, reason: str) -> None:
        """Record that a release was rejected."""
        with _translate_errors("share a rejection"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.hset(REJECTIONS_KEY, release_key, reason[:MAX_REASON_CHARACTERS])
            pipeline.expire(REJECTIONS_KEY, REJECTIONS_TTL_S)
            await pipeline.execute()

    async def take(self, holder: str, demands: Sequence[LimitDemand]) -> Sequence[int]:
        """Take all of these, or nothing, and return what was in use before."""
        taking = _Taking(holder, demands, asyncio.get_running_loop().create_future())
        self._waiting.append(taking)
        if len(self._waiting) == 1:
            task = asyncio.create_task(self._send_waiting())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return await taking.used

    async def _send_waiting(self) -> None:
        """Send the requests that wait, and give each its part of the reply."""
        while self._waiting:
            async with self._turn:
                batch = [each for each in self._waiting[:MAX_TAKEN] if not each.used.done()]
                del self._waiting[:MAX_TAKEN]
                keys: list[str] = []
                arguments: list[str] = []
                for holder, demands, _ in batch:
                    arguments += (holder, str(len(demands)))
                    for name, most, cost_us in demands:
                        keys.append(f"{KEY_PREFIX}limit:{name}")
                        arguments += (str(most), "" if cost_us is None else str(cost_us))
                try:
                    with _translate_errors("take from limits"):
                        all_used: list[int] = await self._take(keys, arguments) if keys else []
                except StoreError as exc:
                    for each in batch:
                        if not each.used.done():
                            each.used.set_exception(exc)
                    continue
            for each in batch:
                used, all_used = all_used[: len(each.demands)], all_used[len(each.demands) :]
                if not each.used.done():  # nobody waits any more
                    each.used.set_result(used)

    async def settle(self, corrections: Sequence[Correction]) -> None:
        """Correct rates and free slots."""
        for start in range(0, len(corrections), MAX_CORRECTIONS):
            keys: list[str] = []
            arguments: list[str] = []
            for name, cost_us, holder in corrections[start : start + MAX_CORRECTIONS]:
                keys.append(f"{KEY_PREFIX}limit:{name}")
                arguments += ("" if cost_us is None else str(cost_us), holder)
            async with self._turn:
                with _translate_errors("correct limits"):
                    await self._settle(keys, arguments)

    async def aclose(self) -> None:
        """Close the connections."""
        with _translate_errors("close its connections"):
            await self._redis.aclose()


class _Taking(NamedTuple):
    """A request that waits for what it takes."""

    holder: str
    demands: Sequence[LimitDemand]
    used: asyncio.Future[Sequence[int]]


def _connect(url: str) -> Redis:
    """Return a client that connects on first use, with short timeouts and without retries.

    Raise ConfigError if the address is not a Redis address.
    """
    try:
        return Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # no retry here; the next operation connects again
        )
    except ValueError:
        problem = "must be an address that begins with redis://, rediss:// or unix://"
        # Not from exc, because urllib's message quotes what it takes for the port. If the password
        # contains a slash, the quoted text is a part of the password.
        raise ConfigError("the configuration", SETTING, problem) from None


@contextmanager
def _translate_errors(operation: str) -> Iterator[None]:
    """Convert the driver's errors within the block to StoreError, without the address of Redis."""
    try:
        yield
    except ResponseError as exc:  # e.g. a key holds another type, or an ACL forbids the command
        raise StoreError(operation, f"Redis refused the command ({str(exc)[:200]})") from exc
    # The driver does not convert all errors of the operating system and of asyncio to its own, nor
    # those of a reply that is no number, too long for a line, or nested too deeply.
    except (RedisError, OSError, ValueError, RecursionError) as exc:
        raise StoreError(operation, f"Redis is unreachable ({type(exc).__name__})") from exc


def _key(kind: str, record_id: str) -> bytes:
    # Some ids come from clients, and JSON allows lone surrogates in them.
    return f"{KEY_PREFIX}{kind}:{record_id}".encode(errors="surrogatepass")


def _to_seconds(now: tuple[int, int]) -> float:
    seconds, microseconds = now
    return seconds + microseconds / 1e6
