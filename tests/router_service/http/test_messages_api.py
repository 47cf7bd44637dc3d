"""How coding agents list the gateway's models."""

from __future__ import annotations

from router_service.apis.capabilities import Capabilities
from tests.bodies import MESSAGES_BODY
from tests.fakes import FakeRouter
from tests.gateways import (
    gateway_client,
    sandbox_settings,
    with_models,
)
from tests.serving import ONE_TRY, Sandbox

MESSAGES = "/v1/messages"


def test_claude_code_and_codex_list_the_models_with_their_limits(sandbox: Sandbox) -> None:
    """Claude Code lists ids that begin with `claude-`, which work; Codex reads its own format."""
    settings = sandbox_settings(sandbox.base_url, ONE_TRY)
    limits = {"small": (100_000, 8_000), "medium": (200_000, 32_000), "large": (None, None)}
    known = {
        name: Capabilities(context_window_tokens=window, max_output_tokens=most)
        for name, (window, most) in limits.items()
    }
    settings = with_models(settings, lambda model: {"capabilities": known[model.name]})
    with gateway_client(settings, FakeRouter()) as http:
        agent = {"user-agent": "claude-code/2.1.330"}
        claudes = http.get("/v1/models?limit=1000", headers=agent).json()
        codex = http.get("/v1/models?client_version=0.169.0").json()
        chosen = http.post(MESSAGES, json=MESSAGES_BODY | {"model": "claude-switchcraft:quality"})
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
