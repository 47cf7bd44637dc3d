"""Configurations read from a file; each accepted one must also fit the JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jsonschema
import pytest
import yaml

from router_service.settings import Settings, read_settings
from tests.documentation.settings_reference import json_schema

LoadFile = Callable[..., Settings]


@pytest.fixture(scope="session")
def validator() -> jsonschema.Draft202012Validator:
    """Return a validator of the JSON Schema."""
    return jsonschema.Draft202012Validator(json_schema())


@pytest.fixture
def load_file(tmp_path: Path, validator: jsonschema.Draft202012Validator) -> LoadFile:
    """Return a loader of texts; it checks that the JSON Schema accepts what the reader accepts."""

    def load_text(text: str, environ: Mapping[str, str]) -> Settings:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        settings = read_settings(path, environ=environ)
        validator.validate(yaml.safe_load(text))
        return settings

    return load_text
