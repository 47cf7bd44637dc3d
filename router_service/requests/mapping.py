"""Which model serves which arm: models map themselves by the ids that the arms stand for.

An arm's figures are those of one measured model. A configured model gets them only if it is that
model, or if the operator accepts it as a stand-in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from router_service.artifact import Manifest
from router_service.settings import Deployment, Model, Settings
from router_service.settings.deployments import PROVIDERS
from router_service.settings.platforms import AZURE_HOSTS

ONBOARD = "let it join with `switchcraft onboard CONFIG`, which asks 100 queries"
"""How a model that no arm stands for becomes an arm."""

EFFORT_PARAMETERS = frozenset(
    "chat_template_kwargs enable_thinking google output_config reasoning reasoning_effort thinking"
    " thinking_budget".split()
)
"""Request parameters that make a deployment another model than the measured one. In `google`,
Gemini's API has the budget for thinking."""

_LOCATION = re.compile(r"^(us|eu|apac|jp|au|ca|global|us-gov)\.(?=[a-z])")
"""Prefix of an inference profile at Bedrock, which serves the same model from other regions."""

_VENDOR = re.compile(r"^[a-z]+\.(?=[a-z])")
"""Prefix of a model's id at Bedrock: its company."""

_SNAPSHOT = re.compile(
    r"([-@]20\d\d-?\d\d-?\d\d)?(-v\d+)?(-preview|-latest|@default)?(:[a-z0-9]+)?$"
)
"""End of an id that says which snapshot of a model it is, or which variant of its service."""

_SHORTEST_TYPO = 4
"""Fewest letters of a word in which one wrong letter counts as a misspelling."""


class Basis(StrEnum):
    """Why a model serves an arm."""

    ID = "id"
    """The arm stands for the id of each of the model's deployments."""
    NAME = "name"
    """The model has the arm's name, and the artifact does not say which model the arm stands for,
    or a sandbox answers."""
    UNPROVEN = "unproven"
    """The arm stands for a model of this name, but the address is not that of a known provider."""
    STATED = "stated"
    """`router.arms` says so, and no id contradicts it."""
    STAND_IN = "stand_in"
    """`router.stand_ins` says so: the model is not the measured one."""
    ESTIMATED = "estimated"
    """No arm stands for the model, so it has one of its own, whose figures are estimates."""


@dataclass(frozen=True, slots=True)
class UnroutedModel:
    """A model that is served by name only, because no arm is used for it."""

    model: str
    reason: str
    remedy: str
    """How the model can be routed to."""
    is_unknown: bool = False
    """Whether the artifact has not measured the model."""


@dataclass(frozen=True, slots=True)
class ArmMapping:
    """The model of each arm that has one, and the models without an arm."""

    models: Mapping[str, str] = field(default_factory=dict)
    """Names of models, by arm in the artifact's order."""
    bases: Mapping[str, Basis] = field(default_factory=dict)
    """Why each of these models serves its arm."""
    unrouted: tuple[UnroutedModel, ...] = ()
    """Models that answer conversations and have no arm, except those whose arm is kept out."""

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """The models of `router.stand_ins`, by arm."""
        return {arm: m for arm, m in self.models.items() if self.bases[arm] is Basis.STAND_IN}


def map_models(settings: Settings, manifest: Manifest) -> ArmMapping:
    """Assign the configured models to the artifact's arms.

    Raises ConfigError if `router.arms` or `router.stand_ins` names an unknown arm or model, or if
    `router.arms` names a model that the arm does not stand for.
    """
    return _Mapper(settings, manifest).mapping()


class _Mapper:
    """Assigns the models of one configuration to the arms of one artifact."""

    def __init__(self, settings: Settings, manifest: Manifest) -> None:
        self._settings = settings
        self._arms = manifest.arms
        self._estimated = {*manifest.arms} - {*manifest.measured_arms}
        # A sandbox answers for any model.
        self._stands_for = {} if settings.is_sandbox else manifest.stands_for
        self._ids = ArmIds(self._stands_for)
        self._models = {model.name: model for model in settings.models}
        self._named = self._models | {
            alias: self._models[name]
            for alias, name in settings.aliases.items()
            if name in self._models
        }
        self._identities = {
            model.name: identify(model, self._ids) for model in self._models.values()
        }

    def mapping(self) -> ArmMapping:
        """Return the mapping; raises the errors of `map_models`."""
        models, bases = self._explicit()
        kept_out = {arm for arm, name in self._settings.router.arms.items() if name is None}
        for arm in self._arms:
            if arm in models or arm in kept_out:
                continue
            found = self._own_model(arm, set(models.values()))
            if found is not None:
                models[arm], bases[arm] = found
        ordered = [arm for arm in self._arms if arm in models]
        return ArmMapping(
            {arm: models[arm] for arm in ordered},
            {arm: bases[arm] for arm in ordered},
            tuple(self._unrouted(models, kept_out)),
        )

    def _explicit(self) -> tuple[dict[str, str], dict[str, Basis]]:
        """Return the models and bases of the arms that the configuration names."""
        router = self._settings.router
        models: dict[str, str] = {}
        bases: dict[str, Basis] = {}
        problems: dict[str, str] = {}
        sections = (("router.arms", router.arms), ("router.stand_ins", router.stand_ins))
        for section, entries in sections:
            for arm, name in entries.items():
                where = f"{section}.{arm}"
                if arm not in self._arms:
                    remedy = self._ids.instead_of(arm, self._arms)
                    problems[where] = f"the artifact has no such arm; {remedy}"
                elif name is None:
                    continue
                elif name not in self._named:
                    remedy = instead_of(name, self._named)
                    problems[where] = f"there is no model {name!r} in model_list; {remedy}"
                elif arm in models:
                    problems[where] = "router.arms has this arm too; remove one of the two"
                else:
                    model = self._named[name]
                    basis = self._basis(arm, model)
                    if basis is None and section == "router.arms":
                        problems[where] = self._refusal(arm, model)
                    models[arm], bases[arm] = model.name, basis or Basis.STAND_IN
        if problems:
            raise self._settings.errors(problems)
        return models, bases

    def _basis(self, arm: str, model: Model) -> Basis | None:
        """Return why a model may serve an arm that the configuration names; None if it may not."""
        identity = self._identities[model.name]
        if arm not in self._stands_for:
            return Basis.NAME if arm == model.name else Basis.STATED
        is_other = identity.obstacle is not None or identity.arm != arm
        return None if is_other else identity.basis

    def _refusal(self, arm: str, model: Model) -> str:
        """Return why a model must not serve an arm, and what to do."""
        identity = self._identities[model.name]
        measured = self._stands_for[arm][0]
        found = f"the model {model.name!r} is {identity.text}, and this arm is {measured}"
        if identity.obstacle is not None:
            found = f"the model {model.name!r} is not {measured} as measured: {identity.obstacle}"
        elif identity.arm is not None:
            found += f"; write {identity.arm}: {model.name}"
        elif identity.basis is not Basis.ID:
            found += f" (if it is that model, set its model_info.base_model: {measured})"
        return (
            f"{found}. Remove this line to serve the model by name, and {ONBOARD}; or move the line"
            " to router.stand_ins to use the arm's figures for it nevertheless"
        )

    def _own_model(self, arm: str, taken: set[str]) -> tuple[str, Basis] | None:
        """Return the first model that serves an arm without being told to."""
        if arm in self._estimated:
            return (arm, Basis.ESTIMATED) if arm in self._models else None
        if arm not in self._stands_for:
            if arm in self._named:
                return self._named[arm].name, Basis.NAME
            named = (
                model.name
                for model in self._models.values()
                if model.name not in taken
                and all(d.upstream_model == arm for d in model.deployments)
            )
            name = next(named, None)
            return None if name is None else (name, Basis.NAME)
        for name, identity in self._identities.items():
            is_free = name not in taken
            if is_free and identity.is_routable and identity.arm == arm:
                return name, identity.basis
        return None

    def _unrouted(self, models: Mapping[str, str], kept_out: set[str]) -> Iterator[UnroutedModel]:
        used = set(models.values())
        for model in self._models.values():
            if model.name in used or not any(d.apis for d in model.deployments):
                continue
            identity = self._identities[model.name]
            if identity.is_routable and identity.arm in kept_out:
                continue  # as the operator wants it
            is_unknown = identity.arm is None or identity.obstacle is not None
            yield UnroutedModel(model.name, *self._why_unrouted(model, models), is_unknown)

    def _why_unrouted(self, model: Model, models: Mapping[str, str]) -> tuple[str, str]:
        """Return the reason and the remedy."""
        identity = self._identities[model.name]
        arm = identity.arm
        if identity.obstacle is not None:
            return identity.obstacle, ONBOARD
        if arm is None:
            nameless = [a for a in self._arms if a not in models and a not in self._stands_for]
            if nameless:
                remedy = f"if it is one of the arms {', '.join(nameless)}, map it in router.arms"
                return f"no arm has the name {model.name!r}", f"{remedy}; otherwise, {ONBOARD}"
            return f"the router has not measured {identity.text}", ONBOARD
        if arm in models:
            remedy = f"set router.arms to {{{arm}: {model.name}}}"
            return f"the model {models[arm]!r} serves the arm {arm}", f"{remedy} to use this one"
        address = model.deployments[0].address
        reason = f"it is called {identity.text}, and {address} is not a known provider's address"
        return reason, (
            f"if it is {self._stands_for[arm][0]}, set that as its model_info.base_model, or set "
            f"router.arms to {{{arm}: {model.name}}}"
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """Which model a configured model is, as far as its deployments say."""

    text: str
    """The id or the name of the model at its upstream."""
    arm: str | None
    """The arm that stands for the id, or that has the name."""
    basis: Basis
    """How the arm was found: by ids, by the arm's name, or by a name that says too little."""
    obstacle: str | None = None
    """Why the model is not the one that an arm stands for, although an id may say so."""

    @property
    def is_routable(self) -> bool:
        """Whether the model may serve its arm without being told to."""
        return self.basis is not Basis.STATED and self.obstacle is None


class ArmIds:
    """The arms of an artifact by the ids and the names of the models that they stand for."""

    def __init__(self, stands_for: Mapping[str, Iterable[str]]) -> None:
        """Index the ids that `Manifest.stands_for` lists."""
        self._by_id: dict[str, str] = {}
        self._by_arm = {_normal(arm): arm for arm in stands_for}
        names: dict[str, set[str]] = {}
        for arm, ids in stands_for.items():
            for each in ids:
                self._by_id[_normal_id(each)] = arm
                for name in (each.partition("/")[2], each.rpartition("/")[2]):
                    names.setdefault(_normal(name), set()).add(arm)
        # A name that two arms share says nothing.
        self._by_name = {name: next(iter(arms)) for name, arms in names.items() if len(arms) == 1}

    def by_id(self, model_id: str) -> str | None:
        """Return the arm that stands for an id, such as `openai/gpt-5.2`."""
        return self._by_id.get(_normal_id(model_id))

    def by_arm(self, name: str) -> str | None:
        """Return the arm with this name."""
        return self._by_arm.get(_normal(name))

    def by_name(self, name: str) -> str | None:
        """Return the arm that stands for a model with this id or name at some provider."""
        return self.by_id(name) or self.by_arm(name) or self._by_name.get(_normal(name))

    def by_model(self, model_id: str) -> str | None:
        """Return the arm of a model, whoever serves it and of whatever day its snapshot is.

        This is too generous for the router's own arms, each of which is one measured snapshot.
        """
        name = _LOCATION.sub("", model_id.casefold().rpartition("/")[2])
        return self.by_name(model_id) or self.by_name(_SNAPSHOT.sub("", _VENDOR.sub("", name)))

    def instead_of(self, name: str, arms: Sequence[str]) -> str:
        """Return what to write instead of the name of an unknown arm."""
        meant = self.by_name(name)
        return instead_of(name, arms) if meant is None else f"did you mean {meant!r}?"


def identify(model: Model, ids: ArmIds) -> Identity:
    """Return which model a configured model is, and the arm that stands for it."""
    found = [_identify(deployment, ids) for deployment in model.deployments]
    efforts = (EFFORT_PARAMETERS & d.parameters.keys() for d in model.deployments)
    effort = min((name for names in efforts for name in names), default=None)
    texts = ", ".join(dict.fromkeys(text for text, _, _ in found))
    arms = {arm for _, arm, _ in found}
    basis = max((basis for _, _, basis in found), key=list(Basis).index)  # the weakest one
    if len(arms) > 1:
        return Identity(texts, None, basis, f"its deployments are different models: {texts}")
    arm = arms.pop()
    obstacle = None
    if effort is not None and arm is not None:
        obstacle = f"it sets {effort}, with which the model was not measured"
    return Identity(texts, arm, basis, obstacle)


def model_of(model: Model, ids: ArmIds) -> str | None:
    """Return the arm of a configured model by `ArmIds.by_model`; None if deployments differ."""
    found = {ids.by_model(_identify(deployment, ids)[0]) for deployment in model.deployments}
    return found.pop() if len(found) == 1 else None


def _identify(deployment: Deployment, ids: ArmIds) -> tuple[str, str | None, Basis]:
    """Return a deployment's id or name, its arm, and how the arm was found.

    At the address of a provider, the upstream's name is the provider's. Elsewhere operators choose
    names, and `base_model` says what they mean. Without it, the name counts as it is if it is the
    arm's, or if the file writes an id that the arm stands for.
    """
    provider = _provider_at(deployment)
    name, base = deployment.upstream_model, deployment.base_model
    if provider in PROVIDERS:
        return f"{provider}/{name}", ids.by_id(f"{provider}/{name}"), Basis.ID
    if base is not None:
        stated = base if provider is None or "/" in base else f"{provider}/{base}"
        return stated, ids.by_id(stated) if "/" in stated else ids.by_name(stated), Basis.ID
    if provider is not None:
        return f"{provider}/{name}", ids.by_id(f"{provider}/{name}"), Basis.ID
    own = ids.by_id(f"{deployment.provider or 'openai'}/{name}") or ids.by_arm(name)
    if own is not None:
        return name, own, Basis.UNPROVEN
    return name, ids.by_name(name), Basis.STATED


def _provider_at(deployment: Deployment) -> str | None:
    """Return the provider whose address a deployment has; None if that is not known.

    Providers without a fixed address, such as Azure and Bedrock, are known by the configuration.
    """
    stated, place = deployment.provider, urlsplit(deployment.base_url).netloc
    if stated and stated not in PROVIDERS:
        return stated
    if stated and urlsplit(PROVIDERS[stated].api_base).netloc == place:
        return stated
    host = (urlsplit(deployment.base_url).hostname or "").lower()
    if host.endswith(AZURE_HOSTS):
        return "azure"
    addresses = ((name, urlsplit(each.api_base).netloc) for name, each in PROVIDERS.items())
    return next((name for name, known in addresses if known == place), None)


def _normal_id(model_id: str) -> str:
    """Return an id in one spelling, without the region and the API that LiteLLM writes into it."""
    provider, slash, name = model_id.casefold().partition("/")
    if provider in {"azure", "bedrock", "vertex_ai"}:
        name = name.rpartition("/")[2]
    name = _LOCATION.sub("", name)
    return f"{provider}{slash}{_normal(name)}"


def _normal(name: str) -> str:
    """Return a name in one spelling: `Claude-Haiku-4.5` and `claude-haiku-4-5` are the same."""
    return re.sub(r"[^a-z0-9/]+", "-", name.casefold())


def instead_of(name: str, known: Iterable[str]) -> str:
    """Return what to write instead of an unknown name.

    Only another spelling of the same name is suggested: `gpt-5.1` is no misspelled `gpt-5.2`.
    """
    names = sorted(known)
    meant = next((each for each in names if _is_same_name(name, each)), None)
    return f"use one of {', '.join(names)}" if meant is None else f"did you mean {meant!r}?"


def _is_same_name(one: str, other: str) -> bool:
    """Return whether two names differ only in case, in signs, or by one letter of a word."""
    words, others = (re.findall(r"[^\W\d_]+|\d+", name.casefold()) for name in (one, other))
    if len(words) != len(others):
        return False
    pairs = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
    return len(pairs) <= 1 and all(_is_typo(a, b) for a, b in pairs)


def _is_typo(one: str, other: str) -> bool:
    """Return whether two words differ by one letter that is missing, wrong, or swapped."""
    if not (one.isalpha() and other.isalpha()) or max(len(one), len(other)) < _SHORTEST_TYPO:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    a, b = one[start:], other[start:]
    is_swapped = a[:2] == b[1::-1] and a[2:] == b[2:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or is_swapped
