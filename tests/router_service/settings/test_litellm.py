"""A LiteLLM user's file: its settings apply, and the others are reported."""

from __future__ import annotations

import pytest

from router_service.policies.costs import LongPromptPrice, Price
from router_service.settings import Deployment, Model, Settings, Timeouts
from tests.router_service.settings.conftest import LoadFile as Load

PRODUCTION = """
environment_variables:
  REDIS_HOST: redis.internal
  REDIS_PORT: "6380"
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-eu
      api_base: os.environ/AZURE_API_BASE_EU
      api_key: os.environ/AZURE_API_KEY_EU
      api_version: "2024-10-21"
      rpm: 900
      timeout: 120
      stream_timeout: 20
    model_info:
      id: gpt-4o-eu
      mode: chat
      base_model: azure/gpt-4o
      max_input_tokens: 128000
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o-us
      api_base: https://us.openai.azure.com/
      api_key: os.environ/AZURE_API_KEY_US
      api_version: "2024-10-21"
      rpm: 100
    model_info: {max_input_tokens: 64000, supports_vision: false}
  - model_name: claude-sonnet
    litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: os.environ/ANTHROPIC_API_KEY}
    model_info:
      input_cost_per_token: 3e-06
      output_cost_per_token: 1.5e-05
      cache_read_input_token_cost: 3e-07
      cache_creation_input_token_cost: 3.75e-06
      input_cost_per_token_above_200k_tokens: 6e-06
      output_cost_per_token_above_200k_tokens: 2.25e-05
  - model_name: llama
    litellm_params: {model: hosted_vllm/meta/llama, api_base: http://gpu:8000/v1, api_key: none}
    model_info: {input_cost_per_second: 0.001, supports_function_calling: false}
router_settings:
  routing_strategy: simple-shuffle
  num_retries: 4
  timeout: 60
  allowed_fails: 5
  cooldown_time: 90
  enable_pre_call_checks: true
  redis_host: os.environ/REDIS_HOST
  redis_port: os.environ/REDIS_PORT
  redis_password: os.environ/REDIS_PASSWORD
  fallbacks: [{gpt-4o: [claude-sonnet, llama]}, {"*": [os.environ/LAST_RESORT]}]
  context_window_fallbacks: [{gpt-4o: [claude-sonnet]}, {llama: [claude-sonnet]}]
  model_group_alias: {gpt-4: gpt-4o, hidden-claude: {model: claude-sonnet, hidden: true}}
litellm_settings:
  num_retries: 1
  request_timeout: 600
  drop_params: true
  set_verbose: false
  success_callback: [langfuse]
  cache: true
  cache_params: {type: redis, host: os.environ/NOT_SET_HERE}
general_settings:
  database_url: os.environ/DATABASE_URL
  alerting: [slack]
"""
ENVIRON = {
    "AZURE_API_BASE_EU": "https://eu.openai.azure.com",
    "AZURE_API_KEY_EU": "azure-eu",
    "AZURE_API_KEY_US": "azure-us",
    "ANTHROPIC_API_KEY": "anthropic",
    "REDIS_PASSWORD": "p@ss/word",
    "LAST_RESORT": "llama",
}
LOCAL = "{model: openai/x, api_base: 'http://h/v1'}"


@pytest.fixture
def load(load_file: Load) -> Load:
    """Return a loader of texts with this module's variables by default."""
    return lambda text, environ=ENVIRON: load_file(text, environ)


def by_name(settings: Settings) -> dict[str, Model]:
    """Return the models by name."""
    return {model.name: model for model in settings.models}


def entry(params: str = LOCAL, info: str = "{}", name: str = "m") -> str:
    """Return one entry of a model_list, as flow YAML."""
    return f"{{model_name: {name}, litellm_params: {params}, model_info: {info}}}"


def listing(*entries: str, extra: str = "") -> str:
    """Return a file with these entries."""
    return f"model_list: [{', '.join(entries)}]\n{extra}"


def only(settings: Settings) -> Deployment:
    """Return the only deployment of the only model."""
    ((deployment,),) = (model.deployments for model in settings.models)
    return deployment


def test_deployments_without_weights_share_by_limits(load: Load) -> None:
    """Entries of one name are one model; `rpm` or `tpm` are the shares without weights."""
    eu, us = by_name(load(PRODUCTION))["gpt-4o"].deployments
    assert (eu.weight, us.weight) == (900, 100)
    assert eu.url("/chat/completions") == (
        "https://eu.openai.azure.com/openai/deployments/gpt-4o-eu/chat/completions"
        "?api-version=2024-10-21"
    )
    assert us.url("/responses") == (
        "https://us.openai.azure.com/openai/responses?api-version=2024-10-21"
    )
    assert (eu.key_header, eu.listed_as, us.base_model) == ("api-key", "gpt-4o", None)


def test_deployment_timeouts_override_router_timeouts(load: Load) -> None:
    """The router's timeouts override the library's, and our section overrides both."""
    models = by_name(load(PRODUCTION))
    eu, us = (deployment.timeouts for deployment in models["gpt-4o"].deployments)
    assert (eu.total_s, eu.first_byte_s, eu.idle_s) == (120, 120, 20)
    assert (us.total_s, us.first_byte_s, us.idle_s) == (60, 60, 60)
    own = load(PRODUCTION + "upstreams: {timeouts: {total_s: 5}}").upstreams.timeouts
    assert own == Timeouts(total_s=5, first_byte_s=60, idle_s=60)


def test_router_settings_override_litellm_settings(load: Load) -> None:
    """Our own section overrides both, for retries and cooldowns."""
    upstreams = load(PRODUCTION).upstreams
    assert upstreams.retries.max_retries == 4
    assert (upstreams.breaker.allowed_fails, upstreams.breaker.cooldown_s) == (5, 90)
    assert upstreams.breaker.max_cooldown_s == 90
    ours = "upstreams: {retries: {max_retries: 0}, breaker: {cooldown_s: 1}}"
    upstreams = load(f"{PRODUCTION}\n{ours}").upstreams
    assert upstreams.retries.max_retries == 0
    assert (upstreams.breaker.allowed_fails, upstreams.breaker.cooldown_s) == (5, 1)
    settings = load(listing(entry(), extra="litellm_settings: {num_retries: 7, allowed_fails: 0}"))
    assert settings.upstreams.retries.max_retries == 7
    assert settings.upstreams.breaker.allowed_fails == 0


def test_fallbacks_are_own_or_default_then_for_long_inputs(load: Load) -> None:
    """Fallbacks of `*` apply to models without their own; each fallback is listed once."""
    models = by_name(load(PRODUCTION))
    assert models["gpt-4o"].fallbacks == ("claude-sonnet", "llama")
    assert models["claude-sonnet"].fallbacks == ("llama",)
    assert models["llama"].fallbacks == ("claude-sonnet",)
    two = listing(entry(), entry(name="n"), extra="litellm_settings: {default_fallbacks: [n]}")
    assert by_name(load(two))["m"].fallbacks == ("n",)
    assert by_name(load(two))["n"].fallbacks == ()


def test_all_kinds_of_prices_are_read(load: Load) -> None:
    """Cache prices, prices of long prompts and prices per second are read."""
    models = by_name(load(PRODUCTION))
    sonnet = {"cached_input_usd_per_mtok": 0.3, "cache_write_usd_per_mtok": 3.75}
    long = Price(input_usd_per_mtok=6, output_usd_per_mtok=22.5, **sonnet)
    assert models["claude-sonnet"].price == Price(
        input_usd_per_mtok=3,
        output_usd_per_mtok=15,
        long_prompts=(LongPromptPrice(above_prompt_tokens=200_000, price=long),),
        **sonnet,
    )
    assert models["llama"].price == Price(usd_per_hour=3.6)
    assert models["gpt-4o"].price is None
    params = "{model: openai/x, api_base: 'http://h', input_cost_per_token: 1e-6}"
    info = "{output_cost_per_token: 2e-6, output_cost_per_reasoning_token: 3e-6}"
    assert load(listing(entry(params, info))).models[0].price == Price(
        input_usd_per_mtok=1, output_usd_per_mtok=2, reasoning_usd_per_mtok=3
    )


@pytest.mark.parametrize(
    ("params", "info", "dialects"),
    [
        ("{model: openai/gpt-4o, api_key: k}", "{}", "chat responses"),
        ("{model: anthropic/claude-x, api_key: k}", "{}", "messages"),
        ("{model: groq/llama, api_key: k}", "{}", "chat"),
        ("{model: openai/x, api_key: k}", "{mode: responses}", "responses"),
        (
            "{model: openai/x, api_base: 'http://h/v1'}",
            "{mode: chat, supported_endpoints: [/v1/messages, /v1/batch, /v1/responses]}",
            "messages responses",
        ),
    ],
)
def test_provider_and_model_info_decide_which_apis_a_deployment_speaks(
    load: Load, params: str, info: str, dialects: str
) -> None:
    """The entry's own statements come first, in its order; else the provider's APIs are known."""
    (deployment,) = load(listing(entry(params, info))).models[0].deployments
    assert " ".join(map(str, deployment.apis)) == dialects
    assert (deployment.key_header == "x-api-key") == ("anthropic/" in params)


WARNED = {
    "general_settings.database_url": "set database.url",
    "general_settings.alerting": "Prometheus",
    "litellm_settings.success_callback": "tracing.otlp_endpoint",
    "litellm_settings.cache": "not cached",
    "litellm_settings.cache_params": "not cached",
    "litellm_settings.drop_params": "an upstream may refuse",
    "router_settings.context_window_fallbacks": "after the other fallbacks",
    "model_list.0.litellm_params.rpm": "not enforced",
    "model_list.1.litellm_params.rpm": "not enforced",
}


def test_each_unsupported_setting_is_reported(load: Load) -> None:
    """Each setting is reported with its line and the consequence, unless it is supported."""
    settings = load(PRODUCTION)
    reported = {each.where: each.problem for each in settings.unsupported}
    lines = PRODUCTION.splitlines()
    for each in settings.unsupported:
        assert each.line is not None
        assert each.where.rpartition(".")[2] in lines[each.line - 1]
    assert reported.keys() == WARNED.keys()
    for path, words in WARNED.items():
        assert words in reported[path]


@pytest.mark.parametrize(
    ("params", "url", "key"),
    [
        ("{model: xai/grok-4}", "https://api.x.ai/v1/chat/completions", "x"),
        (
            "{model: fireworks_ai/llama-v3p3-70b-instruct}",
            "https://api.fireworks.ai/inference/v1/chat/completions",
            "f",
        ),
        ("{model: azure/d}", "https://mine.azure.com/openai/v1/chat/completions", "a"),
        ("{model: ollama/llama3}", "http://localhost:11434/v1/chat/completions", None),
        (
            "{model: anthropic/claude-x, api_base: 'https://api.anthropic.com', api_key: k}",
            "https://api.anthropic.com/v1/chat/completions",
            "k",
        ),
        (
            "{model: azure/d, api_base: 'https://x.azure.com/openai/v1/', api_key: k}",
            "https://x.azure.com/openai/v1/chat/completions",
            "k",
        ),
    ],
)
def test_providers_have_litellms_addresses_and_keys(
    load: Load, params: str, url: str, key: str | None
) -> None:
    """The address is that of the provider's OpenAI-compatible API."""
    environ = {
        "XAI_API_KEY": "x",
        "FIREWORKS_AI_API_KEY": "f",
        "AZURE_API_BASE": "https://mine.azure.com/",
        "AZURE_API_KEY": "a",
    }
    deployment = only(load(listing(entry(params)), environ))
    assert deployment.url("/chat/completions") == url
    assert (deployment.api_key.get_secret_value() if deployment.api_key else None) == key
