"""What the sandbox refuses, as a provider does."""

from __future__ import annotations

import httpx

from tests.bodies import ASK
from tests.serving import Sandbox


def test_foreign_signature_is_refused(sandbox: Sandbox) -> None:
    """Like Anthropic, the sandbox accepts only its own signatures."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "foreign"}
    turns = [*ASK, {"role": "assistant", "content": [thinking]}, *ASK]
    body = {"model": "m", "max_tokens": 100, "messages": turns}
    response = httpx.post(f"{sandbox.base_url}/messages", json=body)
    assert response.status_code == 400
    assert "signature" in response.json()["error"]["message"]
