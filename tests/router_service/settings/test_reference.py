"""The generated JSON Schema of the configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.documentation import settings_reference as reference
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


def test_schema_is_valid() -> None:
    """The schema follows JSON Schema's own rules and contains no path of this machine."""
    jsonschema.Draft202012Validator.check_schema(reference.json_schema())
    assert str(ROOT) not in reference.schema_text()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_schema_accepts_example(validator: jsonschema.Draft202012Validator, path: Path) -> None:
    """Every configuration file of the repository fits the schema."""
    validator.validate(parsed(path.read_text()))


@pytest.mark.parametrize("page", ["README.md", "docs/configuration.md"])
def test_schema_accepts_documented_example(
    validator: jsonschema.Draft202012Validator, page: str
) -> None:
    """Every configuration in the documents fits the schema."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    files = [block for block in blocks if "model_list:" in block]
    assert files
    for text in files:
        validator.validate(parsed(text))


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


@pytest.mark.parametrize(
    "text",
    [
        "server: {port: os.environ/PORT, redis_url: os.environ/REDIS}",
        "server:",
        "router_settings: {redis_port: '6380', num_retries: , timeout: os.environ/T}",
        "router_settings: {model_group_alias: {a: m, b: {model: m, hidden: true}}}",
        "litellm_settings: {callbacks: [x]}",
        "brand_new: {a: 1}",
        "environment_variables: {A: b}",
    ],
)
def test_schema_accepts_what_the_reader_accepts(
    validator: jsonschema.Draft202012Validator, text: str
) -> None:
    """References, empty names in LiteLLM's sections and unknown LiteLLM settings fit the schema."""
    validator.validate(parsed(MODELS + text))
