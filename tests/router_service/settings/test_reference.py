"""The generated JSON Schema of the configuration."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from tests.router_service.settings.test_config_errors import MODEL

MODELS = f"model_list: [{MODEL}]\n"


def parsed(text: str) -> Any:  # noqa: ANN401
    """Return the content of a YAML text."""
    return yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    [
        "server: {prot: 1}",
        "server: {workers: 0}",
        "upstreams: {timeouts: {totl_s: 1}}",
        "router: {device: tpu}",
        "router: {arms: [a]}",
        "router_settings: {num_retries: many}",
        "model_list: 3",
        "model_list: [{model_name: m}]",
        "model_list: [{model_name: m, litellm_params: {model: m, timeouts: {ide_s: 1}}}]",
    ],
)
def test_schema_refuses_mistake(validator: jsonschema.Draft202012Validator, text: str) -> None:
    """Misspelled names in our sections, and wrong types and bounds, do not fit the schema."""
    start = "" if text.startswith("model_list") else MODELS
    assert not validator.is_valid(parsed(start + text))
