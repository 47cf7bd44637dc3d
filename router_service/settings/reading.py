"""Read one YAML file and the environment into one frozen `Settings`.

The file's `model_list` and the sections that end with `_settings` have LiteLLM's format, so that a
LiteLLM user's file works without changes. The other sections are ours. Environment variables named
`SWITCHCRAFT_*` override a few settings. A ConfigError has all mistakes, each with its file, line,
dotted path, problem and remedy.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from router_service.apis.conversation import Json
from router_service.core.addresses import check_proxy_address
from router_service.core.errors import ConfigError, ConfigProblem
from router_service.core.keys import HIDDEN
from router_service.settings.deployments import known_aliases, override, read_models
from router_service.settings.files import line_of, read_file
from router_service.settings.litellm import (
    File,
    GeneralSection,
    LiteLLMSection,
    ModelInfo,
    Params,
    RouterSection,
    Section,
)
from router_service.settings.unsupported import IGNORED_SECTIONS, unsupported_settings
from router_service.settings.values import (
    ClientKey,
    DatabaseAddress,
    Device,
    Frozen,
    LogFormat,
    Model,
    Port,
    Settings,
    StoreAddress,
    UpstreamSettings,
    Wildcard,
)

REFERENCE = "os.environ/"
"""Prefix in LiteLLM's files: `os.environ/NAME` stands for the value of an environment variable."""

OWN_SECTIONS = (
    "router", "server", "upstreams", "keys", "database", "usage", "budgets", "decision_log",
    "tracing", "logging",
)  # fmt: skip
LITELLM_SECTIONS: Mapping[str, type[Section]] = {
    "router_settings": RouterSection,
    "litellm_settings": LiteLLMSection,
    "general_settings": GeneralSection,
}

ENTRY_SECTIONS: Mapping[str, type[Section]] = {"litellm_params": Params, "model_info": ModelInfo}
"""Sections of each entry of `model_list`."""

_PROXY_NAMES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[a-z_]{1,20}")
_LIKE_REFERENCE = re.compile(
    r"\$\{?[A-Z][A-Z0-9_]*\}?|\$?\{?\{? *(?:os[._]?en\w*|env)[./:\[(].*", re.IGNORECASE
)
"""Values that are meant as references to environment variables: `os.envrion/X`, `${X}`, `env:X`."""

ONE_PROCESS = (
    "was removed, because a gateway has one process; leave it out, and run several gateways behind "
    "a load balancer to use more processor cores (docs/operations.md, Replicas)"
)
"""Error for the settings of worker processes, which were removed: what replaces them."""

S = TypeVar("S", bound=Frozen)
T = TypeVar("T")


_OVERRIDDEN = {
    "log_format": ("logging", "format"),
    "device": ("router", "device"),
    "database_url": ("database", "url"),
    "admin_key": ("keys", "admin"),
}
"""Section and field of the overrides that are not fields of `server` with the same name."""


class Overrides(BaseSettings):
    """Environment variables that override the file."""

    model_config = SettingsConfigDict(
        env_prefix="SWITCHCRAFT_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    config: Path | None = None
    """Path of the configuration file, if `--config` is not given."""
    host: str | None = None
    """Overrides `server.host`."""
    port: Port | None = None
    """Overrides `server.port`."""
    redis_url: StoreAddress | None = None
    """Overrides `server.redis_url`."""
    database_url: DatabaseAddress | None = None
    """Overrides `database.url`."""
    device: Device | None = None
    """Overrides `router.device`. The GPU image sets it to `cuda`."""
    log_format: LogFormat | None = None
    """Overrides `logging.format`."""
    admin_key: ClientKey | None = None
    """The admin key, unless the file sets `keys.admin`."""


def read_settings(
    config: Path | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    log_format: LogFormat | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings; arguments override `SWITCHCRAFT_*` variables, which override the file.

    Without a file the settings have no models. Raise ConfigError.
    """
    options: dict[str, Any] = {"host": host or None, "port": port, "log_format": log_format}
    options = {name: value for name, value in options.items() if value is not None}

    def place(name: str) -> tuple[str, str]:
        """Return where an override comes from, and its name there."""
        if name in options:
            return "the command line", f"--{name.replace('_', '-')}"
        return "the environment", f"SWITCHCRAFT_{name.upper()}"

    try:
        overrides = Overrides(**options)
    except ValidationError as exc:
        found = [(*place(each.where), each.problem) for each in problems_of(exc, None)]
        problems = [ConfigProblem(name, problem) for _, name, problem in found]
        raise ConfigError(found[0][0], problems=problems) from exc
    for name, address in environ.items():
        if name.lower() in _PROXY_NAMES and address:
            try:
                check_proxy_address(address)
            except ValueError as exc:
                raise ConfigError("the environment", name, str(exc)) from exc
    if environ.get("SWITCHCRAFT_WORKERS"):
        raise ConfigError("the environment", "SWITCHCRAFT_WORKERS", ONE_PROCESS)
    path = config or overrides.config
    settings = _read_file_settings(path, environ) if path else Settings()
    sources = {}
    for name in Overrides.model_fields.keys() - {"config"}:
        value = getattr(overrides, name)
        if value is None or (name == "admin_key" and settings.keys.admin is not None):
            continue
        section, field = _OVERRIDDEN.get(name, ("server", name))
        changed = getattr(settings, section).model_copy(update={field: value})
        settings = settings.model_copy(update={section: changed})
        sources[f"{section}.{field}"] = place(name)
    settings = settings.model_copy(update={"overrides": sources})
    database, state = settings.database, state_directory(environ)
    if database.url is None and state is not None:
        # Traffic of the sandbox is not mixed with that of real models.
        name = "switchcraft.db" if settings.has_models else "sandbox.db"
        database = database.model_copy(update={"url": SecretStr(f"sqlite:///{state / name}")})
        changes = {"database": database, "has_default_database": True}
        settings = settings.model_copy(update=changes)
    return settings


def state_directory(environ: Mapping[str, str]) -> Path | None:
    """Return the directory of files that programs keep (XDG Base Directory Specification).

    Return None for a user without a home directory.
    """
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"], "switchcraft")
    home = environ.get("HOME")
    return Path(home, ".local", "state", "switchcraft") if home else None


def _read_file_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings in a file; raise ConfigError with all mistakes in its values.

    If the values are valid, the error has all mistakes in the models.
    """
    config = read_file(path)
    problems = list(config.repeated)
    tree = {name: section for name, section in config.tree.items() if section is not None}
    references = References(environ, problems)
    variables = references.resolved(tree.pop("environment_variables", {}), "environment_variables")
    if isinstance(variables, Mapping):
        own = {str(name): str(value) for name, value in variables.items()}
        references = References({**environ, **own}, problems)
    tree = references.resolved_file(tree)
    problems += unknown_sections(tree)
    general, keys = tree.get("general_settings"), tree.get("keys", {})
    if isinstance(general, dict) and general.get("master_key") and isinstance(keys, dict):
        if keys.get("admin") is not None:
            problem = "keys.admin is set too, and both are the admin key; remove one of them"
            problems.append(ConfigProblem("general_settings.master_key", problem))
        tree["keys"] = {**keys, "admin": general["master_key"]}
    try:
        file = File.model_validate(tree)
    except ValidationError as exc:
        known = {problem.where for problem in problems}
        if "keys.admin" not in config.lines:  # it is the master key, which has this problem, too
            known.add("keys.admin")
        problems += [each for each in problems_of(exc, tree) if each.where not in known]
        # Without `from exc`: its message quotes nothing, but its errors have the input.
        raise config.error(problems) from None
    problems += _reserved_names(file)
    upstreams = merged_upstreams(file)
    known = {problem.where for problem in problems}
    found = list(read_models(file, upstreams.timeouts, config.source, references.environ))
    models = tuple(each for each in found if isinstance(each, Model))
    wildcards = tuple(each for each in found if isinstance(each, Wildcard))
    mistakes = (each for each in found if isinstance(each, ConfigProblem))
    problems += [each for each in mistakes if each.where not in known]
    if not (models or wildcards or problems):
        problems.append(ConfigProblem("model_list", "there is no model; add at least one"))
    if problems:
        raise config.error(problems)
    return Settings(
        models=models,
        wildcards=wildcards,
        aliases=known_aliases(file),
        router=file.router,
        server=unless_set(file.server, redis_url=file.router_settings.redis()),
        upstreams=upstreams,
        keys=file.keys,
        tracing=file.tracing,
        logging=file.logging,
        decision_log=file.decision_log,
        database=file.database,
        usage=file.usage,
        budgets=file.budgets,
        source=config.source,
        # An error about a model that several entries may have shows the first entry.
        lines={
            **config.lines,
            **{
                f"model_list: {entry.model_name}": config.lines[f"model_list.{index}"]
                for index, entry in reversed([*enumerate(file.model_list)])
                if f"model_list.{index}" in config.lines
            },
        },
        unsupported=tuple(
            replace(each, line=line_of(each.where, config.lines)).without_keys()
            for each in unsupported_settings(file)
        ),
    )


def _reserved_names(file: File) -> Iterator[ConfigProblem]:
    """Yield a problem for each model and alias with a name by which clients ask the router."""
    reserved = file.router.model_name
    names = {
        f"model_list.{index}.model_name": entry.model_name
        for index, entry in enumerate(file.model_list)
    }
    names |= {f"router_settings.model_group_alias.{a}": a for a in file.router_settings.aliases()}
    for where, name in names.items():
        if name == reserved or name.startswith(f"{reserved}:"):
            problem = (
                f"the name {name!r} is reserved for requests to the router; rename the model, or "
                "change router.model_name"
            )
            yield ConfigProblem(where, problem)


def unknown_sections(tree: Mapping[str, Json]) -> Iterator[ConfigProblem]:
    """Yield a problem for each section that neither Switchcraft nor LiteLLM has.

    Names that start with `x-`, `.` or `_` may hold YAML anchors, as in Docker Compose.
    """
    known = File.model_fields.keys() | IGNORED_SECTIONS
    for name in map(str, tree):
        if name in known or name.startswith(("x-", ".", "_")):
            continue
        similar = difflib.get_close_matches(name, File.model_fields, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else "remove it"
        yield ConfigProblem(name, f"is unknown; {hint}")


def merged_upstreams(file: File) -> UpstreamSettings:
    """Return `upstreams`, with LiteLLM's settings for values that `upstreams` does not set."""
    own, router, litellm = file.upstreams, file.router_settings, file.litellm_settings
    cooldown_s = _first(router.cooldown_time, litellm.cooldown_time)
    breaker = unless_set(
        own.breaker,
        allowed_fails=_first(router.allowed_fails, litellm.allowed_fails),
        cooldown_s=cooldown_s,
        max_cooldown_s=cooldown_s and max(cooldown_s, own.breaker.max_cooldown_s),
    )
    timeout_s = _first(router.timeout, litellm.request_timeout)
    theirs = override(own.timeouts, timeout_s, router.stream_timeout)
    max_retries = _first(router.num_retries, litellm.num_retries)
    return own.model_copy(
        update={
            "breaker": breaker,
            "retries": unless_set(own.retries, max_retries=max_retries),
            "timeouts": unless_set(own.timeouts, **theirs.model_dump()),
        }
    )


def unless_set(section: S, **values: object) -> S:
    """Return a section with these values for settings that it does not set; None is ignored."""
    given = {
        name: value
        for name, value in values.items()
        if value is not None and name not in section.model_fields_set
    }
    return section.model_copy(update=given)


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


@dataclass(frozen=True, slots=True)
class References:
    """Replacement of `os.environ/NAME` by the variable's value."""

    environ: Mapping[str, str]
    problems: list[ConfigProblem]
    """Gets a problem for each variable that is not set, and for each misspelled reference."""

    def resolved(self, value: Json, where: str) -> Json:
        """Return a value with all references replaced."""
        if isinstance(value, Mapping):
            return {name: self.resolved(inner, f"{where}.{name}") for name, inner in value.items()}
        if isinstance(value, list):
            return [self.resolved(inner, f"{where}.{i}") for i, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        name = value.removeprefix(REFERENCE)
        if name != value and self.environ.get(name):
            return self.environ[name]
        if name != value:
            # What is no name of a variable may be the key itself.
            shown = name if _VARIABLE.fullmatch(name) else HIDDEN
            problem = f"the environment variable {shown} is not set; set it, or write the value"
            self.problems.append(ConfigProblem(where, problem))
        elif _LIKE_REFERENCE.fullmatch(value):
            problem = (
                f"looks like a reference to an environment variable; write it as {REFERENCE}NAME"
            )
            self.problems.append(ConfigProblem(where, problem))
        return value

    def resolved_file(self, tree: Mapping[str, Json]) -> dict[str, Json]:
        """Return the file with all references replaced.

        Settings that only LiteLLM uses may refer to variables that are not set.
        """
        everywhere = References(self.environ, [])
        resolved = {name: everywhere.resolved(value, name) for name, value in tree.items()}
        self.problems.extend(each for each in everywhere.problems if _is_implemented(each.where))
        return resolved


def _is_implemented(where: str) -> bool:
    """Return whether the setting at a path has an effect here."""
    section, *path = where.split(".")
    if section in LITELLM_SECTIONS:
        return bool(path) and path[0] in LITELLM_SECTIONS[section].names()
    if section == "model_list":
        part = ENTRY_SECTIONS.get(path[1]) if len(path) > 2 else None
        return part is not None and path[2] in part.names()
    return section in OWN_SECTIONS


_REQUIREMENTS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text in quotes",
    "string_too_short": "must not be empty",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "model_type": "must be a mapping of names to values",
    "dict_type": "must be a mapping of names to values",
    "mapping_type": "must be a mapping of names to values",
    "tuple_type": "must be a list",
    "path_type": "must be a path",
}
"""Our messages by pydantic's type of error; `{...}` is filled from the error's context."""


def problems_of(exc: ValidationError, tree: Json) -> Iterator[ConfigProblem]:
    """Yield the mistakes that pydantic found, without values, because they may be keys.

    `tree` is the input that was validated. pydantic adds the names of union members to an error's
    location. So a part of the location belongs to the path only if it occurs in the tree, or if it
    is the name of a missing setting. The errors of a union's members become one problem.
    """
    found: list[tuple[tuple[str, ...], str]] = []
    for error in exc.errors(include_url=False):
        path: list[str] = []
        node, last = tree, len(error["loc"]) - 1
        for index, part in enumerate(error["loc"]):
            try:
                node = node[part]
            except (LookupError, TypeError):
                if tree is not None and not (error["type"] == "missing" and index == last):
                    continue
            path.append(str(part))
        problem = _problem(error, path)
        if problem.startswith("is unknown") and path[0] == "keys" and not _WORD.fullmatch(path[-1]):
            path[-1] = HIDDEN  # perhaps a key in the place of its name
        found.append((tuple(path), problem))
    while found:
        first = found[0][0]
        same = [(path, problem) for path, problem in found if path[: len(first)] == first]
        found = [each for each in found if each not in same]
        where = max((path for path, _ in same), key=len)
        problems = list(dict.fromkeys(problem for path, problem in same if path == where))
        if all(problem.startswith("must be ") for problem in problems):  # members of a union
            choices = (problem.removeprefix("must be ") for problem in problems)
            problems = ["must be " + " or ".join(choices)]
        yield ConfigProblem(".".join(where), problems[0])


_NO_ALERTS = (
    "was removed; delete it, and let Prometheus and Alertmanager report budgets, with the alert"
    " SwitchcraftBudgetSpent of deploy/prometheus/rules.yaml"
)
_REMOVED = {
    "server.workers": ONE_PROCESS,
    "budgets.alert_at": _NO_ALERTS,
    "budgets.webhook_url": _NO_ALERTS,
    "budgets.webhook_secret": _NO_ALERTS,
}
"""What replaces settings of the previous version, by their dotted paths."""


def _problem(error: ErrorDetails, path: Sequence[str]) -> str:
    """Return what is wrong with the setting at a path, and what to do."""
    if error["type"] == "extra_forbidden":
        return _REMOVED.get(".".join(path)) or _unknown_setting(path)
    if error["type"] == "missing":
        given = map(str, error["input"]) if isinstance(error["input"], Mapping) else ()
        similar = difflib.get_close_matches(path[-1], given, n=1)
        hint = f"is {similar[0]!r} a misspelling of it?" if similar else "add it"
        return f"is missing; {hint}"
    if error["input"] is None:
        problem = "has no value; add one, or remove the name"
    elif error["type"] in _REQUIREMENTS:
        problem = _REQUIREMENTS[error["type"]].format_map(error.get("ctx", {}))
    else:
        problem = error["msg"].removeprefix("Value error, ")
    return f"is unknown; the name {problem}" if error["loc"][-1:] == ("[key]",) else problem


def _unknown_setting(path: Sequence[str]) -> str:
    section: type[BaseModel] = File
    for name in path[:-1]:
        nested = section.model_fields[name].annotation
        assert isinstance(nested, type)  # noqa: S101 - for types; it is a section
        assert issubclass(nested, BaseModel)  # noqa: S101 - as above
        section = nested
    similar = difflib.get_close_matches(path[-1], section.model_fields, n=1)
    if similar:
        return f"is unknown; did you mean {similar[0]!r}?"
    return f"is unknown; remove it. The settings here are {', '.join(section.model_fields)}"
