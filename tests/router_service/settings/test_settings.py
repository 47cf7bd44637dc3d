"""Reading of the configuration file and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.cli import main
from router_service.core.errors import ConfigError
from router_service.settings import (
    Deployment,
    KeySettings,
    Model,
    read_settings,
)
from tests.router_service.settings.conftest import LoadFile as Load

ENVIRON = {"MY_KEY": "key-1", "MASTER": "key-3"}


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


def test_client_keys_may_be_plain_hashed_or_references(load: Load) -> None:
    """LiteLLM's master key is the admin key."""
    digest = "ab" * 32
    keys = f"keys: {{api: {{team-a: os.environ/MY_KEY, team-b: 'sha256:{digest}'}}}}"
    settings = load(one(OPENAI, f"general_settings: {{master_key: os.environ/MASTER}}\n{keys}"))
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
    monkeypatch.setenv("SWITCHCRAFT_REDIS_URL", "redis://c")
    monkeypatch.setenv("SWITCHCRAFT_DEVICE", "cuda")
    settings = read_settings(host="d")
    assert settings.router.device == "cuda"
    server = settings.server
    assert (server.host, server.port) == ("d", 2)
    assert server.redis_url is not None
    assert server.redis_url.get_secret_value() == "redis://c"


@pytest.mark.parametrize("workers", [1, 2])
def test_removed_workers_are_refused_with_what_to_do(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    """A file, a variable and a command line that ask for processes name their replacement."""
    with pytest.raises(ConfigError, match=r":\d+: server\.workers: .* run several gateways behind"):
        load(one("{model: x, api_base: 'http://h'}", f"server: {{workers: {workers}}}"))
    for option in ("--workers", "--num_workers"):
        assert main(["serve", option, str(workers)]) == 1
        assert "run several gateways behind" in capsys.readouterr().err
    monkeypatch.setenv("SWITCHCRAFT_WORKERS", str(workers))
    with pytest.raises(ConfigError, match=r"SWITCHCRAFT_WORKERS: .* run several gateways behind"):
        read_settings()


def test_admin_key_of_the_environment_needs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without a configuration can have a key; a file's own key is kept."""
    monkeypatch.setenv("SWITCHCRAFT_ADMIN_KEY", "from the environment")
    assert read_settings().keys.by_path() == {"keys.admin": "from the environment"}
    path = tmp_path / "config.yaml"
    path.write_text(one("{model: x, api_base: 'http://h'}", "keys: {admin: from the file}"))
    assert read_settings(path).keys.by_path() == {"keys.admin": "from the file"}
