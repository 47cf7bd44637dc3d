"""The pool: the models that requests can reach, and the arms that they serve."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from router_service.core.artifact import Manifest
from router_service.core.caching import ArmTerms, cache_rule
from router_service.core.capabilities import Requirements
from router_service.core.errors import NoCapableModelError
from router_service.core.selection import ArmProfile, Price
from router_service.dialects.parts import Dialect
from router_service.prices import Listing, look_up
from router_service.settings import Deployment, Model, Settings
from router_service.store.records import UpstreamObject

UNPRICED = (
    "its price is unknown; in its model_info, set input_cost_per_token and output_cost_per_token "
    "(0 if it is free), or a base_model that is in the provider's price list; or set "
    "router.unknown_prices: allow"
)

Obstacles = Callable[[Deployment], tuple[str, ...]]
"""Returns descriptions of what keeps a request from being sent to a deployment: the fields that the
APIs of its upstream cannot express."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Models by name and by arm, with their prices as far as they are known."""

    models: Mapping[str, Model]
    """Models by name and by alias."""
    by_arm: Mapping[str, Model]
    arm_models: tuple[Model, ...]
    """The models of the arms, each once."""
    chat_models: tuple[Model, ...]
    """The models for requests without tools, in the order to try them."""
    pass_through: Model | None = None
    """The model whose first deployment gets the requests that the gateway does not serve itself."""
    baseline: Model | None = None
    """The model whose price is the reference for savings."""
    terms: Mapping[str, ArmTerms] = field(default_factory=dict)
    """What each arm charges, and when its provider caches prompts."""

    @classmethod
    def build(cls, settings: Settings, manifest: Manifest) -> Pool:
        """Assign models to the artifact's arms, and prices to the models.

        A pool may have fewer models than the artifact has arms; an arm without a model is never
        chosen. Raises ConfigError if no arm has a model, or if the price of a model is unknown
        and `router.unknown_prices` does not allow this.
        """
        unpriced = _by_name(settings.models, settings)
        models = _by_name(
            _priced_models(settings, _assign_arms(settings, manifest, unpriced), manifest), settings
        )
        by_arm = _assign_arms(settings, manifest, models)
        named = _model_named_by(settings, models, "chat_model")
        chat_models = [] if named is None else [named, *(models[n] for n in named.fallbacks)]
        costs_usd = manifest.costs_usd(arm_prices(settings))
        by_cost = sorted(zip(costs_usd, manifest.arms, strict=True))
        chat_models += (by_arm[arm] for _, arm in by_cost if arm in by_arm)
        pass_through = _model_named_by(settings, models, "pass_through")
        if pass_through is not None:
            first = pass_through.deployments[0]
            pass_through = _only_deployments(pass_through, lambda d: d == first)
        baseline = _model_named_by(settings, models, "baseline_model")
        if baseline is None:
            baseline = by_arm.get(manifest.best_single_arm or "")
        arm_models = _unique(by_arm.values())
        terms = {arm: _terms(model, manifest.profile[arm]) for arm, model in by_arm.items()}
        return cls(models, by_arm, arm_models, _unique(chat_models), pass_through, baseline, terms)

    def pinned(self, model: Model, wanted: Requirements, obstacles: Obstacles) -> tuple[Model, ...]:
        """Return the model that a request names, and its fallbacks that can serve the request.

        The named model is tried first, because only its upstream can tell what it supports. Raises
        NoCapableModelError if the request cannot even be sent to it.
        """
        missing = untranslatable(model, obstacles)
        if missing:
            raise NoCapableModelError({model.name: missing})
        others = (self.models[name] for name in model.fallbacks)
        return (model, *(other for other in others if not lacks(other, wanted, obstacles)))

    def models_for(self, arms: Iterable[str]) -> tuple[Model, ...]:
        """Return the models of these arms in their order, each once."""
        models = {self.by_arm[arm].name: self.by_arm[arm] for arm in arms}
        return tuple(models.values())

    def holder(self, held: UpstreamObject | None) -> Model | None:
        """Return the model that stored a response, with only the deployment that has it.

        For an unknown response (`held` is None), returns the pass-through model, whose upstream may
        know the response. Returns None if there is no pass-through model, or if the model or the
        deployment is no longer configured.
        """
        if held is None:
            return self.pass_through
        model = self.models.get(held.model)
        return model and _only_deployments(model, lambda d: d.id == held.deployment_id)

    def at_same_account(self, holder: Model, model: Model) -> Model | None:
        """Return a model with only its deployments at the holder's account; None if it has none.

        At a provider, every model can read all responses that are stored in the same account.
        """

        def account(deployment: Deployment) -> tuple[str, str | None]:
            key = deployment.api_key
            return deployment.origin, None if key is None else key.get_secret_value()

        wanted = account(holder.deployments[0])
        return _only_deployments(model, lambda d: account(d) == wanted)


def capable_models(
    models: Sequence[Model], wanted: Requirements, obstacles: Obstacles
) -> tuple[Model, ...]:
    """Return the models that can serve a request; raises NoCapableModelError if none can."""
    missing = {model.name: lacks(model, wanted, obstacles) for model in models}
    able = tuple(model for model in models if not missing[model.name])
    if not able:
        excesses = [model.capabilities.excess_tokens(wanted) for model in models]
        least = min((excess for excess in excesses if excess is not None), default=None)
        raise NoCapableModelError(missing, excess_tokens=least)
    return able


def native_models(models: Sequence[Model], dialect: Dialect | None) -> tuple[Model, ...]:
    """Return the models with only their deployments that speak an API; others are left out."""
    found = (_only_deployments(model, lambda d: dialect in d.dialects) for model in models)
    return tuple(model for model in found if model is not None)


def lacks(model: Model, wanted: Requirements, obstacles: Obstacles) -> tuple[str, ...]:
    """Return descriptions of what keeps a model from serving a request."""
    return (*model.capabilities.lacks(wanted), *untranslatable(model, obstacles))


def untranslatable(model: Model, obstacles: Obstacles) -> tuple[str, ...]:
    """Return what cannot be sent to a model, or nothing if one of its deployments can get it."""
    found = [obstacles(deployment) for deployment in model.deployments]
    return () if () in found else found[0]


def arm_prices(settings: Settings) -> dict[str, Price]:
    """Return the configured prices by arm; an arm without one is left out."""
    named = _by_name(settings.models, settings)
    prices = {name: model.price for name, model in named.items() if model.price is not None}
    mapped = {arm: prices[name] for arm, name in settings.router.arms.items() if name in prices}
    unmapped = {name: price for name, price in prices.items() if name not in settings.router.arms}
    return unmapped | mapped


def _assign_arms(
    settings: Settings, manifest: Manifest, models: Mapping[str, Model]
) -> dict[str, Model]:
    """Return the model of each arm that has one.

    Raises ConfigError if none has, or if the configuration names an unknown arm or model.
    """
    mapping = settings.router.arms
    problems: dict[str, str] = {}
    for arm, name in mapping.items():
        if arm not in manifest.arms:
            problem = f"the artifact has no such arm; {_instead_of(arm, manifest.arms)}"
            problems[f"router.arms.{arm}"] = problem
        elif name not in models:
            problem = f"there is no model {name!r} in model_list; {_instead_of(name, models)}"
            problems[f"router.arms.{arm}"] = problem
    if problems:
        raise settings.errors(problems)
    named = {arm: mapping.get(arm, arm) for arm in manifest.arms}
    by_arm = {arm: models[name] for arm, name in named.items() if name in models}
    if not by_arm:
        problem = (
            f"no arm has a model; map at least one of the arms {', '.join(manifest.arms)} to one "
            f"of the models {', '.join(sorted(models))}"
        )
        raise settings.error("router.arms", problem)
    return by_arm


def _priced_models(
    settings: Settings, by_arm: Mapping[str, Model], manifest: Manifest
) -> list[Model]:
    """Return the models with prices and context windows from the configuration or the price list.

    The last resort is the price that an arm was profiled at, which is a list price too. Raises
    ConfigError if a model has no price, unless the configuration allows it.
    """
    profiled: dict[str, Price] = {}
    for arm, model in by_arm.items():
        profiled.setdefault(model.name, manifest.profile[arm].price)
    now = datetime.now(UTC)
    models: list[Model] = []
    problems: dict[str, str] = {}
    for model in settings.models:
        listings = (
            look_up(d.base_url, d.listed_as or d.upstream_model, now) for d in model.deployments
        )
        unlisted = Listing(provider="", price=None, context_window_tokens=None)
        listing = next((found for found in listings if found is not None), unlisted)
        price = model.price or listing.price or profiled.get(model.name)
        if price is None and settings.router.unknown_prices == "refuse":
            problems[f"model_list: {model.name}"] = UNPRICED
        known = model.capabilities
        window_tokens = known.context_window_tokens or listing.context_window_tokens
        capabilities = known.model_copy(update={"context_window_tokens": window_tokens})
        changes = {"price": price, "capabilities": capabilities, "provider": listing.provider}
        models.append(model.model_copy(update=changes))
    if problems:
        raise settings.errors(problems)
    return models


def _instead_of(name: str, known: Collection[str]) -> str:
    """Return what to write instead of an unknown name."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"use one of {', '.join(sorted(known))}"


def _terms(model: Model, profile: ArmProfile) -> ArmTerms:
    """Return what an arm charges. A price for cached input shows that its provider has a cache."""
    price = model.price or profile.price
    has_cache = price.cached_input_usd_per_mtok is not None
    rule = cache_rule(model.provider, model.deployments[0].upstream_model) if has_cache else None
    return ArmTerms(price, profile.output_tokens, profile.seconds, rule)


def _by_name(models: Iterable[Model], settings: Settings) -> dict[str, Model]:
    """Return the models by name and by alias."""
    named = {model.name: model for model in models}
    return named | {alias: named[name] for alias, name in settings.aliases.items()}


def _unique(models: Iterable[Model]) -> tuple[Model, ...]:
    return tuple({model.name: model for model in models}.values())


def _model_named_by(
    settings: Settings,
    models: Mapping[str, Model],
    field: Literal["baseline_model", "chat_model", "pass_through"],
) -> Model | None:
    """Return the model that a field of `router` names; raises ConfigError for an unknown one."""
    name: str | None = getattr(settings.router, field)
    if name is not None and name not in models:
        problem = f"there is no model {name!r} in model_list; {_instead_of(name, models)}"
        raise settings.error(f"router.{field}", problem)
    return None if name is None else models[name]


def _only_deployments(model: Model, is_wanted: Callable[[Deployment], bool]) -> Model | None:
    """Return a model with only some of its deployments, and without fallbacks."""
    chosen = tuple(deployment for deployment in model.deployments if is_wanted(deployment))
    return model.model_copy(update={"deployments": chosen, "fallbacks": ()}) if chosen else None
