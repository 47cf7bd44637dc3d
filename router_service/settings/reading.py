"""One YAML file and the environment -> one frozen `Settings`, or an error that says what to do.

The file's `model_list` is LiteLLM's, so that a LiteLLM user's file works as it is; `router`,
`server`, `upstreams`, `keys`, `decision_log`, `tracing` and `logging` are ours. Environment
variables named `SWITCHCRAFT_*` override a few fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from router_service.core.addresses import check_proxy_address, read_port
from router_service.core.errors import ConfigError
from router_service.core.messages import Json
from router_service.settings.entries import read_models
from router_service.settings.litellm import (
    Entry,
    GeneralSection,
    LiteLLMSection,
    ModelInfo,
    Params,
    RouterSection,
    Section,
)
from router_service.settings.merging import (
    known_aliases,
    merged_upstreams,
    unless_set,
    with_fallbacks,
)
from router_service.settings.references import References
from router_service.settings.unused import without_effect
from router_service.settings.values import (
    Count,
    DecisionLogSettings,
    KeySettings,
    LoggingSettings,
    Port,
    RedisAddress,
    RouterSettings,
    ServerSettings,
    Settings,
    TracingSettings,
    UpstreamSettings,
)

MAX_NODES = 100_000
"""Most values in a file. Aliases may repeat values exponentially; the settings of 1,000 deployments
have about 10,000 values."""

_QUOTED = re.compile(r"(alias|anchor|tag|handle) ['\"].*", re.DOTALL)
"""A part of the file in an error of PyYAML's; it may be a key that starts with `!` or `*`."""

OWN_SECTIONS = ("router", "server", "upstreams", "keys", "decision_log", "tracing", "logging")


_LITELLM_SECTIONS: Mapping[str, type[Section]] = {
    "router_settings": RouterSection,
    "litellm_settings": LiteLLMSection,
    "general_settings": GeneralSection,
}


class File(BaseModel):
    """The whole file, LiteLLM's sections and ours."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    model_list: tuple[Entry, ...] = ()
    router_settings: RouterSection = RouterSection()
    litellm_settings: LiteLLMSection = LiteLLMSection()
    general_settings: GeneralSection = GeneralSection()
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    keys: KeySettings = KeySettings()
    tracing: TracingSettings = TracingSettings()
    logging: LoggingSettings = LoggingSettings()
    decision_log: DecisionLogSettings = DecisionLogSettings()


class Overrides(BaseSettings):
    """The environment: `SWITCHCRAFT_CONFIG`, `_HOST`, `_PORT`, `_WORKERS` and `_REDIS_URL`."""

    model_config = SettingsConfigDict(
        env_prefix="SWITCHCRAFT_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
    )

    config: Path | None = None
    host: str | None = None
    port: Port | None = None
    workers: Count | None = None
    redis_url: RedisAddress | None = None


def read_settings(
    config: Path | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings: arguments before `SWITCHCRAFT_*` variables before the file's values.

    Without a file they name no models. Raises ConfigError.
    """
    try:
        overrides = Overrides()
    except ValidationError as exc:
        name = ".".join(map(str, exc.errors()[0]["loc"])).upper()
        raise ConfigError("the environment", f"SWITCHCRAFT_{name}", _problem(exc)) from exc
    _check_proxies(environ)
    try:
        port = None if port is None else read_port(port)
    except ValueError as exc:
        raise ConfigError("the command line", "--port", str(exc)) from exc
    path = config or overrides.config
    settings = load_settings(path, environ) if path else Settings()
    given = {
        "host": host or overrides.host,
        "port": overrides.port if port is None else port,
        "workers": overrides.workers,
        "redis_url": overrides.redis_url,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    server = settings.server.model_copy(update=changes)
    if server.workers > 1 and server.redis_url is None:
        problem = "more than one share their state in Redis; set server.redis_url, or 1 worker"
        raise ConfigError(settings.source, "server.workers", problem)
    return settings.model_copy(update={"server": server})


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read a file; `environ` is what `os.environ/NAME` refers to.

    Raises ConfigError that names the file, where in it, and what to do.
    """
    source = str(path)
    tree = {name: section for name, section in _read_yaml(path).items() if section is not None}
    references = References(source, environ)
    variables = references.resolved(tree.pop("environment_variables", {}), "environment_variables")
    if isinstance(variables, Mapping):
        own = {str(name): str(value) for name, value in variables.items()}
        references = References(source, {**environ, **own})
    try:
        file = File.model_validate(_resolved(tree, references))
    except ValidationError as exc:
        raise _config_error(source, exc) from exc
    return _settings(file, references)


def _settings(file: File, references: References) -> Settings:
    source, upstreams = (
        references.source,
        merged_upstreams(file.upstreams, file.router_settings, file.litellm_settings),
    )
    _check_names(file, source)
    models = tuple(read_models(file.model_list, upstreams.timeouts, source, references.environ))
    if not models:
        raise ConfigError(source, "model_list", "names no model; list at least one")
    aliases = known_aliases(models, file.router_settings)
    return Settings(
        models=tuple(with_fallbacks(models, aliases, file.router_settings, file.litellm_settings)),
        aliases=aliases,
        router=file.router,
        server=unless_set(file.server, redis_url=file.router_settings.redis()),
        upstreams=upstreams,
        keys=_merged_keys(file, source),
        tracing=file.tracing,
        logging=file.logging,
        decision_log=file.decision_log,
        source=source,
        without_effect=tuple(_without_effect(file)),
    )


def _merged_keys(file: File, source: str) -> KeySettings:
    """Return our keys, with LiteLLM's master key as the admin key."""
    master_key = file.general_settings.master_key
    if master_key is None:
        return file.keys
    if file.keys.admin is not None:
        problem = "is the admin key, and so is keys.admin; leave one out"
        raise ConfigError(source, "general_settings.master_key", problem)
    try:
        return KeySettings(api=file.keys.api, admin=master_key, metrics=file.keys.metrics)
    except ValidationError as exc:
        raise _config_error(source, exc) from exc


def _check_names(file: File, source: str) -> None:
    reserved = file.router.model_name
    listed = {f"model_list.{i}.model_name": e.model_name for i, e in enumerate(file.model_list)}
    aliases = file.router_settings.model_group_alias
    listed |= {f"router_settings.model_group_alias.{alias}": alias for alias in aliases}
    for where, name in listed.items():
        if name == reserved or name.startswith(f"{reserved}:"):
            problem = f"{name!r} asks for routing; rename the model, or set router.model_name"
            raise ConfigError(source, where, problem)


def _without_effect(file: File) -> Iterator[str]:
    sections = {
        "router_settings": file.router_settings.model_extra,
        "litellm_settings": file.litellm_settings.model_extra,
        "general_settings": file.general_settings.model_extra,
        **(file.model_extra or {}),
    }
    return without_effect(sections, file.model_list, file.router_settings, file.litellm_settings)


def _read_yaml(path: Path) -> Mapping[str, Json]:
    source = str(path)
    try:
        tree = yaml.load(path.read_bytes(), _Loader)  # noqa: S506 - a safe loader
    except OSError as exc:
        raise ConfigError(source, "", f"cannot be read: {exc.strerror}") from exc
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}" if exc.problem_mark else ""
        problem = _QUOTED.sub(r"\1; quote a text that starts with *, & or !", exc.problem or "")
        raise ConfigError(source, where, f"is not valid YAML: {problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(source, "", "is not valid YAML, UTF-8 encoded") from exc
    except RecursionError as exc:
        raise ConfigError(source, "", "is nested too deep; flatten it") from exc
    except (ValueError, OverflowError) as exc:  # PyYAML's scanner lets these through
        problem = "is not valid YAML: an escape or a version has a number that is too large"
        raise ConfigError(source, "", problem) from exc
    if not isinstance(tree, dict):
        raise ConfigError(source, "", "must be a mapping with a model_list")
    if _node_count(tree) > MAX_NODES:
        problem = f"has more than {MAX_NODES:,} values, counting each use of an alias (*name)"
        raise ConfigError(source, "", problem)
    return tree


class _Loader(yaml.SafeLoader):
    """YAML's safe loader; a value that cannot be read is an error with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Json:
        """Return a node's value; raises ConstructorError."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, AttributeError, KeyError, TypeError) as exc:
            problem = "the value does not fit its type, such as the date 2001-99-99; quote it"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from exc


def _node_count(tree: Json) -> int:
    """Count a tree's values up to about `MAX_NODES`; one that contains itself has more."""
    count, waiting = 0, [tree]
    while waiting and count <= MAX_NODES:
        value = waiting.pop()
        inner = list(value.values()) if isinstance(value, dict) else value
        if isinstance(inner, list):
            count += len(inner)
            waiting.extend(inner)
    return count


def _resolved(tree: Mapping[str, Json], references: References) -> dict[str, Json]:
    """Return the file with variables in place of their names, where something is read."""
    resolved = dict(tree)
    for name in OWN_SECTIONS:
        if name in tree:
            resolved[name] = references.resolved(tree[name], name)
    for name, section in _LITELLM_SECTIONS.items():
        if name in tree:
            resolved[name] = references.used(tree[name], section.names(), name)
    if isinstance(entries := tree.get("model_list"), list):
        resolved["model_list"] = [
            _resolved_entry(entry, f"model_list.{index}", references)
            for index, entry in enumerate(entries)
        ]
    return resolved


def _resolved_entry(entry: Json, where: str, references: References) -> Json:
    if not isinstance(entry, Mapping) or "*" in str(entry.get("model_name")):
        return entry  # a wildcard is not served, and needs no key
    parts = (("litellm_params", Params), ("model_info", ModelInfo))
    known = {
        name: references.used(entry[name], part.names(), f"{where}.{name}")
        for name, part in parts
        if name in entry
    }
    return {**entry, **known}


def _config_error(source: str, exc: ValidationError) -> ConfigError:
    first = exc.errors()[0]
    return ConfigError(source, ".".join(map(str, first["loc"])), _problem(exc))


def _problem(exc: ValidationError) -> str:
    """Return what is wrong first, without pydantic's name for errors of our own."""
    return exc.errors()[0]["msg"].removeprefix("Value error, ")


def _check_proxies(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a proxy that requests and keys would go to another port of."""
    for name, address in environ.items():
        if name.lower() in _PROXY_NAMES and address:
            try:
                check_proxy_address(address)
            except ValueError as exc:
                raise ConfigError("the environment", name, str(exc)) from exc


_PROXY_NAMES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
