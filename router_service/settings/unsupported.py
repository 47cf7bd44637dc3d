"""Report of LiteLLM settings in the file that have a different effect here than in LiteLLM."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from router_service.apis.conversation import Json
from router_service.core.errors import ConfigProblem
from router_service.settings.deployments import is_served
from router_service.settings.litellm import Fallbacks, File, ModelInfo, Params, Section

_UNSUPPORTED = "Switchcraft does not implement this setting; it has no effect"
_NOT_SENT = f"{_UNSUPPORTED}. If it is a parameter of the provider's requests, set it in extra_body"
_FOR_ALL_MODELS = "it has no effect for one deployment; set router_settings.{} for all deployments"
_NO_BUDGETS = (
    "it is not enforced; give keys and teams a budget (`switchcraft keys create --budget`), or"
    " limit the spending at the provider"
)
_KEYS_ONLY = "it has no effect; clients authenticate with the keys of the section keys"
_NO_CREDENTIALS = "it has no effect; set api_key, or the platform's credentials, in each entry"
_NO_PASSWORDS = (
    "Entra ID is not asked with passwords; set tenant_id, client_id and client_secret, or"
    " litellm_settings.enable_azure_ad_token_refresh"
)
_ALL_RETRIED = "it has no effect; every retryable failure is retried up to num_retries times"
_POLICY_REFUSALS = (
    "it has no effect; with router.fallback_on_refusal: true, a refusal goes to the next model"
)
_NO_CALLBACKS = (
    "no callback is called; use tracing.otlp_endpoint (Langfuse and other servers accept"
    " OpenTelemetry), /metrics, or the files of decision_log"
)
_OWN_DATABASE = (
    "LiteLLM's tables are not read; set database.url for keys, budgets and usage. The page 'Move"
    " from LiteLLM' says how keys and teams are copied"
)
_FILE_ONLY = "it has no effect; the models are those of this file"
_KEY_DEFAULTS = "it has no effect; `switchcraft keys` and `switchcraft teams` set limits and models"
_NO_CACHE = (
    "answers are not cached, because a repeated request may need another call; providers cache"
    " prompts, and router.conversations takes these caches into account"
)
_NO_HEALTH_CHECKS = "it has no effect; upstreams.breaker judges deployments by their answers"
_NOT_A_LIMIT = "it is the deployment's share of the requests and is not enforced as a limit"

_CONSEQUENCES: Mapping[str, str] = {
    "callback_settings": _NO_CALLBACKS,
    "credential_list": _NO_CREDENTIALS,
    "guardrails": "no guardrail is applied",
    "mcp_servers": "it has no effect; clients connect to MCP servers themselves",
    "general_settings.alerting": "no alerts are sent; use the rules for Prometheus in deploy/",
    "general_settings.background_health_checks": _NO_HEALTH_CHECKS,
    "general_settings.database_url": _OWN_DATABASE,
    "general_settings.health_check_interval": _NO_HEALTH_CHECKS,
    "general_settings.store_model_in_db": _FILE_ONLY,
    "general_settings.custom_auth": "the code is not run; clients authenticate with the keys of the"
    " section keys",
    "general_settings.enable_jwt_auth": _KEYS_ONLY,
    "general_settings.max_parallel_requests": "it has no effect; set"
    " server.max_requests_in_flight_per_key",
    "general_settings.global_max_parallel_requests": "it has no effect; set"
    " server.max_requests_in_flight",
    "general_settings.max_request_size_mb": "it has no effect; set server.max_body_bytes",
    "general_settings.forward_client_headers_to_llm_api": "it has no effect; list the headers in"
    " router.forward_headers",
    "general_settings.pass_through_endpoints": "it has no effect; set router.pass_through",
    "litellm_settings.budget_duration": _NO_BUDGETS,
    "litellm_settings.cache": _NO_CACHE,
    "litellm_settings.cache_params": _NO_CACHE,
    "litellm_settings.callbacks": _NO_CALLBACKS,
    "litellm_settings.content_policy_fallbacks": _POLICY_REFUSALS,
    "litellm_settings.default_key_generate_params": _KEY_DEFAULTS,
    "litellm_settings.default_team_settings": _KEY_DEFAULTS,
    "litellm_settings.drop_params": "it has no effect; an upstream may refuse a parameter that it"
    " does not know",
    "litellm_settings.failure_callback": _NO_CALLBACKS,
    "litellm_settings.max_budget": _NO_BUDGETS,
    "litellm_settings.max_internal_user_budget": _NO_BUDGETS,
    "litellm_settings.set_verbose": "it has no effect; set logging.level",
    "litellm_settings.ssl_verify": "it has no effect; certificates are always verified",
    "litellm_settings.success_callback": _NO_CALLBACKS,
    "litellm_settings.upperbound_key_generate_params": _KEY_DEFAULTS,
    "router_settings.allowed_fails_policy": "it has no effect; all failures of an upstream count"
    " towards allowed_fails",
    "router_settings.content_policy_fallbacks": _POLICY_REFUSALS,
    "router_settings.disable_cooldowns": "it has no effect; raise allowed_fails to tolerate more"
    " failures",
    "router_settings.enable_pre_call_checks": "it has no effect; routed requests only go to models"
    " that can serve them",
    "router_settings.max_fallbacks": "it has no effect; all fallbacks are tried until the request"
    " times out",
    "router_settings.model_group_retry_policy": _ALL_RETRIED,
    "router_settings.provider_budget_config": _NO_BUDGETS,
    "router_settings.redis_startup_nodes": "Redis clusters are not supported; set redis_url",
    "router_settings.retry_after": "it has no effect; set upstreams.retries.backoff_s. An"
    " upstream's Retry-After is honoured",
    "router_settings.retry_policy": _ALL_RETRIED,
    "router_settings.routing_strategy": "it has no effect; deployments are chosen at random by"
    " weight",
    "model_list.litellm_params.budget_duration": _NO_BUDGETS,
    "model_list.litellm_params.aws_session_tags": "the role's session gets no tags",
    "model_list.litellm_params.azure_password": _NO_PASSWORDS,
    "model_list.litellm_params.azure_username": _NO_PASSWORDS,
    "model_list.litellm_params.cooldown_time": _FOR_ALL_MODELS.format("cooldown_time"),
    "model_list.litellm_params.extra_headers": "they are not sent; router.forward_headers forwards"
    " the client's headers",
    "model_list.litellm_params.litellm_credential_name": _NO_CREDENTIALS,
    "model_list.litellm_params.max_budget": _NO_BUDGETS,
    "model_list.litellm_params.max_parallel_requests": "it is not enforced; set"
    " upstreams.max_connections",
    "model_list.litellm_params.max_retries": _FOR_ALL_MODELS.format("num_retries"),
    "model_list.litellm_params.mock_response": "it has no effect; requests go to the model",
    "model_list.litellm_params.num_retries": _FOR_ALL_MODELS.format("num_retries"),
    "model_list.litellm_params.organization": "it is not sent; use a key of that organization",
    "model_list.litellm_params.rpm": _NOT_A_LIMIT,
    "model_list.litellm_params.tpm": _NOT_A_LIMIT,
}
"""Consequence by setting, for settings that concern keys, budgets, limits or retries. All other
settings that are not implemented get `_UNSUPPORTED`."""

IGNORED_SECTIONS = frozenset(
    "agent_list assistant_settings callback_settings credential_list cache_params "
    "default_vertex_config environment_variables files_settings finetune_settings guardrails "
    "include mcp_aliases mcp_servers mcp_tools policies policy_attachments prompts search_tools "
    "vector_store_registry worker_config worker_registry".split()
)
"""Sections that LiteLLM's file may have and that have no effect here."""

_SAME_HERE: Mapping[str, Json] = {
    "router_settings.routing_strategy": "simple-shuffle",
    "router_settings.enable_pre_call_checks": True,
    "litellm_settings.json_logs": True,
    "litellm_settings.turn_off_message_logging": True,
    "litellm_settings.redact_user_api_key_info": True,
}
"""Value of a setting with which LiteLLM does what Switchcraft always does. It is not reported. For
settings that are not listed, this value is False."""

_INFORMATION = frozenset(
    "id description tier metadata db_model created_at updated_at created_by updated_by mode "
    "litellm_provider key max_tokens supports_system_messages supports_prompt_caching "
    "supports_reasoning supports_web_search supports_assistant_prefill supports_native_streaming "
    "supports_audio_output supported_openai_params supported_modalities "
    "supported_output_modalities source deprecation_date version".split()
)
"""Settings in `model_info` that are not reported, because they only inform people, in LiteLLM too,
or because routing does not depend on them."""


def unsupported_settings(file: File) -> Iterator[ConfigProblem]:
    """Yield each setting that has a different effect here than in LiteLLM, with the consequence."""
    sections = {
        "router_settings": file.router_settings,
        "litellm_settings": file.litellm_settings,
        "general_settings": file.general_settings,
    }
    for name in file.model_extra or {}:
        if name in IGNORED_SECTIONS:
            yield ConfigProblem(name, _CONSEQUENCES.get(name, _UNSUPPORTED))
    for name, section in sections.items():
        yield from _undeclared(name, section)
    yield from _missing_models(file)
    for index, entry in enumerate(file.model_list):
        where = f"model_list.{index}"
        yield from _undeclared(where, entry)
        params = entry.litellm_params
        for limit in ("rpm", "tpm"):
            if getattr(params, limit) is not None:
                yield ConfigProblem(f"{where}.litellm_params.{limit}", _NOT_A_LIMIT)
        yield from _undeclared(f"{where}.litellm_params", params)
        yield from _undeclared(f"{where}.model_info", entry.model_info)
        if entry.price() is None and (params.costs() or entry.model_info.costs()):
            yield ConfigProblem(
                where,
                "its prices are ignored, because a price needs both input_cost_per_token and"
                " output_cost_per_token; add the missing one",
            )


def _missing_models(file: File) -> Iterator[ConfigProblem]:
    """Yield each fallback and alias whose model the file does not list."""
    known = {entry.model_name for entry in file.model_list} | file.router_settings.aliases().keys()

    def is_missing(name: str) -> bool:
        return name != "*" and not is_served(name, known) and name not in known

    for name, reliability in (
        ("router_settings", file.router_settings),
        ("litellm_settings", file.litellm_settings),
    ):
        named: Mapping[str, Fallbacks] = {
            "fallbacks": reliability.fallbacks,
            "context_window_fallbacks": reliability.context_window_fallbacks,
            "default_fallbacks": ({"*": reliability.default_fallbacks},),
        }
        for field, rules in named.items():
            models = {each for rule in rules for key in rule for each in (key, *rule[key])}
            for missing in sorted(filter(is_missing, models)):
                yield ConfigProblem(
                    f"{name}.{field}",
                    f"{missing!r} is not in model_list and is ignored; add it there or correct the"
                    " name",
                )
        if reliability.context_window_fallbacks:
            yield ConfigProblem(
                f"{name}.context_window_fallbacks",
                "they are tried after the other fallbacks, whatever the failure was",
            )
    for alias, model in file.router_settings.aliases().items():
        if is_missing(model):
            yield ConfigProblem(
                f"router_settings.model_group_alias.{alias}",
                "its model is not in model_list, so the alias is ignored; add the model or correct"
                " its name",
            )


def _undeclared(where: str, section: Section) -> Iterator[ConfigProblem]:
    """Yield each setting of a section that is not implemented."""
    for name, value in (section.model_extra or {}).items():
        if name in section.names():
            continue
        path = re.sub(r"\.\d+", "", f"{where}.{name}")
        same = _SAME_HERE.get(path, False)
        is_same = type(value) is type(same) and value == same
        is_information = isinstance(section, ModelInfo) and name in _INFORMATION
        if not is_same and not is_information:
            unsupported = _NOT_SENT if isinstance(section, Params) else _UNSUPPORTED
            similar = difflib.get_close_matches(name, sorted(section.names()), n=1, cutoff=0.8)
            if similar:
                unsupported = f"it has no effect; did you mean {similar[0]!r}?"
            yield ConfigProblem(f"{where}.{name}", _CONSEQUENCES.get(path, unsupported))
