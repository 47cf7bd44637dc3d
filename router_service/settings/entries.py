"""`model_list` -> the models of the pool, each with its deployments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from pydantic import SecretStr

from router_service.core.addresses import check_http_address
from router_service.core.capabilities import Capabilities
from router_service.core.errors import ConfigError
from router_service.settings.litellm import Entry, Params
from router_service.settings.providers import BARE_NAMES, BELOW_V1, PROVIDERS, Provider
from router_service.settings.values import Deployment, Model, Timeouts

FIREWORKS_MODELS = "accounts/fireworks/models/"
"""What LiteLLM puts before a model of Fireworks that is not of an account."""


@dataclass(frozen=True, slots=True)
class Place:
    """An entry, and where in the file it stands."""

    entry: Entry
    where: str
    source: str

    def error(self, field: str, problem: str) -> ConfigError:
        """Return the error that something is wrong with a field of `litellm_params`."""
        return ConfigError(self.source, f"{self.where}.litellm_params{field}", problem)


def read_models(
    entries: Sequence[Entry], timeouts: Timeouts, source: str, environ: Mapping[str, str]
) -> Iterator[Model]:
    """Yield the pool's models; entries of one name are deployments of one model.

    Wildcards are left out. Raises ConfigError that names the entry.
    """
    groups: dict[str, list[Place]] = {}
    for index, entry in enumerate(entries):
        if "*" not in entry.model_name:
            place = Place(entry, f"model_list.{index}", source)
            groups.setdefault(entry.model_name, []).append(place)
    for name, places in groups.items():
        weights = _weights([place.entry.litellm_params for place in places])
        prices = (place.entry.price() for place in places)
        yield Model(
            name=name,
            deployments=tuple(
                _read_deployment(place, weight, timeouts, environ)
                for place, weight in zip(places, weights, strict=True)
            ),
            price=next((price for price in prices if price is not None), None),
            capabilities=_common([place.entry.model_info.capabilities() for place in places]),
        )


def _weights(params: Sequence[Params]) -> Sequence[float]:
    """Return the deployments' shares by the first measure that any of them has, as LiteLLM does."""
    for measure in ("weight", "rpm", "tpm"):
        weights = [getattr(deployment, measure) or 0.0 for deployment in params]
        if any(weights):
            return weights
    return [1.0] * len(params)


def _common(known: Sequence[Capabilities]) -> Capabilities:
    """Return what all deployments can do: whichever is drawn must serve the request."""

    def least(name: str) -> int | None:
        limits = (getattr(capabilities, name) for capabilities in known)
        return min((limit for limit in limits if limit is not None), default=None)

    return Capabilities(
        context_window_tokens=least("context_window_tokens"),
        max_output_tokens=least("max_output_tokens"),
        max_tools=least("max_tools"),
        unsupported=frozenset().union(*(capabilities.unsupported for capabilities in known)),
    )


def _read_deployment(
    place: Place, weight: float, timeouts: Timeouts, environ: Mapping[str, str]
) -> Deployment:
    params = place.entry.litellm_params
    provider, upstream_model = _split_provider(place)
    api_base, api_key = _account(provider, place, environ)
    try:
        check_http_address(api_base, has_query=False)
    except ValueError as exc:
        where = ".api_base" if params.api_base else ": AZURE_API_BASE"  # the rest is our own list
        raise place.error(where, str(exc)) from exc
    azure = _azure(api_base, upstream_model, params.api_version) if provider == "azure" else None
    return Deployment(
        upstream_model=upstream_model,
        listed_as=_listed_as(place.entry.model_info.base_model),
        base_url=azure.base_url if azure else _base_url(provider, api_base),
        model_path=azure.model_path if azure else "",
        query=azure.query if azure else "",
        api_key=api_key,
        key_header="api-key" if provider == "azure" else "authorization",
        weight=weight,
        timeouts=override(timeouts, params.timeout, params.stream_timeout).model_copy(
            update={str(name): seconds for name, seconds in params.timeouts.items()}
        ),
    )


def override(timeouts: Timeouts, timeout: float | None, stream_timeout: float | None) -> Timeouts:
    """Return timeouts with LiteLLM's in their place.

    Its `timeout` is of the whole call, and so of each part. Its `stream_timeout` bounds the
    silences within an answer alone: a first byte that is not streamed comes after all thinking.
    """
    changes = {}
    if timeout is not None:
        idle_s = min(timeouts.idle_s, timeout)
        changes = {"total_s": timeout, "first_byte_s": timeout, "idle_s": idle_s}
    if stream_timeout is not None:
        changes["idle_s"] = stream_timeout
    return timeouts.model_copy(update=changes)


def _split_provider(place: Place) -> tuple[str, str]:
    """Return the provider and the model of `provider/model`; a bare name tells its maker."""
    model = place.entry.litellm_params.model
    provider, slash, rest = model.partition("/")
    if slash and not rest:
        raise place.error(".model", f"{model!r} names no model behind the slash")
    if slash:
        is_named = rest.startswith("accounts/") or "#" in rest
        is_short = provider == "fireworks_ai" and not is_named
        return provider, f"{FIREWORKS_MODELS}{rest}" if is_short else rest
    for pattern, maker in BARE_NAMES:
        if pattern.match(model):
            return maker, model
    if place.entry.litellm_params.api_base is None:
        problem = f"{model!r} names no provider; write provider/model, or give an api_base"
        raise place.error(".model", problem)
    return "openai", model


def _account(
    provider: str, place: Place, environ: Mapping[str, str]
) -> tuple[str, SecretStr | None]:
    """Return an address and its key.

    A key that only the environment names goes to the address that it is of, never to one that
    the file names.
    """
    params = place.entry.litellm_params
    if params.api_base is not None:
        return params.api_base.rstrip("/"), params.api_key
    known = PROVIDERS.get(provider)
    if provider == "azure" and environ.get("AZURE_API_BASE"):
        known = Provider(api_base=environ["AZURE_API_BASE"], key_names=("AZURE_API_KEY",))
    if known is None:
        problem = f"the provider {provider!r} has no known address; give its api_base"
        raise place.error("", problem)
    return known.api_base.rstrip("/"), params.api_key or _provider_key(known, place, environ)


def _provider_key(provider: Provider, place: Place, environ: Mapping[str, str]) -> SecretStr | None:
    if not provider.key_names:
        return None
    for name in provider.key_names:
        if environ.get(name):
            return SecretStr(environ[name])
    name = provider.key_names[0]
    raise place.error(
        ".api_key", f"there is no key; set the environment variable {name}, or api_key"
    )


def _base_url(provider: str, api_base: str) -> str:
    is_below = provider in BELOW_V1 and not api_base.endswith("/v1")
    return f"{api_base}/v1" if is_below else api_base


@dataclass(frozen=True, slots=True)
class _Azure:
    base_url: str
    model_path: str = ""
    query: str = ""


def _azure(api_base: str, model: str, api_version: str | None) -> _Azure:
    """Return an Azure address: the newer takes the model in the body and needs no version."""
    if api_base.endswith("/v1"):
        return _Azure(api_base)
    base = api_base.removesuffix("/openai")
    if api_version is None:
        return _Azure(f"{base}/openai/v1")
    return _Azure(
        f"{base}/openai", f"/deployments/{model}", urlencode({"api-version": api_version})
    )


def _listed_as(base_model: str | None) -> str | None:
    """Return a `base_model` without its maker, `gpt-4o` of `azure/gpt-4o`."""
    return base_model and base_model.removeprefix("azure/").removeprefix("openai/")
