"""Every command line and code block of the documents is run, or says why not.

What happens to a code block depends on its language:

- `sh`: the commands run in bash, in order, in a folder of the page, against a gateway with the
  sandbox. `127.0.0.1:8080` becomes its address, and `$GATEWAY`, `$KEY`, `$ADMIN` and
  `$SWITCHCRAFT_ADMIN_KEY` are set. Exported variables and functions are kept for later blocks.
- `python`: a program of its own, which runs in the page's folder against the same gateway.
- `yaml`: is read as a gateway's configuration, a training configuration, or a part of one.
- `json`, `toml`: is parsed. A block that begins with `# NAME.yaml` or `# NAME.toml` is written to
  the page's folder, for its commands.
- `text`: is output or a drawing. Blocks without a language are not allowed.

An HTML comment before a block, which readers do not see, changes that:

    <!-- not run: it needs a GPU -->               a reason, in words
    <!-- not checked: a program of an earlier version -->   it may name what does not exist
    <!-- run by: tests/examples/test_examples.py -->   another test runs it, and names the page
    <!-- file: pairs.jsonl -->                     the block is this file in the page's folder
    <!-- output -->                                what the block before prints; `...` is anything
    <!-- configuration: none -->                   YAML that is no configuration of ours
    <!-- blocks are not run: they take hours -->   once in a page, for all its blocks without a mark
    <!-- blocks are run by: tests/deploy/test_runbook.py -->   likewise

A shell block that begins with `# at commit HASH` belongs to that version and is not checked. The
commands of our programs in other blocks, and in the text such as `make serve PORT=9000`, are
compared with the parsers of the programs, the Makefile and the files of the repository, by
`command_lines.py`. A block in another language needs a mark.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from router_service.settings.deployments import PROVIDERS
from router_service.settings.reading import REFERENCE, read_settings, unknown_sections
from switchcraft_training.config import RunConfig, load_config
from tests.documentation.command_lines import problems
from tests.documentation.documents import ROOT, Block, Document, documents
from tests.drills.processes import install_programs, sandbox_gateway

DOCUMENTS = documents()
BLOCKS = [block for document in DOCUMENTS for block in document.blocks]
ADDRESS = re.compile(r"\b(127\.0\.0\.1|localhost):8080\b")

LITELLM_PATHS = ("/key/", "/team/", "/spend/", "/user/")
"""Endpoints of LiteLLM's proxy, which the documents compare with ours."""

PAGES = ("", "/ui", "/docs", "/openapi.json")
"""Addresses for people, which the description of the API does not list."""

OWN_PROGRAMS = re.compile(
    r"(\.venv/bin/)?(switchcraft|switchcraft-train|make|python3?( -m)?|pip|docker|kubectl) +[^ =].*"
)
"""Code spans that are command lines."""

BASE_MODELS = """
model_list:
  - model_name: gpt-4.1-mini
    litellm_params: {model: openai/gpt-4.1-mini, api_key: k}
"""
"""Models for a configuration without any, which shows only some settings."""

BASE_TRAINING = "extends: configs/frontier-2025-12.yaml\n"


def is_executed(block: Block) -> bool:
    """Return whether this file runs the block."""
    includes = block.text.startswith('--8<-- "')
    is_code = block.is_shell or block.language == "python"
    return is_code and not (block.mark or includes or block.is_at_commit)


def test_every_block_is_checked() -> None:
    """Each block has a language that is checked, or a mark with a reason."""
    problems = []
    checked = {"python", "yaml", "json", "toml", "text"}
    for block in BLOCKS:
        if not block.language:
            problems.append(f"{block}: has no language; use `text` for output and drawings")
        elif not (block.is_shell or block.language in checked or block.mark):
            problems.append(f"{block}: {block.language} is not checked; add a mark with a reason")
        if block.mark in {"not run", "not checked", "file"} and not block.argument:
            problems.append(f"{block}: the mark {block.mark!r} says nothing after a colon")
        if block.mark == "run by":
            test = ROOT / block.argument
            if not (test.is_file() and block.page.name in test.read_text()):
                problems.append(f"{block}: {block.argument} does not name {block.page.name}")
        if block.text.startswith('--8<-- "'):
            (included,) = re.findall(r'^--8<-- "(examples/[\w.]+)"\n$', block.text)
            if not (ROOT / included).is_file():  # which tests/examples/ runs
                problems.append(f"{block}: {included} does not exist")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_commands_exist(document: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options and targets of our programs, modules and paths exist."""
    if document.path.name == "CHANGELOG.md":
        return  # which names earlier commands
    for variable in ("SWITCHCRAFT_DATA", "USER"):  # which options without a value are taken from
        monkeypatch.setenv(variable, "any")
    wrong = [
        f"{block}: {problem}"
        for block in document.blocks
        if block.is_shell and block.mark != "not checked" and not block.is_at_commit
        for problem in problems(block.text)
    ]
    for span in document.inline_code:
        if OWN_PROGRAMS.fullmatch(span):
            found = chain.from_iterable(map(problems, alternatives(span)))
            # The text may name a command without what it needs.
            named = (each for each in found if not re.search(r"requires .*arguments?\.", each))
            wrong += [f"{document}: `{span}`: {problem}" for problem in named]
    assert not wrong, "\n".join(wrong)


def alternatives(span: str) -> list[str]:
    """Return the commands that a span such as `switchcraft keys create|list` names."""
    span = span.replace(" ...", "").replace(" COMMAND", "")
    names = re.search(r"\w+(\|\w+)+", span)
    return [span.replace(names[0], name) for name in names[0].split("|")] if names else [span]


def test_data_can_be_parsed() -> None:
    """JSON and TOML blocks are valid; a JSON block may have several values."""
    problems = []
    for block in BLOCKS:
        try:
            if block.language == "json":
                json_values(block.text)
            elif block.language == "toml":
                tomllib.loads(block.text)
            elif block.language == "python":
                compile(block.text if '--8<-- "' not in block.text else "", str(block), "exec")
        except (ValueError, SyntaxError) as exc:
            problems.append(f"{block}: {exc}")
    assert not problems, "\n".join(problems)


def json_values(text: str) -> list[Any]:
    """Return the JSON values that a text has one after the other."""
    values: list[Any] = []
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.language == "yaml" and block.mark != "configuration"],
    ids=str,
)
def test_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    """A gateway, or training, accepts the settings that the documents show."""
    text = block.text
    if found := re.fullmatch(r'--8<-- "(.*)"\n', text):
        text = (ROOT / found[1]).read_text()
    settings = yaml.safe_load(text)
    path = tmp_path / "shown.yaml"
    problems = [p for p in unknown_sections(settings) if p.where in settings]
    if problems and settings.keys() <= RunConfig.model_fields.keys() | {"extends"}:
        path.write_text(text if "extends" in settings else BASE_TRAINING + text)
        load_config(path)
        return
    text = text.replace("sha256:...", f"sha256:{'0' * 64}")
    account = tmp_path / "service-account.json"
    account.write_text('{"type": "authorized_user", "refresh_token": "r", "client_id": "c"}')
    text = text.replace("/etc/switchcraft/service-account.json", str(account))
    path.write_text(text if "model_list" in settings else BASE_MODELS + text)
    names = re.findall(rf"{re.escape(REFERENCE)}(\w+)", text)
    keys = {name: "sk-any" for provider in PROVIDERS.values() for name in provider.key_names}
    read_settings(path, environ={**keys, **{name: value_of(name) for name in names}})


def value_of(variable: str) -> str:
    """Return a value for an environment variable that a configuration refers to."""
    addresses = {"DATABASE": "postgresql://u:p@host/n", "REDIS": "redis://host:6379/0"}
    found = (address for word, address in addresses.items() if word in variable)
    return next(found, "http://host:8000/v1" if "URL" in variable else f"sk-key-of-{variable}")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the gateway's database, which `switchcraft keys` and `usage` read."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def gateway_url(state: Path) -> Iterator[str]:
    """Run what `make serve` runs, and yield the gateway's address."""
    with sandbox_gateway(state) as url:
        yield url


def test_endpoints_exist(gateway_url: str) -> None:
    """The gateway has the endpoints that the documents name, such as `GET /v1/decisions/{id}`."""
    paths = httpx.get(f"{gateway_url}/openapi.json").json()["paths"]
    known = {(method.upper(), names(path)) for path in paths for method in paths[path]}
    known |= {("GET", path) for path in PAGES}
    assert all(httpx.get(gateway_url + path).status_code < 400 for path in PAGES)
    unknown = {
        f"{document}: {span}"
        for document in DOCUMENTS
        for span in document.inline_code
        for method, path in re.findall(r"^(GET|POST|PUT|PATCH|DELETE) (/[^ ?]*)", span)
        if (method, names(path)) not in known and not path.startswith(LITELLM_PATHS)
    }
    assert not unknown


def names(path: str) -> str:
    """Return a path with one name for each of its parameters."""
    return re.sub(r"\{[^}]*\}|\b\w+%2F\w+|\b[A-Z_]+\b|<[^>]*>", "*", path.rstrip("/"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the repository's files, in which a page's commands run.

    Folders that commands may change are copies.
    """
    for path in ROOT.iterdir():
        if path.name in {"deploy", "docs", "examples"}:
            shutil.copytree(path, tmp_path / path.name)
        elif path.name not in {".venv", ".git"}:
            (tmp_path / path.name).symlink_to(path)
    install_programs(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if any(map(is_executed, document.blocks))],
    ids=str,
)
def test_page_works_as_written(
    document: Document,
    gateway_url: str,
    state: Path,
    folder: Path,
) -> None:
    """The page's commands and programs succeed, one after the other, and print what it shows."""
    environment = {
        **os.environ,
        "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "training"))),
        "XDG_STATE_HOME": str(state),
        "GATEWAY": gateway_url,
        "SWITCHCRAFT_URL": f"{gateway_url}/v1",
        **dict.fromkeys(("KEY", "ADMIN", "SWITCHCRAFT_ADMIN_KEY"), "sk-any"),
    }
    for block in document.blocks:
        if block.file_name:
            (folder / block.file_name).write_text(file_content(block))
    printed = ""
    for block in document.blocks:
        text = ADDRESS.sub(gateway_url.removeprefix("http://"), block.text)
        if block.mark == "output":
            pattern = re.escape(block.text.strip()).replace(r"\.\.\.", ".*?")
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{block}:\n{printed}"
        elif is_executed(block):
            command = shell(text, folder) if block.is_shell else [sys.executable, "-c", text]
            printed = run(block, command, folder, environment)


def file_content(block: Block) -> str:
    """Return the content of the file that a block shows; JSON Lines get a line for each value."""
    if not block.file_name.endswith(".jsonl"):
        return block.text
    return "".join(json.dumps(value) + "\n" for value in json_values(block.text))


def shell(text: str, folder: Path) -> list[str]:
    """Return the command that runs a block in bash, with what earlier blocks exported."""
    state = folder / ".shell-state"
    state.touch()
    script = f"set -a; source '{state}'; set +a\n{text}\n{{ export -p; declare -f; }} > '{state}'"
    return ["bash", "-euo", "pipefail", "-c", script]


def run(block: Block, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run the command of a block; return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block}:\n{done.stdout}{done.stderr}"
    return done.stdout
