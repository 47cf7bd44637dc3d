"""Mistakes in a configuration that only the artifact shows, with their exact messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.access.keyring import permitted_listen_host
from router_service.core.errors import ConfigError
from router_service.requests.pool import UNPRICED, Pool
from router_service.runtime.engine import make_planner
from router_service.settings import read_settings
from tests.fakes import FakeRouter

MODELS = """\
model_list:
  - {model_name: large, litellm_params: {model: x, api_base: 'http://h'}}
  - {model_name: mini, litellm_params: {model: x, api_base: 'http://h'}, model_info: FREE}
""".replace("FREE", "{input_cost_per_token: 0, output_cost_per_token: 0}")

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


def error_of(path: Path) -> ConfigError:
    """Return the error for a configuration file that a gateway refuses."""
    with pytest.raises(ConfigError) as caught:
        _prepare(path)
    return caught.value


def _prepare(path: Path) -> None:
    settings, router = read_settings(path, environ={}), FakeRouter()
    permitted_listen_host(settings)
    make_planner(settings, router, Pool.build(settings, router.artifact.manifest))


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_message_names_line_problem_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    """The exact message of each broken configuration, which has its mistake in its last line."""
    path = tmp_path / "config.yaml"
    path.write_text(MODELS + text)
    assert str(error_of(path)) == f"{path}:{len((MODELS + text).splitlines())}: {message}"


def test_models_without_a_price_are_named_with_their_lines(tmp_path: Path) -> None:
    """All models without a price are reported at once, each with its first entry's line."""
    path = tmp_path / "config.yaml"
    entry = "  - {model_name: NAME, litellm_params: {model: x, api_base: 'http://h'}}\n"
    path.write_text(MODELS + "".join(entry.replace("NAME", name) for name in "aba"))
    first, *lines = str(error_of(path)).splitlines()
    assert first == "2 problems:"
    assert [line.strip() for line in lines] == [
        f"{path}:4: model_list: a: {UNPRICED}",
        f"{path}:5: model_list: b: {UNPRICED}",
    ]
