"""The pool: the models that requests can reach, and the arms that they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property

from router_service.apis.api import Api
from router_service.artifact import Manifest
from router_service.core.errors import ConfigError, ConfigErrors, InvalidRequestError
from router_service.core.refusals import MODEL_UNPRICED, NOTHING_TO_ROUTE, no_capable_model
from router_service.policies.caching import ArmTerms, cache_rule
from router_service.policies.costs import ArmProfile, Price
from router_service.policies.explanations import arm_label
from router_service.prices import Listing, look_up, look_up_id, look_up_name
from router_service.requests.mapping import (
    ArmIds,
    ArmMapping,
    Basis,
    identify,
    instead_of,
    map_models,
)
from router_service.requests.parsing import ParsedRequest
from router_service.settings import Deployment, Model, Settings, match_wildcard
from router_service.store.records import UpstreamObject

UNPRICED = (
    "its price is unknown; in its model_info, set input_cost_per_token and output_cost_per_token "
    "(0 if it is free), or a base_model that is in the provider's price list; or set "
    "router.unknown_prices: allow"
)

MAX_WILDCARD_MODELS = 200
"""Most models of wildcards that have a name of their own in metrics, usage and circuit breakers.
Clients choose these names; any further ones appear under the name of the wildcard."""


class PoolModels(Mapping[str, Model]):
    """Models by name and by alias. Wildcards stand for further models, which are not iterated."""

    def __init__(
        self,
        named: Mapping[str, Model],
        settings: Settings | None = None,
        complete: Callable[[Model], Model] = lambda model: model,
        is_allowed: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Look up models in `named`, and then those of the wildcards in `settings`.

        `complete` adds what the file does not say about a wildcard's model. Names that are not
        `is_allowed` do not exist.
        """
        self._named = named
        self._settings = settings or Settings()
        self._complete = complete
        self._is_allowed = is_allowed
        self._found: dict[str, Model] = {}

    def __getitem__(self, name: str) -> Model:
        """Return a model; raises KeyError, or InvalidRequestError for one without a price."""
        found = self.known(name)
        return self._read(name) if found is None else found

    def known(self, name: str) -> Model | None:
        """Return a model of the file, or one of a wildcard that was named before."""
        return self._named.get(name) or self._found.get(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the file."""
        return iter(self._named)

    def __len__(self) -> int:
        """Return the number of names in the file."""
        return len(self._named)

    @property
    def used(self) -> Iterable[Model]:
        """The models of the file, and those of wildcards that clients have named."""
        return (*self._named.values(), *self._found.values())

    @property
    def patterns(self) -> tuple[str, ...]:
        """The wildcards' patterns, the most specific one first."""
        wildcards = (wildcard.pattern for wildcard in self._settings.wildcards)
        return tuple(filter(self._is_allowed, wildcards))

    def restricted(self, is_allowed: Callable[[str], bool]) -> PoolModels:
        """Return only the allowed models. An alias is allowed if the name of its model is."""
        named = {name: model for name, model in self._named.items() if is_allowed(model.name)}
        return PoolModels(named, self._settings, self._complete, is_allowed)

    def _read(self, name: str) -> Model:
        """Return the model of the first wildcard that matches; raises the errors of `[]`."""
        target = self._settings.aliases.get(name, name)
        router = self._settings.router.model_name
        is_reserved = name == router or name.startswith(f"{router}:")
        if is_reserved or not self._is_allowed(target):
            raise KeyError(name)
        for wildcard in self._settings.wildcards:
            if match_wildcard(wildcard.pattern, target) is None:
                continue
            try:
                model = self._complete(wildcard.read(target))
            except ConfigError as exc:
                raise KeyError(name) from exc
            if model.price is None and self._settings.router.unknown_prices == "refuse":
                raise MODEL_UNPRICED.error(model=target, pattern=wildcard.pattern)
            if len(self._found) < MAX_WILDCARD_MODELS:
                self._found[name] = model
                return model
            shown = {"shown_as": wildcard.pattern}
            deployments = tuple(d.model_copy(update=shown) for d in model.deployments)
            return model.model_copy(update={"name": wildcard.pattern, "deployments": deployments})
        raise KeyError(name)


@dataclass(frozen=True)
class Pool:
    """Models by name and by arm, with their prices as far as they are known."""

    models: PoolModels
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
    mapping: ArmMapping = field(default_factory=ArmMapping)
    """Why each model serves its arm, and why others serve none."""

    @classmethod
    def build(cls, settings: Settings, manifest: Manifest) -> Pool:
        """Assign models to the artifact's arms, and prices to the models.

        A pool may have fewer models than the artifact has arms, and even none; an arm without a
        model is never chosen. Raises ConfigError if the configuration maps a model to an arm that
        does not stand for it, or if the price of a model is unknown and `router.unknown_prices`
        does not allow this. The error has all problems of these kinds.
        """
        errors = ConfigErrors()
        mapping, priced = ArmMapping(), settings.models
        with errors.collecting():
            mapping = map_models(settings, manifest)
            # Without a mapping, it is unknown which models have the price of their arm.
            priced = _priced_models(settings, mapping, manifest)
        models = PoolModels(_by_name(priced, settings), settings, _with_listing)
        by_field: dict[str, Model | None] = {}
        for field_name in ("chat_model", "pass_through", "baseline_model", "last_resort"):
            with errors.collecting():
                name: str | None = getattr(settings.router, field_name)
                by_field[field_name] = _model_named_by(settings, models, field_name, name)
        with errors.collecting():
            name = settings.router.compare.model
            compared = _model_named_by(settings, models, "compare.model", name)
            if compared is not None and compared.price is None:
                problem = f"the price of {name!r} is unknown, so it has no budget; {UNPRICED}"
                raise settings.error("router.compare.model", problem)
        errors.raise_any()
        by_arm = {arm: models[name] for arm, name in mapping.models.items()}
        named = by_field["chat_model"]
        chat_models = [] if named is None else [named, *(models[n] for n in named.fallbacks)]
        costs_usd = dict(zip(manifest.arms, manifest.costs_usd(_prices(by_arm)), strict=True))
        measured = {*manifest.measured_arms}
        by_cost = sorted(by_arm, key=lambda arm: (arm not in measured, costs_usd[arm], arm))
        chat_models += (by_arm[arm] for arm in by_cost)
        pass_through = by_field["pass_through"]
        if pass_through is not None:
            first = pass_through.deployments[0]
            pass_through = _only_deployments(pass_through, lambda d: d == first)
        baseline = by_field["baseline_model"]
        if baseline is None:
            rates = manifest.base_rates
            best_arm = manifest.best_single_arm
            if not measured.intersection(by_arm):
                best_arm = max(by_arm, key=lambda arm: rates[arm], default=None)
            baseline = by_arm.get(best_arm or "")
        arm_models = _unique(by_arm.values())
        terms = {arm: _terms(model, manifest.profile[arm]) for arm, model in by_arm.items()}
        return cls(
            models,
            by_arm,
            arm_models,
            _unique(chat_models),
            pass_through,
            baseline,
            terms,
            mapping,
        )

    def restricted(
        self,
        is_allowed: Callable[[str], bool],
        *,
        passes: Callable[[str], bool],
        other_baseline: Model | None,
    ) -> Pool:
        """Return the pool with only the models whose names, without aliases, are allowed.

        Only a model that `passes` gets requests that are passed through. `other_baseline` replaces
        the baseline if that is left out.
        """

        def is_kept(model: Model | None) -> bool:
            return model is not None and is_allowed(model.name)

        passing = self.pass_through
        return replace(
            self,
            models=self.models.restricted(is_allowed),
            by_arm={arm: model for arm, model in self.by_arm.items() if is_kept(model)},
            arm_models=tuple(filter(is_kept, self.arm_models)),
            chat_models=tuple(filter(is_kept, self.chat_models)),
            pass_through=passing if passing is not None and passes(passing.name) else None,
            baseline=self.baseline if is_kept(self.baseline) else other_baseline,
        )

    @property
    def prices(self) -> Mapping[str, Price]:
        """The price of each arm, which is that of its model; an arm without one is left out."""
        return _prices(self.by_arm)

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """What people read for each arm: the model's name, and the arm's if it differs."""
        return {arm: arm_label(arm, model.name) for arm, model in self.by_arm.items()}

    def check_routable(self, model_name: str) -> None:
        """Raise InvalidRequestError if no model can answer a request for the router."""
        if not self.chat_models:
            known = ", ".join((*self.models, *self.models.patterns))
            raise NOTHING_TO_ROUTE.error(model=model_name, known=known)

    def pinned(self, model: Model, request: ParsedRequest) -> tuple[Model, ...]:
        """Return the model that a request names, and its fallbacks that can serve the request.

        The named model is tried first, because only its upstream can tell what it supports. Raises
        InvalidRequestError if the request cannot even be sent to it.
        """
        if request.translation is not None and not request.translation.able(model):
            raise no_capable_model({model.name: untranslatable(model, request)})
        if not model.fallbacks:
            return (model,)
        others = [self.models[name] for name in model.fallbacks if name in self.models]
        return (model, *[other for other in others if not lacks(other, request)])

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
        wanted = holder.deployments[0].account
        return _only_deployments(model, lambda d: d.account == wanted)


def capable_models(models: Sequence[Model], request: ParsedRequest) -> tuple[Model, ...]:
    """Return the models that can serve a request; raises InvalidRequestError if none can."""
    required, translation = request.requirements, request.translation
    # As `lacks`, but without the descriptions, which only the error needs.
    able = tuple(
        [
            model
            for model in models
            if not model.capabilities.lacks(required)
            and (translation is None or translation.able(model))
        ]
    )
    if not able:
        missing = {model.name: lacks(model, request) for model in models}
        excesses = [model.capabilities.excess_tokens(request.requirements) for model in models]
        least = min((excess for excess in excesses if excess is not None), default=None)
        raise no_capable_model(missing, excess_tokens=least)
    return able


def native_models(models: Sequence[Model], api: Api | None) -> tuple[Model, ...]:
    """Return the models with only their deployments that speak an API; others are left out."""
    found = (_only_deployments(model, lambda d: api in d.apis) for model in models)
    return tuple(model for model in found if model is not None)


def lacks(model: Model, request: ParsedRequest) -> tuple[str, ...]:
    """Return descriptions of what keeps a model from serving a request."""
    return (*model.capabilities.lacks(request.requirements), *untranslatable(model, request))


def untranslatable(model: Model, request: ParsedRequest) -> tuple[str, ...]:
    """Return what cannot be sent to a model, or nothing if one of its deployments can get it."""
    if request.translation is None:
        return ()
    if request.translation.able(model):
        return ()
    return request.translation.obstacles(model.deployments[0])


def _prices(by_arm: Mapping[str, Model]) -> dict[str, Price]:
    prices = {arm: model.price for arm, model in by_arm.items()}
    return {arm: price for arm, price in prices.items() if price is not None}


@dataclass(frozen=True, slots=True)
class PoolNote:
    """Something that an operator should know about the pool, although the gateway serves."""

    text: str
    rows: tuple[Mapping[str, str], ...] = ()
    """The models or arms that it is about, as the table of a log line."""
    lines: tuple[str, ...] = ()
    """The same rows as sentences."""
    is_warning: bool = True


def pool_notes(pool: Pool, measured_prices: Mapping[str, Price]) -> tuple[PoolNote, ...]:
    """Return what startup, reloads and `check` say about a pool.

    `measured_prices` are the prices, by arm, that the artifact's figures were measured at.
    """
    notes: list[PoolNote] = []
    mapping = pool.mapping
    if not pool.by_arm:
        named = pool.chat_models[0].name if pool.chat_models else None
        instead = "are refused" if named is None else f"go to router.chat_model ({named})"
        text = f"the router knows none of the models of model_list: requests for it {instead}"
        notes.append(PoolNote(text, lines=(text,)))
    if mapping.stand_ins:
        notes.append(
            PoolNote(
                "router.stand_ins: arms are served by other models than the measured ones",
                tuple({"arm": arm, "model": model} for arm, model in mapping.stand_ins.items()),
                tuple(
                    f"{model} stands in for {arm} (router.stand_ins): the figures of {arm} are "
                    "those of another model"
                    for arm, model in mapping.stand_ins.items()
                ),
            )
        )
    estimated = [arm for arm, basis in mapping.bases.items() if basis is Basis.ESTIMATED]
    if estimated:
        text = (
            "not measured by the artifact, so they take part in verified answers only, and their"
            f" accuracy is estimated from their prices: {', '.join(estimated)}."
            " `switchcraft onboard CONFIG` measures them with 100 queries each. To serve them by"
            " name only, set router.unknown_models: name_only"
        )
        notes.append(PoolNote(text, lines=(text,)))
    if mapping.unrouted:
        notes.append(
            PoolNote(
                "some models are served by name only; the router never chooses them",
                tuple(
                    {"model": each.model, "why": each.reason, "remedy": each.remedy}
                    for each in mapping.unrouted
                ),
                tuple(
                    f"{each.model} is served by name only: {each.reason}; {each.remedy}"
                    for each in mapping.unrouted
                ),
            )
        )
    unproven = [arm for arm, basis in mapping.bases.items() if basis is Basis.UNPROVEN]
    if unproven:
        models = ", ".join(mapping.models[arm] for arm in unproven)
        text = (
            f"recognized by their names only, because their addresses are not those of known "
            f"providers: {models}"
        )
        notes.append(PoolNote(text, lines=(text,), is_warning=False))
    uncached = [
        model.name
        for model in pool.models.used
        if not model.provider
        and model.price is not None
        and model.price.input_usd_per_mtok
        and model.price.cached_input_usd_per_mtok is None
    ]
    if uncached:
        text = (
            "the price of cached input is unknown, so it counts like other input, which may be "
            "four times its cost; set cache_read_input_token_cost in model_info: "
            f"{', '.join(uncached)}"
        )
        notes.append(PoolNote(text, lines=(text,)))
    present = {arm: _in_and_out(price) for arm, price in pool.prices.items()}
    changes = {
        arm: (before, now)
        for arm, now in present.items()
        if (before := _in_and_out(measured_prices[arm])) != now
    }
    if changes:
        listed = (f"{arm} {before} -> {now}" for arm, (before, now) in changes.items())
        text = "costs use other prices than the measured ones"
        line = f"{text}, in USD per million tokens (input/output): {', '.join(listed)}"
        notes.append(PoolNote(line, lines=(line,), is_warning=False))
    return tuple(notes)


def _in_and_out(price: Price) -> str:
    if price.usd_per_hour is not None:
        return f"{price.usd_per_hour:g} per hour"
    return f"{price.input_usd_per_mtok:g}/{price.output_usd_per_mtok:g}"


def _priced_models(
    settings: Settings, mapping: ArmMapping, manifest: Manifest
) -> tuple[Model, ...]:
    """Return the models with prices and context windows from the configuration or the price list.

    This is the only place where prices are found: routing and billing use the same ones. The last
    resort is the price that an arm was profiled at, which is a list price too, but of the model
    that the arm stands for. Raises ConfigError if a model has no price, unless the configuration
    allows it.
    """
    profiled: dict[str, Price] = {}
    for arm, name in mapping.models.items():
        if mapping.bases[arm] is not Basis.STAND_IN:
            profiled.setdefault(name, manifest.profile[arm].price)
    ids = ArmIds(manifest.stands_for)
    for model in settings.models:  # the same model at another address costs the same
        identity = identify(model, ids)
        if identity.arm in mapping.models and identity.is_routable:
            profiled.setdefault(model.name, manifest.profile[identity.arm].price)
    models = tuple(_with_listing(model, profiled.get(model.name)) for model in settings.models)
    unpriced = [model.name for model in models if model.price is None]
    if unpriced and settings.router.unknown_prices == "refuse":
        raise settings.errors({f"model_list: {name}": UNPRICED for name in unpriced})
    return models


def _with_listing(model: Model, last_resort: Price | None = None) -> Model:
    """Return a model with the list's price and context window for those that it does not have.

    If the price is not listed either, it gets the last resort. At an address that is not listed, a
    price without one for cached input gets that of the model's name, in the same proportion to the
    other input: behind a proxy, providers still cache what agents repeat.
    """
    now = datetime.now(UTC)
    listings = (_listing(deployment, now) for deployment in model.deployments)
    unlisted = Listing(provider="", price=None, context_window_tokens=None)
    listing = next((found for found in listings if found is not None), unlisted)
    price = model.price or listing.price or last_resort
    if listing is unlisted and price is not None and price.cached_input_usd_per_mtok is None:
        price = _with_cached_input(price, model, now)
    known = model.capabilities
    window_tokens = known.context_window_tokens or listing.context_window_tokens
    changes = {
        "price": price,
        "capabilities": known.model_copy(update={"context_window_tokens": window_tokens}),
        "provider": listing.provider,
    }
    return model.model_copy(update=changes)


def _with_cached_input(price: Price, model: Model, now: datetime) -> Price:
    names = (*(deployment.listed_as for deployment in model.deployments), model.name)
    for found in (look_up_name(name, now) for name in names):
        listed = None if found is None else found.price
        if listed is None or price.input_usd_per_mtok is None:
            continue
        if listed.input_usd_per_mtok and listed.cached_input_usd_per_mtok is not None:
            share = listed.cached_input_usd_per_mtok / listed.input_usd_per_mtok
            cached = round(share * price.input_usd_per_mtok, 9)
            return price.model_copy(update={"cached_input_usd_per_mtok": cached})
    return price


def _listing(deployment: Deployment, now: datetime) -> Listing | None:
    """Return a deployment's entry in the price list, by its address or its platform."""
    name = deployment.listed_as
    if deployment.platform is None or deployment.provider == "azure":
        found = look_up(deployment.base_url, name, now)
        # At an address of the operator's own, only `base_model` says whose model it is.
        return found or look_up_id(deployment.base_model or "", now)
    return look_up_id(name if deployment.base_model else f"{deployment.provider}/{name}", now)


def _terms(model: Model, profile: ArmProfile) -> ArmTerms:
    """Return what an arm charges. A price for cached input shows that its provider has a cache."""
    price = model.price or profile.price
    has_cache = price.cached_input_usd_per_mtok is not None
    rule = cache_rule(model.provider, model.deployments[0].upstream_model) if has_cache else None
    return ArmTerms(price, profile.output_tokens, profile.seconds, rule)


def _by_name(models: Iterable[Model], settings: Settings) -> dict[str, Model]:
    """Return the models by name and by alias."""
    named = {model.name: model for model in models}
    aliases = {alias: named[n] for alias, n in settings.aliases.items() if n in named}
    return named | aliases


def _unique(models: Iterable[Model]) -> tuple[Model, ...]:
    return tuple({model.name: model for model in models}.values())


def _model_named_by(
    settings: Settings, models: PoolModels, field: str, name: str | None
) -> Model | None:
    """Return the model that a field of `router` names; raises ConfigError for an unknown one."""
    if name is None:
        return None
    try:
        return models[name]
    except KeyError:
        problem = f"there is no model {name!r} in model_list; {instead_of(name, models)}"
        raise settings.error(f"router.{field}", problem) from None
    except InvalidRequestError as exc:
        problem = f"the price of {name!r} is unknown; list it in model_list with its price"
        raise settings.error(f"router.{field}", problem) from exc


def _only_deployments(model: Model, is_wanted: Callable[[Deployment], bool]) -> Model | None:
    """Return a model with only some of its deployments, and without fallbacks."""
    chosen = tuple(deployment for deployment in model.deployments if is_wanted(deployment))
    return model.model_copy(update={"deployments": chosen, "fallbacks": ()}) if chosen else None
