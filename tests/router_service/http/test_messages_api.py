"""Anthropic's Messages API through the gateway, with the anthropic client and plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from router_service.apis.capabilities import Capabilities
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
