"""What behaves differently from the previous version, and which setting keeps the old behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from router_service.settings import Settings


@dataclass(frozen=True, slots=True)
class Change:
    """A setting whose default has changed."""

    setting: str
    """Path of the setting; a configuration that has it behaves as before."""
    effect: str
    """What happens without it."""
    kept_by: str
    """Value with which everything is as before, in YAML."""


CHANGES = (
    Change(
        "router.default_policy",
        "the default is the cheapest measured policy that loses at most half a point against your"
        " best model (within=0.5), and not verified at its standard price",
        "verified",
    ),
    Change(
        "router.unfamiliar",
        "requests unlike the training data, such as agents', get verified answers, and not the"
        " most accurate model's",
        "best",
    ),
    Change(
        "router.conversations.enabled",
        "inside a tool loop, the model that answered last is asked first",
        "false",
    ),
    Change(
        "router.unknown_models",
        "models that the artifact has not measured take part in verified answers",
        "name_only",
    ),
    Change(
        "router.agents.within_points",
        "one model answers the whole session of a coding agent",
        "null",
    ),
)
"""Changed defaults; CHANGELOG.md has all changes."""


def describe_changes(settings: Settings) -> Iterator[str]:
    """Yield each change that affects this configuration, with the setting that undoes it."""
    for change in CHANGES:
        if not _is_set(settings, change.setting):
            yield f"{change.effect}; `{change.setting}: {change.kept_by}` keeps the old behaviour"
    aliases = settings.router.aliases
    if "aliases" in settings.router.model_fields_set and "claude-*" not in aliases:
        yield (
            "router.aliases adds to the default `claude-*: switchcraft` instead of replacing it;"
            " `claude-*: null` in it keeps the old behaviour"
        )
    yield "metrics have other names; docs/upgrades.md has the ones to look for in dashboards"


def _is_set(settings: Settings, path: str) -> bool:
    """Return whether the configuration has a setting."""
    *sections, name = path.split(".")
    found = settings
    for section in sections:
        if section not in found.model_fields_set:
            return False
        found = getattr(found, section)
    return name in found.model_fields_set
