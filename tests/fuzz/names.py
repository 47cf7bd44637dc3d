"""The fuzz targets by name; each is a module of this package."""

from __future__ import annotations

import importlib

from tests.fuzz.target import Target

NAMES = (
    "client_http",
    "upstream_http",
    "events",
    "json_bodies",
    "translations",
    "configuration",
)


def load(name: str) -> Target:
    """Import a target; the fuzzer instruments the modules that are imported here."""
    target: Target = importlib.import_module(f"tests.fuzz.{name}").TARGET
    return target
