"""The models that requests can reach, and which of them plays which arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from router_service.core.artifact import Manifest
from router_service.core.capabilities import Requirements
from router_service.core.cost import Price
from router_service.core.errors import ConfigError, NoCapableModelError
from router_service.prices import Listing, look_up
from router_service.settings import Deployment, Model, Settings
from router_service.store.base import UpstreamObject

UNPRICED = (
    "its price is unknown; give its model_info the input_cost_per_token and output_cost_per_token "
    "(0 where it costs nothing), a base_model that its provider lists, or set "
    "router.unknown_prices: allow"
)


@dataclass(frozen=True, slots=True)
class Pool:
    """Models by name and by arm; the price of each is in it, and None where it is unknown."""

    models: Mapping[str, Model]
    by_arm: Mapping[str, Model]
    chat_models: tuple[Model, ...]
    """Who answers requests without tools: the first, and where it cannot, the next."""
    pass_through: Model | None = None
    """Who answers what the gateway does not serve itself, by its first deployment alone."""
    baseline: Model | None = None
    """Whose price savings are counted against."""

    @classmethod
    def build(cls, settings: Settings, manifest: Manifest) -> Pool:
        """Give the artifact's arms their models, and the models their prices.

        An arm without a model is not chosen: a pool may have fewer models than the artifact knows.
        Raises ConfigError where no arm has one, or a price is unknown that may not be.
        """
        playing = _assign_arms(settings, manifest, _by_name(settings.models, settings))
        models = _by_name(_completed(settings, playing, manifest), settings)
        by_arm = _assign_arms(settings, manifest, models)
        chat_models = tuple(_chat_models(settings, manifest, models, by_arm))
        pass_through = _pass_through(settings, models)
        baseline = _named_in(settings, models, "baseline_model")
        return cls(models, by_arm, _unique(chat_models), pass_through, baseline)

    def pinned(self, model: Model, wanted: Requirements) -> tuple[Model, ...]:
        """Return a model that a request named, and those that answer where it fails.

        Whoever names a model gets it: what it cannot do is for its upstream to say.
        """
        fallbacks = (self.models[name] for name in model.fallbacks)
        return (model, *(other for other in fallbacks if not other.capabilities.lacks(wanted)))

    def capable_arms(self, wanted: Requirements) -> frozenset[str]:
        """Return the arms that can serve a request; raises NoCapableModelError."""
        able = {model.name for model in capable(self.by_arm.values(), wanted)}
        return frozenset(arm for arm, model in self.by_arm.items() if model.name in able)

    def playing(self, arms: Iterable[str]) -> tuple[Model, ...]:
        """Return the models of these arms, in their order, each once."""
        return _unique(self.by_arm[arm] for arm in arms)

    def holder(self, held: UpstreamObject | None) -> Model | None:
        """Return the model that holds a response, with the deployment that does so alone.

        What is not known may be known to the upstream that everything else is passed to. None
        where there is no such one, or where the configuration has lost the holder.
        """
        if held is None:
            return self.pass_through
        model = self.models.get(held.model)
        return model and _served_by(model, lambda d: d.id == held.deployment_id)

    def beside(self, holder: Model, model: Model) -> Model | None:
        """Return a model as far as it is served by the account of a holder; None where it is not.

        A provider's models see all responses of an account.
        """
        account = _account(holder.deployments[0])
        return _served_by(model, lambda d: _account(d) == account)


def capable(models: Iterable[Model], wanted: Requirements) -> tuple[Model, ...]:
    """Return those that lack nothing that is wanted, in their order; raises NoCapableModelError."""
    models = _unique(models)
    lacks = {model.name: model.capabilities.lacks(wanted) for model in models}
    able = tuple(model for model in models if not lacks[model.name])
    if not able:
        is_too_long = any(model.capabilities.is_too_short(wanted) for model in models)
        raise NoCapableModelError(lacks, is_too_long=is_too_long)
    return able


def arm_prices(settings: Settings) -> dict[str, Price]:
    """Return the configured price of every arm that the file gives one, for the router."""
    named = _by_name(settings.models, settings)
    prices = {name: model.price for name, model in named.items() if model.price is not None}
    mapped = {arm: prices[name] for arm, name in settings.router.arms.items() if name in prices}
    unmapped = {name: price for name, price in prices.items() if name not in settings.router.arms}
    return unmapped | mapped


def _assign_arms(
    settings: Settings, manifest: Manifest, models: Mapping[str, Model]
) -> dict[str, Model]:
    mapping = settings.router.arms
    known = _named(models)
    for arm, name in mapping.items():
        if arm not in manifest.arms:
            problem = f"the artifact has no such arm; it has {', '.join(manifest.arms)}"
            raise ConfigError(settings.source, f"router.arms.{arm}", problem)
        if name not in models:
            problem = f"there is no model {name!r} in model_list; it has {known}"
            raise ConfigError(settings.source, f"router.arms.{arm}", problem)
    named = {arm: mapping.get(arm, arm) for arm in manifest.arms}
    by_arm = {arm: models[name] for arm, name in named.items() if name in models}
    if not by_arm:
        problem = f"no arm has a model; map some of {', '.join(manifest.arms)} to {known}"
        raise ConfigError(settings.source, "router.arms", problem)
    return by_arm


def _completed(
    settings: Settings, by_arm: Mapping[str, Model], manifest: Manifest
) -> Iterator[Model]:
    """Yield the models with their prices and context windows: the file's, else those listed.

    The price that an arm was profiled at is a list price too, and the last resort. Raises
    ConfigError where a model has none, unless the file allows it.
    """
    profiled: dict[str, Price] = {}
    for arm, model in by_arm.items():
        profiled.setdefault(model.name, manifest.profile[arm].price)
    for model in settings.models:
        listing = _listing(model)
        price = model.price or listing.price or profiled.get(model.name)
        if price is None and settings.router.unknown_prices == "refuse":
            raise ConfigError(settings.source, f"model_list: {model.name}", UNPRICED)
        known = model.capabilities
        window_tokens = known.context_window_tokens or listing.context_window_tokens
        capabilities = known.model_copy(update={"context_window_tokens": window_tokens})
        yield model.model_copy(update={"price": price, "capabilities": capabilities})


def _listing(model: Model) -> Listing:
    """Return what is listed for the first of a model's deployments that has a listing."""
    now = datetime.now(UTC)
    listings = (
        look_up(d.base_url, d.listed_as or d.upstream_model, now) for d in model.deployments
    )
    found = (listing for listing in listings if listing is not None)
    return next(found, Listing(price=None, context_window_tokens=None))


def _chat_models(
    settings: Settings,
    manifest: Manifest,
    models: Mapping[str, Model],
    by_arm: Mapping[str, Model],
) -> Iterator[Model]:
    named = _named_in(settings, models, "chat_model")
    if named is not None:
        yield named
        yield from (models[other] for other in named.fallbacks)
    costs_usd = manifest.costs_usd(arm_prices(settings))
    by_cost = sorted(zip(costs_usd, manifest.arms, strict=True))
    yield from (by_arm[arm] for _, arm in by_cost if arm in by_arm)


def _by_name(models: Iterable[Model], settings: Settings) -> dict[str, Model]:
    """Return the models by every name that they are asked for by."""
    named = {model.name: model for model in models}
    return named | {alias: named[name] for alias, name in settings.aliases.items()}


def _unique(models: Iterable[Model]) -> tuple[Model, ...]:
    return tuple({model.name: model for model in models}.values())


def _named(models: Mapping[str, Model]) -> str:
    return ", ".join(sorted(models))


def _pass_through(settings: Settings, models: Mapping[str, Model]) -> Model | None:
    model = _named_in(settings, models, "pass_through")
    if model is None:
        return None
    first = model.deployments[0]
    return _served_by(model, lambda d: d == first)


def _named_in(
    settings: Settings,
    models: Mapping[str, Model],
    field: Literal["baseline_model", "chat_model", "pass_through"],
) -> Model | None:
    """Return the model that a field of `router` names; raises ConfigError for an unknown one."""
    name: str | None = getattr(settings.router, field)
    if name is not None and name not in models:
        problem = f"there is no model {name!r} in model_list; it has {_named(models)}"
        raise ConfigError(settings.source, f"router.{field}", problem)
    return None if name is None else models[name]


def _served_by(model: Model, is_it: Callable[[Deployment], bool]) -> Model | None:
    """Return a model with those of its deployments alone, and nobody in its place."""
    chosen = tuple(deployment for deployment in model.deployments if is_it(deployment))
    return model.model_copy(update={"deployments": chosen, "fallbacks": ()}) if chosen else None


def _account(deployment: Deployment) -> tuple[str, str | None]:
    key = deployment.api_key
    return deployment.origin, None if key is None else key.get_secret_value()
