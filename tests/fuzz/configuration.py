"""The configuration file: any YAML gives settings, or an error that shows no secret."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from router_service.core.errors import ConfigError
from router_service.settings import Settings
from router_service.settings.reading import REFERENCE, read_settings
from tests.fuzz.mutation import of_yaml
from tests.fuzz.target import Target, expect

MAX_CPU_S = 10.0
"""PyYAML takes 3 s for 2,000 nested lists."""

MIN_SECRET_CHARS = 12
"""Shorter ones may occur in a message by chance."""

ENVIRONMENT = {
    "OPENAI_API_KEY": "sk-openai-in-the-environment",
    "ANTHROPIC_API_KEY": "sk-anthropic-in-the-environment",
    "AZURE_API_KEY": "azure-in-the-environment",
    "AZURE_API_BASE": "https://example.openai.azure.com",
    "REDIS_PASSWORD": "redis-in-the-environment",
    "PORT": "6379",
}
LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The faster loader, if PyYAML has it."""

_CANARY = re.compile(rb"\w+-canary-in-the-file[-\d]*")
_SECRET_NAMES = {"api_key", "master_key", "admin", "redis_url", "redis_password"}
_SECRET_MAPPINGS = {"api", "headers"}

_folder = tempfile.TemporaryDirectory(prefix="switchcraft-fuzz-")
_FILE = Path(_folder.name) / "config.yaml"


def check(data: bytes) -> None:
    """Check that a file is soon accepted or refused, and that no secret shows."""
    _FILE.write_bytes(data)
    secrets = set(_secrets(data))
    began_s = time.thread_time()
    try:
        settings = read_settings(_FILE, environ=ENVIRONMENT)
    except ConfigError as exc:
        _check_hidden(str(exc), secrets)
        expect(len(str(exc)) < 10_000, f"an error of {len(str(exc))} characters")
    else:
        check_settings(settings, secrets)
    spent_s = time.thread_time() - began_s
    expect(spent_s <= MAX_CPU_S, f"it takes {spent_s:.1f} s to read")


def check_settings(settings: Settings, secrets: set[str]) -> None:
    """Check that accepted settings can be used, and hide their secrets."""
    _check_hidden(repr(settings), secrets)
    _check_hidden(str(settings.unsupported), secrets)
    for model in settings.models:
        for deployment in model.deployments:
            url = httpx.URL(deployment.url("/chat/completions", "a=b"))
            expect(url.scheme in {"http", "https"} and url.raw_host, f"the address {url}")
            expect(url.port is None or 0 < url.port <= 65535, f"the port of {url}")
            expect(deployment.origin.startswith(url.scheme), f"the origin {deployment.origin}")
            _check_hidden(deployment.id, secrets)
    expect(0 <= settings.server.port <= 65535, f"port {settings.server.port}")


def _check_hidden(text: str, secrets: set[str]) -> None:
    for secret in secrets:
        expect(secret not in text, f"the secret {secret!r} shows in {text!r}")


def _secrets(data: bytes) -> Iterator[str]:
    """Yield the texts that occur only as secrets, and those of the environment."""
    found, others = set[str](), set[str]()
    try:
        tree = yaml.load(data, LOADER)  # noqa: S506 - a safe loader
        _collect(tree, found, others, is_secret=False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
        # If the file has no structure, every one of the fuzzer's own keys counts as a secret.
        yield from {key.decode() for key in _CANARY.findall(data)}
        return
    given = {value for name, value in ENVIRONMENT.items() if name.endswith(("KEY", "PASSWORD"))}
    shown = "\0".join(others)
    yield from (s for s in found | given if len(s) >= MIN_SECRET_CHARS and s not in shown)


def _collect(value: Any, found: set[str], others: set[str], *, is_secret: bool) -> None:  # noqa: ANN401
    if isinstance(value, dict):
        for name, inner in value.items():
            others.add(str(name))
            hides = name in _SECRET_NAMES
            is_mapping = name in _SECRET_MAPPINGS and isinstance(inner, dict)
            _collect(inner, found, others, is_secret=hides or is_mapping or is_secret)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, found, others, is_secret=is_secret)
    else:
        is_reference = REFERENCE in str(value)  # the name of a variable
        (found if is_secret and not is_reference else others).add(str(value))


TOKENS = (
    *(
        b"model_list router_settings litellm_settings general_settings environment_variables "
        b"router server upstreams keys decision_log tracing logging model_name litellm_params "
        b"model_info model api_base base_url api_key api_version weight rpm timeout "
        b"stream_timeout timeouts input_cost_per_token output_cost_per_token "
        b"input_cost_per_second base_model mode max_input_tokens supported_endpoints "
        b"supports_vision master_key num_retries fallbacks context_window_fallbacks "
        b"default_fallbacks allowed_fails cooldown_time model_group_alias redis_url redis_host "
        b"redis_port redis_password redis_db redis_ssl routing_strategy request_timeout "
        b"drop_params host port workers api admin headers otlp_endpoint level path artifact "
        b"arms default_policy chat_model pass_through forward_headers connect_s "
        b"os.environ/OPENAI_API_KEY os.environ/UNSET os.environ/PORT openai/gpt-4o azure/x "
        b"ollama/y gpt-4o claude-3 switchcraft switchcraft:x * http://a:1/v1 http://a:99999 "
        b"http://[ https://user:password@a sha256: sk-canary-in-the-file-0 "
        b"sk-canary-in-the-file-1 redis://:redis-canary-in-the-file@a"
    ).split(),
    *(b"&a ", b"*a", b"<<: *a", b"!!binary ", b"!!python/none", b"!!timestamp ", b"2001-99-99"),
    *(b"0x", b"0b2", b"1:99", b".inf", b".nan", b"|\n  ", b"? ", b"---\n", b"\t", b"\xff\xfe"),
    *(b"%YAML 9.9\n", b"[", b"{", b"- ", b": "),
)

TARGET = Target(
    name="configuration",
    check=check,
    mutate=of_yaml([token for token in TOKENS if token.isascii() and b"\n" not in token]),
    tokens=TOKENS,
    runs=800,
)
