"""What LiteLLM's sections say of all models, put in terms of ours; ours count first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def named_models(
    models: Sequence[Model], router: RouterSection, litellm: LiteLLMSection
) -> tuple[Model, ...]:
    """Return the models and their aliases, each with what answers in its place."""
    known = {model.name: model for model in models}
    for alias, target in router.model_group_alias.items():
        model = known.get(target.model if isinstance(target, Alias) else target)
        if model is not None:
            known[alias] = model.model_copy(update={"name": alias})
    return tuple(
        model.model_copy(update={"fallbacks": _fallbacks(model.name, known, router, litellm)})
        for model in known.values()
    )


def _fallbacks(
    name: str, known: Iterable[str], router: RouterSection, litellm: LiteLLMSection
) -> tuple[str, ...]:
    """Return who answers in a model's place: those for it, else for any, then for long inputs."""
    wanted = [*_of_kind("fallbacks", name, router, litellm)]
    wanted = wanted or [*(router.default_fallbacks or litellm.default_fallbacks)]
    wanted += _of_kind("context_window_fallbacks", name, router, litellm)
    models = set(known) - {name}
    return tuple(dict.fromkeys(other for other in wanted if other in models))


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
