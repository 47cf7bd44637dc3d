"""An answer's cost in its header, in metrics and in its record; an unknown cost is never 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson
import pytest

from router_service.policies.costs import Price
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.bodies import ASK, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, record_of
from tests.serving import scripted, wait_for

PRICE = Price(
    input_usd_per_mtok=10,
    output_usd_per_mtok=100,
    cached_input_usd_per_mtok=1,
    reasoning_usd_per_mtok=200,
)
USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 100,
    "prompt_tokens_details": {"cached_tokens": 600},
    "completion_tokens_details": {"reasoning_tokens": 40},
}
COST_USD = (400 * 10 + 600 * 1 + 60 * 100 + 40 * 200) / 1e6
COST_HEADER = "x-switchcraft-cost-usd"


def answer(stream: bool) -> bytes:
    """Return an upstream's answer with the usage above."""
    body: dict[str, Any] = {"id": "c", "choices": [], "usage": USAGE}
    data = orjson.dumps(body)
    kind = b"application/json"
    if stream:
        start = orjson.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]})
        end = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
        data = b"\n\ndata: ".join((b"data: " + start, end, data, b"[DONE]\n\n"))
        kind = b"text/event-stream"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(data)) + data


def settings(url: str, price: Price | None, **router: str) -> Settings:
    """Return settings with one arm, and a model `priced` with this price."""
    models = [("small", None), ("priced", price)]
    return Settings(
        models=tuple(
            Model(
                name=name,
                deployments=(Deployment(upstream_model=name, base_url=url),),
                price=own,
            )
            for name, own in models
        ),
        router=RouterSettings.model_validate(router),
        source="config.yaml",
    )


@contextmanager
def asked(
    price: Price | None, *, stream: bool, **router: str
) -> Iterator[tuple[httpx.Client, httpx.Response]]:
    """Call the model once; yield the gateway's client and the answer."""
    with (
        scripted(answer(stream)) as url,
        gateway_client(settings(url, price, **router), FakeRouter()) as http,
    ):
        body = {"model": "priced", "messages": ASK, "stream": stream}
        response = http.post(CHAT, json=body)
        assert response.status_code == 200
        yield http, response


@pytest.mark.parametrize("stream", [False, True])
def test_cached_and_reasoning_tokens_have_their_own_price(stream: bool) -> None:
    """The cost follows from the answer's usage, streamed or not, and counts each token once."""
    with asked(PRICE, stream=stream) as (http, response):
        assert record_of(http, response)["actual_cost_usd"] == pytest.approx(COST_USD)
        metrics = http.get("/metrics").text
        counted = re.findall(r'switchcraft_cost_usd_total\{model="priced",.*\} (.*)', metrics)
        assert sum(map(float, counted)) == pytest.approx(COST_USD)
        wait_for(lambda: overview(http)["requests"] == 1, "usage is written")
        total = overview(http)
    assert total["cost_usd"] == pytest.approx(COST_USD)
    assert (total["prompt_tokens"], total["cached_tokens"]) == (1_000, 600)
    assert (total["completion_tokens"], total["reasoning_tokens"]) == (100, 40)
    if not stream:
        assert float(response.headers[COST_HEADER]) == pytest.approx(COST_USD)


def test_time_is_recorded_at_the_cost_that_the_client_saw() -> None:
    """At a price by time, sending the answer adds nothing to what its header says."""
    with asked(Price(usd_per_hour=3600), stream=False) as (http, response):
        recorded = record_of(http, response)["actual_cost_usd"]
    assert float(response.headers[COST_HEADER]) == pytest.approx(recorded, abs=1e-9)


def overview(http: httpx.Client) -> dict[str, Any]:
    """Return the sums over all requests, as the page shows them."""
    total: dict[str, Any] = http.get("/ui/api/traffic/overview").json()["total"]
    return total


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_price_is_never_shown_as_zero(stream: bool) -> None:
    """If unknown prices are allowed, there is no header and no sum; the record has null."""
    with asked(None, stream=stream, unknown_prices="allow") as (http, response):
        assert COST_HEADER not in response.headers
        assert record_of(http, response)["actual_cost_usd"] is None
        metrics = http.get("/metrics").text
    assert 'switchcraft_unpriced_answers_total{missing="price",model="priced"} 1.0' in metrics
    assert 'switchcraft_cost_usd_total{model="priced"' not in metrics
