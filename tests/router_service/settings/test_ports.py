"""Invalid ports and addresses stop the start, in the file, the environment and options."""

from __future__ import annotations

import ssl

import pytest

from router_service.cli import main
from router_service.core.errors import ConfigError
from router_service.settings import read_settings
from router_service.upstream.connection import transport_to
from tests.router_service.settings.conftest import LoadFile as Load

MODELS = "model_list: [{model_name: m, litellm_params: {model: openai/m, api_base: 'http://h'}}]\n"


def entry(params: str) -> str:
    """Return a file with one model with these parameters."""
    return f"model_list: [{{model_name: m, litellm_params: {{model: openai/m, {params}}}}}]"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (entry("api_base: 'http://h:8_0'"), "model_list.0.litellm_params.api_base"),
        (entry("base_url: 'https://[::1]:65536'"), "model_list.0.litellm_params.api_base"),
        (entry("api_base: 'http://h/v1#x'"), "model_list.0.litellm_params.api_base"),
        (MODELS + "server: {port: '+80'}", "server.port"),
        (MODELS + "server: {redis_url: 'redis://h:99999'}", "server.redis_url"),
        (MODELS + "server: {redis_url: 'redis://h/1?port=99999'}", "server.redis_url"),
        (MODELS + "tracing: {otlp_endpoint: 'http://h:99999'}", "tracing.otlp_endpoint"),
    ],
)
def test_invalid_ports_and_addresses_in_the_file_are_refused(
    load_file: Load, text: str, where: str
) -> None:
    """The error names the setting and the requirement."""
    with pytest.raises(ConfigError, match=r"must|brackets|before the slash") as caught:
        load_file(text, {})
    assert where in caught.value.where


def test_ipv6_redis_host_gets_brackets(load_file: Load) -> None:
    """LiteLLM accepts the host without brackets."""
    settings = load_file(MODELS + "router_settings: {redis_host: '::1', redis_port: '6380'}", {})
    assert settings.server.redis_url is not None
    assert settings.server.redis_url.get_secret_value() == "redis://[::1]:6380/0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SWITCHCRAFT_PORT", "99999"), ("SWITCHCRAFT_PORT", "8_0"),
        ("SWITCHCRAFT_PORT", "tcp://10.0.0.1:80"), ("SWITCHCRAFT_REDIS_URL", "redis://h:99999"),
        ("HTTPS_PROXY", "http://proxy:99999"), ("http_proxy", "proxy:0"), ("ALL_PROXY", "ftp://p"),
    ],
)  # fmt: skip
def test_invalid_ports_in_the_environment_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The error names the variable."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"the environment: {name}: "):
        read_settings()


@pytest.mark.parametrize("port", ["99999", "-1", "+80", "8_0", "x", "\uff18\uff10"])
@pytest.mark.parametrize("command", ["serve", "sandbox"])
def test_invalid_port_option_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], command: str, port: str
) -> None:
    """The command ends before anything listens."""
    with pytest.raises(SystemExit) as ended:
        main([command, f"--port={port}"])
    assert ended.value.code == 2
    assert (
        "switchcraft: Invalid value for --port: the port must be a whole number"
        in capsys.readouterr().err
    )


def test_invalid_azure_address_in_the_environment_is_refused(load_file: Load) -> None:
    """The error names the variable."""
    environ = {"AZURE_API_BASE": "https://h:99999", "AZURE_API_KEY": "k"}
    with pytest.raises(ConfigError, match="AZURE_API_BASE: the port"):
        load_file("model_list: [{model_name: m, litellm_params: {model: azure/m}}]", environ)


def test_proxy_variable_set_later_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked before the proxy is used."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:99999")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ValueError, match="port"):
        transport_to("http://h.example", ssl.create_default_context(), 1)
