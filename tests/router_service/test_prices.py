"""Prices: the file's, else the provider's list, else the artifact's; unknown is never 0."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from router_service.core.capabilities import Capabilities
from router_service.core.cost import LongPromptPrice, Price
from router_service.core.errors import ConfigError
from router_service.prices import look_up
from router_service.requests.pool import Pool
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.fakes import manifest

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
OPENAI = "https://api.openai.com/v1"
GPT = Price(input_usd_per_mtok=2.5, output_usd_per_mtok=10, cached_input_usd_per_mtok=1.25)
OWN = Price(input_usd_per_mtok=7, output_usd_per_mtok=7)


@pytest.mark.parametrize(
    "base_url", [OPENAI, "https://mine.openai.azure.com/openai/deployments/gpt-4o"]
)
def test_a_provider_s_model_has_its_list_price(base_url: str) -> None:
    """A dated name is its model's, cached input included; Azure lists OpenAI's models too."""
    listing = look_up(base_url, "gpt-4o-2024-08-06", NOW)
    assert listing is not None
    assert (listing.price, listing.context_window_tokens) == (GPT, 128_000)


def test_long_prompts_have_their_own_price() -> None:
    """A price that rises with the prompt's length is listed with the length where it does."""
    listing = look_up("https://api.anthropic.com/v1", "claude-sonnet-4-5", NOW)
    assert listing is not None
    assert listing.price == Price(
        input_usd_per_mtok=3,
        output_usd_per_mtok=15,
        cached_input_usd_per_mtok=0.3,
        cache_write_usd_per_mtok=3.75,
        long_prompts=(
            LongPromptPrice(
                above_prompt_tokens=200_000,
                price=Price(
                    input_usd_per_mtok=6,
                    output_usd_per_mtok=22.5,
                    cached_input_usd_per_mtok=0.6,
                    cache_write_usd_per_mtok=7.5,
                ),
            ),
        ),
    )


@pytest.mark.parametrize("hour", [0, 12, 20])
def test_a_price_by_the_hour_is_the_dearest_of_the_day(hour: int) -> None:
    """DeepSeek's nights are cheaper; what is shown is never below what is paid."""
    listing = look_up("https://api.deepseek.com/v1", "deepseek-chat", NOW.replace(hour=hour))
    assert listing is not None
    assert listing.price is not None
    assert (listing.price.input_usd_per_mtok, listing.price.output_usd_per_mtok) == (0.27, 1.1)


@pytest.mark.parametrize(
    ("base_url", "model", "usd_per_mtok"),
    [
        (OPENAI, "text-embedding-3-small", 0.02),
        ("https://x.openai.azure.com/openai", "text-embedding-ada-002", 0.1),
    ],
)
def test_an_embedding_costs_its_input(base_url: str, model: str, usd_per_mtok: float) -> None:
    """What has no tokens of output needs no price for them."""
    listing = look_up(base_url, model, NOW)
    assert listing is not None
    assert listing.price == Price(input_usd_per_mtok=usd_per_mtok, output_usd_per_mtok=0)


def test_half_a_listed_price_is_none() -> None:
    """A model that writes, and of which the list prices the input alone, has no price."""
    listing = look_up("https://x.openai.azure.com/openai", "davinci", NOW)
    assert listing is not None
    assert listing.price is None


@pytest.mark.parametrize(
    ("base_url", "model"),
    [
        ("http://127.0.0.1:8000/v1", "gpt-4o"),
        ("https://llm.example.com/v1", "gpt-4o"),
        (OPENAI, "gpt-4o-of-mine"),
        ("https://mine.openai.azure.com/openai/v1", "my-deployment"),
    ],
)
def test_a_namesake_has_no_price(base_url: str, model: str) -> None:
    """A server of one's own is not priced by what its model is called, nor a stranger at all."""
    assert look_up(base_url, model, NOW) is None


def pool(models: dict[str, Deployment], price: Price | None = None, **router: str) -> Pool:
    """Build a pool of these and the arm `small`, priced as profiled at 1 USD."""
    own = Deployment(upstream_model="small", base_url="http://h/v1")
    made = (
        Model(name="small", deployments=(own,)),
        *(Model(name=n, deployments=(d,), price=price) for n, d in models.items()),
    )
    section = RouterSettings.model_validate(router)
    settings = Settings(models=made, router=section, source="config.yaml")
    return Pool.build(settings, manifest())


def test_the_file_s_price_counts_before_the_list_s() -> None:
    """An operator's contract is what is paid."""
    gpt = Deployment(upstream_model="gpt-4o", base_url=OPENAI)
    assert pool({"gpt": gpt}).models["gpt"].price == GPT
    assert pool({"gpt": gpt}, OWN).models["gpt"].price == OWN


def test_an_arm_s_profiled_price_is_the_last_resort() -> None:
    """A model that plays an arm costs what the arm was profiled at, where nobody lists it."""
    assert pool({}).models["small"].price == Price(input_usd_per_mtok=1, output_usd_per_mtok=1)


def test_an_operator_s_name_may_be_listed_as_another() -> None:
    """Azure's deployments have any name; `listed_as` says what they are."""
    azure = Deployment(
        upstream_model="mine", listed_as="gpt-4o", base_url="https://x.openai.azure.com/openai/v1"
    )
    model = pool({"gpt": azure}).models["gpt"]
    assert model.price == GPT
    assert model.capabilities == Capabilities(context_window_tokens=128_000)


def test_an_unknown_price_stops_the_start() -> None:
    """Nobody finds out from the bill: the error names the model and what to write."""
    own = Deployment(upstream_model="llama", base_url="http://h/v1")
    with pytest.raises(ConfigError, match=r"model_list: local: .*input_cost_per_token") as caught:
        pool({"local": own})
    assert caught.value.source == "config.yaml"
    assert pool({"local": own}, unknown_prices="allow").models["local"].price is None
