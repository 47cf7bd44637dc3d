"""One YAML file and the environment -> one frozen `Settings`, or an error that says what to do.

The file's `model_list` is LiteLLM's, so that a LiteLLM user's file works as it is; `router`,
`server` and `upstreams` are ours. Environment variables named `SWITCHCRAFT_*` override a few
fields.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from router_service.core.errors import ConfigError
from router_service.core.messages import Json
from router_service.settings.litellm import File, read_models, without_effect
from router_service.settings.values import Port, Settings

REFERENCE = "os.environ/"
"""LiteLLM's way to name an environment variable in place of a value."""

OWN_SECTIONS = ("router", "server", "upstreams")

_REFERABLE = frozenset(
    "model api_base base_url api_key api_version input_cost_per_token output_cost_per_token".split()
)


class Overrides(BaseSettings):
    """The environment variables `SWITCHCRAFT_CONFIG`, `_HOST`, `_PORT` and `_REDIS_URL`."""

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
    redis_url: SecretStr | None = None


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
        problem = exc.errors()[0]["msg"]
        raise ConfigError("the environment", f"SWITCHCRAFT_{name}", problem) from exc
    path = config or overrides.config
    settings = load_settings(path, environ) if path else Settings()
    given = {
        "host": host or overrides.host,
        "port": overrides.port if port is None else port,
        "redis_url": overrides.redis_url,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read a file; `environ` is what `os.environ/NAME` refers to.

    Raises ConfigError that names the file, where in it, and what to do.
    """
    source = str(path)
    tree = _read_yaml(path)
    try:
        file = File.model_validate(_resolved_sections(tree, source, environ))
    except ValidationError as exc:
        raise _config_error(source, exc) from exc
    models = tuple(read_models(file, source, environ))
    if not models:
        raise ConfigError(source, "model_list", "names no model; list at least one")
    return Settings(
        models=models,
        router=file.router,
        server=file.server,
        upstreams=file.upstreams,
        source=source,
        without_effect=tuple(without_effect(file)),
    )


def _read_yaml(path: Path) -> Mapping[str, Json]:
    source = str(path)
    try:
        tree = yaml.safe_load(path.read_bytes())
    except OSError as exc:
        raise ConfigError(source, "", f"cannot be read: {exc.strerror}") from exc
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}" if exc.problem_mark else ""
        raise ConfigError(source, where, f"is not valid YAML: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(source, "", "is not valid YAML, UTF-8 encoded") from exc
    if not isinstance(tree, dict):
        raise ConfigError(source, "", "must be a mapping with a model_list")
    return tree


def _resolved_sections(
    tree: Mapping[str, Json], source: str, environ: Mapping[str, str]
) -> dict[str, Json]:
    """Return the file with variables in place of their names in our own sections."""
    resolved = dict(tree)
    for section in OWN_SECTIONS:
        values = tree.get(section)
        if isinstance(values, dict):
            resolved[section] = _resolved(values, section, source, environ)
        elif values is None:
            resolved.pop(section, None)  # a heading with nothing below it
    if isinstance(entries := tree.get("model_list"), list):
        resolved["model_list"] = [
            _resolved_entry(entry, f"model_list.{index}", source, environ)
            for index, entry in enumerate(entries)
        ]
    return resolved


def _resolved_entry(entry: Json, where: str, source: str, environ: Mapping[str, str]) -> Json:
    params = entry.get("litellm_params") if isinstance(entry, dict) else None
    if not isinstance(params, dict):
        return entry
    # Only what is used here: a variable that only LiteLLM reads may be unset.
    used = {name: value for name, value in params.items() if name in _REFERABLE}
    known = _resolved(used, f"{where}.litellm_params", source, environ)
    return {**entry, "litellm_params": {**params, **known}}


def _resolved(
    values: Mapping[str, Json], where: str, source: str, environ: Mapping[str, str]
) -> dict[str, Json]:
    return {
        name: _from_environment(value, f"{where}.{name}", source, environ)
        if isinstance(value, str) and value.startswith(REFERENCE)
        else value
        for name, value in values.items()
    }


def _from_environment(value: str, where: str, source: str, environ: Mapping[str, str]) -> str:
    name = value.removeprefix(REFERENCE)
    if not environ.get(name):
        problem = f"the environment variable {name} is not set; set it, or write the value here"
        raise ConfigError(source, where, problem)
    return environ[name]


def _config_error(source: str, exc: ValidationError) -> ConfigError:
    first = exc.errors()[0]
    return ConfigError(source, ".".join(map(str, first["loc"])), first["msg"])
