"""LiteLLM's sections of the file, as far as they mean something here.

Names and meanings are of LiteLLM's "All settings" page. A field that no class here declares has no
effect, which `unused.py` tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from router_service.core.addresses import host_in_address
from router_service.core.capabilities import Capabilities, Feature
from router_service.core.cost import (
    SECONDS_PER_HOUR,
    TOKENS_PER_MTOK,
    LongPromptPrice,
    Price,
)
from router_service.core.messages import Json
from router_service.settings.values import (
    ClientKey,
    Count,
    Name,
    RedisAddress,
    Seconds,
    TargetPort,
)

TimeoutName = Literal["connect_s", "first_byte_s", "idle_s", "total_s", "write_s", "pool_s"]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ListPrice = Annotated[float, Field(ge=0, le=1000)]
"""USD a token or a second; must stay finite when it is multiplied by a million, or by an hour."""


class Section(BaseModel):
    """A part of LiteLLM's file; what it does not declare is kept to be told, not refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        hide_input_in_errors=True,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Json) -> Json:
        """Take a name without a value for one that is not there, as LiteLLM does."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names that mean something here."""
        aliases = {"base_url"} if "api_base" in cls.model_fields else set()
        return frozenset(cls.model_fields.keys() | aliases)


class Costs(Section):
    """LiteLLM's prices, USD a token; it takes them in `model_info` and in `litellm_params`."""

    input_cost_per_token: ListPrice | None = None
    output_cost_per_token: ListPrice | None = None
    cache_read_input_token_cost: ListPrice | None = None
    cache_creation_input_token_cost: ListPrice | None = None
    output_cost_per_reasoning_token: ListPrice | None = None
    input_cost_per_second: ListPrice | None = None
    input_cost_per_token_above_128k_tokens: ListPrice | None = None
    output_cost_per_token_above_128k_tokens: ListPrice | None = None
    input_cost_per_token_above_200k_tokens: ListPrice | None = None
    output_cost_per_token_above_200k_tokens: ListPrice | None = None
    cache_read_input_token_cost_above_200k_tokens: ListPrice | None = None
    cache_creation_input_token_cost_above_200k_tokens: ListPrice | None = None

    def costs(self) -> dict[str, float]:
        """Return the prices that are given, by LiteLLM's names."""
        return self.model_dump(include=set(Costs.model_fields), exclude_none=True)


class Params(Costs):
    """An entry's `litellm_params`: where a deployment is, and its share; `timeouts` is ours."""

    model: Name
    api_base: str | None = Field(None, validation_alias=AliasChoices("api_base", "base_url"))
    api_key: SecretStr | None = None
    api_version: str | None = None
    weight: Weight | None = None
    rpm: Weight | None = None
    tpm: Weight | None = None
    timeout: Seconds | None = None
    stream_timeout: Seconds | None = None
    timeouts: Mapping[TimeoutName, Seconds] = Field(default_factory=dict)


class ModelInfo(Costs):
    """An entry's `model_info`: what a model costs and can do; the last two names are ours."""

    base_model: Name | None = None
    mode: str | None = None
    max_input_tokens: Count | None = None
    max_output_tokens: Count | None = None
    supported_endpoints: tuple[str, ...] | None = None
    supports_function_calling: bool | None = None
    supports_tool_choice: bool | None = None
    supports_parallel_function_calling: bool | None = None
    supports_vision: bool | None = None
    supports_audio_input: bool | None = None
    supports_pdf_input: bool | None = None
    supports_response_schema: bool | None = None
    supports_logprobs: bool | None = None
    max_tools: Annotated[int, Field(ge=0)] | None = None

    def capabilities(self) -> Capabilities:
        """Return what is said of the model; what is not said is unknown."""
        return Capabilities(
            context_window_tokens=self.max_input_tokens,
            max_output_tokens=self.max_output_tokens,
            max_tools=self.max_tools,
            unsupported=frozenset((*self._denied(), *self._elsewhere())),
        )

    def _denied(self) -> Iterator[Feature]:
        for feature, supported in (
            (Feature.TOOLS, self.supports_function_calling),
            (Feature.TOOL_CHOICE, self.supports_tool_choice),
            (Feature.PARALLEL_TOOL_CALLS, self.supports_parallel_function_calling),
            (Feature.IMAGES, self.supports_vision),
            (Feature.AUDIO, self.supports_audio_input),
            (Feature.FILES, self.supports_pdf_input),
            (Feature.JSON_SCHEMA, self.supports_response_schema),
            (Feature.LOGPROBS, self.supports_logprobs),
        ):
            if supported is False:
                yield feature

    def _elsewhere(self) -> Iterator[Feature]:
        """Yield the endpoints that the model is not served at."""
        served = self.supported_endpoints
        if served is not None:
            if "/v1/chat/completions" not in served:
                yield Feature.CHAT
            if "/v1/responses" not in served:
                yield Feature.RESPONSES
        elif self.mode == "responses":
            yield Feature.CHAT
        elif self.mode not in {None, "chat"}:
            yield from (Feature.CHAT, Feature.RESPONSES)


class Entry(Section):
    """One entry of `model_list`: a deployment of the model of that name."""

    model_name: Name
    litellm_params: Params
    model_info: ModelInfo = ModelInfo()

    def price(self) -> Price | None:
        """Return the price that the entry gives; None where one that it needs is missing."""
        return read_price(self.litellm_params.costs() | self.model_info.costs())


class GeneralSection(Section):
    """What is read of `general_settings`."""

    master_key: ClientKey | None = None
    """Our admin key."""


class Alias(Section):
    """What a `model_group_alias` stands for, where it is no bare name."""

    model: Name


Fallbacks = tuple[Mapping[str, tuple[str, ...]], ...]


class Reliability(Section):
    """What `router_settings` and `litellm_settings` both take; the former count first."""

    num_retries: Annotated[int, Field(ge=0)] | None = None
    fallbacks: Fallbacks = ()
    context_window_fallbacks: Fallbacks = ()
    default_fallbacks: tuple[str, ...] = ()
    allowed_fails: Annotated[int, Field(ge=0)] | None = None
    cooldown_time: Seconds | None = None


class RouterSection(Reliability):
    """`router_settings`."""

    timeout: Seconds | None = None
    stream_timeout: Seconds | None = None
    model_group_alias: Mapping[str, Name | Alias] = Field(default_factory=dict)
    redis_url: RedisAddress | None = None
    redis_host: Annotated[str, AfterValidator(host_in_address)] | None = None
    redis_port: TargetPort = 6379
    redis_username: str = ""
    redis_password: SecretStr | None = None
    redis_db: Annotated[int, Field(ge=0)] = 0
    redis_ssl: bool = False
    routing_strategy: str = "simple-shuffle"
    enable_pre_call_checks: bool = True

    def redis(self) -> SecretStr | None:
        """Return the address of the Redis that is named, if any."""
        if self.redis_url is not None or self.redis_host is None:
            return self.redis_url
        password = self.redis_password.get_secret_value() if self.redis_password else ""
        user = f"{quote(self.redis_username, safe='')}:{quote(password, safe='')}@"
        scheme = "rediss" if self.redis_ssl else "redis"
        login = "" if user == ":@" else user
        return SecretStr(f"{scheme}://{login}{self.redis_host}:{self.redis_port}/{self.redis_db}")


class LiteLLMSection(Reliability):
    """`litellm_settings`."""

    request_timeout: Seconds | None = None
    drop_params: bool = False


def read_price(costs: Mapping[str, float]) -> Price | None:
    """Return the price that LiteLLM's names give; None where one of both prices is missing."""
    base = _rates(costs, "")
    hourly = costs.get("input_cost_per_second")
    if base is None and hourly is None:
        return None
    longer = ((start, _rates(costs, f"_above_{start}k_tokens")) for start in (128, 200))
    return Price(
        **(base or {}),
        long_prompts=tuple(
            LongPromptPrice(above_prompt_tokens=start * 1000, price=Price(**((base or {}) | rates)))
            for start, rates in longer
            if rates is not None
        ),
        usd_per_hour=None if hourly is None else round(hourly * SECONDS_PER_HOUR, 9),
    )


def _rates(costs: Mapping[str, float], suffix: str) -> dict[str, float] | None:
    """Return the prices whose LiteLLM names end so, by ours; None without both main ones."""
    names = {
        "input_usd_per_mtok": "input_cost_per_token",
        "output_usd_per_mtok": "output_cost_per_token",
        "cached_input_usd_per_mtok": "cache_read_input_token_cost",
        "cache_write_usd_per_mtok": "cache_creation_input_token_cost",
        "reasoning_usd_per_mtok": "output_cost_per_reasoning_token",
    }
    given = {ours: costs.get(theirs + suffix) for ours, theirs in names.items()}
    if given["input_usd_per_mtok"] is None or given["output_usd_per_mtok"] is None:
        return None
    # Rounded: 1.5e-07 USD a token is 0.15 USD a million, not 0.15 and some float dust.
    return {name: round(usd * TOKENS_PER_MTOK, 9) for name, usd in given.items() if usd is not None}
