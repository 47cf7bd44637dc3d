"""The `openai` client for Node, and Vercel's `ai`, through the gateway."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router_service.apis.parts import Text
from tests.clients import matrix
from tests.clients.conversations import MAX_TOKENS, SYSTEM, THINKING_TOKENS, TOOLS, Heard
from tests.clients.installed import INSTALL_S, installed
from tests.clients.matrix import CELLS, RESULTS, SCRIPTS, Case
from tests.clients.upstreams import event_stream, gateway_before_script
from tests.documentation.documents import ROOT, Document
from tests.providers.app import ERROR_MESSAGE, Fault
from tests.providers.gateways import names
from tests.serving import Sandbox, wait_for

Run = Callable[..., Any]
PROVIDERS = ("compatible", "openai", "responses")
NODE = Path(__file__).parent / "node"
INSTALL = "npm install --no-save --no-audit --no-fund --no-package-lock".split()
RUN_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_S + 5 * RUN_S)]


@pytest.fixture(scope="session")
def scripts(request: pytest.FixtureRequest) -> Path:
    """Return a folder with the scripts and their packages; skip without npm.

    `package.json` has the last versions whose authors support Node.js 20.
    """
    if shutil.which("npm") is None:
        pytest.skip("npm is absent: install Node.js 20 or newer to test the clients for it")
    assert request.config.cache is not None
    folder = installed(request.config.cache, NODE / "package.json", INSTALL)
    for script in NODE.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


@pytest.fixture(scope="session")
def node(scripts: Path, base_url: str) -> Run:
    """Return a function that runs one scenario of a script and returns its printed result."""

    def run(script: str, scenario: str, *extra: str, url: str = base_url) -> Any:  # noqa: ANN401 - whatever the script prints
        command = ["node", script, scenario, url, *extra]
        done = subprocess.run(
            command, cwd=scripts, capture_output=True, text=True, timeout=RUN_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_openai_calls_in_parallel(node: Run) -> None:
    """Node's client gets two calls with their arguments, the usage, and the decision's headers."""
    answer = node("openai.mjs", "whole")
    assert [call[1:] for call in answer["calls"]] == [
        ["get_weather", {"city": "Oslo"}],
        ["get_time", {"city": "Oslo"}],
    ]
    assert answer["model"] == answer["headers"]["x-switchcraft-model"] == "medium"
    assert float(answer["headers"]["x-switchcraft-cost-usd"]) > 0


def test_openai_streams(node: Run) -> None:
    """The accumulator gets the same calls from a stream; only the last chunk has the usage."""
    whole, streamed = node("openai.mjs", "whole"), node("openai.mjs", "streamed")
    for field in ("model", "calls", "usage"):
        assert streamed[field] == whole[field]
    assert (streamed["lastChoices"], streamed["usages"]) == (0, 1)


def test_openai_runs_a_tool_loop(node: Run) -> None:
    """`runTools` calls the function once, as the model requested, and ends with a text."""
    loop = node("openai.mjs", "loop")
    assert loop["asked"] == ["Oslo"]
    assert loop["roles"] == ["user", "assistant", "tool", "assistant"]
    assert loop["text"]


def test_openai_parses_structured_output(node: Run) -> None:
    """A zod schema returns a value of it."""
    assert set(node("openai.mjs", "structured")) == {"name", "population"}


def test_openai_gets_several_choices(node: Run) -> None:
    """`n=3` returns three choices in order."""
    assert node("openai.mjs", "choices") == [0, 1, 2]


def test_openai_raises_typed_errors(node: Run) -> None:
    """Each failure raises the error class of its status; a broken stream is an error too."""
    errors = node("openai.mjs", "errors")
    assert {name: error["kind"] for name, error in errors.items()} == {
        "badRequest": "BadRequestError",
        "rateLimit": "RateLimitError",
        "server": "InternalServerError",
        "unknown": "NotFoundError",
        "brokenStream": "APIError",
    }
    assert errors["unknown"]["param"] == "model"


@pytest.mark.parametrize(
    "scenario", ["abortedStream", "abortedBeforeTheFirstByte", "abortedWholeAnswer"]
)
def test_openai_abort_cancels_the_upstream(node: Run, sandbox: Sandbox, scenario: str) -> None:
    """Aborting a request cancels the upstream, streamed or not, also before the first byte."""
    before = sandbox.stats()
    node("openai.mjs", scenario)
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")


def test_openai_lists_models(node: Run) -> None:
    """The router's names and the pool's models are listed and can be retrieved."""
    models = node("openai.mjs", "models")
    assert models["ids"][0] == "switchcraft"
    assert models["one"] == "medium"


def test_openai_responses(node: Run) -> None:
    """A streamed response's call is answered with the response's id, and a text follows."""
    loop = node("openai.mjs", "responses")
    assert loop["call"] == ["get_weather", {"city": "Oslo"}]
    assert loop["text"]


def test_openai_embeds(node: Run) -> None:
    """Each text gets a vector of numbers, all of one length."""
    first, second = node("openai.mjs", "embeddings")
    assert first == second > 0


CHUNK = b'{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}'
ODD = (
    b": keep-alive\r\n\r\n"
    b"data: " + CHUNK % b'{"index":0,"delta":{"content":"\xc3\xa9"}}' + b"\r\n\r\n"
    b": keep-alive\n\n"
    b'data: {"id":"1","object":"chat.completion.chunk",\ndata:"created":1,"model":"m",'
    b'"choices":[]}\n\n'
    b"event: message\nid: 7\ndata: "
    + CHUNK
    % b'{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}'
    + b"\n\n"
    b"data: [DONE]\n\n"
)


def test_openai_reads_unusual_events(node: Run) -> None:
    """Keep-alives, CRLF, multi-line data and chunks that split characters are read correctly."""
    with gateway_before_script(event_stream(ODD, chunk_bytes=7)) as url:
        chunks = node("openai.mjs", "scripted", url=url)
    contents = [choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"]]
    assert contents == ["\u00e9", "b"]
    assert len(chunks) == 3


def test_program_of_the_documentation_runs(scripts: Path, base_url: str, sandbox: Sandbox) -> None:
    """The program of docs/clients.md calls its tool and prints a text."""
    blocks = Document(ROOT / "docs" / "clients.md").blocks
    (program,) = (block.text for block in blocks if block.language == "js")
    assert "http://127.0.0.1:8080/v1" in program
    (scripts / "documented.mjs").write_text(program.replace("http://127.0.0.1:8080/v1", base_url))
    command = ["node", "documented.mjs"]
    done = subprocess.run(
        command, cwd=scripts, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "This is the sandbox" in done.stdout
    assert b"light rain in Oslo" in sandbox.last_body()


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("scenario", ["loop", "streamedLoop"])
def test_ai_runs_a_tool_loop(node: Run, sandbox: Sandbox, provider: str, scenario: str) -> None:
    """`generateText` and `streamText` call the tool once, and end with a text and all usage."""
    before = sandbox.stats()["requests"]
    loop = node("ai.mjs", scenario, provider)
    assert loop["asked"] == ["Oslo"]
    assert loop["steps"] == ["tool-calls", "stop"]
    assert loop["text"]
    assert loop["usage"]["totalTokens"] > 0
    assert sandbox.stats()["requests"] == before + 2


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ai_streams_calls_in_parallel(node: Run, provider: str) -> None:
    """Two calls of one stream are kept apart."""
    assert node("ai.mjs", "parallelCalls", provider) == [
        ["get_weather", {"city": "Oslo"}],
        ["get_time", {"city": "Oslo"}],
    ]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ai_parses_structured_output(node: Run, provider: str) -> None:
    """A schema returns an object of it."""
    assert set(node("ai.mjs", "structured", provider)) == {"name", "population"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ai_reports_errors(node: Run, provider: str) -> None:
    """A failure has its status and the upstream's message; a broken stream has an error part."""
    errors = node("ai.mjs", "errors", provider)
    assert [errors[name]["statusCode"] for name in ("badRequest", "rateLimit", "server")] == [
        400,
        429,
        500,
    ]
    assert "status 400" in errors["badRequest"]["message"]
    assert "error" in errors["brokenStream"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ai_abort_cancels_the_upstream(node: Run, sandbox: Sandbox, provider: str) -> None:
    """Aborting a stream cancels the upstream's work."""
    before = sandbox.stats()
    assert node("ai.mjs", "abortedStream", provider)[-1] == "abort"
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")


NODE_CASES = {
    **{case: case.value for case in SCRIPTS},
    Case.ERROR_BEFORE_OUTPUT: f"{Fault.OVERLOADED} / before",
    Case.ERROR_IN_MIDSTREAM: f"{Fault.ERROR_EVENT} / middle",
    Case.CUT_STREAM: f"{Fault.EARLY_END} / middle",
}
"""What the user says in each case."""


def test_vendors_clients_reach_every_upstream(scripts: Path) -> None:
    """`openai` and `@anthropic-ai/sdk` get the same from every upstream, whole and streamed."""
    cells = [cell for cell in CELLS if cell.case in NODE_CASES]
    with matrix.running() as running:
        asked = {
            "cells": [
                {
                    "client": cell.client.name,
                    "model": names()[cell.upstream],
                    "stream": cell.stream,
                    "thinks": cell.case is Case.THINKING,
                    "text": NODE_CASES[cell.case],
                }
                for cell in cells
            ],
            "system": SYSTEM,
            "tools": TOOLS,
            "results": RESULTS,
            "maxTokens": MAX_TOKENS,
            "thinkingTokens": THINKING_TOKENS,
        }
        command = ["node", "matrix.mjs", running.url, json.dumps(asked)]
        done = subprocess.run(
            command, cwd=scripts, capture_output=True, text=True, timeout=RUN_S, check=False
        )
        assert done.returncode == 0, done.stderr
        assert running.provider.rejected == [], running.provider.rejected
    for cell, answers in zip(cells, json.loads(done.stdout), strict=True):
        heard = [
            Heard(**answer | {"calls": [tuple(call) for call in answer.get("calls", [])]})
            for answer in answers
        ]
        if cell.case not in SCRIPTS:
            [failed] = heard
            assert failed.error, cell.id
            if cell.case is Case.ERROR_BEFORE_OUTPUT:
                assert failed.status in (503, 529), cell.id
                assert ERROR_MESSAGE in failed.message, cell.id
            continue
        matrix.check_heard(heard[0], SCRIPTS[cell.case], cell)
        if heard[0].calls:
            texts = sorted(RESULTS[name] for _, name, _ in heard[0].calls)
            expected = [Text(f"Results: {', '.join(texts)}")]
            matrix.check_heard(heard[1], expected, cell)
