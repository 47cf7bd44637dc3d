"""Calls of destructive tools with invented arguments, through the gateway."""

from __future__ import annotations

import pytest

from router_service.artifact import SHIPPED
from router_service.router import Router
from router_service.settings import Settings
from tests.bodies import CHAT
from tests.gateways import gateway_client, record_of
from tests.serving import Sandbox

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
DELETE = {"name": "delete_file", "description": "Delete a file.", "parameters": PATH}


@pytest.mark.parametrize("max_candidates", [1, 3])
def test_placeholder_for_a_destructive_tool_is_marked(
    sandbox: Sandbox, max_candidates: int
) -> None:
    """All models of the sandbox answer with the parameter's name, which confirms nothing."""
    router = Router.load(SHIPPED)
    settings = Settings.sandbox(sandbox.base_url, router.artifact.manifest.arms)
    messages = [{"role": "user", "content": "Delete the oldest file in the temporary folder"}]
    tools = [{"type": "function", "function": DELETE}]
    body = {"model": "switchcraft:verified", "messages": messages, "tools": tools}
    headers = {"x-switchcraft-max-candidates": str(max_candidates)}
    with gateway_client(settings, router) as http:
        response = http.post(CHAT, json=body, headers=headers)
        assert response.headers["x-switchcraft-reason"] == "ungrounded"
        assert response.headers["x-switchcraft-unverified"] == "ungrounded"
        assert response.headers["x-switchcraft-ungrounded"] == "delete_file.path"
        assert "delete_file.path" in response.headers["x-switchcraft-why"]
        record = record_of(http, response)
    assert record["reason"] == "ungrounded"
    assert len(record["candidates"]) == max_candidates
    assert all(each["ungrounded"] == ["delete_file.path"] for each in record["candidates"])
