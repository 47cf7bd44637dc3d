"""What an operator configures: one YAML file, read once into one frozen value.

The file's `model_list` is LiteLLM's, so that a LiteLLM user's file works as it is; `router` and
`server` are ours. Environment variables named `SWITCHCRAFT_*` override a few fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode, urlsplit

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from router_service.core.artifact import SHIPPED
from router_service.core.cost import TOKENS_PER_MTOK, Positive, Price
from router_service.core.errors import ConfigError
from router_service.core.messages import Json

REFERENCE = "os.environ/"
"""LiteLLM's way to name an environment variable in place of a value."""

NEVER_FORWARDED = frozenset(
    "authorization api-key x-api-key cookie proxy-authorization openai-organization openai-project "
    "host connection keep-alive te trailer transfer-encoding upgrade content-length content-type "
    "content-encoding accept-encoding expect user-agent".split()
)
"""Request headers that are the client's credentials, or that belong to one connection."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(min_length=1)]
HeaderName = Annotated[str, BeforeValidator(lambda value: str(value).lower())]


class _Frozen(BaseModel):
    # Inputs stay out of error messages: they hold keys.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Model(_Frozen):
    """A model of the pool: the name that clients and arms use, and where it is served."""

    name: Name
    """`model_name` of the file."""
    upstream_model: Name
    """What the upstream calls it."""
    url: str = Field(repr=False)
    """Full address of its chat completions."""
    api_key: SecretStr | None = None
    key_header: Literal["authorization", "api-key"] = "authorization"
    """Which header carries the key: Azure has one of its own."""
    price: Price | None = None
    """List price where the file has one; None is unknown, and never free."""


class RouterSettings(_Frozen):
    """The file's `router` section: what decides, and for which models."""

    artifact: Path = SHIPPED
    """Directory of the artifact; relative paths are the working directory's."""
    arms: Mapping[str, str] = Field(default_factory=dict)
    """Model by arm of the artifact; one that is not here goes to the model of its own name, and
    is never chosen where there is none."""
    default_policy: str | None = None
    """Policy of plain requests, by name or rule; the artifact's where it is not given."""
    chat_model: str | None = None
    """Model for requests without tools, of which the router knows nothing. By default the model
    of the arm with the lowest profiled cost: agents send their tools along with every turn, and
    what comes without any is side work such as a title or a summary."""
    model_name: Name = "switchcraft"
    """The name that asks for routing; a policy is appended as in `switchcraft:economy`."""
    forward_headers: tuple[HeaderName, ...] = ()
    """Request headers that upstreams get in addition to the standard ones."""

    @field_validator("forward_headers")
    @classmethod
    def _harmless(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in NEVER_FORWARDED:
                raise ValueError(f"the header {name!r} is never forwarded; leave it out")
        return names


class ServerSettings(_Frozen):
    """The file's `server` section: the gateway's own process."""

    host: str = "127.0.0.1"
    port: Port = 8080
    max_body_bytes: Count = 10 * 1024 * 1024
    """Larger request bodies are refused with status 413."""
    decision_threads: Count = min(4, os.cpu_count() or 1)
    """Decisions made at the same time; the model's runtime releases the interpreter's lock."""
    connect_timeout_s: Seconds = 5.0
    """To reach an upstream, TLS included."""
    read_timeout_s: Seconds = 300.0
    """Longest silence of an upstream, before its first byte or between two of them."""
    write_timeout_s: Seconds = 30.0
    """Longest stall while a request is sent to an upstream."""
    pool_timeout_s: Seconds = 5.0
    """Longest wait for a connection where an upstream has all of its share in use."""
    max_connections_per_upstream: Count = 500
    """An upstream that hangs takes so many connections at most, and none of the others'."""
    shutdown_timeout_s: Count = 30
    """How long answers in flight may go on after the process was asked to stop."""
    redis_url: SecretStr | None = None
    """Where replicas share state; without it each keeps its own in memory."""
    decision_ttl_s: Count = 24 * 3600
    """How long `GET /v1/decisions/{id}` knows a decision."""
    max_decisions: Count = 10_000
    """Decisions kept in memory, about 2 KB each; the oldest go first. Redis has no such limit."""


class Settings(_Frozen):
    """All of the configuration; one that names no models is completed by `Settings.sandbox`."""

    models: tuple[Model, ...] = ()
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()
    source: str = "the default configuration"
    """Where it was read from, for error messages."""
    without_effect: tuple[str, ...] = ()
    """Dotted paths in the file that are accepted, but do nothing here."""

    @classmethod
    def sandbox(
        cls, base_url: str, arms: Sequence[str], *, server: ServerSettings | None = None
    ) -> Settings:
        """Return settings under which each arm is a model of that name on one sandbox."""
        url = f"{base_url.rstrip('/')}/chat/completions"
        models = tuple(Model(name=arm, upstream_model=arm, url=url) for arm in arms)
        return cls(models=models, server=server or ServerSettings(), source="the sandbox")

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str]) -> Settings:
        """Read a file; `environ` is what `os.environ/NAME` refers to.

        Raises ConfigError that names the file, where in it, and what to do.
        """
        source = str(path)
        tree = _read_yaml(path)
        try:
            file = _File.model_validate(_resolved_sections(tree, source, environ))
        except ValidationError as exc:
            raise _config_error(source, exc) from exc
        models = tuple(_read_models(file, source, environ))
        if not models:
            raise ConfigError(source, "model_list", "names no model; list at least one")
        return cls(
            models=models,
            router=file.router,
            server=file.server,
            source=source,
            without_effect=tuple(_without_effect(file)),
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
    settings = Settings.load(path, environ) if path else Settings()
    given = {
        "host": host or overrides.host,
        "port": overrides.port if port is None else port,
        "redis_url": overrides.redis_url,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


class _Costs(BaseModel):
    """LiteLLM's prices, USD a token; it takes them in `model_info` and in `litellm_params`."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    input_cost_per_token: Positive | None = None
    output_cost_per_token: Positive | None = None

    def price(self) -> Price | None:
        if self.input_cost_per_token is None or self.output_cost_per_token is None:
            return None
        # Rounded: 1.5e-07 USD a token is 0.15 USD a million, not 0.15 and some float dust.
        return Price(
            input_usd_per_mtok=round(self.input_cost_per_token * TOKENS_PER_MTOK, 9),
            output_usd_per_mtok=round(self.output_cost_per_token * TOKENS_PER_MTOK, 9),
        )


class _LiteLLMParams(_Costs):
    model: Name
    api_base: str | None = Field(None, validation_alias=AliasChoices("api_base", "base_url"))
    api_key: SecretStr | None = None
    api_version: str | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    model_name: Name
    litellm_params: _LiteLLMParams
    model_info: _Costs = _Costs()


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    model_list: tuple[_Entry, ...] = ()
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()


class _Provider(_Frozen):
    """A provider's OpenAI-compatible address, and the variables that hold its key in LiteLLM."""

    api_base: str
    key_names: tuple[str, ...]


_PROVIDERS: Mapping[str, _Provider] = {
    name: _Provider(api_base=api_base, key_names=tuple(keys.split()))
    for name, api_base, keys in (
        ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        (
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "GEMINI_API_KEY GOOGLE_API_KEY",
        ),
        ("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        ("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        (
            "together_ai",
            "https://api.together.xyz/v1",
            "TOGETHERAI_API_KEY TOGETHER_AI_API_KEY TOGETHER_API_KEY",
        ),
        ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
        ("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    )
}
# A bare name is sent to its maker alone: to guess wrong would show a key to the wrong provider.
_BARE_NAMES = (
    (re.compile(r"(gpt-|chatgpt-|o\d|ft:)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)
_REFERABLE = frozenset(
    "model api_base base_url api_key api_version input_cost_per_token output_cost_per_token".split()
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
    for section in ("router", "server"):
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


def _read_models(file: _File, source: str, environ: Mapping[str, str]) -> Iterator[Model]:
    reserved = file.router.model_name
    seen: set[str] = set()
    for index, entry in enumerate(file.model_list):
        where = f"model_list.{index}"
        name = entry.model_name
        if name == reserved or name.startswith(f"{reserved}:"):
            problem = f"{name!r} asks for routing; rename the model, or set router.model_name"
            raise ConfigError(source, f"{where}.model_name", problem)
        if name not in seen and "*" not in name:
            seen.add(name)
            yield _read_model(entry, f"{where}.litellm_params", source, environ)


def _read_model(entry: _Entry, where: str, source: str, environ: Mapping[str, str]) -> Model:
    params = entry.litellm_params
    provider, upstream_model = _split_provider(params, where, source)
    api_base, api_key = params.api_base, params.api_key
    if api_base is None:
        known = _PROVIDERS.get(provider)
        if known is None:
            problem = f"the provider {provider!r} has no known address; give its api_base"
            raise ConfigError(source, where, problem)
        api_base = known.api_base
        api_key = api_key or _provider_key(known, f"{where}.api_key", source, environ)
    if urlsplit(api_base).scheme not in {"http", "https"} or not urlsplit(api_base).netloc:
        raise ConfigError(source, f"{where}.api_base", "is not an http:// or https:// address")
    return Model(
        name=entry.model_name,
        upstream_model=upstream_model,
        url=_chat_url(provider, api_base.rstrip("/"), upstream_model, params.api_version),
        api_key=api_key,
        key_header="api-key" if provider == "azure" else "authorization",
        price=entry.model_info.price() or params.price(),
    )


def _split_provider(params: _LiteLLMParams, where: str, source: str) -> tuple[str, str]:
    """Return the provider and the model of `provider/model`; a bare name tells its maker."""
    provider, slash, rest = params.model.partition("/")
    if slash and rest:
        return provider, rest
    for pattern, maker in _BARE_NAMES:
        if pattern.match(params.model):
            return maker, params.model
    if params.api_base is None:
        problem = f"{params.model!r} names no provider; write provider/model, or give an api_base"
        raise ConfigError(source, f"{where}.model", problem)
    return "openai", params.model


def _provider_key(
    provider: _Provider, where: str, source: str, environ: Mapping[str, str]
) -> SecretStr:
    for name in provider.key_names:
        if environ.get(name):
            return SecretStr(environ[name])
    problem = f"there is no key; set the environment variable {provider.key_names[0]}, or api_key"
    raise ConfigError(source, where, problem)


def _chat_url(provider: str, api_base: str, model: str, api_version: str | None) -> str:
    if provider != "azure" or api_base.endswith("/v1"):
        return f"{api_base}/chat/completions"
    if api_version is None:  # Azure's newer address needs none, and takes the model in the body
        return f"{api_base}/openai/v1/chat/completions"
    query = urlencode({"api-version": api_version})
    return f"{api_base}/openai/deployments/{model}/chat/completions?{query}"


def _without_effect(file: _File) -> Iterator[str]:
    yield from file.model_extra or {}
    seen: set[str] = set()
    for index, entry in enumerate(file.model_list):
        where = f"model_list.{index}"
        if entry.model_name in seen or "*" in entry.model_name:
            yield where  # a second deployment, or a wildcard
            continue
        seen.add(entry.model_name)
        yield from (f"{where}.{name}" for name in entry.model_extra or {})
        params = entry.litellm_params.model_extra or {}
        yield from (f"{where}.litellm_params.{name}" for name in params)


def _config_error(source: str, exc: ValidationError) -> ConfigError:
    first = exc.errors()[0]
    return ConfigError(source, ".".join(map(str, first["loc"])), first["msg"])
