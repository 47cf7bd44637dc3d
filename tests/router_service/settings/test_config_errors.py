"""The messages of configuration errors: the file, the dotted path, the problem and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.access.keyring import permitted_listen_host
from router_service.check import check
from router_service.core.errors import ConfigError
from router_service.requests.pool import Pool
from router_service.runtime.engine import make_planner
from router_service.settings import read_settings
from tests.fakes import FakeRouter
from tests.router_service.settings.conftest import LoadFile as Load

MODEL = "{model_name: m, litellm_params: {model: openai/m, api_base: 'http://h'}}"
MISSPELLED = "looks like a reference to an environment variable; write it as os.environ/NAME"
UNSET = "the environment variable UNSET is not set; set it, or write the value"
FILES = [
    ("", "must be a mapping of sections; add a model_list"),
    ("a: [", "is not valid YAML: expected the node content, but found '<stream end>'"),
    (
        "model_list: [{model_name: m, litellm_param: {model: openai/m}}]",
        "model_list.0.litellm_params: is missing; is 'litellm_param' a misspelling of it?",
    ),
    (
        "model_list: [{model_name: 'switchcraft:x', litellm_params: {model: m, api_base: 'http://h'}}]",
        (
            "model_list.0.model_name: the name 'switchcraft:x' is reserved for requests to the "
            "router; rename the model, or change router.model_name"
        ),
    ),
]

ENTRIES = [
    (
        "{model: openai/m, api_key: os.environ/UNSET}",
        "litellm_params.api_key: " + UNSET,
    ),
    (
        "{model: mystery/m}",
        "litellm_params: the provider 'mystery' has no known address; set api_base",
    ),
    (
        "{model: m, api_base: 'ftp://h'}",
        "litellm_params.api_base: the address must start with http:// or https://",
    ),
    (
        "{model: m, api_base: 'http://h', timeouts: {ide_s: 1}}",
        (
            "litellm_params.timeouts.ide_s: is unknown; the name must be 'connect_s', "
            "'first_byte_s', 'idle_s', 'total_s', 'write_s', 'pool_s' or 'hold_s'"
        ),
    ),
]

SECTIONS = [
    ("key: {admin: k}", "key: is unknown; did you mean 'keys'?"),
    (
        "budgets: {webhook_url: 'https://h'}",
        (
            "budgets.webhook_url: was removed; delete it, and let Prometheus and Alertmanager "
            "report budgets, with the alert SwitchcraftBudgetSpent of deploy/prometheus/rules.yaml"
        ),
    ),
    (
        "server: {port: 1}\nserver: {port: 2}",
        "server: is set twice, first in line 2; merge the two",
    ),
    (
        "keys: {admin: os.envrion/ADMIN}",
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
    (
        "upstreams: {retries: {budget_share: 2}}",
        "upstreams.retries.budget_share: must be at most 1",
    ),
    ("router: {device: tpu}", "router.device: must be 'cpu' or 'cuda'"),
    (
        "router: {publication: redis}",
        "router.publication: must be a directory that all replicas mount; Redis is not supported",
    ),
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
        "keys: {admin: a}\ngeneral_settings: {master_key: b}",
        (
            "general_settings.master_key: keys.admin is set too, and both are the admin key; "
            "remove one of them"
        ),
    ),
    (
        "router_settings: {fallbacks: [{m: [os.environ/UNSET]}]}",
        "router_settings.fallbacks.0.m.0: " + UNSET,
    ),
]

POOL = """\
model_list:
  - {model_name: large, litellm_params: {model: x, api_base: 'http://h'}}
  - {model_name: mini, litellm_params: {model: x, api_base: 'http://h'}, model_info: FREE}
""".replace("FREE", "{input_cost_per_token: 0, output_cost_per_token: 0}")
"""Two models, for mistakes that only the artifact and the address show."""

GUESSABLE = (
    "the key is short or copied from an example, and can be guessed; create one with "
    "`switchcraft key`, or set server.host or --host to 127.0.0.1"
)

MISTAKES = [
    (
        "router: {arms: {smal: mini}}",
        "router.arms.smal: the artifact has no such arm; did you mean 'small'?",
    ),
    (
        "router: {baseline_model: larg}",
        "router.baseline_model: there is no model 'larg' in model_list; did you mean 'large'?",
    ),
    (
        "router: {pass_through: openai}",
        "router.pass_through: there is no model 'openai' in model_list; use one of large, mini",
    ),
    ("server: {host: 0.0.0.0}\nkeys: {admin: test}", f"keys.admin: {GUESSABLE}"),
]

CASES = [
    *FILES,
    *(
        (f"model_list: [{{model_name: m, litellm_params: {text}}}]", f"model_list.0.{message}")
        for text, message in ENTRIES
    ),
    *((f"model_list: [{MODEL}]\n{text}", message) for text, message in SECTIONS),
    *((POOL + text, message) for text, message in MISTAKES),
]


def prepare(path: Path) -> None:
    """Read a file, and prepare what a gateway needs of it."""
    settings, router = read_settings(path, environ={}), FakeRouter()
    permitted_listen_host(settings)
    make_planner(settings, router, Pool.build(settings, router.artifact.manifest))


@pytest.mark.parametrize(("text", "message"), CASES, ids=[message for _, message in CASES])
def test_message_names_path_problem_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    """The exact message of each broken configuration, which has its mistake in its last line."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        prepare(path)
    line = f":{len(text.splitlines())}" if text else ""
    assert str(caught.value) == f"{path}{line}: {message}"


def test_sections_for_anchors_are_allowed(tmp_path: Path) -> None:
    """A section whose name begins with x- may hold what anchors repeat."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "x-defaults: &defaults {api_base: 'http://h', timeout: 5}\n"
        "model_list: [{model_name: m, litellm_params: {<<: *defaults, model: m, timeout: 6}}]\n"
    )
    [model] = read_settings(path, environ={}).models
    assert model.deployments[0].timeouts.total_s == 6


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


def test_values_are_reported_together_and_then_models_and_names(tmp_path: Path) -> None:
    """Wrong values do not hide each other, nor do unusable entries and reserved names."""
    path = tmp_path / "config.yaml"
    values = (
        "model_list:\n"
        "  - {model_name: a, litellm_param: {model: openai/a}}\n"
        "  - {model_name: c, litellm_params: {model: c, api_base: 'http://h', timeout: soon}}\n"
        "budgets: {max_wait_s: soon}\n"
        "general_settings: {master_key: a}\n"
        "keys: {admin: b, apy: c}\n"
    )
    models = (
        "model_list:\n"
        "  - {model_name: b, litellm_params: {model: mystery}}\n"
        "  - {model_name: switchcraft, litellm_params: {model: d, api_base: 'http://h'}}\n"
    )

    def problems(text: str) -> list[tuple[int | None, str]]:
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_settings(path, environ={})
        return [(problem.line, problem.where) for problem in caught.value.problems]

    assert problems(values) == [
        (2, "model_list.0.litellm_params"),
        (3, "model_list.1.litellm_params.timeout"),
        (4, "budgets.max_wait_s"),
        (5, "general_settings.master_key"),
        (6, "keys.apy"),
    ]
    assert problems(models) == [
        (2, "model_list.0.litellm_params.model"),
        (3, "model_list.1.model_name"),
    ]


ENTRY = "model_list: [{model_name: a, litellm_params: {model: openai/x, api_key: k, %s}}]\n"


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool x\n",
        "a: 2001-99-99\n",
        'a: "\\U006F1000"\n',
        'a: "\\UFFFFFFFF"\n',
        "a: !!timestamp x\n",
        "a: " + "[" * 2000 + "\n",
        "server: &a {port: *a}\n",
        "keys:\n  admin: *sk-canary\n",
        "keys:\n  admin: !sk-canary x\n",
        ENTRY % "api_base: 'http://['",
        ENTRY % "api_base: 'http://a:x'",
        ENTRY % "input_cost_per_token: 1e308, output_cost_per_token: 1",
    ],
)
def test_yaml_that_parsers_fail_on_is_a_configuration_error(load_file: Load, text: str) -> None:
    """Fuzzing found other exceptions for these files, and keys in their messages."""
    with pytest.raises(ConfigError) as caught:
        load_file(text, {})
    assert "canary" not in str(caught.value)
