"""A gateway in front of scripted providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydantic import SecretStr

from router_service.policies.costs import Price
from router_service.serving.app import create_app
from router_service.settings import (
    Deployment,
    Model,
    RouterSettings,
    Settings,
    UpstreamSettings,
)
from tests.apis import APIS, UpstreamApi
from tests.fakes import FakeRouter
from tests.gateways import NO_RETRIES
from tests.serving import served

ARMS = ("small", "medium", "large")
"""The fake router's arms: it chooses `medium`, and then `large`."""

PRICE = Price(input_usd_per_mtok=1, output_usd_per_mtok=5)
ALIASES = RouterSettings(aliases={"claude-*": "switchcraft", "gpt-*": "switchcraft"})
"""The names that coding agents ask for are routed."""


def deployment(
    url: str,
    dialect: UpstreamApi,
    upstreams: UpstreamSettings = NO_RETRIES,
    *,
    model: str = "scripted",
    provider: str = "",
) -> Deployment:
    """Return a deployment of a model that reasons, at a provider with one API."""
    return Deployment(
        upstream_model=model,
        base_url=f"{url}/v1",
        api_key=SecretStr(f"key-of-{model}"),
        apis=(dialect,),
        provider=provider,
        supports_reasoning=True,
        timeouts=upstreams.timeouts,
    )


@contextmanager
def gateway(
    models: Mapping[str, Deployment], upstreams: UpstreamSettings = NO_RETRIES
) -> Iterator[str]:
    """Serve a gateway with these models; yield its address, http://HOST:PORT.

    Models that have the names of `ARMS` are routed to. If there is none, requests name a model.
    """
    router = FakeRouter()
    spare = next(iter(models.values()))
    all_models = {**dict.fromkeys(ARMS, spare), **models}
    listed = tuple(
        Model(name=name, deployments=(each,), price=PRICE) for name, each in all_models.items()
    )
    settings = Settings.sandbox(spare.base_url, ARMS, upstreams=upstreams)
    settings = settings.model_copy(update={"models": listed, "router": ALIASES})
    with served(create_app(settings, router)) as url:
        yield url


def names(dialects: Sequence[UpstreamApi] = APIS.of_upstreams) -> dict[UpstreamApi, str]:
    """Return a model's name for each API."""
    return {dialect: f"{dialect}-model" for dialect in dialects}
