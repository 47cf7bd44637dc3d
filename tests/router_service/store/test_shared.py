"""Shared state is the same in every backend."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import redis

from router_service.core.errors import StoreError
from router_service.core.releases import MAX_POINTER_BYTES
from router_service.store.redis import (
    COOL_DOWNS_KEY,
    POINTER_KEY,
    REJECTIONS_KEY,
    RedisBackend,
    RedisSharedState,
)
from tests.router_service.store.conftest import LIMITS, Replicas, Run


def redis_state(url: str) -> RedisSharedState:
    """Return a view of the state in Redis."""
    return RedisBackend(url, LIMITS).shared_state()


def test_cool_downs_are_shared(replicas: Run) -> None:
    """The other replica sees a cool-down with its remaining time. The longer one counts."""

    async def check(each: Replicas) -> None:
        one, other = each.states()
        await one.cool_down("a", 60)
        await one.cool_down("b", 30)
        await other.cool_down("a", 5)
        seen = (await other.read(["a", "b", "c"])).cool_downs
        assert 50 < seen["a"].left_s <= 60
        assert 20 < seen["b"].left_s <= 30
        again = (await one.read(["a", "c"])).cool_downs
        assert again.keys() == {"a"}, "only what is asked for is read"
        assert again["a"].end_s == seen["a"].end_s

    replicas(check)


def test_rejections_are_shared(replicas: Run) -> None:
    """The other replica sees a rejection, with the reason."""

    async def check(each: Replicas) -> None:
        one, other = each.states()
        await one.reject("release", "3 points more errors: é")
        assert await other.is_rejected("release")
        assert not await other.is_rejected("another")

    replicas(check)


def test_the_pointer_is_read(redis_url: str, server: redis.Redis) -> None:
    """The pointer is returned unchanged, and values of unknown versions do no harm."""
    server.set(POINTER_KEY, b"\xff not json")
    server.zadd(COOL_DOWNS_KEY, {b"\xff": 1e12})
    server.zadd(COOL_DOWNS_KEY, {"a": float("inf"), "b": float("-inf")})
    server.hset(REJECTIONS_KEY, "x", b"\xff")

    async def check() -> None:
        state = redis_state(redis_url)
        snapshot = await state.read(["a", "b", "\xff"])
        assert snapshot.publication == b"\xff not json"
        assert snapshot.cool_downs == {}
        assert await state.is_rejected("x")
        await state.aclose()

    asyncio.run(check())


def test_only_requested_members_are_read(redis_url: str, server: redis.Redis) -> None:
    """Many other members, and values of many megabytes, cost neither memory nor time."""
    pipeline = server.pipeline(transaction=False)
    for start in range(0, 100_000, 50_000):
        names = [f"{number}" for number in range(start, start + 50_000)]
        pipeline.zadd(COOL_DOWNS_KEY, dict.fromkeys(names, 1e12))
        pipeline.hset(REJECTIONS_KEY, mapping=dict.fromkeys(names, "x"))  # pyrefly: ignore[no-matching-overload]
    pipeline.set(POINTER_KEY, b" " * 50_000_000)
    pipeline.execute()

    async def check() -> None:
        state = redis_state(redis_url)
        await state.read([])  # connects
        tracemalloc.start()
        snapshot = await state.read(["a", "7"])
        is_rejected = await state.is_rejected("7")
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert snapshot.cool_downs.keys() == {"7"}
        assert is_rejected
        assert len(snapshot.publication or b"") == MAX_POINTER_BYTES + 1
        assert peak_bytes < 1_000_000
        await state.aclose()

    asyncio.run(check())
    server.delete(COOL_DOWNS_KEY, REJECTIONS_KEY, POINTER_KEY)


def test_an_entry_without_a_plausible_end_hides_no_other(
    redis_url: str, server: redis.Redis
) -> None:
    """A cool-down replaces an entry that ends in months, which no gateway can have written."""
    server.zadd(COOL_DOWNS_KEY, {"a": time.time() + 115 * 24 * 3600})

    async def check() -> None:
        state = redis_state(redis_url)
        await state.cool_down("a", 60)
        assert 50 < (await state.read(["a"])).cool_downs["a"].left_s <= 60
        await state.aclose()

    asyncio.run(check())


def test_another_type_under_a_key_is_an_error(redis_url: str, server: redis.Redis) -> None:
    """A key that something else uses raises StoreError, not another error."""
    server.set(REJECTIONS_KEY, "text")

    async def check() -> None:
        state = redis_state(redis_url)
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await state.is_rejected("x")
        for key in (COOL_DOWNS_KEY, POINTER_KEY):
            server.delete(COOL_DOWNS_KEY, POINTER_KEY)
            server.lpush(key, "text")
            with pytest.raises(StoreError, match="WRONGTYPE"):
                await state.read(["a"])
        await state.aclose()

    asyncio.run(check())
    server.delete(COOL_DOWNS_KEY, REJECTIONS_KEY, POINTER_KEY)


@contextmanager
def false_redis(reply: bytes) -> Iterator[str]:
    """Yield the address of a server that answers commands with a reply."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client leaves
            while asked := connection.recv(65536):
                if b"HELLO" in asked:
                    connection.sendall(b"%1\r\n+proto\r\n:3\r\n")
                elif asked.count(b"SETINFO"):
                    connection.sendall(b"+OK\r\n" * asked.count(b"SETINFO"))
                else:
                    connection.sendall(reply)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    listener.close()


@pytest.mark.parametrize("reply", [b":one\r\n", b"?\r\n"], ids=["no number", "unknown"])
def test_false_redis_is_an_outage(reply: bytes) -> None:
    """Replies that cannot be read raise StoreError."""

    async def check(url: str) -> None:
        state = redis_state(url)
        with pytest.raises(StoreError):
            await state.is_rejected("x")
        await state.aclose()

    with false_redis(reply) as url:
        asyncio.run(check(url))


def test_errors_of_an_unreachable_redis_hide_the_password() -> None:
    """Every operation raises StoreError without the password."""

    async def check() -> None:
        state = redis_state("redis://:planted-secret@127.0.0.1:9/0")
        for operation in (
            state.read([]), state.is_rejected("a"), state.cool_down("a", 1), state.reject("a", "b"),
        ):  # fmt: skip
            with pytest.raises(StoreError) as caught:
                await operation
            assert "planted" not in f"{caught.value!s}{caught.value.__cause__!r}"
        await state.aclose()

    asyncio.run(check())
