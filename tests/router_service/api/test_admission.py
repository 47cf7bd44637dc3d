"""Under more load than it can carry the gateway answers some soon, and tells the rest at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
from pydantic import SecretStr

from router_service.api.app import create_app
from router_service.core.errors import OverloadedError
from router_service.core.keys import new_key
from router_service.core.messages import Conversation
from router_service.core.selection import Policy
from router_service.router import Decision
from router_service.serving.overload import Slots
from router_service.settings import KeySettings, ServerSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

HANG = {"x-sandbox": "hang"}


class SlowRouter(FakeRouter):
    """Takes its time for each decision."""

    def __init__(self, decision_s: float) -> None:
        super().__init__()
        self._decision_s = decision_s

    def decide(
        self,
        conversation: Conversation,
        policy: Policy | None = None,
        arms: Collection[str] | None = None,
    ) -> Decision:
        """Decide, after a while."""
        time.sleep(self._decision_s)
        return super().decide(conversation, policy, arms)


@contextmanager
def limited(
    sandbox: Sandbox,
    server: ServerSettings,
    router: FakeRouter | None = None,
    keys: KeySettings | None = None,
) -> Iterator[str]:
    """Serve a gateway within these limits."""
    router = router or FakeRouter()
    settings = Settings.sandbox(sandbox.base_url, list(router.probabilities), server=server)
    settings = settings.model_copy(update={"keys": keys or KeySettings()})
    with served(create_app(settings, router)) as url:
        yield url


@contextmanager
def hanging(url: str, count: int, headers: dict[str, str] | None = None) -> Iterator[None]:
    """Keep so many requests in flight."""

    async def hold() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            asks = (
                http.post(url + CHAT, json=BODY, headers=HANG | (headers or {}))
                for _ in range(count)
            )
            held = asyncio.gather(*asks, return_exceptions=True)
            await asyncio.to_thread(done.wait)
            held.cancel()

    done = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(hold()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(10)


def in_flight(url: str, headers: dict[str, str] | None = None) -> float:
    """Return the gateway's own count."""
    lines = httpx.get(f"{url}/metrics", headers=headers).text.splitlines()
    (line,) = [line for line in lines if line.startswith("switchcraft_requests_in_flight ")]
    return float(line.split()[1])


def test_beyond_the_limit_requests_are_refused_at_once(sandbox: Sandbox) -> None:
    """They get 503 with Retry-After; probes and metrics answer; later requests are served."""
    with limited(sandbox, ServerSettings(max_requests_in_flight=3)) as url:
        with hanging(url, 3):
            wait_for(lambda: in_flight(url) == 3, "three are in flight")
            response = httpx.post(url + CHAT, json=BODY)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["code"] == "overloaded"
            assert httpx.get(f"{url}/readyz").status_code == 200
            text = httpx.get(f"{url}/metrics").text
            assert 'switchcraft_shed_requests_total{reason="overloaded"} 1.0' in text
            counted = 'switchcraft_requests_total{model="none",policy="none",status="503"} 1.0'
            assert counted in text
        wait_for(lambda: in_flight(url) == 0, "they have left")
        assert httpx.post(url + CHAT, json=BODY).status_code == 200


def test_one_key_cannot_take_all(sandbox: Sandbox) -> None:
    """A key beyond its own limit gets 429, while another one is served."""
    keys = {"a": new_key(), "b": new_key()}
    settings = KeySettings(
        api={name: SecretStr(key) for name, key in keys.items()}, admin=SecretStr(new_key())
    )
    admin = settings.admin.get_secret_value() if settings.admin else ""
    first, second, metrics = ({"x-api-key": key} for key in (keys["a"], keys["b"], admin))
    server = ServerSettings(max_requests_in_flight=10, max_requests_in_flight_per_key=2)
    with limited(sandbox, server, keys=settings) as url, hanging(url, 2, first):
        wait_for(lambda: in_flight(url, metrics) == 2, "two are in flight")
        refused = httpx.post(url + CHAT, json=BODY, headers=first)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert httpx.post(url + CHAT, json=BODY, headers=second).status_code == 200


def test_ten_times_the_load(sandbox: Sandbox) -> None:
    """The answered ones waited for a bounded time, the rest are told soon; none is lost."""
    decision_s, wait_s, total = 0.02, 0.3, 500
    server = ServerSettings(decision_threads=1, max_queued_decisions=10, max_decision_wait_s=wait_s)

    async def ask(http: httpx.AsyncClient, url: str) -> tuple[int, str | None]:
        response = await http.post(url + CHAT, json=BODY)
        return response.status_code, response.headers.get("retry-after")

    async def storm(url: str) -> list[tuple[int, str | None]]:
        # 500 requests a second where 50 can be decided.
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=500)) as http:
            asked = []
            for _ in range(total // 10):
                asked += [asyncio.create_task(ask(http, url)) for _ in range(10)]
                await asyncio.sleep(0.02)
            return await asyncio.gather(*asked)

    with limited(sandbox, server, SlowRouter(decision_s)) as url:
        answers = asyncio.run(storm(url))
        text = httpx.get(f"{url}/metrics").text
    counts = Counter(answers)
    assert set(counts) == {(200, None), (503, "1")}
    assert counts.total() == total
    assert counts[200, None] >= 10
    # By the gateway's own clock: without a bound the last of 500 would wait for ten seconds.
    within_5s = f'switchcraft_decision_seconds_bucket{{le="5.0"}} {counts[200, None]:.1f}'
    refused = 'switchcraft_requests_total{model="none",policy="none",status="503"}'
    assert within_5s in text
    assert f"{refused} {counts[503, '1']:.1f}" in text
    shed = 'switchcraft_shed_requests_total{reason="decisions_queued"}'
    assert f"{shed} {counts[503, '1']:.1f}" in text


def test_a_decision_is_waited_for_so_long(sandbox: Sandbox) -> None:
    """What waits longer than it may is refused, though there is room in the queue."""
    server = ServerSettings(decision_threads=1, max_decision_wait_s=0.05)

    async def two(url: str) -> list[int]:
        async with httpx.AsyncClient(timeout=60) as http:
            answers = await asyncio.gather(*(http.post(url + CHAT, json=BODY) for _ in range(2)))
        return sorted(answer.status_code for answer in answers)

    with limited(sandbox, server, SlowRouter(1)) as url:
        assert asyncio.run(two(url)) == [200, 503]


def test_the_openai_client_comes_again(sandbox: Sandbox) -> None:
    """It reads Retry-After, and is served once there is room."""
    with limited(sandbox, ServerSettings(max_requests_in_flight=1)) as url:
        with hanging(url, 1):
            wait_for(lambda: in_flight(url) == 1, "one is in flight")
            with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
                with pytest.raises(openai.InternalServerError) as caught:
                    client.chat.completions.create(model="switchcraft", messages=ASK)
                assert caught.value.response.headers["retry-after"] == "1"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=5) as client:
            assert client.chat.completions.create(model="switchcraft", messages=ASK).choices


def test_slots_are_given_back() -> None:
    """Whatever ends a request, its slot is free again, and no caller is remembered."""
    slots = Slots(1, 1)
    for _ in range(3):
        with pytest.raises(KeyError), slots.slot("a"):
            raise KeyError
    with slots.slot("a"), pytest.raises(OverloadedError), slots.slot("b"):
        pass
    assert slots.in_flight == 0
    assert not slots._by_caller  # what grows with callers would be a leak
