"""One file, LiteLLM's or ours, becomes one frozen value, or an error that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from router_service.core.cost import Price
from router_service.core.errors import ConfigError
from router_service.core.keys import hashed
from router_service.settings import (
    Deployment,
    KeySettings,
    Model,
    Settings,
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
    litellm_params: {model: openai/*, api_key: os.environ/NOT_SET}
litellm_settings: {drop_params: true}
router_settings: {routing_strategy: simple-shuffle}
general_settings: {master_key: os.environ/MASTER, database_url: os.environ/NOT_SET}
"""
ENVIRON = {"MY_KEY": "key-1", "ANTHROPIC_API_KEY": "key-2", "MASTER": "key-3"}


@pytest.fixture
def load(load_file: Load) -> Load:
    """Return what loads a text, with this module's variables unless others are given."""
    return lambda text, environ=ENVIRON: load_file(text, environ)


def one(params: str, extra: str = "") -> str:
    """Return a file with one model of these parameters."""
    return f"model_list: [{{model_name: m, litellm_params: {params}}}]\n{extra}"


def only(model: Model) -> Deployment:
    """Return a model's one deployment."""
    (deployment,) = model.deployments
    return deployment


def key_of(deployment: Deployment) -> str | None:
    """Return a deployment's key."""
    return deployment.api_key.get_secret_value() if deployment.api_key else None


def test_litellm_file_works_as_it_is(load: Load) -> None:
    """Names, addresses, keys and prices are read in LiteLLM's form; what has no effect is named."""
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
    assert [line.partition(": ")[0] for line in settings.without_effect] == [
        "general_settings.database_url",
        "litellm_settings.drop_params",
        "model_list.0.litellm_params.rpm",
        "model_list.4",
    ]


def test_keys_are_never_shown(load: Load) -> None:
    """Neither a settings' representation nor its dump has a key in it."""
    settings = load(LITELLM + "server: {redis_url: 'redis://:redis-key@x/0'}")
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert not any(secret in text for secret in ("key-1", "key-2", "key-3", "redis-key"))


def test_the_decision_logs_section(load: Load) -> None:
    """It is off, and without content, until the file says otherwise."""
    default = load(one("{model: openai/m, api_key: k}")).decision_log
    assert (default.path, default.content, default.evidence) == (None, False, False)
    text = "decision_log: {path: logs, content: true, retention_days: 7}"
    settings = load(one("{model: openai/m, api_key: k}", text)).decision_log
    assert (settings.path, settings.content, settings.retention_days) == (Path("logs"), True, 7)


@pytest.mark.parametrize(
    "text",
    [
        "decision_log: {retention_days: 0}",
        "router: {exploration_share: 1.5}",
        "decision_log: {x: 1}",
    ],
)
def test_a_log_that_cannot_be_kept_is_refused(load: Load, text: str) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=r"decision_log\.|router\.exploration_share"):
        load(one("{model: openai/m, api_key: k}", text))


def test_no_client_is_called_admin(load: Load) -> None:
    """Records are the admin's to see by that name, so that no client may have it."""
    with pytest.raises(ConfigError, match=r"keys\.api.*'admin' is what keys\.admin"):
        load(one("{model: openai/m, api_key: k}", "keys: {api: {admin: some-long-key-5f1c}}"))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("{metrics: key-of-this-test, admin: key-of-this-test}", "same key as keys.admin"),
        ("{metrics: key-of-this-test, api: {a: key-of-this-test}}", "same key as keys.api.a"),
        ("{metrics: KEY, admin: HASH}", "same key as keys.admin"),
        ("{metrics: HASH, api: {metrics: other}}", "rename keys.api.metrics"),
        ("{metrics: ''}", "keys.metrics: .*is empty"),
    ],
)
def test_metrics_key_is_a_key_of_its_own(load: Load, keys: str, problem: str) -> None:
    """A metrics key that also opens something else is refused, in plain text or as a hash."""
    written = keys.replace("KEY", "key-of-this-test").replace("HASH", hashed("key-of-this-test"))
    with pytest.raises(ConfigError, match=problem) as caught:
        load(one("{model: openai/m, api_key: k}", f"keys: {written}"))
    assert "key-of-this-test" not in str(caught.value)


def test_metrics_key_is_not_the_master_key(load: Load) -> None:
    """LiteLLM's master key is the admin key, so it cannot be the metrics key as well."""
    sections = "keys: {metrics: same-key}\ngeneral_settings: {master_key: same-key}"
    with pytest.raises(ConfigError, match=r"same key as keys\.admin"):
        load(one("{model: openai/m, api_key: k}", sections))


def test_metrics_key_is_read(load: Load) -> None:
    """It may come from the environment like every other key."""
    settings = load(one("{model: openai/m, api_key: k}", "keys: {metrics: os.environ/MY_KEY}"))
    assert settings.keys.by_path() == {"keys.metrics": "key-1"}


def test_client_keys(load: Load) -> None:
    """Keys have names, and may be hashed or in the environment; LiteLLM's is the admin's."""
    digest = "ab" * 32
    keys = f"keys: {{api: {{team-a: os.environ/MY_KEY, team-b: 'sha256:{digest}'}}}}"
    settings = load(f"{LITELLM}\n{keys}")
    assert settings.keys.by_path() == {
        "keys.api.team-a": "key-1",
        "keys.api.team-b": f"sha256:{digest}",
        "keys.admin": "key-3",
    }
    assert load(one("{model: openai/m, api_key: k}", "general_settings:")).keys == KeySettings()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("{api: {a: 'sha256:12'}}", "keys.api.a: .*64 hexadecimal digits"),
        ("{api: {a: ''}}", "keys.api.a: .*is empty"),
        ("{api: {a: os.environ/NOT_SET}}", "keys.api.a: the environment variable NOT_SET"),
        ("{admin: a}", "general_settings.master_key: .*leave one out"),
        ("{users: {}}", "keys.users: "),
    ],
)
def test_client_keys_that_are_none(load: Load, keys: str, problem: str) -> None:
    """What is no key is an error that names where it stands, and does not show it."""
    with pytest.raises(ConfigError, match=problem):
        load(f"{LITELLM}\nkeys: {keys}")


@pytest.mark.parametrize(
    ("params", "url", "header"),
    [
        (
            "{model: azure/d, api_base: https://x.example, api_version: v1, api_key: k}",
            "https://x.example/openai/deployments/d/chat/completions?api-version=v1",
            "api-key",
        ),
        (
            "{model: azure/d, api_base: https://x.example, api_key: k}",
            "https://x.example/openai/v1/chat/completions",
            "api-key",
        ),
        (
            "{model: some-model, api_base: os.environ/BASE}",
            "http://local/v1/chat/completions",
            "authorization",
        ),
    ],
)
def test_addresses(load: Load, params: str, url: str, header: str) -> None:
    """Azure's addresses are its own; any other `api_base` is OpenAI-compatible."""
    (model,) = load(one(params), {"BASE": "http://local/v1"}).models
    assert (only(model).url("/chat/completions"), only(model).key_header) == (url, header)


def test_a_providers_key_goes_to_that_provider_alone(load: Load) -> None:
    """A key that only the environment names is not sent to an address that the file names."""
    (model,) = load(one("{model: openai/x, api_base: http://h/v1}"), {"OPENAI_API_KEY": "k"}).models
    assert only(model).api_key is None


def test_accounts_are_deployments(load: Load) -> None:
    """Two keys at one address are told apart, and neither is in what tells them apart."""
    entry = "{{model_name: m, litellm_params: {{model: x, api_base: 'http://h', api_key: {}}}}}"
    (model,) = load(f"model_list: [{entry.format('one')}, {entry.format('two')}]").models
    first, second = (deployment.id for deployment in model.deployments)
    assert first != second
    assert not {"one", "two"} & {first.partition("@")[2], second.partition("@")[2]}


def test_half_a_price_is_unknown(load: Load) -> None:
    """A model without both prices has none: unknown is never free."""
    text = one("{model: x, api_base: http://h, input_cost_per_token: 1e-6}")
    assert load(text).models[0].price is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "config.yaml: must be a mapping"),
        ("a: [", "config.yaml: line 1: is not valid YAML"),
        ("\x00", "not valid YAML"),
        ("server: {port: 1}", "config.yaml: model_list: names no model"),
        ("model_list: 3", "config.yaml: model_list"),
        ("model_list: [{model_name: '*', litellm_params: {model: openai/*}}]", "names no model"),
        (one("{api_key: k}"), "model_list.0.litellm_params.model: Field required"),
        (one("{model: openai/x, api_key: os.environ/UNSET}"), "variable UNSET is not set"),
        (one("{model: mistral/x}"), "set the environment variable MISTRAL_API_KEY"),
        (one("{model: bedrock/x}"), "'bedrock' has no known address"),
        (one("{model: mystery}"), "'mystery' names no provider"),
        (one("{model: azure/, api_base: 'https://h'}"), "'azure/' names no model"),
        (
            one("{model: x, api_base: 'ftp://h'}"),
            "litellm_params.api_base: the address must start with http:",
        ),
        (one("{model: x, api_base: 'http://h'}", "server: {prot: 1}"), "server.prot"),
        (one("{model: x, api_base: 'http://h'}", "server: {port: high}"), "server.port"),
        (one("{model: x, api_base: 'http://h'}", "server: 3"), "config.yaml: server"),
        (
            one("{model: x, api_base: 'http://h'}", "router: {forward_headers: [Cookie]}"),
            "'cookie' is never forwarded",
        ),
        (
            "model_list: [{model_name: 'switchcraft:x', litellm_params: {model: openai/x}}]",
            "asks for routing",
        ),
    ],
)
def test_mistakes_are_explained(load: Load, text: str, wanted: str) -> None:
    """Each mistake is an error that names the file, where in it, and what to do."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert wanted in str(caught.value)
    assert "config.yaml" in str(caught.value)


def test_a_mistake_does_not_show_a_key(load: Load) -> None:
    """The error about a field beside a key, and its cause, do not have the key in them."""
    with pytest.raises(ConfigError) as caught:
        load(one("{model: [], api_key: very-secret}"))
    assert "very-secret" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    "text",
    [
        "a: 2001-99-99",
        "a: !!int x",
        "a: !!timestamp x",
        "a: !!bool x",
        f"a: 1{'0' * 5000}",
        "a: " + "[" * 2000,
        'a: "\\U00110000"',
        'a: "\\UFFFFFFFF"',
        f"%YAML 1.{'1' * 5000}\n---\na: b",
        "server: &a {port: *a}",
        "environment_variables: &a {b: *a}",
    ],
    ids="date int timestamp bool digits deep letter large-letter version cycle variables".split(),
)
def test_unusable_yaml_is_a_configuration_error(load: Load, text: str) -> None:
    """A value that does not fit its YAML type, deep nesting and endless aliases are explained."""
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load(text)


def test_aliases_that_repeat_a_value_exponentially_are_refused(load: Load) -> None:
    """A few hundred bytes cannot stand for millions of values."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7)]
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        load("\n".join((*lines, "server: {host: *a6}")))


@pytest.mark.parametrize("key", ["*secret-of-the-team", "!secret-of-the-team"])
def test_a_yaml_error_does_not_show_a_key(load: Load, key: str) -> None:
    """A key that YAML takes for an alias or a tag is not repeated."""
    with pytest.raises(ConfigError, match="quote") as caught:
        load(f"keys:\n  admin: {key}\n")
    assert key[1:] not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is an error of the configuration."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "none.yaml")


def test_an_empty_section_is_the_default(load: Load) -> None:
    """A heading with nothing below it changes nothing."""
    settings = load(one("{model: x, api_base: 'http://h'}", "server:\nrouter:\n"))
    assert settings.server == Settings().server


def test_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument counts more than a SWITCHCRAFT_ variable, and that more than the file."""
    path = tmp_path / "config.yaml"
    path.write_text(one("{model: x, api_base: 'http://h'}", "server: {host: a, port: 1}"))
    monkeypatch.setenv("SWITCHCRAFT_CONFIG", str(path))
    monkeypatch.setenv("SWITCHCRAFT_PORT", "2")
    monkeypatch.setenv("SWITCHCRAFT_HOST", "b")
    monkeypatch.setenv("SWITCHCRAFT_REDIS_URL", "redis://c")
    server = read_settings(host="d").server
    assert (server.host, server.port) == ("d", 2)
    assert server.redis_url is not None
    assert server.redis_url.get_secret_value() == "redis://c"


def test_workers_need_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that share nothing would not know each other's decisions; the error says so."""
    path = tmp_path / "config.yaml"
    path.write_text(one("{model: x, api_base: 'http://h'}", "server: {workers: 2}"))
    with pytest.raises(ConfigError, match=r"server\.workers: .* set server\.redis_url"):
        read_settings(path)
    monkeypatch.setenv("SWITCHCRAFT_REDIS_URL", "redis://c")
    assert read_settings(path).server.workers == 2
    monkeypatch.setenv("SWITCHCRAFT_WORKERS", "3")
    assert read_settings(path).server.workers == 3


def test_bad_environment_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that does not fit is named."""
    monkeypatch.setenv("SWITCHCRAFT_PORT", "high")
    with pytest.raises(ConfigError, match="SWITCHCRAFT_PORT"):
        read_settings()


def test_sandbox_plays_every_arm() -> None:
    """Without a file each arm is a model of its own name on the sandbox, at an unknown price."""
    settings = Settings.sandbox("http://h/v1", ["a", "b"])
    assert [(m.name, only(m).upstream_model, only(m).base_url) for m in settings.models] == [
        ("a", "a", "http://h/v1"),
        ("b", "b", "http://h/v1"),
    ]


def test_settings_are_frozen() -> None:
    """Nothing changes settings once they are read."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().source = "x"  # type: ignore[misc]  # the very point
