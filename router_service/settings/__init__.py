"""What an operator configures: one YAML file, read once into one frozen value."""

from router_service.settings.reading import load_settings, read_settings
from router_service.settings.values import (
    ADMIN,
    METRICS,
    NEVER_FORWARDED,
    BreakerSettings,
    DecisionLogSettings,
    Deployment,
    KeySettings,
    LoggingSettings,
    Model,
    RetrySettings,
    RouterSettings,
    ServerSettings,
    Settings,
    Timeouts,
    TracingSettings,
    UpstreamSettings,
    VerificationSettings,
)

__all__ = [
    "ADMIN",
    "METRICS",
    "NEVER_FORWARDED",
    "BreakerSettings",
    "DecisionLogSettings",
    "Deployment",
    "KeySettings",
    "LoggingSettings",
    "Model",
    "RetrySettings",
    "RouterSettings",
    "ServerSettings",
    "Settings",
    "Timeouts",
    "TracingSettings",
    "UpstreamSettings",
    "VerificationSettings",
    "load_settings",
    "read_settings",
]
