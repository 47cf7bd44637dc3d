"""Which requests are like those that the verifier of unfamiliar requests was measured with."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.apis.conversation import parse_conversation
from router_service.verifier.graphs import MeasuredRequests
from tests.candidates import FORECAST, request, tool

MEASURED = MeasuredRequests(tools=2, scripts=("LATIN",))
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    ("content", "tools", "is_included"),
    [
        ("Forecast for Oslo?", 2, True),
        ("Prévisions pour Orléans à 8 h, s'il vous plaît ☀️ (Санкт-Петербург)", 1, True),
        ("Forecast for Oslo?", 3, False),
        ("Какая погода в Осло?", 1, False),
        ("オスロの天気は", 1, False),
        ("42?! 👍", 1, False),
        ("", 1, False),
        ([{"type": "text", "text": "Forecast for this city?"}, IMAGE], 1, False),
    ],
)
def test_words_script_tools_and_attachments_count(
    content: Any,  # noqa: ANN401 - of a message
    tools: int,
    is_included: bool,
) -> None:
    """The user's latest message needs words in a measured script, and tools are limited."""
    body = request()
    body["messages"][0]["content"] = content
    body["tools"] = [tool(FORECAST, f"forecast_{number}") for number in range(tools)]
    assert MEASURED.include(parse_conversation(body)) is is_included
