"""Plans: what runs in a thread, and what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from router_service.apis.capabilities import Capabilities
from router_service.artifact import SHIPPED, Artifact
from router_service.core.errors import InvalidRequestError, OverloadedError
from router_service.core.reasons import Reason
from router_service.core.resources import Timer
from router_service.policies.costs import Price
from router_service.requests.deciding import AT_ONCE_BYTES, plan_request
from router_service.requests.limits import DecisionQueue
from router_service.requests.parsing import Endpoint, parse_request, unrouted
from router_service.requests.planning import Plan, Planner
from router_service.requests.pool import Pool
from router_service.router import Router
from router_service.runtime.engine import make_planner
from router_service.runtime.gateway import Gateway
from router_service.settings import Settings
from tests.bodies import ASK, BODY
from tests.endpoints import CHAT, MESSAGES, RESPONSES
from tests.fakes import FakeRouter

P = ParamSpec("P")
T = TypeVar("T")


class CountingQueue(DecisionQueue):
    """Queue that runs thread work at once, and counts it."""

    def __init__(self) -> None:
        super().__init__(threads=1, max_waiting=0, max_wait_s=0)
        self.hops = 0
        self.is_full = False

    async def run(
        self,
        caller: str | None,
        size_bytes: int,
        decide: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run the function here, or refuse it."""
        del caller, size_bytes
        if self.is_full:
            raise OverloadedError("decisions_queued", "Too many requests wait for a decision.")
        self.hops += 1
        return decide(*args, **kwargs)


def counting_gateway(router: Router) -> tuple[Gateway, CountingQueue]:
    """Return a gateway, and the queue with which it plans."""
    arms = router.artifact.manifest.arms
    gateway = Gateway(Settings.sandbox("http://127.0.0.1:9/v1", arms), router)
    gateway.decisions = queue = CountingQueue()
    return gateway, queue


def planned(router: Router, *bodies: bytes) -> tuple[int, list[tuple[Plan, list[str]]]]:
    """Plan these bodies in order, each with its stages, and return how many hops that took."""

    async def plan() -> tuple[int, list[tuple[Plan, list[str]]]]:
        gateway, queue = counting_gateway(router)
        plans: list[tuple[Plan, list[str]]] = []
        for each in bodies:
            timer = Timer(time.perf_counter)
            plan = await plan_request(gateway, gateway.engine, CHAT, each, timer=timer)
            plans.append((plan, [str(stage.name) for stage in timer.stages]))
        return queue.hops, plans

    return asyncio.run(plan())


def body(**fields: object) -> bytes:
    """Return a chat request with these fields."""
    return json.dumps({**BODY, **fields}).encode()


def large(small: bytes) -> bytes:
    """Return the same request, too large to be parsed on the event loop."""
    return small + b" " * AT_ONCE_BYTES


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"model": "small"}, Reason.PINNED), ({"tools": []}, Reason.CHAT)],
)
def test_unrouted_requests_need_no_thread(fields: dict[str, object], reason: Reason) -> None:
    """Named models and chat without tools need no thread, unless the body is large."""
    hops, ((plan, stages),) = planned(FakeRouter(), body(**fields))
    assert (plan.reason, hops, stages) == (reason, 0, ["parse"])
    hops, ((plan, stages),) = planned(FakeRouter(), large(body(**fields)))
    assert (plan.reason, hops, stages) == (reason, 1, ["queue", "parse"])


def test_prediction_runs_once_and_in_a_thread() -> None:
    """A repeated request gets the same decision without a thread, also as a large body."""
    small = body()
    hops, plans = planned(Router(Artifact.load(SHIPPED)), small, small, large(small))
    (first, stages), (again, later_stages), (large_one, large_stages) = plans
    assert hops == 2
    assert stages == ["parse", "queue", "pack", "classify", "select"]
    assert later_stages == ["parse", "select"]
    assert large_stages == ["queue", "parse", "select"]
    assert first.decision is not None
    for plan in (again, large_one):
        assert plan.decision == first.decision
        assert plan.models == first.models


def test_large_body_is_parsed_and_predicted_in_one_hop() -> None:
    """A large body that the model has not seen takes one hop to a thread, not two."""
    hops, ((_, stages),) = planned(Router(Artifact.load(SHIPPED)), large(body()))
    assert hops == 1
    assert stages == ["queue", "parse", "pack", "classify", "select"]


def test_invalid_and_overloaded_requests_are_refused() -> None:
    """An invalid request is refused at once; a full queue refuses only what needs the model."""

    async def check() -> None:
        gateway, queue = counting_gateway(FakeRouter())
        for refused in (b"{", body(model="switchcraft:none")):
            with pytest.raises(InvalidRequestError):
                await plan_request(gateway, gateway.engine, CHAT, refused)
        assert queue.hops == 0
        queue.is_full = True
        with pytest.raises(OverloadedError):
            await plan_request(gateway, gateway.engine, CHAT, body())
        plan = await plan_request(gateway, gateway.engine, CHAT, body(model="small"))
        assert plan.models

    asyncio.run(check())


PROMPT = {"model": "small", "messages": ASK}
IMAGE = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
COMPLETIONS, EMBEDDINGS = unrouted("/completions"), unrouted("/embeddings")


def priced(router: FakeRouter, price: Price, **known: int | None) -> Planner:
    """Return a planner for three models with one price and these capabilities."""
    settings = Settings.sandbox("http://127.0.0.1:9/v1", list(router.probabilities))
    changes = {"price": price, "capabilities": Capabilities.model_validate(known)}
    models = tuple(model.model_copy(update=changes) for model in settings.models)
    settings = settings.model_copy(update={"models": models})
    return make_planner(settings, router, Pool.build(settings, router.artifact.manifest))


@pytest.mark.parametrize(
    ("endpoint", "fields", "tokens"),
    [
        (CHAT, PROMPT, 64_000),
        (CHAT, PROMPT | {"max_tokens": 16_000}, 16_000),
        (CHAT, PROMPT | {"max_completion_tokens": 9, "max_tokens": 700}, 700),
        (CHAT, PROMPT | {"max_tokens": 10**12}, 64_000),
        (CHAT, PROMPT | {"max_tokens": -1}, 64_000),
        (CHAT, PROMPT | {"max_tokens": None}, 64_000),
        (CHAT, PROMPT | {"max_output_tokens": 9}, 64_000),
        (CHAT, PROMPT | {"max_tokens": 700, "n": 128}, 128 * 700),
        (CHAT, PROMPT | {"max_tokens": 700, "n": "128"}, 128 * 700),
        (CHAT, PROMPT | {"max_tokens": 700, "n": -5}, 700),
        (RESPONSES, {"model": "small", "input": "Hi", "max_output_tokens": 700}, 700),
        (RESPONSES, {"model": "small", "input": "Hi", "max_tokens": 700}, 64_000),
        (MESSAGES, PROMPT | {"max_tokens": 700}, 700),
        (COMPLETIONS, {"model": "small", "prompt": "Hi", "max_tokens": 9, "best_of": 5}, 5 * 9),
        (COMPLETIONS, {"model": "small", "prompt": ["Hi"] * 3, "max_tokens": 9, "n": 2}, 6 * 9),
        (COMPLETIONS, {"model": "small", "prompt": [1, 2, 3], "max_tokens": 9}, 9),
        (COMPLETIONS, {"model": "small", "prompt": [[1], [2, 3]]}, 2 * 64_000),
        (EMBEDDINGS, {"model": "small", "input": ["Hi"] * 9}, 0),
    ],
)
def test_most_that_an_answer_may_cost(
    endpoint: Endpoint, fields: dict[str, object], tokens: int
) -> None:
    """It is the longest answer that the request, or else the model, allows, times their number."""
    price = Price(input_usd_per_mtok=0, output_usd_per_mtok=1, reasoning_usd_per_mtok=1e6)
    planner = priced(FakeRouter(), price, max_output_tokens=64_000)
    plan = planner.prepare(parse_request(endpoint, json.dumps(fields).encode()))
    assert plan.expected_cost().most_usd == tokens


def test_most_that_a_prompt_may_cost() -> None:
    """A token has at least one byte; what a prompt refers to may fill the context window."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=0, cache_write_usd_per_mtok=1e6)
    planner = priced(FakeRouter(), price, context_window_tokens=1000)
    counts = []
    for content in ("Hi", "Hi" * 1000, IMAGE):
        fields = PROMPT | {"messages": [{"role": "user", "content": content}]}
        request = parse_request(CHAT, json.dumps(fields).encode())
        counts.append((planner.prepare(request).expected_cost().most_usd, request.body.size_bytes))
    assert counts[0][0] == counts[0][1] < 100
    assert [usd for usd, _ in counts[1:]] == [1000, 1000]


def test_most_that_several_models_may_cost() -> None:
    """It is that of the dearest model that may answer, and of several models if they verify."""
    planner = priced(FakeRouter(), Price(input_usd_per_mtok=0, output_usd_per_mtok=1e6))
    plan = planner.prepare(parse_request(CHAT, body(max_tokens=10)))
    assert [plan.expected_cost(count).most_usd for count in (1, 2, 9)] == [10, 20, 30]
