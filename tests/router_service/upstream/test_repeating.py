"""What may be sent to an upstream twice."""

from __future__ import annotations

import pytest

from router_service.upstream.body_template import BodyTemplate, is_repeatable

CHAT, RESPONSES = "/chat/completions", "/responses"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, b'{"model":"m"}', True),
        (CHAT, b'{"model":"m","store":true}', True),
        ("/completions", b'{"model":"m"}', True),
        ("/embeddings", b'{"model":"m"}', True),
        (RESPONSES, b'{"model":"m","store":true}', True),
        (RESPONSES, b'{"model":"m","previous_response_id":"r"}', True),
        (RESPONSES, b'{"model":"m","background":false,"conversation":null}', True),
        (RESPONSES, b'{"model":"m","background":true}', False),
        (RESPONSES, rb'{"model":"m","b\u0061ckground":true}', False),
        (RESPONSES, b'{"background":true,"model":"m"}', False),
        (RESPONSES, b'{"model":"m","conversation":"c"}', False),
        (RESPONSES, b'{"model":"m","conversation":{"id":"c"}}', False),
        (RESPONSES, b'{"model":"m","input":"a \\"background\\" for \\"mcp\\""}', True),
        (RESPONSES, b'{"model":"m","tools":[{"type":"web_search"}]}', True),
        (RESPONSES, b'{"model":"m","tools":[1,{"type":"mcp","server_url":"x"}]}', False),
        (RESPONSES, rb'{"model":"m","tools":[{"type":"\u006dcp"}]}', False),
        (CHAT, b'{"model":"m","tools":[{"type":"mcp"}]}', False),
        (CHAT, b'{"model":"m","tools":{"type":"mcp"}}', True),
        ("/batches", b'{"model":"m"}', False),
        ("/fine_tuning/jobs", b'{"model":"m"}', False),
        ("/videos", b'{"model":"m"}', False),
        ("/responses/compact", b'{"model":"m"}', False),
        ("/Chat/Completions", b'{"model":"m"}', False),
        ("/chat/completions/", b'{"model":"m"}', False),
    ],
)
def test_only_what_changes_nothing_is_repeatable(path: str, body: bytes, expected: bool) -> None:
    """An unknown endpoint may create something; a completion does only with certain options."""
    assert is_repeatable(path, BodyTemplate.of(body)) is expected
