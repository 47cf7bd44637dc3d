"""Prices come from the file, then the price list, then the artifact; unknown is never 0."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from router_service.apis.usage import Usage
from router_service.artifact import MANIFEST, SHIPPED, read_manifest
from router_service.core.errors import ConfigError
from router_service.policies.costs import Price
from router_service.prices import look_up, look_up_id
from router_service.requests.candidates import answer_cost_usd
from router_service.requests.pool import Pool, pool_notes
from router_service.runtime.engine import EngineBuilder
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.bodies import BODY
from tests.fakes import manifest

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
OPENAI = "https://api.openai.com/v1"
GPT = Price(input_usd_per_mtok=2.5, output_usd_per_mtok=10, cached_input_usd_per_mtok=1.25)
OWN = Price(input_usd_per_mtok=7, output_usd_per_mtok=7)


AZURE = "https://mine.openai.azure.com/openai/deployments/gpt-4o"
NIGHT, DAY = NOW.replace(hour=20), NOW


@pytest.mark.parametrize(
    ("base_url", "model", "now", "usd_per_mtok"),
    [
        # Dated names have their model's price; Azure lists OpenAI's models too.
        (OPENAI, "gpt-4o-2024-08-06", NOW, (2.5, 10, 1.25)),
        (AZURE, "gpt-4o-2024-08-06", NOW, (2.5, 10, 1.25)),
        # DeepSeek is cheaper at night; the listed price is never below the paid one.
        ("https://api.deepseek.com/v1", "deepseek-chat", DAY, (0.27, 1.1, 0.07)),
        ("https://api.deepseek.com/v1", "deepseek-chat", NIGHT, (0.27, 1.1, 0.07)),
        # Embeddings have no output.
        (OPENAI, "text-embedding-3-small", NOW, (0.02, 0, None)),
        # Neither private servers nor unknown models get a provider's price.
        ("http://127.0.0.1:8000/v1", "gpt-4o", NOW, None),
        (OPENAI, "gpt-4o-of-mine", NOW, None),
        ("https://mine.openai.azure.com/openai/v1", "my-deployment", NOW, None),
    ],
)
def test_model_at_an_address_has_its_list_price(
    base_url: str,
    model: str,
    now: datetime,
    usd_per_mtok: tuple[float, float, float | None] | None,
) -> None:
    """The price is that of the provider at the address, for input, output and cached input."""
    listing = look_up(base_url, model, now)
    price = None if listing is None else listing.price
    found = price and (
        price.input_usd_per_mtok,
        price.output_usd_per_mtok,
        price.cached_input_usd_per_mtok,
    )
    assert found == usd_per_mtok


@pytest.mark.parametrize(
    ("model_id", "usd_per_mtok"),
    [
        ("openai/gpt-4o", 2.5),
        ("azure/gpt-4o-2024-08-06", 2.5),
        ("openrouter/openai/gpt-4o", 2.5),
        ("gemini/gemini-2.5-flash-lite", 0.1),
        ("xai/grok-4-fast", 0.2),
        ("gpt-4o", None),
        ("hosted_vllm/gpt-4o", None),
        ("openai/nothing", None),
    ],
)
def test_model_id_has_its_list_price(model_id: str, usd_per_mtok: float | None) -> None:
    """The provider of an id is LiteLLM's name of it; without one, there is no price."""
    listing = look_up_id(model_id, NOW)
    price = None if listing is None else listing.price
    assert (price and price.input_usd_per_mtok) == usd_per_mtok


def pool(models: dict[str, Deployment], price: Price | None = None, **router: str) -> Pool:
    """Return a pool of these models and the arm `small`, whose profiled price is 1 USD."""
    own = Deployment(upstream_model="small", base_url="http://h/v1")
    made = (
        Model(name="small", deployments=(own,)),
        *(Model(name=n, deployments=(d,), price=price) for n, d in models.items()),
    )
    section = RouterSettings.model_validate(router)
    settings = Settings(models=made, router=section, source="config.yaml")
    return Pool.build(settings, manifest())


def test_price_in_the_file_overrides_the_list() -> None:
    """An operator's contract decides the cost."""
    gpt = Deployment(upstream_model="gpt-4o", base_url=OPENAI)
    assert pool({"gpt": gpt}).models["gpt"].price == GPT
    assert pool({"gpt": gpt}, OWN).models["gpt"].price == OWN


PROVIDERS = {
    "openai": (OPENAI, "gpt-5.2"),
    "azure": ("https://mine.openai.azure.com/openai/v1", "gpt-5-mini"),
    "anthropic": ("https://api.anthropic.com/v1", "claude-haiku-4-5"),
    "bedrock": (
        "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1",
        "us.anthropic.claude-haiku-4-5-20251001-v1:0",
    ),
    "vertex_ai": ("https://us-east5-aiplatform.googleapis.com/v1", "claude-haiku-4-5@20251001"),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "gemini-2.5-flash-lite",
    ),
    "xai": ("https://api.x.ai/v1", "grok-4-1-fast-non-reasoning"),
    "openrouter": ("https://openrouter.ai/api/v1", "anthropic/claude-haiku-4.5"),
}


def test_routing_and_billing_use_the_same_price_for_every_provider() -> None:
    """The router's expected cost is that of the model's bill, from the list or from the file."""
    arms = read_manifest(SHIPPED / MANIFEST).arms
    models = tuple(
        Model(
            name=name,
            deployments=(Deployment(upstream_model=model, base_url=url, provider=name),),
            price=OWN if name == "xai" else None,
        )
        for name, (url, model) in PROVIDERS.items()
    )
    stand_ins = dict(zip(reversed(arms), PROVIDERS, strict=True))  # other models at other prices
    settings = Settings(models=models, router=RouterSettings(stand_ins=stand_ins))
    router, _ = EngineBuilder().first_router(settings)
    pool = Pool.build(settings, router.artifact.manifest)
    expected_usd = router.decide(BODY).cost_usd
    for arm, name in stand_ins.items():
        model, usage = pool.models[name], router.artifact.manifest.profile[arm]
        tokens = Usage(prompt_tokens=1_000, completion_tokens=100)
        assert usage.price == model.price
        assert expected_usd[arm] == usage.cost_usd(model.price)
        billed_usd = answer_cost_usd(model, tokens, upstream_s=1.0)
        assert billed_usd == usage.price.cost_of(tokens, 1.0)
        assert billed_usd != router.measured_prices[arm].cost_of(tokens, 1.0)
    assert pool.models["xai"].price == OWN
    bedrock, anthropic = pool.models["bedrock"].price, pool.models["anthropic"].price
    assert bedrock is not None
    assert anthropic is not None
    assert bedrock.cost_usd(1, 0, 0) > anthropic.cost_usd(1, 0, 0)  # the region costs more


def test_stand_in_never_has_the_price_of_the_measured_model() -> None:
    """A price in an artifact is that of the model that an arm stands for."""
    own = Deployment(upstream_model="llama", base_url="http://h/v1")
    settings = Settings(
        models=(Model(name="local", deployments=(own,)),),
        router=RouterSettings(stand_ins={"small": "local"}),
    )
    measured = manifest().model_copy(update={"stands_for": {"small": ("openai/gpt-5-mini",)}})
    with pytest.raises(ConfigError, match=r"model_list: local: .*input_cost_per_token"):
        Pool.build(settings, measured)


@pytest.mark.parametrize(
    ("name", "own", "cached_usd"),
    [
        ("gpt-4.1-mini", None, 0.1),  # an arm of the artifact, at the price that it was profiled at
        ("claude-sonnet-4.5", None, 0.3),
        ("gpt-4o", OWN, 3.5),  # in proportion to a price of one's own
        (
            "gpt-4o",
            Price(input_usd_per_mtok=7, output_usd_per_mtok=7, cached_input_usd_per_mtok=1),
            1,
        ),
        ("private", OWN, None),
    ],
)
def test_cached_input_has_a_price_behind_an_address_of_ones_own(
    name: str, own: Price | None, cached_usd: float | None
) -> None:
    """A known model has the share of its provider's list; an unknown one has a warning."""
    place = Deployment(upstream_model=name, base_url="http://proxy:4000/v1", provider="openai")
    settings = Settings(models=(Model(name=name, deployments=(place,), price=own),))
    shipped = read_manifest(SHIPPED / MANIFEST)
    pool = Pool.build(settings, shipped)
    price = pool.models[name].price
    assert price is not None
    assert price.cached_input_usd_per_mtok == cached_usd
    measured = {arm: usage.price for arm, usage in shipped.profile.items()}
    warnings = [note.text for note in pool_notes(pool, measured) if "cached input" in note.text]
    assert len(warnings) == (cached_usd is None)
    assert all(name in text for text in warnings)
