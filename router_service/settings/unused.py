"""What of LiteLLM's file does not do here what it does there, and what happens instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from router_service.core.messages import Json
from router_service.settings.litellm import Alias, Entry, LiteLLMSection, RouterSection

LITELLM_SECTIONS = ("router_settings", "litellm_settings", "general_settings")

_NO_CALLBACKS = "no callback is called; decisions are in the log, in /metrics and in Redis"
_NO_CACHE = "answers are not cached; every request is answered anew"
_NO_DATABASE = "nothing is kept in a database; keys and models are those of the file"
_NO_ALERTS = "nobody is alerted from here; alert on /metrics"
_NO_PARAMS = "it is not added to requests, which are passed on as they come"
_BY_WEIGHT = "it is not looked at; deployments are drawn by weight"
_HOW_OFTEN = "every failure that a repeat may mend is repeated up to num_retries times"
_WHEN_OPEN = "every failure of the upstream counts, up to allowed_fails"
_NOT_A_LIMIT = "it is the deployment's share of requests, and is not enforced as a limit"

_SENTENCES: Mapping[str, str] = {
    "litellm_settings.drop_params": "a parameter that a model does not know is not removed; its "
    "upstream says so",
    "litellm_settings.modify_params": _NO_PARAMS,
    "litellm_settings.success_callback": _NO_CALLBACKS,
    "litellm_settings.failure_callback": _NO_CALLBACKS,
    "litellm_settings.callbacks": _NO_CALLBACKS,
    "litellm_settings.service_callbacks": _NO_CALLBACKS,
    "litellm_settings.cache": _NO_CACHE,
    "litellm_settings.cache_params": _NO_CACHE,
    "litellm_settings.set_verbose": "it has no counterpart; the log is of one line a request",
    "litellm_settings.json_logs": "the log is JSON anyway",
    "litellm_settings.turn_off_message_logging": "messages are never logged anyway",
    "litellm_settings.redact_user_api_key_info": "keys are never logged anyway",
    "litellm_settings.content_policy_fallbacks": "an answer that a provider's policy refuses is "
    "passed on",
    "litellm_settings.ssl_verify": "certificates are always verified",
    "litellm_settings.max_budget": "budgets are not kept",
    "router_settings.content_policy_fallbacks": "an answer that a provider's policy refuses is "
    "passed on",
    "router_settings.retry_after": "waits are drawn at random up to upstreams.retries.backoff_s; "
    "an upstream's own Retry-After is honoured",
    "router_settings.disable_cooldowns": "a deployment that fails is left alone for a while; to "
    "let it fail more often first, raise allowed_fails",
    "router_settings.retry_policy": _HOW_OFTEN,
    "router_settings.model_group_retry_policy": _HOW_OFTEN,
    "router_settings.allowed_fails_policy": _WHEN_OPEN,
    "router_settings.max_fallbacks": "all fallbacks are tried, until the request's time is over",
    "router_settings.routing_strategy_args": _BY_WEIGHT,
    "router_settings.enable_tag_filtering": "tags are not looked at",
    "router_settings.default_litellm_params": _NO_PARAMS,
    "router_settings.cache_responses": _NO_CACHE,
    "router_settings.provider_budget_config": "budgets are not kept",
    "router_settings.optional_pre_call_checks": "a response's follow-up goes to the deployment "
    "that holds it; there are no other such checks",
    "router_settings.redis_startup_nodes": "Redis clusters are not spoken to; give one redis_url",
    "general_settings.database_url": _NO_DATABASE,
    "general_settings.database_connection_pool_limit": _NO_DATABASE,
    "general_settings.store_model_in_db": _NO_DATABASE,
    "general_settings.alerting": _NO_ALERTS,
    "general_settings.alerting_threshold": _NO_ALERTS,
    "general_settings.custom_auth": "no code of the file's is run; keys are those of the section "
    "`keys`",
    "general_settings.enable_jwt_auth": "tokens are not read; keys are those of the section `keys`",
    "general_settings.max_parallel_requests": "set server.max_requests_in_flight_per_key",
    "general_settings.global_max_parallel_requests": "set server.max_requests_in_flight",
    "general_settings.max_request_size_mb": "set server.max_body_bytes",
    "general_settings.background_health_checks": "no request is sent to see whether a deployment "
    "is well; those of clients show it",
    "general_settings.health_check_interval": "no request is sent to see whether a deployment is "
    "well; those of clients show it",
    "general_settings.forward_client_headers_to_llm_api": "name the headers in "
    "router.forward_headers",
    "general_settings.pass_through_endpoints": "set router.pass_through",
    "general_settings.completion_model": "a request without a model is refused",
    "guardrails": "no guardrail is applied",
    "callback_settings": _NO_CALLBACKS,
    "credential_list": "credentials are not looked up; give each entry its api_key",
    "mcp_servers": "tools are not served, only their calls routed",
}

_PARAMS: Mapping[str, str] = {
    "rpm": _NOT_A_LIMIT,
    "tpm": _NOT_A_LIMIT,
    "max_retries": "set num_retries for all models",
    "num_retries": "set num_retries for all models",
    "cooldown_time": "set cooldown_time for all deployments",
    "max_parallel_requests": "it is not enforced; set upstreams.max_connections",
    "organization": "it is not sent; use a key of that organization's project",
    "extra_headers": "they are not sent; a client's own may be let through by "
    "router.forward_headers",
    "litellm_credential_name": "credentials are not looked up; give the entry its api_key",
    "custom_llm_provider": "the provider is what comes before the slash of the model",
    "order": "deployments are drawn by weight",
    "tags": "tags are not looked at",
    "mock_response": "the model is asked",
}

_INFORMATION = frozenset(
    "id description tier metadata db_model created_at updated_at created_by updated_by mode "
    "litellm_provider key max_tokens supports_system_messages supports_prompt_caching "
    "supports_reasoning supports_web_search supports_assistant_prefill supports_native_streaming "
    "supports_audio_output supported_openai_params supported_modalities "
    "supported_output_modalities source deprecation_date version".split()
)
"""What `model_info` says for readers alone, in LiteLLM too, or of no consequence to routing."""


def without_effect(
    sections: Mapping[str, Json],
    entries: Sequence[Entry],
    router: RouterSection,
    litellm: LiteLLMSection,
) -> Iterator[str]:
    """Yield, for each setting that has no equivalent, its path and what happens instead.

    `sections` are what nothing here reads: whole sections, and what is left of LiteLLM's.
    """
    for name, section in sections.items():
        if name in LITELLM_SECTIONS and isinstance(section, Mapping):
            given = (n for n, value in section.items() if value is not None and value is not False)
            yield from (_told(f"{name}.{setting}") for setting in given)
        else:
            yield _told(name)
    yield from _of_router(router, litellm)
    known = {entry.model_name for entry in entries} | router.model_group_alias.keys()
    for name, section_read in (("router_settings", router), ("litellm_settings", litellm)):
        yield from (f"{name}.{line}" for line in _of_fallbacks(section_read, known))
    for alias, target in router.model_group_alias.items():
        if (target.model if isinstance(target, Alias) else target) not in known:
            yield f"router_settings.model_group_alias.{alias}: it stands for no model of model_list"
    for index, entry in enumerate(entries):
        yield from _of_entry(entry, f"model_list.{index}")


def _told(path: str, otherwise: str = "it has no equivalent here, and does nothing") -> str:
    return f"{path}: {_SENTENCES.get(path, otherwise)}"


def _of_router(router: RouterSection, litellm: LiteLLMSection) -> Iterator[str]:
    if router.routing_strategy != "simple-shuffle":
        yield f"router_settings.routing_strategy: {_BY_WEIGHT}"
    if not router.enable_pre_call_checks:
        yield (
            "router_settings.enable_pre_call_checks: routed requests go to models that they fit "
            "in any case"
        )
    if litellm.drop_params:
        yield _told("litellm_settings.drop_params")


def _of_fallbacks(section: RouterSection | LiteLLMSection, known: set[str]) -> Iterator[str]:
    for field in ("fallbacks", "context_window_fallbacks"):
        for rule in getattr(section, field):
            for name, others in rule.items():
                strangers = {name, *others} - known - {"*"}
                for stranger in sorted(strangers):
                    yield f"{field}: {stranger!r} is no model of model_list, and is left out"
    for stranger in sorted(set(section.default_fallbacks) - known):
        yield f"default_fallbacks: {stranger!r} is no model of model_list, and is left out"
    if section.context_window_fallbacks:
        yield (
            "context_window_fallbacks: they are tried after the other fallbacks, whatever the "
            "failure was"
        )


def _of_entry(entry: Entry, where: str) -> Iterator[str]:
    if "*" in entry.model_name:
        yield f"{where}: a wildcard is not served; list the models that are asked for"
        return
    yield from (_told(f"{where}.{name}") for name in entry.model_extra or {})
    params, info = entry.litellm_params, entry.model_info
    given = {name for name in ("rpm", "tpm") if getattr(params, name) is not None}
    for name in (*sorted(given), *(params.model_extra or {})):
        sentence = _PARAMS.get(name, _NO_PARAMS)
        yield f"{where}.litellm_params.{name}: {sentence}"
    for name in info.model_extra or {}:
        if name not in _INFORMATION:
            yield _told(f"{where}.model_info.{name}")
    costs = params.costs() | info.costs()
    if costs and entry.price() is None:
        yield (
            f"{where}: a price needs both input_cost_per_token and output_cost_per_token; what is "
            "given is not used"
        )
