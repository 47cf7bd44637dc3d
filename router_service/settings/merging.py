"""What LiteLLM's sections say of all models, put in terms of ours; ours count first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from router_service.settings.entries import override
from router_service.settings.litellm import Alias, LiteLLMSection, Reliability, RouterSection
from router_service.settings.values import Frozen, Model, UpstreamSettings

S = TypeVar("S", bound=Frozen)
T = TypeVar("T")


def unless_set(section: S, **values: object) -> S:
    """Return a section with these values where it does not name its own; None is no value."""
    given = {
        name: value
        for name, value in values.items()
        if value is not None and name not in section.model_fields_set
    }
    return section.model_copy(update=given)


def merged_upstreams(
    own: UpstreamSettings, router: RouterSection, litellm: LiteLLMSection
) -> UpstreamSettings:
    """Return our section, completed by LiteLLM's retries, cool-downs and time-outs."""
    cooldown_s = _first(router.cooldown_time, litellm.cooldown_time)
    breaker = unless_set(
        own.breaker,
        allowed_fails=_first(router.allowed_fails, litellm.allowed_fails),
        cooldown_s=cooldown_s,
        max_cooldown_s=cooldown_s and max(cooldown_s, own.breaker.max_cooldown_s),
    )
    timeout_s = _first(router.timeout, litellm.request_timeout)
    theirs = override(own.timeouts, timeout_s, router.stream_timeout)
    return own.model_copy(
        update={
            "breaker": breaker,
            "retries": unless_set(
                own.retries, max_retries=_first(router.num_retries, litellm.num_retries)
            ),
            "timeouts": unless_set(own.timeouts, **theirs.model_dump()),
        }
    )


def known_aliases(models: Sequence[Model], router: RouterSection) -> dict[str, str]:
    """Return the model that each alias stands for; one that stands for none is left out."""
    known = {model.name for model in models}
    targets = {
        alias: target.model if isinstance(target, Alias) else target
        for alias, target in router.model_group_alias.items()
    }
    return {alias: name for alias, name in targets.items() if name in known}


def with_fallbacks(
    models: Sequence[Model],
    aliases: Mapping[str, str],
    router: RouterSection,
    litellm: LiteLLMSection,
) -> Iterator[Model]:
    """Yield the models, each with those that answer in its place."""
    known = {model.name: model.name for model in models} | dict(aliases)
    for model in models:
        wanted = _fallbacks(model.name, router, litellm)
        names = dict.fromkeys(known[name] for name in wanted if name in known)
        others = tuple(name for name in names if name != model.name)
        yield model.model_copy(update={"fallbacks": others})


def _fallbacks(name: str, router: RouterSection, litellm: LiteLLMSection) -> Iterator[str]:
    """Yield who answers in a model's place: those for it, else for any, then for long inputs."""
    own = list(_of_kind("fallbacks", name, router, litellm))
    yield from own or router.default_fallbacks or litellm.default_fallbacks
    yield from _of_kind("context_window_fallbacks", name, router, litellm)


def _of_kind(kind: str, name: str, *sections: Reliability) -> Iterator[str]:
    """Yield the names in the first section that has rules of this kind."""
    rules: Sequence[Mapping[str, Sequence[str]]] = next(
        (found for section in sections if (found := getattr(section, kind))), ()
    )
    for key in (name, "*"):
        found = [other for rule in rules for other in rule.get(key, ())]
        if found:
            yield from found
            return


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)
