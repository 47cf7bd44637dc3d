"""What an answer cost, as far as that can be known."""

from __future__ import annotations

import pytest

from router_service.api.recorder import Recorder
from router_service.core.cost import Price
from router_service.core.usage import Usage
from router_service.settings import Deployment, Model
from router_service.store.base import DecisionRecord
from router_service.store.guarded import GuardedStore
from router_service.store.memory import MemoryStore
from router_service.telemetry.metrics import Metrics

PRICES = {
    "tokens": Price(input_usd_per_mtok=1, output_usd_per_mtok=2),
    "time": Price(usd_per_hour=3.6),
    "both": Price(input_usd_per_mtok=1, output_usd_per_mtok=2, usd_per_hour=3.6),
}
USAGE = Usage(prompt_tokens=100, completion_tokens=10)


@pytest.mark.parametrize(
    ("name", "usage", "cost_usd"),
    [
        ("tokens", USAGE, 120e-6),
        ("tokens", None, None),
        ("time", USAGE, 0.002),
        ("time", None, 0.002),
        ("both", USAGE, 0.00212),
        ("both", None, None),
        ("unknown", USAGE, None),
    ],
)
def test_a_cost_is_known_or_none(name: str, usage: Usage | None, cost_usd: float | None) -> None:
    """Two seconds at 3.60 USD an hour need no tokens; what a price asks for must be there."""
    store = MemoryStore[DecisionRecord](ttl_s=1, max_records=1, clock=lambda: 0.0)
    recorder = Recorder(Metrics(), GuardedStore(store, lambda _: None))
    deployment = Deployment(upstream_model=name, base_url="http://h/v1")
    model = Model(name=name, deployments=(deployment,), price=PRICES.get(name))
    assert recorder.cost_usd(model, usage, upstream_s=2) == (
        None if cost_usd is None else pytest.approx(cost_usd)
    )
