"""The generated JSON Schema of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.router_service.settings.test_config_errors import MODEL

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(
    path
    for folder in ("deploy", "examples", "docs", "tests")
    for path in (ROOT / folder).rglob("*.y*ml")
    if path.read_text().startswith(("model_list:", "#")) and "\nmodel_list:" in path.read_text()
)
MODELS = f"model_list: [{MODEL}]\n"


def parsed(text: str) -> Any:  # noqa: ANN401
    """Return the content of a YAML text."""
    return yaml.safe_load(text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_schema_accepts_example(validator: jsonschema.Draft202012Validator, path: Path) -> None:
    """Every configuration file of the repository fits the schema."""
    validator.validate(parsed(path.read_text()))


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
