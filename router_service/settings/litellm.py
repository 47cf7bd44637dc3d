"""The configuration file: LiteLLM's sections, as far as they are implemented here, and ours.

LiteLLM's settings have the names and meanings of the page "All settings" in its documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

import orjson
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from router_service.apis.api import Api
from router_service.apis.capabilities import Capabilities, Feature
from router_service.apis.conversation import Json
from router_service.apis.registry import APIS
from router_service.core.addresses import host_in_address
from router_service.policies.costs import SECONDS_PER_HOUR, TOKENS_PER_MTOK, LongPromptPrice, Price
from router_service.settings.platforms import ENTRA_SCOPE
from router_service.settings.values import (
    BudgetSettings,
    ClientKey,
    Count,
    DatabaseSettings,
    DecisionLogSettings,
    HttpAddress,
    KeySettings,
    LoggingSettings,
    Name,
    RouterSettings,
    Seconds,
    ServerSettings,
    StoreAddress,
    TargetPort,
    TracingSettings,
    UpstreamSettings,
    UsageSettings,
)

TimeoutName = Literal[
    "connect_s", "first_byte_s", "idle_s", "total_s", "write_s", "pool_s", "hold_s"
]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ListPrice = Annotated[float, Field(ge=0, le=1000)]
"""USD per token or second. The limit keeps the price per million tokens, or per hour, finite."""

REQUEST_PARAMETERS = frozenset(
    "chat_template_kwargs enable_thinking frequency_penalty guardrailConfig include_reasoning "
    "length_penalty logit_bias logprobs max_completion_tokens max_tokens metadata min_p "
    "min_tokens modalities parallel_tool_calls performanceConfig prediction presence_penalty "
    "prompt_cache_key prompt_cache_retention provider random_seed reasoning reasoning_effort "
    "reasoning_format repetition_penalty requestMetadata response_format safe_prompt "
    "safety_identifier search_parameters seed serviceTier service_tier "
    "skip_special_tokens stop stop_token_ids temperature thinking thinking_budget tool_choice "
    "top_k top_logprobs top_p transforms user verbosity".split()
)
"""Settings in `litellm_params` that are added to the requests to a deployment: parameters of Chat
Completions, and common ones of other providers, vLLM, OpenRouter and Bedrock. All others go into
`extra_body`, because LiteLLM has settings of its own beside them, some of which are secrets."""

RESERVED_FIELDS = frozenset(
    "background conversation function_call functions input instructions messages model n "
    "previous_response_id prompt store stream stream_options tools".split()
)
"""Fields of requests that the configuration must not set, because the gateway decides by what the
client sent in them."""

ONE_OF = (
    frozenset({"reasoning", "reasoning_effort"}),
    frozenset({"max_tokens", "max_completion_tokens"}),
)
"""Groups of parameters; a request can have only one of each group."""


Region = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
"""A region or location of a cloud, which becomes a part of the name of a host."""


def _as_json(value: Json) -> Json:
    """Return credentials that are written as YAML as the JSON that they stand for."""
    return json.dumps(value) if isinstance(value, dict) else value


class Section(BaseModel):
    """Base of LiteLLM's sections. Settings that are not declared here are reported, not refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        hide_input_in_errors=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_values(cls, values: Json) -> Json:
        """Ignore settings without a value, as LiteLLM does."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of the settings that are implemented."""
        aliases = (
            choice
            for field in cls.model_fields.values()
            if isinstance(field.validation_alias, AliasChoices)
            for choice in field.validation_alias.choices
        )
        return frozenset({*cls.model_fields, *map(str, aliases)})


class Costs(Section):
    """LiteLLM's prices, which it accepts in `model_info` and in `litellm_params`."""

    input_cost_per_token: ListPrice | None = None
    """Price in USD per input token."""
    output_cost_per_token: ListPrice | None = None
    """Price in USD per output token. A price needs both the input and the output price."""
    cache_read_input_token_cost: ListPrice | None = None
    """Price in USD per input token that the provider read from its cache."""
    cache_creation_input_token_cost: ListPrice | None = None
    """Price in USD per input token that the provider wrote to its cache."""
    output_cost_per_reasoning_token: ListPrice | None = None
    """Price in USD per reasoning token, if it differs from other output."""
    input_cost_per_second: ListPrice | None = None
    """Price in USD per second of a server of your own."""
    input_cost_per_token_above_128k_tokens: ListPrice | None = None
    """Price in USD per input token of prompts with more than 128,000 tokens."""
    output_cost_per_token_above_128k_tokens: ListPrice | None = None
    """Price in USD per output token after prompts with more than 128,000 tokens."""
    input_cost_per_token_above_200k_tokens: ListPrice | None = None
    """Price in USD per input token of prompts with more than 200,000 tokens."""
    output_cost_per_token_above_200k_tokens: ListPrice | None = None
    """Price in USD per output token after prompts with more than 200,000 tokens."""
    cache_read_input_token_cost_above_200k_tokens: ListPrice | None = None
    """Price in USD per cached input token of prompts with more than 200,000 tokens."""
    cache_creation_input_token_cost_above_200k_tokens: ListPrice | None = None
    """Price in USD per input token written to the cache for prompts with more than 200,000
    tokens."""

    def costs(self) -> dict[str, float]:
        """Return the prices that are set, by LiteLLM's names."""
        return self.model_dump(include=set(Costs.model_fields), exclude_none=True)


class Params(Costs):
    """Address, key and share of a deployment."""

    model: Name
    """Provider and model as `provider/model`, such as `openai/gpt-4o`."""
    api_base: str | None = Field(
        None,
        validation_alias=AliasChoices("api_base", "base_url"),
        json_schema_extra={"x-default": "the provider's address"},
    )
    """Address of an OpenAI-compatible API, such as `http://vllm:8000/v1`; `base_url` is another
    name for it."""
    api_key: SecretStr | None = Field(
        None, json_schema_extra={"x-default": "the provider's environment variable"}
    )
    """API key of the deployment. The provider's variable, such as `OPENAI_API_KEY`, is only used
    without `api_base`, so that the key is never sent to another address."""
    api_version: str | None = None
    """Azure's API version; without it, Azure's newer API is used."""
    tenant_id: str | None = None
    """Tenant of Entra ID whose client gets Azure's access tokens, with `client_id` and
    `client_secret`; `AZURE_TENANT_ID` without it."""
    client_id: str | None = None
    """Client of Entra ID; `AZURE_CLIENT_ID` without it."""
    client_secret: SecretStr | None = None
    """Secret of the client; `AZURE_CLIENT_SECRET` without it."""
    azure_ad_token: SecretStr | None = None
    """An access token of Entra ID, which is not renewed."""
    azure_scope: Name | None = Field(None, json_schema_extra={"x-default": ENTRA_SCOPE})
    """What the access tokens are for; `AZURE_SCOPE` without it."""
    aws_region_name: Region | None = None
    """Region of Amazon Bedrock; without it the region in `model`, `AWS_REGION_NAME`, `AWS_REGION`,
    `AWS_DEFAULT_REGION` or that of the profile, or else `us-west-2`."""
    aws_access_key_id: str | None = None
    """Key id for Amazon Bedrock. Without credentials here, AWS's usual chain is searched:
    environment, profile, container, instance role."""
    aws_secret_access_key: SecretStr | None = None
    """Secret of the key id."""
    aws_session_token: SecretStr | None = None
    """Session token, if the key is a temporary one."""
    aws_profile_name: Name | None = None
    """Profile in AWS's configuration files."""
    aws_role_name: Name | None = None
    """ARN of a role to assume with these credentials."""
    aws_session_name: Name | None = Field(None, json_schema_extra={"x-default": "switchcraft"})
    """Name of the role's session."""
    aws_external_id: Name | None = None
    """External id that the role demands."""
    aws_web_identity_token: SecretStr | None = None
    """Token with which the role is assumed: the token, the path of its file, `oidc/file/PATH` or
    `oidc/env/NAME`."""
    aws_sts_endpoint: HttpAddress | None = None
    """Address of AWS's Security Token Service, if it is not the region's."""
    aws_bedrock_runtime_endpoint: HttpAddress | None = None
    """Address of Amazon Bedrock, such as that of a VPC endpoint, if it is not the region's."""
    model_id: Name | None = None
    """ARN of an inference profile or of a provisioned model at Amazon Bedrock, which `model`
    names the model of."""
    vertex_project: Name | None = Field(
        None, validation_alias=AliasChoices("vertex_project", "vertex_ai_project")
    )
    """Google Cloud project of Vertex AI; without it `VERTEXAI_PROJECT` or the credentials'
    project."""
    vertex_location: Region | None = Field(
        None,
        validation_alias=AliasChoices("vertex_location", "vertex_ai_location"),
        json_schema_extra={"x-default": "VERTEXAI_LOCATION"},
    )
    """Location of Vertex AI, such as `us-central1` or `global`."""
    vertex_credentials: Annotated[SecretStr, BeforeValidator(_as_json)] | None = Field(
        None, validation_alias=AliasChoices("vertex_credentials", "vertex_ai_credentials")
    )
    """Google's credentials for Vertex AI, as JSON or as the path of a file; without them
    Application Default Credentials."""
    weight: Weight | None = None
    """Share of the model's requests, relative to its other deployments. If no deployment has a
    weight, `rpm` is used as the share, or else `tpm`. If these are missing too, all shares are
    equal."""
    rpm: Weight | None = None
    """Requests per minute: used as the share of requests only, not enforced as a limit."""
    tpm: Weight | None = None
    """Tokens per minute: used as the share of requests only, not enforced as a limit."""
    timeout: Seconds | None = None
    """Longest time in seconds for the whole call."""
    stream_timeout: Seconds | None = None
    """Longest time in seconds between two parts of an answer."""
    timeouts: Mapping[TimeoutName, Seconds] = Field(default_factory=dict)
    """Time limits in seconds of this deployment, with the names of `upstreams.timeouts`. They
    override `timeout` and `stream_timeout`."""
    extra_body: Mapping[str, Json] = Field(default_factory=dict, repr=False)
    """Further request parameters by name, for parameters that are not settings here. They are added
    to requests like `temperature` and `reasoning_effort`."""

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of the settings that are implemented."""
        return super().names() | REQUEST_PARAMETERS

    def request_parameters(self) -> dict[str, Json]:
        """Return the parameters that are added to requests.

        Raises ValueError, which says what is wrong with a parameter.
        """
        given: Mapping[str, Json] = self.model_extra or {}
        own = {name: value for name, value in given.items() if name in REQUEST_PARAMETERS}
        reserved = RESERVED_FIELDS & (given.keys() | self.extra_body.keys())
        if reserved:
            raise ValueError(
                f"{min(reserved)!r} cannot be set here, because the gateway decides by what the"
                " client sent in it; remove it"
            )
        parameters = own | dict(self.extra_body)
        for names in ONE_OF:
            if names <= parameters.keys():
                raise ValueError(f"{' and '.join(sorted(names))} exclude each other; set one")
        try:
            orjson.dumps(parameters)
        except orjson.JSONEncodeError as exc:
            raise ValueError(f"the request parameters cannot be written as JSON: {exc}") from exc
        return parameters


class ModelInfo(Costs):
    """Prices and limits of a model."""

    base_model: Name | None = None
    """The model's id, such as `azure/gpt-4o`, if the deployment has another name, or if its
    address does not tell the provider. The price list and the router's arms know the model by
    it."""
    mode: str | None = None
    """Kind of model: `chat`; `responses` if only the Responses API serves it; or another kind, such
    as `embedding`, that answers no conversations."""
    max_input_tokens: Count | None = None
    """Context window in tokens."""
    max_output_tokens: Count | None = None
    """Longest answer in tokens."""
    supported_endpoints: tuple[str, ...] | None = None
    """Endpoints that serve the model, the preferred one first: `/v1/chat/completions`,
    `/v1/responses` and `/v1/messages`. Requests in another API are translated. By default, OpenAI,
    Azure and servers with an `api_base` have the first two, Anthropic has the last, and other
    providers have the first."""
    supports_reasoning: bool | None = None
    """Whether the model accepts a reasoning effort, which is otherwise left out of translated
    requests."""
    supports_function_calling: bool | None = None
    """Whether the model can call tools."""
    supports_tool_choice: bool | None = None
    """Whether the model honours `tool_choice`."""
    supports_parallel_function_calling: bool | None = None
    """Whether the model can call several tools in one answer."""
    supports_vision: bool | None = None
    """Whether the model accepts images."""
    supports_audio_input: bool | None = None
    """Whether the model accepts audio."""
    supports_pdf_input: bool | None = None
    """Whether the model accepts files."""
    supports_response_schema: bool | None = None
    """Whether the model honours a JSON schema in `response_format`."""
    supports_logprobs: bool | None = None
    """Whether the model returns log probabilities (not a LiteLLM setting)."""
    sends_finish_reason: bool | None = None
    """`false` for a server whose streams never say why they end (`finish_reason`, `stop_reason`):
    then the last event completes an answer. Without it, a stream that ends without a reason counts
    as broken, because it may have been cut off (not a LiteLLM setting)."""
    max_tools: Annotated[int, Field(ge=0)] | None = None
    """Largest number of tools in a request (not a LiteLLM setting)."""

    @property
    def apis(self) -> tuple[Api, ...] | None:
        """The APIs that serve the model, or None if the section does not say."""
        if self.supported_endpoints is not None:
            by_path = {f"/v1{api.path}": api for api in APIS}
            return tuple(by_path[path] for path in self.supported_endpoints if path in by_path)
        if self.mode in {None, "chat"}:
            return None
        return tuple(api for api in APIS if api.name == self.mode)

    def capabilities(self) -> Capabilities:
        """Return the limits that the section states; everything else is unknown."""
        supported = {
            Feature.TOOLS: self.supports_function_calling,
            Feature.TOOL_CHOICE: self.supports_tool_choice,
            Feature.PARALLEL_TOOL_CALLS: self.supports_parallel_function_calling,
            Feature.IMAGES: self.supports_vision,
            Feature.AUDIO: self.supports_audio_input,
            Feature.FILES: self.supports_pdf_input,
            Feature.JSON_SCHEMA: self.supports_response_schema,
            Feature.LOGPROBS: self.supports_logprobs,
        }
        return Capabilities(
            context_window_tokens=self.max_input_tokens,
            max_output_tokens=self.max_output_tokens,
            max_tools=self.max_tools,
            unsupported=frozenset(
                feature for feature, is_supported in supported.items() if is_supported is False
            ),
        )


class ModelEntry(Section):
    """One deployment of a model. Entries with the same `model_name` are one model."""

    model_name: Name
    """Name that clients use. In a wildcard such as `openai/*`, each `*` stands for any text, which
    replaces the `*` in `litellm_params.model`."""
    litellm_params: Params
    model_info: ModelInfo = ModelInfo()

    def price(self) -> Price | None:
        """Return the entry's price; None if the input or the output price is missing."""
        costs = self.litellm_params.costs() | self.model_info.costs()
        base = _token_prices(costs, "")
        hourly = costs.get("input_cost_per_second")
        if base is None and hourly is None:
            return None
        longer = ((start, _token_prices(costs, f"_above_{start}k_tokens")) for start in (128, 200))
        return Price(
            **(base or {}),
            long_prompts=tuple(
                LongPromptPrice(
                    above_prompt_tokens=start * 1000, price=Price(**((base or {}) | prices))
                )
                for start, prices in longer
                if prices is not None
            ),
            usd_per_hour=None if hourly is None else round(hourly * SECONDS_PER_HOUR, 9),
        )


def _token_prices(costs: Mapping[str, float], suffix: str) -> dict[str, Any] | None:
    """Return the token prices whose LiteLLM names end with `suffix`, by our names.

    Return None unless both the input and the output price are set.
    """
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
    # Rounded so that 1.5e-07 USD per token becomes exactly 0.15 USD per million tokens.
    return {name: round(usd * TOKENS_PER_MTOK, 9) for name, usd in given.items() if usd is not None}


class GeneralSection(Section):
    """LiteLLM's `general_settings`."""

    master_key: ClientKey | None = None
    """The admin key, the same as `keys.admin`."""


class Alias(Section):
    """Model of an alias, if the alias has options."""

    model: Name
    """Model of `model_list`."""


Fallbacks = tuple[Mapping[str, tuple[str, ...]], ...]


class Reliability(Section):
    """Settings that both sections accept; a value in `router_settings` takes precedence."""

    num_retries: Annotated[int, Field(ge=0)] | None = None
    """Number of retries for each model, the same as `upstreams.retries.max_retries`."""
    fallbacks: Fallbacks = ()
    """Models to try if a requested model fails, as a list of `{model: [fallback, ...]}`; the name
    `*` stands for all models."""
    context_window_fallbacks: Fallbacks = ()
    """Further fallbacks, tried after `fallbacks` whatever the failure was."""
    default_fallbacks: tuple[str, ...] = ()
    """Fallbacks of models without their own."""
    allowed_fails: Annotated[int, Field(ge=0)] | None = None
    """Number of failures that do not open the circuit, the same as
    `upstreams.breaker.allowed_fails`."""
    cooldown_time: Seconds | None = None
    """Time in seconds that an open circuit stays open, the same as
    `upstreams.breaker.cooldown_s`."""


class RouterSection(Reliability):
    """LiteLLM's `router_settings`."""

    timeout: Seconds | None = None
    """Longest time in seconds for the whole call."""
    stream_timeout: Seconds | None = None
    """Longest time in seconds between two parts of an answer."""
    model_group_alias: Mapping[str, Name | Alias] = Field(default_factory=dict)
    """Additional names (aliases) that clients may use, each with the model it stands for."""
    redis_url: StoreAddress | None = None
    """Address of Redis, the same as `server.redis_url`."""
    redis_host: Annotated[str, AfterValidator(host_in_address)] | None = None
    """Host of Redis, if there is no `redis_url`."""
    redis_port: TargetPort = 6379
    """Port of Redis."""
    redis_username: str = ""
    """User name for Redis."""
    redis_password: SecretStr | None = None
    """Password for Redis."""
    redis_db: Annotated[int, Field(ge=0)] = 0
    """Number of the Redis database."""
    redis_ssl: bool = False
    """Whether to connect to Redis over TLS."""

    def redis(self) -> SecretStr | None:
        """Return the address of Redis, if the section has one."""
        if self.redis_url is not None or self.redis_host is None:
            return self.redis_url
        password = self.redis_password.get_secret_value() if self.redis_password else ""
        user = f"{quote(self.redis_username, safe='')}:{quote(password, safe='')}@"
        scheme = "rediss" if self.redis_ssl else "redis"
        login = "" if user == ":@" else user
        return SecretStr(f"{scheme}://{login}{self.redis_host}:{self.redis_port}/{self.redis_db}")

    def aliases(self) -> dict[str, str]:
        """Return the model of each alias, whether or not the model exists."""
        return {
            alias: target.model if isinstance(target, Alias) else target
            for alias, target in self.model_group_alias.items()
        }


class LiteLLMSection(Reliability):
    """LiteLLM's `litellm_settings`."""

    request_timeout: Seconds | None = None
    """Longest time in seconds for the whole call."""
    enable_azure_ad_token_refresh: bool = False
    """Whether Azure's deployments without a key get access tokens of the identity that
    azure-identity's `DefaultAzureCredential` finds."""
    vertex_project: Name | None = None
    """Google Cloud project of entries without one."""
    vertex_location: Region | None = None
    """Location of Vertex AI of entries without one."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables that the section replaces."""
        values = {
            "VERTEXAI_PROJECT": self.vertex_project,
            "VERTEXAI_LOCATION": self.vertex_location,
        }
        return {name: value for name, value in values.items() if value is not None}


class File(BaseModel):
    """The whole configuration file."""

    model_config = ConfigDict(
        frozen=True, extra="allow", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    model_list: tuple[ModelEntry, ...] = ()
    """Models and their deployments."""
    router: RouterSettings = RouterSettings()
    server: ServerSettings = ServerSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    keys: KeySettings = KeySettings()
    decision_log: DecisionLogSettings = DecisionLogSettings()
    database: DatabaseSettings = DatabaseSettings()
    usage: UsageSettings = UsageSettings()
    budgets: BudgetSettings = BudgetSettings()
    logging: LoggingSettings = LoggingSettings()
    tracing: TracingSettings = TracingSettings()
    router_settings: RouterSection = RouterSection()
    litellm_settings: LiteLLMSection = LiteLLMSection()
    general_settings: GeneralSection = GeneralSection()
