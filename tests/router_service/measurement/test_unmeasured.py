"""Models that the artifact has not measured: what is assumed of them, and when they may answer."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.unmeasured import with_unmeasured
from router_service.policies.costs import Price
from router_service.router import Router
from router_service.settings import Deployment, Model, Settings
from tests.bodies import BODY, CHAT
from tests.gateways import gateway_client, record_of
from tests.serving import Sandbox

PRICES = {
    "cheap-2026": Price(input_usd_per_mtok=0.1, output_usd_per_mtok=0.4),
    "dear-2026": Price(input_usd_per_mtok=10, output_usd_per_mtok=50),
}
KNOWN = "claude-haiku-4.5"


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Return the shipped artifact."""
    return Artifact.load(SHIPPED)


@pytest.fixture(scope="module")
def mixed(artifact: Artifact) -> Router:
    """Return a router for one measured arm and two models that are not measured."""
    known = {KNOWN: artifact.manifest.profile[KNOWN].price}
    return Router(with_unmeasured(artifact, PRICES, known), arms=(KNOWN, *PRICES))


def test_assumed_accuracy_rises_with_price(artifact: Artifact) -> None:
    """It stays in the range of the measured arms, except that of the operator's last resort."""
    facts = with_unmeasured(artifact, PRICES, {}).manifest.onboarded
    rates = artifact.manifest.base_rates.values()
    cheap, dear = (facts[name].accuracy.value for name in PRICES)
    assert min(rates) <= cheap < dear <= max(rates)
    trusted = with_unmeasured(artifact, PRICES, {}, "cheap-2026").manifest.onboarded
    assert trusted["cheap-2026"].accuracy.value > max(rates)


def test_choice_before_answers_takes_measured_arm(mixed: Router, artifact: Artifact) -> None:
    """Unmeasured arms come last, the most accurate first; without others, it is chosen."""
    assert mixed.decide(BODY, "fast").ranking == (KNOWN, "dear-2026", "cheap-2026")
    known = artifact.manifest.profile[KNOWN].price
    probability = Router.load().decide(BODY, "fast").probabilities[KNOWN]
    assert mixed.decide(BODY, "fast").probabilities[KNOWN] == probability
    unmeasured_only = Router(with_unmeasured(artifact, PRICES, {KNOWN: known}), arms=PRICES)
    assert unmeasured_only.decide(BODY, "fast").ranking[0] == "dear-2026"


@pytest.fixture(scope="module")
def gateway(artifact: Artifact, sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway whose models are not measured."""
    models = tuple(
        Model(
            name=name,
            deployments=(Deployment(upstream_model=name, base_url=sandbox.base_url),),
            price=price,
        )
        for name, price in PRICES.items()
    )
    router = Router(with_unmeasured(artifact, PRICES, {}), arms=PRICES)
    with gateway_client(Settings(models=models, source="config.yaml"), router) as http:
        yield http


def test_models_of_this_year_give_verified_answers(gateway: httpx.Client) -> None:
    """The cheap one is asked first, and the answer says that its accuracy is an estimate."""
    answer = gateway.post(CHAT, json=BODY)
    assert answer.status_code == 200
    record = record_of(gateway, answer)
    assert record["candidates"][0]["arm"] == "cheap-2026"
    assert "estimates its accuracy by its price" in answer.headers["x-switchcraft-why"]
    assert answer.headers["x-switchcraft-policy"].startswith("verified=")
