"""Convert the file's `model_list` to the pool's models, with deployments and fallbacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import SecretStr

from router_service.apis.api import UpstreamApi
from router_service.apis.capabilities import Capabilities
from router_service.apis.chat.api import CHAT
from router_service.apis.messages.api import MESSAGES
from router_service.apis.responses.api import RESPONSES
from router_service.core.addresses import check_http_address
from router_service.core.errors import ConfigError, ConfigProblem
from router_service.settings.clouds import EntryError, read_bedrock, read_entra, read_vertex
from router_service.settings.litellm import (
    File,
    LiteLLMSection,
    ModelEntry,
    Reliability,
)
from router_service.settings.values import (
    Deployment,
    Model,
    Timeouts,
    Wildcard,
    match_wildcard,
)


@dataclass(frozen=True, slots=True)
class Provider:
    """The address of a provider's API, and the environment variables for its API key.

    The first of these variables that is set is used. A provider without variables needs no key.
    """

    api_base: str
    key_names: tuple[str, ...]


PROVIDERS: Mapping[str, Provider] = {
    name: Provider(api_base=api_base, key_names=tuple(keys.split()))
    for name, api_base, keys in (
        ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("text-completion-openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
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
            "TOGETHER_API_KEY TOGETHER_AI_API_KEY TOGETHERAI_API_KEY TOGETHER_AI_TOKEN",
        ),
        ("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
        ("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
        ("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY OR_API_KEY"),
        ("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
        (
            "fireworks_ai",
            "https://api.fireworks.ai/inference/v1",
            "FIREWORKS_API_KEY FIREWORKS_AI_API_KEY FIREWORKSAI_API_KEY FIREWORKS_AI_TOKEN",
        ),
        ("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        ("deepinfra", "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
        ("sambanova", "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
        ("nvidia_nim", "https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
        ("ollama", "http://localhost:11434/v1", ""),
        ("ollama_chat", "http://localhost:11434/v1", ""),
        ("perplexity", "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY PERPLEXITY_API_KEY"),
    )
}
"""Providers by LiteLLM's name, with the environment variables that LiteLLM uses for their keys."""

# A wrong guess would send a key to the wrong provider, so only unmistakable names are listed.
BARE_NAMES = (
    (re.compile(r"(gpt-|chatgpt-|o\d|ft:|text-embedding-|dall-e-|whisper-|tts-)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)
"""Beginnings of model names that imply a provider, for names without `provider/`."""

WITHOUT_V1 = frozenset({"ollama", "ollama_chat", "anthropic"})
"""Providers whose `api_base` lacks `/v1` in LiteLLM; the paths of their APIs need it."""

OPENAI = frozenset({"openai", "text-completion-openai", "azure"})
"""Providers with OpenAI's own APIs. The other providers have only Chat Completions."""

KEY_HEADERS: Mapping[str, Literal["api-key", "x-api-key"]] = {
    "azure": "api-key",
    "anthropic": "x-api-key",
}
"""Headers for the key at providers that do not use `authorization`."""

NO_KEY = "there is no key; set the environment variable {}, or api_key"

PLATFORMS = frozenset({"bedrock", "vertex_ai"})
"""Providers whose addresses and credentials `clouds.py` reads."""

FIREWORKS_MODELS = "accounts/fireworks/models/"
"""Prefix that LiteLLM adds to the names of Fireworks models if they name no account."""


def read_models(
    file: File, timeouts: Timeouts, source: str, environ: Mapping[str, str]
) -> Iterator[Model | Wildcard | ConfigProblem]:
    """Yield the pool's models, its wildcards, and the problems of unusable entries.

    Entries with the same name are deployments of one model. The most specific wildcard comes first.
    """
    reader = _ModelReader(file, timeouts, source)
    litellm = file.litellm_settings
    environ = {**environ, **litellm.variables()}
    for index, entry in enumerate(file.model_list):
        place = _Place(entry, f"model_list.{index}", source, environ, litellm)
        reader.groups.setdefault(entry.model_name, []).append(place)
    patterns = [name for name in reader.groups if "*" in name]
    for name in reader.groups:
        if name not in patterns:
            yield from reader.read(name)
    for pattern in sorted(patterns, key=lambda each: (-len(each), each.count("*"))):
        yield from reader.wildcard(pattern)


@dataclass(frozen=True, slots=True)
class _ModelReader:
    """Reads the models of one file."""

    file: File
    timeouts: Timeouts
    source: str
    groups: dict[str, list[_Place]] = field(default_factory=dict)
    """The entries of the file by `model_name`."""

    def read(
        self, name: str, group: str | None = None, stars: Sequence[str] = ()
    ) -> Iterator[Model | ConfigProblem]:
        """Yield a model and the problems of its entries.

        The model of a wildcard has the entries of `group`, in which `stars` replace each `*`.
        """
        group = group or name
        router, litellm = self.file.router_settings, self.file.litellm_settings
        places = [place.named(stars) for place in self.groups[group]]
        # Like LiteLLM: the share is the first of weight, rpm and tpm that any deployment sets.
        params = [place.entry.litellm_params for place in places]
        measures = ([getattr(p, m) or 0.0 for p in params] for m in ("weight", "rpm", "tpm"))
        weights = next(filter(any, measures), [1.0] * len(params))
        prices = (place.entry.price() for place in places)
        # The model's own fallbacks, or else the default ones; then its fallbacks for long inputs.
        names = (name, group, "*")
        own = list(_of_kind("fallbacks", names, router, litellm))
        wanted = [
            *(own or router.default_fallbacks or litellm.default_fallbacks),
            *_of_kind("context_window_fallbacks", names, router, litellm),
        ]
        aliases = known_aliases(self.file)
        others = (aliases.get(other, other) for other in wanted)
        fallbacks = dict.fromkeys(other for other in others if is_served(other, self.groups))
        deployments = []
        for place, weight in zip(places, weights, strict=True):
            try:
                deployments.append(place.deployment(weight, self.timeouts))
            except ConfigError as exc:
                yield from exc.problems
        if not deployments:
            return
        yield Model(
            name=name,
            deployments=tuple(deployments),
            price=next((price for price in prices if price is not None), None),
            capabilities=Capabilities.shared_by(
                [place.entry.model_info.capabilities() for place in places]
            ),
            fallbacks=tuple(other for other in fallbacks if other != name),
        )

    def wildcard(self, pattern: str) -> Iterator[Wildcard | ConfigProblem]:
        """Yield a wildcard, and the problems that all of its models would have."""
        yield Wildcard(
            pattern,
            tuple(place.entry for place in self.groups[pattern]),
            partial(self._read_matching, pattern),
        )
        for place in self.groups[pattern]:
            # With `*` alone, the provider and its key are known only when a client names a model.
            if place.entry.litellm_params.model != "*":
                try:
                    place.named(("model",) * pattern.count("*")).deployment(1.0, self.timeouts)
                except ConfigError as exc:
                    yield from exc.problems

    def _read_matching(self, pattern: str, name: str) -> Model:
        """Return a wildcard's model; raises ConfigError."""
        problems: list[ConfigProblem] = []
        for found in self.read(name, pattern, match_wildcard(pattern, name) or ()):
            if isinstance(found, Model):
                return found
            problems.append(found)
        raise ConfigError(self.source, problems=problems)


def known_aliases(file: File) -> dict[str, str]:
    """Return the model of each alias, without aliases of models that the file does not have."""
    names = {entry.model_name for entry in file.model_list}
    aliases = file.router_settings.aliases()
    return {alias: name for alias, name in aliases.items() if is_served(name, names)}


def is_served(name: str, names: Collection[str]) -> bool:
    """Return whether a file that lists these names and wildcards has a model of this name."""
    wildcards = (each for each in names if "*" in each)
    return ("*" not in name and name in names) or any(
        match_wildcard(each, name) is not None for each in wildcards
    )


def override(timeouts: Timeouts, timeout: float | None, stream_timeout: float | None) -> Timeouts:
    """Return timeouts with LiteLLM's `timeout` and `stream_timeout` applied.

    `timeout` limits the whole call, the wait for the first byte, and each wait between two parts
    of the answer. `stream_timeout` limits only the waits between parts. It must not limit the wait
    for the first byte, because an answer that is not streamed starts only after the model has
    finished reasoning.
    """
    changes = {}
    if timeout is not None:
        idle_s = min(timeouts.idle_s, timeout)
        changes = {"total_s": timeout, "first_byte_s": timeout, "idle_s": idle_s}
    if stream_timeout is not None:
        changes["idle_s"] = stream_timeout
    return timeouts.model_copy(update=changes)


def _of_kind(kind: str, names: Sequence[str], *sections: Reliability) -> Iterator[str]:
    """Yield a model's fallbacks from the first section that has any rules of this kind.

    The rules of the first of these names that has any apply.
    """
    rules: Sequence[Mapping[str, Sequence[str]]] = next(
        (found for section in sections if (found := getattr(section, kind))), ()
    )
    for key in names:
        found = [other for rule in rules for other in rule.get(key, ())]
        if found:
            yield from found
            return


@dataclass(frozen=True, slots=True)
class _Place:
    """An entry of `model_list` with its path in the file, and the environment for its key."""

    entry: ModelEntry
    where: str
    source: str
    environ: Mapping[str, str] = field(repr=False)
    litellm: LiteLLMSection

    def named(self, stars: Sequence[str]) -> _Place:
        """Return the entry with these texts in the place of each `*` in its model."""
        params = self.entry.litellm_params
        model = params.model
        for text in stars if "*" in model else ():
            model = model.replace("*", text, 1)
        params = params.model_copy(update={"model": model})
        return replace(self, entry=self.entry.model_copy(update={"litellm_params": params}))

    def deployment(self, weight: float, timeouts: Timeouts) -> Deployment:
        """Return the entry's deployment; raise ConfigError."""
        try:
            return self._deployment(weight, timeouts)
        except EntryError as exc:
            where = f"{self.where}.litellm_params{exc.field}"
            raise ConfigError(self.source, where, str(exc)) from exc

    def _deployment(self, weight: float, timeouts: Timeouts) -> Deployment:
        params = self.entry.litellm_params
        provider, upstream_model = self._split_provider()
        if provider in PLATFORMS:
            return self._at_platform(provider, upstream_model, weight, timeouts)
        api_base, api_key = self._account(provider)
        try:
            check_http_address(api_base, has_query=False)
        except ValueError as exc:
            where = ".api_base" if params.api_base else ": AZURE_API_BASE"
            raise EntryError(where, str(exc)) from exc
        base_url, model_path, query = api_base, "", ""
        if provider in WITHOUT_V1 and not api_base.endswith("/v1"):
            base_url = f"{api_base}/v1"
        elif provider == "azure" and not api_base.endswith("/v1"):
            base = api_base.removesuffix("/openai")
            base_url = f"{base}/openai/v1"  # the newer API takes the model in the body
            if params.api_version is not None:
                base_url, model_path = f"{base}/openai", f"/deployments/{upstream_model}"
                query = urlencode({"api-version": params.api_version})
        platform = None
        key_header: Literal["authorization", "api-key", "x-api-key"]
        key_header = KEY_HEADERS.get(provider, "authorization")
        if provider == "azure" and not api_key:
            refreshes = self.litellm.enable_azure_ad_token_refresh
            platform, api_key = read_entra(params, self.environ, base_url, refreshes=refreshes)
            key_header = "authorization"  # a token of Entra ID
            if platform is None and api_key is None and params.api_base is None:
                raise EntryError(".api_key", NO_KEY.format("AZURE_API_KEY"))
        return Deployment(
            upstream_model=upstream_model,
            base_model=self.entry.model_info.base_model,
            base_url=base_url,
            model_path=model_path,
            query=query,
            api_key=api_key,
            key_header=key_header,
            apis=self._apis(provider),
            platform=platform,
            provider="" if provider == "openai" and params.api_base is not None else provider,
            **self._common(weight, timeouts),
        )

    def _at_platform(
        self, provider: str, name: str, weight: float, timeouts: Timeouts
    ) -> Deployment:
        """Return the deployment of an entry whose platform has addresses of its own."""
        params, info = self.entry.litellm_params, self.entry.model_info
        if provider == "bedrock":
            found = read_bedrock(name, params, self.environ, info.base_model)
        else:
            found = read_vertex(name, params, self.environ)
        try:
            check_http_address(found.base_url, has_query=False)
        except ValueError as exc:
            raise EntryError(".api_base", str(exc)) from exc
        return Deployment(
            upstream_model=found.upstream_model,
            base_model=found.base_model or info.base_model,
            base_url=found.base_url,
            api_key=found.api_key,
            # Its formats are known, except that some models answer no conversations.
            apis=() if info.apis == () else found.apis,
            platform=found.platform,
            provider=provider,
            **self._common(weight, timeouts),
        )

    def _common(self, weight: float, timeouts: Timeouts) -> dict[str, Any]:
        """Return the fields that deployments of all providers have."""
        params = self.entry.litellm_params
        try:
            parameters = params.request_parameters()
        except ValueError as exc:
            raise EntryError("", str(exc)) from exc
        return {
            "supports_reasoning": self.entry.model_info.supports_reasoning is True,
            "sends_finish_reason": self.entry.model_info.sends_finish_reason is not False,
            "weight": weight,
            "timeouts": override(timeouts, params.timeout, params.stream_timeout).model_copy(
                update={str(name): seconds for name, seconds in params.timeouts.items()}
            ),
            "parameters": parameters,
        }

    def _apis(self, provider: str) -> tuple[UpstreamApi, ...]:
        """Return the APIs that the deployment speaks: those that the entry states, or a default."""
        stated = self.entry.model_info.apis
        if stated is not None:
            return stated
        if provider == "anthropic":
            return (MESSAGES,)
        is_openai = provider in OPENAI or self.entry.litellm_params.api_base is not None
        return (CHAT, RESPONSES) if is_openai else (CHAT,)

    def _split_provider(self) -> tuple[str, str]:
        """Return the provider and the model of `provider/model`, or of a bare name."""
        model = self.entry.litellm_params.model
        provider, slash, rest = model.partition("/")
        if slash and not rest:
            raise EntryError(
                ".model", f"{model!r} has no model after the slash; write provider/model"
            )
        if slash:
            has_account = rest.startswith("accounts/") or "#" in rest
            is_short = provider == "fireworks_ai" and not has_account
            return provider, f"{FIREWORKS_MODELS}{rest}" if is_short else rest
        for pattern, implied in BARE_NAMES:
            if pattern.match(model):
                return implied, model
        if self.entry.litellm_params.api_base is None:
            problem = f"{model!r} names no provider; write provider/model, or set api_base"
            raise EntryError(".model", problem)
        return "openai", model

    def _account(self, provider: str) -> tuple[str, SecretStr | None]:
        """Return the address and its key.

        A key from the environment is only sent to the address of its provider, never to an address
        that the file sets.
        """
        params = self.entry.litellm_params
        if params.api_base is not None:
            return params.api_base.rstrip("/"), params.api_key
        known = PROVIDERS.get(provider)
        if provider == "azure" and self.environ.get("AZURE_API_BASE"):
            # Without a key, there may be a token of Entra ID.
            azure_key = params.api_key or SecretStr(self.environ.get("AZURE_API_KEY", ""))
            return self.environ["AZURE_API_BASE"].rstrip("/"), azure_key or None
        if known is None:
            problem = f"the provider {provider!r} has no known address; set api_base"
            raise EntryError("", problem)
        key = params.api_key or None  # an empty key counts as missing
        if key is None and known.key_names:
            found = next(filter(None, map(self.environ.get, known.key_names)), None)
            if found is None:
                raise EntryError(".api_key", NO_KEY.format(known.key_names[0]))
            key = SecretStr(found)
        return known.api_base.rstrip("/"), key
