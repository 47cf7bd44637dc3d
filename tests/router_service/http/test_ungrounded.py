"""Calls of destructive tools with invented arguments, through the gateway."""

from __future__ import annotations

import json

import pytest

from router_service.artifact import SHIPPED
from router_service.router import Router
from router_service.settings import Settings
from tests.bodies import CHAT
from tests.gateways import gateway_client, record_of
from tests.serving import Sandbox, scripted

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
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


@pytest.mark.parametrize(
    ("said", "arguments", "named"),
    [
        ("1234567890123", '{"id": 1234567890124}', "delete_order.id"),
        ("1234567890123456", '{"id": 1234567890123456}', None),
        ("7", '{"id": 700}', "delete_order.id"),
        ("12345678901234567890123", '{"id": 12345678901234567890124}', "delete_order.id"),
        ("12345678901234567890123", '{"id": 12345678901234567890123}', None),
    ],
)
def test_identifying_number_is_the_one_that_was_said(
    said: str, arguments: str, named: str | None
) -> None:
    """Another number is marked, whatever its length, and the same one is not."""
    function = {"name": "delete_order", "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    answer = json.dumps({"id": "a", "object": "chat.completion", "choices": [choice]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    router = Router.load(SHIPPED)
    body = {
        "model": "switchcraft:verified",
        "messages": [{"role": "user", "content": f"Delete order {said}"}],
        "tools": [{"type": "function", "function": {"name": "delete_order", "parameters": ORDER}}],
    }
    with (
        scripted(head % len(answer) + answer) as url,
        gateway_client(Settings.sandbox(url, router.artifact.manifest.arms), router) as http,
    ):
        response = http.post(CHAT, json=body, headers={"x-switchcraft-max-candidates": "1"})
        assert response.status_code == 200
        record = record_of(http, response)
    assert response.headers.get("x-switchcraft-ungrounded") == named
    assert record["stop"]["reason"] == "max_candidates"
    assert record["stop"]["expected_cost_usd"] > 0
    if named is None:
        why = response.headers["x-switchcraft-why"]
        assert f"Asking {record['stop']['arm']} was expected to" in why
        assert why.endswith("but the limit on models was reached (max_candidates).")
        assert record["explanation"] == why
