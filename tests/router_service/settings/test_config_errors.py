"""The messages of configuration errors: the file, the dotted path, the problem and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.check import check
from router_service.core.errors import ConfigError
from router_service.settings import read_settings

MODEL = "{model_name: m, litellm_params: {model: openai/m, api_base: 'http://h'}}"
MISSPELLED = "looks like a reference to an environment variable; write it as os.environ/NAME"
UNSET = "the environment variable UNSET is not set; set it, or write the value"
FILES = [
    ("", "must be a mapping of sections; add a model_list"),
    ("a: [", "is not valid YAML: expected the node content, but found '<stream end>'"),
    ("\x00", "is not valid YAML; save it as UTF-8 text"),
    (
        "keys: {admin: *secret}",
        "is not valid YAML: found undefined alias; quote a text that starts with *, & or !",
    ),
    (
        "a: 2001-99-99",
        (
            "is not valid YAML: the value does not fit its type, such as the date "
            "2001-99-99; quote it"
        ),
    ),
    (
        "server: {port: 1}",
        "model_list: there is no model; add at least one",
    ),
    ("model_list: 3", "model_list: must be a list"),
    ("model_list: [3]", "model_list.0: must be a mapping of names to values"),
    (
        "model_list: [{model_name: m, litellm_param: {model: openai/m}}]",
        "model_list.0.litellm_params: is missing; is 'litellm_param' a misspelling of it?",
    ),
    (
        "model_list: [{model_name: '', litellm_params: {model: openai/m}}]",
        "model_list.0.model_name: must not be empty",
    ),
    (
        "model_list: [{model_name: 'switchcraft:x', litellm_params: {model: m, api_base: 'http://h'}}]",
        (
            "model_list.0.model_name: the name 'switchcraft:x' is reserved for requests to the "
            "router; rename the model, or change router.model_name"
        ),
    ),
]

WITHOUT_LINE = ("", "\x00", "server: {port: 1}")
"""Files whose mistake is in no line, such as a section that is missing."""

ENTRIES = [
    ("{model: 3}", "litellm_params.model: must be a text in quotes"),
    (
        "{model: openai/m, api_key: os.environ/UNSET}",
        "litellm_params.api_key: " + UNSET,
    ),
    (
        "{model: mistral/m}",
        (
            "litellm_params.api_key: there is no key; set the environment variable "
            "MISTRAL_API_KEY, or api_key"
        ),
    ),
    (
        "{model: mystery/m}",
        "litellm_params: the provider 'mystery' has no known address; set api_base",
    ),
    (
        "{model: mystery}",
        "litellm_params.model: 'mystery' names no provider; write provider/model, or set api_base",
    ),
    (
        "{model: azure/, api_base: 'https://h'}",
        "litellm_params.model: 'azure/' has no model after the slash; write provider/model",
    ),
    (
        "{model: m, api_base: 'ftp://h'}",
        "litellm_params.api_base: the address must start with http:// or https://",
    ),
    (
        "{model: m, api_base: 'http://h/v1?x=1'}",
        (
            "litellm_params.api_base: the address must not contain '?' or '#': paths are added "
            "at its end"
        ),
    ),
    ("{model: m, api_base: 'http://h', weight: -1}", "litellm_params.weight: must be at least 0"),
    (
        "{model: m, api_base: 'http://h', timeout: 0}",
        "litellm_params.timeout: must be greater than 0",
    ),
    (
        "{model: m, api_base: 'http://h', timeouts: {ide_s: 1}}",
        (
            "litellm_params.timeouts.ide_s: is unknown; the name must be 'connect_s', "
            "'first_byte_s', 'idle_s', 'total_s', 'write_s', 'pool_s' or 'hold_s'"
        ),
    ),
    (
        "{model: m, api_base: 'http://h'}, model_info: {max_input_tokens: many}",
        "model_info.max_input_tokens: must be a whole number",
    ),
    (
        "{model: m, api_base: 'http://h'}, model_info: {supports_vision: maybe}",
        "model_info.supports_vision: must be true or false",
    ),
]

SECTIONS = [
    ("key: {admin: k}", "key: is unknown; did you mean 'keys'?"),
    ("fantasy: 1", "fantasy: is unknown; remove it"),
    ("router: {risk: {writting: {}}}", "router.risk.writting: is unknown; did you mean 'writing'?"),
    (
        "server: {port: 1}\nserver: {port: 2}",
        "server: is set twice, first in line 2; merge the two",
    ),
    (
        "server:\n  port: 1\n  host: a\n  port: 2",
        "server.port: is set twice, first in line 3; merge the two",
    ),
    (
        "keys: {admin: os.envrion/ADMIN}",
        "keys.admin: " + MISSPELLED,
    ),
    (
        "keys: {admin: '${ADMIN_KEY}'}",
        "keys.admin: " + MISSPELLED,
    ),
    (
        "keys: {api: {a: 'env:ADMIN'}}",
        "keys.api.a: " + MISSPELLED,
    ),
    (
        "server: {port: high}",
        "server.port: the port must be a whole number from 0 to 65535, in digits",
    ),
    ("server: {workers: 0}", "server.workers: must be at least 1"),
    ("server: {workers: 1.5}", "server.workers: must be a whole number"),
    ("server: {host: }", "server.host: has no value; add one, or remove the name"),
    (
        "server: {redis_url: 'http://h'}",
        "server.redis_url: the address must start with redis:// or rediss:// or unix://",
    ),
    ("upstreams: {timeouts: {total_s: never}}", "upstreams.timeouts.total_s: must be a number"),
    (
        "upstreams: {retries: {budget_share: 2}}",
        "upstreams.retries.budget_share: must be at most 1",
    ),
    ("router: {device: tpu}", "router.device: must be 'cpu' or 'cuda'"),
    ("router: {publication: 3}", "router.publication: must be 'redis' or a path"),
    ("router: {arms: [a]}", "router.arms: must be a mapping of names to values"),
    ("router: {forward_headers: Accept}", "router.forward_headers: must be a list"),
    (
        "router: {forward_headers: [Cookie]}",
        "router.forward_headers: the header 'cookie' is never forwarded; remove it",
    ),
    ("keys: {admin: ''}", "keys.admin: is empty; set a key, or remove it"),
    (
        "keys: {api: {a: 'sha256:12'}}",
        "keys.api.a: is not a valid hash; write 64 hexadecimal digits after 'sha256:'",
    ),
    (
        "keys: {api: {admin: k}}",
        "keys.api: 'admin' is reserved for keys.admin; choose another name",
    ),
    (
        "keys: {metrics: same, admin: same}",
        "keys: keys.metrics is the same key as keys.admin; use another key",
    ),
    (
        "keys: {metrics: k, api: {metrics: other}}",
        "keys: 'metrics' is reserved for keys.metrics; rename keys.api.metrics",
    ),
    (
        "keys: {admin: a}\ngeneral_settings: {master_key: b}",
        (
            "general_settings.master_key: keys.admin is set too, and both are the admin key; "
            "remove one of them"
        ),
    ),
    (
        "general_settings: {master_key: b}\nkeys: {metrics: b}",
        "keys: keys.metrics is the same key as keys.admin; use another key",
    ),
    ("decision_log: {path: 3}", "decision_log.path: must be a path"),
    (
        "router_settings: {model_group_alias: {a: 3}}",
        (
            "router_settings.model_group_alias.a: must be a text in quotes or a mapping of names "
            "to values"
        ),
    ),
    (
        "router_settings: {model_group_alias: {a: {hidden: true}}}",
        "router_settings.model_group_alias.a.model: is missing; add it",
    ),
    (
        "router_settings: {model_group_alias: {switchcraft: m}}",
        (
            "router_settings.model_group_alias.switchcraft: the name 'switchcraft' is reserved for "
            "requests to the router; rename the model, or change router.model_name"
        ),
    ),
    (
        "router_settings: {redis_host: 'h:1'}",
        "router_settings.redis_host: the host contains ':' or brackets, but is not an IPv6 address",
    ),
    (
        "router_settings: {redis_host: h, redis_port: 0}",
        "router_settings.redis_port: the port must be a whole number from 1 to 65535, in digits",
    ),
    (
        "router_settings: {fallbacks: [{m: [os.environ/UNSET]}]}",
        "router_settings.fallbacks.0.m.0: " + UNSET,
    ),
    (
        "keys: {users: {}}",
        "keys.users: is unknown; remove it. The settings here are api, admin, metrics",
    ),
    (
        "environment_variables: {A: os.environ/UNSET}",
        "environment_variables.A: " + UNSET,
    ),
]

CASES = [
    *FILES,
    *(
        (f"model_list: [{{model_name: m, litellm_params: {text}}}]", f"model_list.0.{message}")
        for text, message in ENTRIES
    ),
    *((f"model_list: [{MODEL}]\n{text}", message) for text, message in SECTIONS),
]


@pytest.mark.parametrize(("text", "message"), CASES, ids=[message for _, message in CASES])
def test_message_names_path_problem_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    """The exact message of each broken configuration, which has its mistake in its last line."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path, environ={})
    line = "" if text in WITHOUT_LINE else f":{len(text.splitlines())}"
    assert str(caught.value) == f"{path}{line}: {message}"


def test_all_problems_are_reported_with_their_lines(tmp_path: Path) -> None:
    """Names, variables, repeated settings and values are reported at once, in their order."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "model_list:\n"
        "  - model_name: m\n"
        "    litellm_params: {model: openai/m, api_key: os.environ/UNSET}\n"
        "key: {admin: k}\n"
        "server:\n"
        "  port: high\n"
        "  prot: 1\n"
        "router: {}\n"
        "router: {theta: 1}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_settings(path, environ={})
    first, *lines = str(caught.value).replace(f"{path}:", "").splitlines()
    assert first == "6 problems:"
    assert [line.strip().split(": ")[:2] for line in lines] == [
        ["3", "model_list.0.litellm_params.api_key"],
        ["4", "key"],
        ["6", "server.port"],
        ["7", "server.prot"],
        ["9", "router"],
        ["9", "router.theta"],
    ]


def test_sections_for_anchors_are_allowed(tmp_path: Path) -> None:
    """A section whose name begins with x- may hold what anchors repeat."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "x-defaults: &defaults {api_base: 'http://h', timeout: 5}\n"
        "model_list: [{model_name: m, litellm_params: {<<: *defaults, model: m, timeout: 6}}]\n"
    )
    [model] = read_settings(path, environ={}).models
    assert model.deployments[0].timeouts.total_s == 6


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """The message says why the file cannot be read."""
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory; check the path"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "SWITCHCRAFT_PORT",
            "high",
            "SWITCHCRAFT_PORT: the port must be a whole number from 0 to 65535, in digits",
        ),
        ("SWITCHCRAFT_WORKERS", "0", "SWITCHCRAFT_WORKERS: must be at least 1"),
        (
            "SWITCHCRAFT_REDIS_URL",
            "redis",
            "SWITCHCRAFT_REDIS_URL: the address must start with redis:// or rediss:// or unix://",
        ),
    ],
)
def test_message_names_the_environment_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    """The exact message of each unusable variable."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        read_settings()
    assert str(caught.value) == f"the environment: {message}"


def test_message_does_not_show_keys(tmp_path: Path) -> None:
    """Neither the message nor its cause contains a key near the mistake."""
    path = tmp_path / "config.yaml"
    path.write_text("model_list: [{model_name: m, litellm_params: {model: [], api_key: secret-5}}]")
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert "secret-5" not in f"{caught.value} {caught.value.__cause__}"


KEYS = (
    "sk-proj-Ab3dEf6hIj9",
    "4f3a9c0b1d2e4f5a6b7c8d9e0f1a2b3c",
    "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY",
    "0b9f4a5e-5c2d-4e0a-9d7e-2f1c3b4a5d6e",
    "kR2-x9Lq_7Vb3-Nw8Zt_5Yc1-Hd6Fg_0Ms4-Jp",
)
PLACES = {
    "a section": "{SECRET: x, model_list: [M]}",
    "a section without a value": "{SECRET: , model_list: 1}",
    "a key of keys": "{model_list: [M], keys: {SECRET: x}}",
    "a client's name": '{model_list: [M], keys: {api: {SECRET: ""}}}',
    "a client's name without a value": "{model_list: [M], keys: {api: {SECRET: }}}",
    "a setting": "{model_list: [M], router: {SECRET: x}}",
    "an inner setting": "{model_list: [M], router: {verification: {SECRET: x}}}",
    "an arm": "{model_list: [M], router: {arms: {SECRET: []}}}",
    "an alias": "{model_list: [M], router: {aliases: {SECRET: []}}}",
    "a variable": "{model_list: [{model_name: m, litellm_params: {model: openai/m, "
    "api_key: os.environ/SECRET}}]}",
    "twice": "{model_list: [M], SECRET: 1, SECRET: 2}",
    "a model": "{model_list: [{model_name: m, litellm_params: {model: SECRET}}]}",
    "a provider": "{model_list: [{model_name: m, litellm_params: {model: SECRET/m}}]}",
    "an address": "{model_list: [{model_name: m, litellm_params: {model: openai/m, "
    "api_base: SECRET, api_key: k}}]}",
    "a policy": "{model_list: [M], router: {default_policy: SECRET}}",
    "a model's name": "{model_list: [{model_name: 'switchcraft:SECRET', litellm_params: "
    "{model: openai/m}}]}",
    "a parameter": "{model_list: [{model_name: m, litellm_params: {model: openai/m, api_key: k, "
    "SECRET: 1}}]}",
    "a fact of a model": "{model_list: [{model_name: m, model_info: {SECRET: 1}, litellm_params: "
    "{model: openai/m, api_key: k}}]}",
    "a fallback": "{model_list: [M], router_settings: {fallbacks: [{m: [SECRET]}]}}",
    "a group": "{model_list: [M], router_settings: {model_group_alias: {SECRET: n}}}",
    "LiteLLM's section": "{model_list: [M], general_settings: {SECRET: 1}}",
}


def write_with_key(path: Path, place: str, key: str) -> None:
    """Write a configuration that has a key in the place of a name."""
    model = "{model_name: m, litellm_params: {model: openai/m, api_key: k}}"
    path.write_text(PLACES[place].replace("M]", f"{model}]").replace("SECRET", key))


@pytest.mark.parametrize("place", PLACES)
def test_key_in_the_place_of_a_name_is_not_shown(tmp_path: Path, place: str) -> None:
    """Wherever a key stands in the file, neither the error of a start nor a finding shows it."""
    path = tmp_path / "config.yaml"
    for key in KEYS:
        write_with_key(path, place, key)
        error = ""
        try:
            read_settings(path, environ={})
        except ConfigError as exc:
            error = str(exc)
        assert key not in error
    findings = [f"{each.subject}: {each.detail}" for each in check(path)]
    assert findings
    assert KEYS[-1] not in "\n".join(findings)


def test_client_name_that_begins_like_a_key_is_refused(tmp_path: Path) -> None:
    """Otherwise, a key that was written before its name would be in logs and metrics."""
    path = tmp_path / "config.yaml"
    model = "{model_name: m, litellm_params: {model: openai/m, api_key: k}}"
    path.write_text(f"{{model_list: [{model}], keys: {{api: {{{KEYS[0]}: team-a}}}}}}")
    with pytest.raises(ConfigError, match="a name looks like a key"):
        read_settings(path)


@pytest.mark.parametrize(
    "name",
    ["claude-haiku-4-5-20251001", "ft:gpt-4o-mini-2024-07-18:acme::9abcDEF1", "pplx-70b-online"],
)
def test_names_of_models_and_settings_are_shown(name: str) -> None:
    """What looks like a name stays readable in messages."""
    assert ConfigError("file", name, f"the model {name!r}").problem == f"the model {name!r}"


def test_values_models_and_names_are_reported_together(tmp_path: Path) -> None:
    """A wrong value, an unusable entry and a reserved name do not hide each other.

    Positions are those of the file, although an entry in between cannot be read.
    """
    path = tmp_path / "config.yaml"
    path.write_text(
        "model_list:\n"
        "  - {model_name: a, litellm_param: {model: openai/a}}\n"
        "  - {model_name: b, litellm_params: {model: mystery}}\n"
        "  - {model_name: c, litellm_params: {model: c, api_base: 'http://h', timeout: soon}}\n"
        "  - {model_name: switchcraft, litellm_params: {model: d, api_base: 'http://h'}}\n"
        "budgets: {webhook_url: 'http://h'}\n"
        "general_settings: {master_key: a}\n"
        "keys: {admin: b, apy: c}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_settings(path, environ={})
    assert [(problem.line, problem.where) for problem in caught.value.problems] == [
        (2, "model_list.0.litellm_params"),
        (3, "model_list.1.litellm_params.model"),
        (4, "model_list.2.litellm_params.timeout"),
        (5, "model_list.3.model_name"),
        (6, "budgets"),
        (7, "general_settings.master_key"),
        (8, "keys.apy"),
    ]
