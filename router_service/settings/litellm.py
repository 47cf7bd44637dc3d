"""LiteLLM's sections of the file -> models of the pool, and what of them does nothing here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlencode, urlsplit

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr

from router_service.core.cost import TOKENS_PER_MTOK, Positive, Price
from router_service.core.errors import ConfigError
from router_service.settings.providers import BARE_NAMES, PROVIDERS, Provider
from router_service.settings.values import (
    Deployment,
    Model,
    Name,
    RouterSettings,
    ServerSettings,
    Timeouts,
    UpstreamSettings,
)


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


class File(BaseModel):
    """The whole file, LiteLLM's sections and ours."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    model_list: tuple[_Entry, ...] = ()
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()
    upstreams: UpstreamSettings = UpstreamSettings()


def read_models(file: File, source: str, environ: Mapping[str, str]) -> Iterator[Model]:
    """Yield the pool's models; entries of one name are deployments of one model.

    Raises ConfigError that names the entry.
    """
    entries: dict[str, list[tuple[str, _Entry]]] = {}
    for index, entry in enumerate(file.model_list):
        where = f"model_list.{index}"
        _check_name(entry.model_name, file.router.model_name, f"{where}.model_name", source)
        if "*" not in entry.model_name:
            entries.setdefault(entry.model_name, []).append((where, entry))
    for name, group in entries.items():
        prices = (entry.model_info.price() or entry.litellm_params.price() for _, entry in group)
        yield Model(
            name=name,
            deployments=tuple(
                _read_deployment(
                    entry, file.upstreams.timeouts, f"{where}.litellm_params", source, environ
                )
                for where, entry in group
            ),
            price=next((price for price in prices if price is not None), None),
        )


def _check_name(name: str, reserved: str, where: str, source: str) -> None:
    if name == reserved or name.startswith(f"{reserved}:"):
        problem = f"{name!r} asks for routing; rename the model, or set router.model_name"
        raise ConfigError(source, where, problem)


def _read_deployment(
    entry: _Entry, timeouts: Timeouts, where: str, source: str, environ: Mapping[str, str]
) -> Deployment:
    params = entry.litellm_params
    provider, upstream_model = _split_provider(params, where, source)
    api_base, api_key = params.api_base, params.api_key
    if api_base is None:
        known = PROVIDERS.get(provider)
        if known is None:
            problem = f"the provider {provider!r} has no known address; give its api_base"
            raise ConfigError(source, where, problem)
        api_base = known.api_base
        api_key = api_key or _provider_key(known, f"{where}.api_key", source, environ)
    if urlsplit(api_base).scheme not in {"http", "https"} or not urlsplit(api_base).netloc:
        raise ConfigError(source, f"{where}.api_base", "is not an http:// or https:// address")
    base_url, query = _address(provider, api_base.rstrip("/"), upstream_model, params.api_version)
    return Deployment(
        upstream_model=upstream_model,
        base_url=base_url,
        query=query,
        api_key=api_key,
        key_header="api-key" if provider == "azure" else "authorization",
        timeouts=timeouts,
    )


def _split_provider(params: _LiteLLMParams, where: str, source: str) -> tuple[str, str]:
    """Return the provider and the model of `provider/model`; a bare name tells its maker."""
    provider, slash, rest = params.model.partition("/")
    if slash and rest:
        return provider, rest
    for pattern, maker in BARE_NAMES:
        if pattern.match(params.model):
            return maker, params.model
    if params.api_base is None:
        problem = f"{params.model!r} names no provider; write provider/model, or give an api_base"
        raise ConfigError(source, f"{where}.model", problem)
    return "openai", params.model


def _provider_key(
    provider: Provider, where: str, source: str, environ: Mapping[str, str]
) -> SecretStr:
    for name in provider.key_names:
        if environ.get(name):
            return SecretStr(environ[name])
    problem = f"there is no key; set the environment variable {provider.key_names[0]}, or api_key"
    raise ConfigError(source, where, problem)


def _address(provider: str, api_base: str, model: str, api_version: str | None) -> tuple[str, str]:
    """Return a deployment's base URL, and the query that goes with each request."""
    if provider != "azure" or api_base.endswith("/v1"):
        return api_base, ""
    if api_version is None:  # Azure's newer address needs none, and takes the model in the body
        return f"{api_base}/openai/v1", ""
    return f"{api_base}/openai/deployments/{model}", urlencode({"api-version": api_version})


def without_effect(file: File) -> Iterator[str]:
    """Yield the dotted paths that are accepted, but do nothing here."""
    yield from file.model_extra or {}
    for index, entry in enumerate(file.model_list):
        where = f"model_list.{index}"
        if "*" in entry.model_name:
            yield where
            continue
        yield from (f"{where}.{name}" for name in entry.model_extra or {})
        params = entry.litellm_params.model_extra or {}
        yield from (f"{where}.litellm_params.{name}" for name in params)
