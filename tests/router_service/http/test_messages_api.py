"""Anthropic's Messages API through the gateway, with the anthropic client and plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import anthropic
import httpx
import pytest

from router_service.apis.capabilities import Capabilities
from router_service.core.errors import ConfigError
from router_service.serving.app import create_app
from tests.bodies import ASK, BODY, CHAT, TOOLS
from tests.fakes import FakeRouter
from tests.gateways import (
    gateway_client,
    sandbox_settings,
)
from tests.router_service.http.scripted import Script, whole
from tests.serving import ONE_TRY, Sandbox

MESSAGES = "/v1/messages"
TOOL: Any = {
    "name": TOOLS[0]["function"]["name"],
    "input_schema": TOOLS[0]["function"]["parameters"],
}
ASKED: dict[str, Any] = {
    "model": "switchcraft",
    "max_tokens": 100,
    "messages": ASK,
    "tools": [TOOL],
}


@pytest.fixture(scope="module")
def claude(gateway_url: str) -> Iterator[anthropic.Anthropic]:
    """Yield the real Anthropic client, without its retries."""
    with anthropic.Anthropic(base_url=gateway_url, api_key="k", max_retries=0) as made:
        yield made


def test_all_apis_get_the_same_decision(http: httpx.Client, router: FakeRouter) -> None:
    """The router sees the same conversation, and decides equally."""
    asked = len(router.asked)
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    answers = [
        http.post(CHAT, json=BODY),
        http.post("/v1/responses", json={"model": "switchcraft", "input": ASK, "tools": flat}),
        http.post(MESSAGES, json=ASKED),
    ]
    first, second, third = router.asked[asked:]
    assert first == second == third
    for name in ("model", "policy", "reason"):
        assert len({answer.headers[f"x-switchcraft-{name}"] for answer in answers}) == 1


@pytest.mark.parametrize(
    ("fields", "model", "reason"),
    [
        ({"model": "switchcraft:quality"}, "large", "threshold"),
        ({"model": "large"}, "large", "pinned"),
        ({"model": "claude-sonnet-4-5"}, "medium", "threshold"),
        # Claude Code marks a model whose long context window it wants to use.
        ({"model": "large[1m]"}, "large", "pinned"),
        ({"model": "large [1m]"}, "large", "pinned"),
        ({"model": "claude-sonnet-4-5[1m]"}, "medium", "threshold"),
    ],
)
def test_model_names_work_as_in_chat(
    http: httpx.Client, fields: dict[str, Any], model: str, reason: str
) -> None:
    """Policies, pool models and requests without tools are handled as in chat."""
    response = http.post(MESSAGES, json=ASKED | fields)
    assert response.status_code == 200, response.text
    assert (response.headers["x-switchcraft-model"], response.json()["model"]) == (model, model)
    assert response.headers["x-switchcraft-reason"] == reason


@pytest.mark.parametrize(
    ("given", "version", "beta"),
    [
        ({}, "2023-06-01", None),
        ({"anthropic-version": "2024-01-01", "anthropic-beta": "a,b"}, "2024-01-01", "a,b"),
    ],
)
def test_version_and_betas_reach_the_upstream(
    http: httpx.Client, sandbox: Sandbox, given: dict[str, str], version: str, beta: str | None
) -> None:
    """The client's version and betas are forwarded; a missing version is added."""
    key = {"x-api-key": "client-key"}
    assert http.post(MESSAGES, json=ASKED, headers=given | key).status_code == 200
    sent = sandbox.last_headers()
    assert (sent["anthropic-version"], sent.get("anthropic-beta")) == (version, beta)
    assert "client-key" not in sent.values()


def test_models_are_listed_in_the_clients_format(
    claude: anthropic.Anthropic, http: httpx.Client
) -> None:
    """Anthropic's client lists the names, and finds an alias; OpenAI's format stays the default."""
    names = [card["id"] for card in http.get("/v1/models").json()["data"]]
    routers = [name for name in names if name.startswith("switchcraft")]
    listed = [model.id for model in claude.models.list()]
    assert listed == [*(f"claude-{name}" for name in routers), *names]
    for name in ("claude-opus-4", "large[1m]"):
        assert claude.models.retrieve(name).id == name
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("unknown")


def test_claude_code_and_codex_list_the_models_with_their_limits(sandbox: Sandbox) -> None:
    """Claude Code lists ids that begin with `claude-`, which work; Codex reads its own format."""
    settings = sandbox_settings(sandbox.base_url, ONE_TRY)
    limits = {"small": (100_000, 8_000), "medium": (200_000, 32_000), "large": (None, None)}
    settings = settings.model_copy(
        update={
            "models": tuple(
                model.model_copy(
                    update={
                        "capabilities": Capabilities(
                            context_window_tokens=limits[model.name][0],
                            max_output_tokens=limits[model.name][1],
                        )
                    }
                )
                for model in settings.models
            )
        }
    )
    with gateway_client(settings, FakeRouter()) as http:
        agent = {"user-agent": "claude-code/2.1.330"}
        claudes = http.get("/v1/models?limit=1000", headers=agent).json()
        codex = http.get("/v1/models?client_version=0.169.0").json()
        chosen = http.post(MESSAGES, json=ASKED | {"model": "claude-switchcraft:quality"})
        single = http.get("/v1/models/claude-switchcraft:quality", headers=agent).json()
    shown = {each["id"]: (each["max_input_tokens"], each["max_tokens"]) for each in claudes["data"]}
    assert {name: shown[name] for name in limits} == limits
    assert shown["claude-switchcraft"] == shown["claude-switchcraft:quality"] == (200_000, 32_000)
    assert (claudes["first_id"], claudes["has_more"]) == ("claude-switchcraft", False)
    assert single["max_input_tokens"] == 200_000
    assert chosen.headers["x-switchcraft-model"] == "large"
    assert [each["id"] for each in codex["data"]] == [each["slug"] for each in codex["models"]]
    first = codex["models"][0]
    assert (first["slug"], first["visibility"], first["supported_in_api"]) == (
        "switchcraft",
        "list",
        True,
    )
    assert {each["slug"]: each["context_window"] for each in codex["models"]}["small"] == 100_000


def test_first_alias_that_matches_counts(sandbox: Sandbox) -> None:
    """Aliases lead to models and policies, in their order; configured names come first."""
    aliases = {"claude-*-haiku*": "small", "claude-*": "switchcraft:quality", "large": "small"}
    settings = sandbox_settings(sandbox.base_url, ONE_TRY, aliases=aliases)
    with gateway_client(settings, FakeRouter()) as http:
        answers = [
            http.post(path, json=body | {"model": name})
            for path, body in ((MESSAGES, ASKED), (CHAT, BODY))
            for name in ("claude-3-5-haiku-latest", "claude-opus-4", "large", "gpt-9")
        ]
    models = [answer.headers.get("x-switchcraft-model") for answer in answers]
    assert models == ["small", "large", "large", None] * 2
    assert answers[3].status_code == 404


@pytest.mark.parametrize(
    ("aliases", "status"),
    [({}, 200), ({"gpt-*": "small"}, 200), ({"claude-*": None}, 404), ({"claude-*": "small"}, 200)],
)
def test_own_aliases_keep_the_default(
    aliases: Mapping[str, str | None], status: int, sandbox: Sandbox
) -> None:
    """Claude's names mean the router beside other aliases; null takes the default away."""
    settings = sandbox_settings(sandbox.base_url, ONE_TRY, aliases=aliases)
    with gateway_client(settings, FakeRouter()) as http:
        assert http.post(CHAT, json=BODY | {"model": "claude-x"}).status_code == status


@pytest.mark.parametrize("target", ["unknown", "switchcraft:unknown"])
def test_alias_of_an_unknown_name_stops_the_start(sandbox: Sandbox, target: str) -> None:
    """The error names the setting."""
    settings = sandbox_settings(sandbox.base_url, ONE_TRY, aliases={"a": target})
    with pytest.raises(ConfigError, match=r"router\.aliases"):
        create_app(settings, FakeRouter())


def test_upstream_counts_tokens(claude: anthropic.Anthropic, sandbox: Sandbox) -> None:
    """The client gets the count of an upstream that speaks this API, with and without a name."""
    fields = {name: ASKED[name] for name in ("messages", "tools")}
    raw = claude.messages.with_raw_response.count_tokens(**fields, model="large")
    assert "x-switchcraft-estimated" not in raw.headers
    assert json.loads(sandbox.last_body())["model"] == "large"
    for model in ("claude-sonnet-4-5", "large[1m]", "switchcraft[1m]"):
        routed = claude.messages.count_tokens(**fields, model=model)
        assert routed.input_tokens == raw.parse().input_tokens > 10
    assert json.loads(sandbox.last_body())["model"] == "small"


REFUSED: Any = {"type": "error", "error": {"type": "not_found_error", "message": "Not found"}}
IMAGE: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        (404, {"detail": "Not Found"}),
        (500, REFUSED),
        (400, REFUSED | {"error": {"type": "invalid_request_error", "message": "no counting"}}),
        (200, {"input_tokens": 0}),
    ],
)
def test_tokens_are_estimated_if_the_upstream_refuses(
    script: Script, status: int, refusal: object
) -> None:
    """Many servers with this API cannot count. Every image and document counts, too."""
    script.play(whole(json.dumps(refusal).encode(), status))
    counts = []
    for content in ("Hi", [IMAGE], [IMAGE, IMAGE]):
        sent = {"model": "messages", "messages": [{"role": "user", "content": content}]}
        answer = script.http.post(f"{MESSAGES}/count_tokens", json=sent)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-switchcraft-estimated"] == "true"
        counts.append(answer.json()["input_tokens"])
    assert 0 < counts[0] < 100 < counts[1] < counts[2]
