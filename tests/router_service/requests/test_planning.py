"""What answers cost, and the most that they may cost."""

from __future__ import annotations

import json

import pytest

from router_service.apis.capabilities import Capabilities
from router_service.apis.usage import Usage
from router_service.core.reasons import Reason
from router_service.policies.costs import Price
from router_service.requests.call import Call
from router_service.requests.candidates import answer_cost_usd
from router_service.requests.parsing import Endpoint, ParsedRequest, unrouted
from router_service.requests.planning import Planner, PolicyHeaders
from router_service.requests.pool import Pool
from router_service.runtime.engine import make_planner
from router_service.settings import Deployment, Model, Settings
from router_service.upstream.translation import run_at_once
from tests.bodies import ASK, BODY
from tests.endpoints import CHAT, MESSAGES, RESPONSES
from tests.fakes import FakeRouter


def body(**fields: object) -> bytes:
    """Return a chat request with these fields."""
    return json.dumps({**BODY, **fields}).encode()


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
        (CHAT, PROMPT | {"max_output_tokens": 9}, 64_000),
        (CHAT, PROMPT | {"max_tokens": 700, "n": 128}, 128 * 700),
        (RESPONSES, {"model": "small", "input": "Hi", "max_output_tokens": 700}, 700),
        (MESSAGES, PROMPT | {"max_tokens": 700}, 700),
        (COMPLETIONS, {"model": "small", "prompt": "Hi", "max_tokens": 9, "best_of": 5}, 5 * 9),
        (COMPLETIONS, {"model": "small", "prompt": ["Hi"] * 3, "max_tokens": 9, "n": 2}, 6 * 9),
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
    plan = planner.prepare(ParsedRequest(endpoint, json.dumps(fields).encode()))
    assert plan.expected_cost().most_usd == tokens


def test_most_that_a_prompt_may_cost() -> None:
    """A token has at least one byte; what a prompt refers to may fill the context window."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=0, cache_write_usd_per_mtok=1e6)
    planner = priced(FakeRouter(), price, context_window_tokens=1000)
    counts = []
    for content in ("Hi", "Hi" * 1000, IMAGE):
        fields = PROMPT | {"messages": [{"role": "user", "content": content}]}
        request = ParsedRequest(CHAT, json.dumps(fields).encode())
        counts.append((planner.prepare(request).expected_cost().most_usd, request.body.size_bytes))
    assert counts[0][0] == counts[0][1] < 100
    assert [usd for usd, _ in counts[1:]] == [1000, 1000]


def test_most_that_several_models_may_cost() -> None:
    """It is that of the dearest model that may answer, and of several models if they verify."""
    planner = priced(FakeRouter(), Price(input_usd_per_mtok=0, output_usd_per_mtok=1e6))
    plan = planner.prepare(ParsedRequest(CHAT, body(max_tokens=10)))
    assert [plan.expected_cost(count).most_usd for count in (1, 2, 9)] == [10, 20, 30]


USAGE = Usage(prompt_tokens=100, completion_tokens=10)
TOKENS = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}


@pytest.mark.parametrize(
    ("price", "usage", "cost_usd"),
    [
        (Price(**TOKENS), USAGE, 120e-6),
        (Price(**TOKENS), None, None),
        (Price(usd_per_hour=3.6), None, 0.002),
        (Price(**TOKENS, usd_per_hour=3.6), USAGE, 0.00212),
        (Price(**TOKENS, usd_per_hour=3.6), None, None),
        (None, USAGE, None),
    ],
)
def test_cost_is_none_if_a_needed_value_is_missing(
    price: Price | None, usage: Usage | None, cost_usd: float | None
) -> None:
    """Two seconds at 3.60 USD per hour need no tokens; other prices need the token counts."""
    place = Deployment(upstream_model="m", base_url="http://h/v1")
    cost = answer_cost_usd(Model(name="m", deployments=(place,), price=price), usage, upstream_s=2)
    assert cost == (None if cost_usd is None else pytest.approx(cost_usd))


CODING_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("Bash", "Edit", "Read")
]
MEASURED = ["claude-opus-4-8", "gpt-5.5", "minimax-m3", "claude-sonnet-4-5"]


@pytest.mark.parametrize(
    ("fields", "user_agent", "models", "first"),
    [
        ({"tools": CODING_TOOLS}, "", MEASURED, "claude-opus-4-8"),
        ({"tools": CODING_TOOLS}, "", MEASURED[1:], "minimax-m3"),
        ({"tools": CODING_TOOLS[1:2]}, "claude-cli/2.1.330", MEASURED[1:], "minimax-m3"),
        ({"tools": CODING_TOOLS, "model": "switchcraft:theta=0.9"}, "", MEASURED, None),
        ({"tools": CODING_TOOLS}, "", MEASURED[:1], None),
        ({}, "", MEASURED, None),
    ],
)
def test_session_of_a_coding_agent_has_the_cheapest_model_that_solves_as_many_tasks(
    fields: dict[str, object], user_agent: str, models: list[str], first: str | None
) -> None:
    """Other requests are routed, and so is a session if fewer than two models were measured."""
    router = FakeRouter()
    settings = Settings.sandbox("http://127.0.0.1:9/v1", [*router.probabilities, *models])
    settings = settings.model_copy(
        update={"router": settings.router.model_copy(update={"unknown_prices": "allow"})}
    )
    planner = make_planner(settings, router, Pool.build(settings, router.artifact.manifest))
    headers = PolicyHeaders({"user-agent": user_agent})
    plan = planner.prepare(ParsedRequest(CHAT, body(**fields)), headers)
    assert (plan.models[0].name if plan.reason is Reason.SESSION else None) == first
    assert bool(plan.arms) == (first is None)
    if first is not None:
        call = Call("dec_1", "req_1", 0.0)
        call.begin(plan, run_at_once)
        why = dict(call.decision_headers())[b"x-switchcraft-why"].decode()
        assert why.startswith(f"{first}: it answers coding agents' sessions")
