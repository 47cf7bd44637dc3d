"""The sections of traces and logs."""

from __future__ import annotations

import pytest

from router_service.core.errors import ConfigError
from router_service.settings import LoggingSettings, TracingSettings
from tests.router_service.settings.conftest import LoadFile as Load

MODEL = "model_list: [{model_name: m, litellm_params: {model: openai/m, api_key: k}}]\n"


def test_traces_and_logs(load_file: Load) -> None:
    """A collector, its key and a level are read, the address from a standard variable too."""
    text = f"""{MODEL}
tracing:
  otlp_endpoint: os.environ/OTEL_EXPORTER_OTLP_ENDPOINT
  headers: {{x-api-key: os.environ/COLLECTOR_KEY}}
  sample_share: 0.1
logging: {{level: warning}}
"""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "COLLECTOR_KEY": "hidden"}
    settings = load_file(text, environ)
    assert settings.tracing.otlp_endpoint == "http://collector:4318"
    assert settings.tracing.headers["x-api-key"].get_secret_value() == "hidden"
    assert settings.tracing.sample_share == 0.1
    assert settings.logging == LoggingSettings(level="warning")
    assert "hidden" not in repr(settings)


def test_nothing_is_traced_by_default(load_file: Load) -> None:
    """Without the section no span goes anywhere, whatever variables are set."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert load_file(MODEL, environ).tracing == TracingSettings(otlp_endpoint=None)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("tracing: {otlp_endpoint: collector:4318}", "tracing.otlp_endpoint"),
        ("tracing: {sample_share: 2}", "tracing.sample_share"),
        ("logging: {level: loud}", "logging.level"),
    ],
)
def test_what_cannot_be_used_is_named(load_file: Load, section: str, told: str) -> None:
    """An error names the field."""
    with pytest.raises(ConfigError, match=told):
        load_file(MODEL + section, {})
