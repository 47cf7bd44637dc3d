"""The pool file: valid and invalid settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from router_service.core.errors import ConfigError
from switchcraft_training.labelling.pool import load_pool

ENDPOINT = {"base_url": "https://api.example.test/v1", "api_key_env": "A_KEY"}
ARM = {
    "arm": "small",
    "endpoint": "it",
    "model": "small-1",
    "price": {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 10.0},
}


def write(folder: Path, endpoint: dict[str, Any], *arms: dict[str, Any]) -> Path:
    """Write a pool file."""
    path = folder / "pool.yaml"
    tree = {"endpoints": {"it": {**ENDPOINT, **endpoint}}, "pool": [{**ARM, **arm} for arm in arms]}
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.parametrize(
    ("endpoint", "arms", "problem"),
    [
        ({"api_key": "sk-secret"}, [{}], "endpoints.it.api_key: Extra inputs"),
        ({"extra_headers": {"Authorization": "sk-secret"}}, [{}], "its name in api_key_env"),
        ({"base_url": "https://me:sk-secret@api.example.test/v1"}, [{}], "contains credentials"),
        ({"base_url": "api.example.test"}, [{}], "must start with http:// or https://"),
        ({"max_concurrency": 0}, [{}], "endpoints.it.max_concurrency"),
        ({}, [{"endpoint": "other"}], "the arm 'small' names the unknown endpoint 'other'"),
        ({}, [{}, {}], "two arms are called 'small'"),
        ({}, [{"price": {"usd_per_hour": 1}}], "a price by the hour cannot be capped"),
        ({}, [{"extra_body": {"stream": True}}], "stream cannot be set here"),
        ({}, [], "pool"),
    ],
)
def test_invalid_settings_are_refused(
    tmp_path: Path, endpoint: dict[str, Any], arms: list[dict[str, Any]], problem: str
) -> None:
    """The error names file, place and problem, and repeats no value."""
    with pytest.raises(ConfigError) as refused:
        load_pool(write(tmp_path, endpoint, *arms))
    assert problem in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "sk-secret" not in str(refused.value)
