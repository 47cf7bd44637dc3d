"""Users of LiteLLM and of OpenRouter move as docs/migrate-from-*.md says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from router_service.check import Status, check
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings, read_settings
from tests.bodies import ASK, BODY, TOOLS
from tests.documentation.documents import ROOT, Document
from tests.drills.processes import install_programs
from tests.serving import Sandbox, served


def before_sandbox(settings: Settings, sandbox_url: str) -> Settings:
    """Return the settings with the sandbox's address in place of every provider's."""
    models = tuple(
        model.model_copy(
            update={
                "deployments": tuple(
                    each.model_copy(update={"base_url": sandbox_url}) for each in model.deployments
                )
            }
        )
        for model in settings.models
    )
    return settings.model_copy(update={"models": models})


@contextmanager
def moved_gateway(settings: Settings, sandbox_url: str, router: Router) -> Iterator[str]:
    """Serve a gateway whose providers the sandbox plays; yield its address, http://HOST:PORT."""
    with served(create_app(before_sandbox(settings, sandbox_url), router)) as url:
        yield url


FILES = sorted(Path(__file__).with_name("litellm").glob("*.yaml"))
LITELLM_PAGE = Document(ROOT / "docs" / "migrate-from-litellm.md")
MASTER_KEY = "sk-the-master-key-of-this-test"

UNKNOWN_PRICES = "{}\nrouter: {{unknown_prices: allow}}\n"
"""What the page tells users to add for models without a known price."""


def environment(path: Path) -> dict[str, str]:
    """Return a value for each variable that a file refers to."""
    names = re.findall(r"os\.environ/(\w+)", path.read_text())
    values = dict.fromkeys(names, MASTER_KEY)
    return values | {"REDIS_HOST": "127.0.0.1"}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of a LiteLLM user, with its variables set and unknown prices allowed."""
    original: Path = request.param
    for name, value in environment(original).items():
        monkeypatch.setenv(name, value)
    path = tmp_path / original.name
    path.write_text(UNKNOWN_PRICES.format(original.read_text()))
    return path


def test_check_finds_nothing_that_stops_the_gateway(file: Path) -> None:
    """Only services that do not run here fail; each setting without effect is a note."""
    failed = [finding for finding in check(file) if finding.status is Status.FAILED]
    assert {finding.subject for finding in failed} <= {"redis", "port"}, failed


def test_models_answer_by_their_names(file: Path, sandbox: Sandbox, shipped: Router) -> None:
    """Every name that the file gives to a chat model is answered, with and without `/v1`.

    Both forms of a path need a key, if the file has one.
    """
    settings = without_redis(
        read_settings(file, environ={**os.environ, "HOME": "", "XDG_STATE_HOME": ""})
    )
    key = settings.keys.admin
    headers = {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    with (
        moved_gateway(settings, sandbox.base_url, shipped) as url,
        httpx.Client(base_url=url, headers=headers) as http,
    ):
        names = [model["id"] for model in http.get("/models").json()["data"]]
        chat = [name for name in names if "embed" not in name and "*" not in name]
        assert set(chat) >= settings.aliases.keys()
        for name in chat:
            for path in ("/chat/completions", "/v1/chat/completions"):
                answer = http.post(path, json={"model": name, "messages": ASK})
                assert answer.is_success, (name, answer.text)
        assert http.get("/models").json() == http.get("/v1/models").json()
        assert http.get("/chat/completions").status_code == 405
        assert http.get("/decisions/dec_1").status_code == 404  # stays below `/v1`
        for path in ("/chat/completions", "/v1/chat/completions"):
            assert http.post(path, json=BODY).is_success
            if headers:
                assert httpx.post(url + path, json=BODY).status_code == 401


def without_redis(settings: Settings) -> Settings:
    """Return the settings of a gateway without other replicas."""
    server = settings.server.model_copy(update={"redis_url": None})
    return settings.model_copy(update={"server": server})


def hashed(key: str) -> str:
    """Return what LiteLLM stores of a key (`hash_token` in its proxy/utils.py)."""
    return hashlib.sha256(key.encode()).hexdigest()


TEAMS = [
    {
        "team_id": "0c1d", "team_alias": "core infra", "max_budget": 500.0,
        "budget_duration": "30d", "models": ["gpt-4.1-mini"], "rpm_limit": 600,
    }
]  # fmt: skip
"""A row of LiteLLM's `GET /team/list`, with the fields that the program reads."""

KEYS = [
    {
        "token": hashed("sk-key-of-search-agent"), "key_alias": "search-agent", "team_id": "0c1d",
        "max_budget": 50.0, "budget_duration": "7d", "tpm_limit": 100_000, "user_id": "ana",
        "models": ["gpt-4.1-mini"], "expires": "2099-01-31T18:00:00Z", "metadata": {},
    },
    {
        "token": hashed("sk-key-of-batch"), "key_alias": None, "max_budget": 3,
        "budget_duration": "90d", "models": ["all-team-models"], "aliases": {"gpt-4": "gpt-5"},
    },
    {"token": hashed("sk-key-of-mallory"), "key_alias": "mallory", "blocked": True, "models": []},
]  # fmt: skip
"""Rows of LiteLLM's `GET /key/list?return_full_object=true`."""


async def list_accounts(request: Request) -> JSONResponse:
    """Answer as the part of a LiteLLM proxy that lists keys and teams; one key on each page."""
    if request.headers["authorization"] != f"Bearer {MASTER_KEY}":
        return JSONResponse({}, 401)
    if request.url.path == "/team/list":
        return JSONResponse(TEAMS)
    assert request.query_params["return_full_object"] == "true"
    page = int(request.query_params.get("page", 1))
    return JSONResponse({"keys": KEYS[page - 1 : page], "total_pages": len(KEYS)})


@pytest.fixture
def litellm_url() -> Iterator[str]:
    """Yield the address of a LiteLLM proxy."""
    paths = ("/key/list", "/team/list")
    with served(Starlette(routes=[Route(path, list_accounts) for path in paths])) as url:
        yield url


def test_clients_keep_their_virtual_keys(
    litellm_url: str, sandbox: Sandbox, shipped: Router, tmp_path: Path
) -> None:
    """The page's commands copy teams and keys; the keys work with their teams, budgets and limits.

    Only the programs' folder, LiteLLM's address and its master key are replaced.
    """
    (block,) = (
        each
        for each in LITELLM_PAGE.blocks
        if "move_litellm_keys.py" in each.text and each.is_shell
    )
    script = block.text.replace("http://litellm:4000", litellm_url).replace("sk-...", MASTER_KEY)
    configuration = tmp_path / "litellm_config.yaml"
    configuration.write_text(f"""
model_list:
  - {{model_name: gpt-4.1-mini, litellm_params: {{model: openai/gpt-4.1-mini, api_key: any}}}}
  - {{model_name: gpt-5.2, litellm_params: {{model: openai/gpt-5.2, api_key: any}}}}
general_settings: {{master_key: {MASTER_KEY}}}
database: {{url: "sqlite:///{tmp_path}/keys.db"}}
""")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = install_programs(tmp_path)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for remark in ("mallory: is blocked", "its budget is for 90d", "its aliases are not copied"):
        assert remark in done.stdout

    settings = read_settings(configuration, environ={})
    with moved_gateway(settings, sandbox.base_url, shipped) as url:

        def ask(key: str, model: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": model, "messages": ASK}
            return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code

        assert ask("sk-key-of-search-agent", "gpt-4.1-mini") == 200
        assert ask("sk-key-of-search-agent", "switchcraft") == 200
        assert ask("sk-key-of-search-agent", "gpt-5.2") == 403
        assert ask("sk-key-of-batch", "gpt-5.2") == 200
        assert ask("sk-key-of-mallory", "gpt-5.2") == 401
        admin = {"authorization": f"Bearer {MASTER_KEY}"}
        key = httpx.get(f"{url}/admin/keys/search-agent", headers=admin).json()
        team = httpx.get(f"{url}/admin/teams/core%20infra", headers=admin).json()
    assert key["budget"] == {"usd": 50.0, "period": "week"}
    assert (key["team"], key["owner"], key["tokens_per_minute"]) == ("core infra", "ana", 100_000)
    assert key["expires"].startswith("2099-01-31T18:00")
    assert (team["budget"]["usd"], team["requests_per_minute"]) == (500.0, 600)


PAGE = Document(ROOT / "docs" / "migrate-from-openrouter.md")
ADDRESS = "http://127.0.0.1:8080"
OWN_FIELDS = {
    "models": ["openai/gpt-5-mini"],
    "route": "fallback",
    "provider": {"sort": "price"},
    "transforms": ["middle-out"],
    "usage": {"include": True},
}
"""Fields of a request that only OpenRouter has."""


@pytest.fixture(scope="module")
def url(
    sandbox: Sandbox, shipped: Router, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Serve the page's configuration; yield the address."""
    (block,) = (block for block in PAGE.blocks if block.file_name == "gateway.yaml")
    path = tmp_path_factory.mktemp("openrouter") / block.file_name
    path.write_text(block.text)
    settings = read_settings(path, environ={"OPENROUTER_API_KEY": "sk-or-any"})
    assert settings.unsupported == ()
    with moved_gateway(settings, sandbox.base_url, shipped) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """Yield OpenAI's client with the headers that OpenRouter recommends."""
    headers = {"HTTP-Referer": "https://app.example", "X-Title": "App"}
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="any", max_retries=0, default_headers=headers
    ) as made:
        yield made


def ask(client: openai.OpenAI, model: str, **fields: Any) -> tuple[ChatCompletion, str]:  # noqa: ANN401 - any fields
    """Return the answer of a model, and the name of the model that gave it."""
    asked = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        **fields,
    )
    return asked.parse(), asked.headers["x-switchcraft-model"]


def test_documented_program_prints_a_model_and_its_cost(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's program prints a model of the file, and a cost in USD."""
    (block,) = (block for block in PAGE.blocks if block.language == "python")
    exec(compile(block.text.replace(ADDRESS, url), str(block), "exec"), {})  # noqa: S102 - it is ours
    model, cost = capsys.readouterr().out.split()
    assert "/" in model
    assert float(cost) > 0


def test_names_of_models_stay(client: openai.OpenAI, sandbox: Sandbox) -> None:
    """`vendor/model` reaches OpenRouter's model, with the app's headers and every own field."""
    answer, model = ask(client, "anthropic/claude-sonnet-4.5", extra_body=OWN_FIELDS)
    assert answer.model == model == "anthropic/claude-sonnet-4.5"
    sent = json.loads(sandbox.last_body())
    assert {name: sent[name] for name in OWN_FIELDS} == OWN_FIELDS
    headers = sandbox.last_headers()
    assert (headers["http-referer"], headers["x-title"]) == ("https://app.example", "App")


def test_auto_and_variants_are_routed(client: openai.OpenAI) -> None:
    """`openrouter/auto` and `:floor` mean the router, which chooses among the file's models."""
    for name in ("openrouter/auto", "openai/gpt-5-mini:floor"):
        answer, model = ask(client, name, tools=TOOLS)
        assert model == "google/gemini-2.5-flash-lite"
        assert answer.choices[0].message.tool_calls
