"""Reading of the configuration file and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.core.errors import ConfigError
from router_service.policies.costs import Price
from router_service.settings import (
    Deployment,
    KeySettings,
    Model,
    read_settings,
)
from tests.router_service.settings.conftest import LoadFile as Load

LITELLM = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: openai/gpt-4o-2024-08-06
      api_key: os.environ/MY_KEY
      rpm: 100
    model_info: {input_cost_per_token: 0.0000025, output_cost_per_token: 1e-05, mode: chat}
  - model_name: gpt-4o
    litellm_params: {model: azure/second-deployment, api_base: https://x.example}
  - model_name: claude
    litellm_params:
      model: claude-3-haiku-20240307
      input_cost_per_token: 2.5e-07
      output_cost_per_token: 1.25e-06
  - model_name: local
    litellm_params: {model: hosted_vllm/org/model, api_base: http://127.0.0.1:8000/v1/}
  - model_name: "*"
    litellm_params: {model: openai/*, api_key: os.environ/MY_KEY}
litellm_settings: {drop_params: true}
router_settings: {routing_strategy: simple-shuffle}
general_settings: {master_key: os.environ/MASTER, database_url: os.environ/NOT_SET}
"""
ENVIRON = {"MY_KEY": "key-1", "ANTHROPIC_API_KEY": "key-2", "MASTER": "key-3"}


@pytest.fixture
def load(load_file: Load) -> Load:
    """Return a loader of texts with this module's variables by default."""
    return lambda text, environ=ENVIRON: load_file(text, environ)


OPENAI = "{model: openai/m, api_key: k}"


def one(params: str, extra: str = "") -> str:
    """Return a file with one model with these parameters."""
    return f"model_list: [{{model_name: m, litellm_params: {params}}}]\n{extra}"


def only(model: Model) -> Deployment:
    """Return the only deployment of a model."""
    (deployment,) = model.deployments
    return deployment


def key_of(deployment: Deployment) -> str | None:
    """Return a deployment's key."""
    return deployment.api_key.get_secret_value() if deployment.api_key else None


def test_litellm_file_works_unchanged(load: Load) -> None:
    """Names, addresses, keys and prices are read as LiteLLM reads them."""
    settings = load(LITELLM)
    gpt, claude, local = settings.models
    first, second = gpt.deployments
    assert (first.upstream_model, first.base_url, key_of(first)) == (
        "gpt-4o-2024-08-06",
        "https://api.openai.com/v1",
        "key-1",
    )
    assert (second.upstream_model, second.base_url) == (
        "second-deployment",
        "https://x.example/openai/v1",
    )
    assert gpt.price == Price(input_usd_per_mtok=2.5, output_usd_per_mtok=10)
    assert (only(claude).base_url, key_of(only(claude))) == (
        "https://api.anthropic.com/v1",
        "key-2",
    )
    assert claude.price == Price(input_usd_per_mtok=0.25, output_usd_per_mtok=1.25)
    assert (only(local).upstream_model, only(local).base_url) == (
        "org/model",
        "http://127.0.0.1:8000/v1",
    )
    assert (local.price, only(local).api_key) == (None, None)
    assert [each.where for each in settings.unsupported] == [
        "litellm_settings.drop_params",
        "general_settings.database_url",
        "model_list.0.litellm_params.rpm",
    ]


def test_client_keys_may_be_plain_hashed_or_references(load: Load) -> None:
    """LiteLLM's master key is the admin key."""
    digest = "ab" * 32
    keys = f"keys: {{api: {{team-a: os.environ/MY_KEY, team-b: 'sha256:{digest}'}}}}"
    settings = load(f"{LITELLM}\n{keys}")
    assert settings.keys.by_path() == {
        "keys.api.team-a": "key-1",
        "keys.api.team-b": f"sha256:{digest}",
        "keys.admin": "key-3",
    }
    assert load(one(OPENAI, "general_settings:")).keys == KeySettings()


def test_key_from_the_environment_is_sent_only_to_its_provider(load: Load) -> None:
    """An address from the file never receives it."""
    (model,) = load(one("{model: openai/x, api_base: http://h/v1}"), {"OPENAI_API_KEY": "k"}).models
    assert only(model).api_key is None


def test_exponential_yaml_aliases_are_refused(load: Load) -> None:
    """A few hundred bytes cannot expand to millions of values."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7)]
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        load("\n".join((*lines, "server: {host: *a6}")))


def test_arguments_override_variables_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is: argument, SWITCHCRAFT_ variable, file."""
    path = tmp_path / "config.yaml"
    path.write_text(one("{model: x, api_base: 'http://h'}", "server: {host: a, port: 1}"))
    monkeypatch.setenv("SWITCHCRAFT_CONFIG", str(path))
    monkeypatch.setenv("SWITCHCRAFT_PORT", "2")
    monkeypatch.setenv("SWITCHCRAFT_HOST", "b")
    monkeypatch.setenv("SWITCHCRAFT_WORKERS", "3")
    monkeypatch.setenv("SWITCHCRAFT_REDIS_URL", "redis://c")
    monkeypatch.setenv("SWITCHCRAFT_DEVICE", "cuda")
    settings = read_settings(host="d")
    assert settings.router.device == "cuda"
    server = settings.server
    assert (server.host, server.port, server.workers) == ("d", 2, 3)
    assert server.redis_url is not None
    assert server.redis_url.get_secret_value() == "redis://c"


def test_admin_key_of_the_environment_needs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without a configuration can have a key; a file's own key is kept."""
    monkeypatch.setenv("SWITCHCRAFT_ADMIN_KEY", "from the environment")
    assert read_settings().keys.by_path() == {"keys.admin": "from the environment"}
    path = tmp_path / "config.yaml"
    path.write_text(one("{model: x, api_base: 'http://h'}", "keys: {admin: from the file}"))
    assert read_settings(path).keys.by_path() == {"keys.admin": "from the file"}
