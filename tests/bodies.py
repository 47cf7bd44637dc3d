"""Chat requests that tests send."""

from __future__ import annotations

from typing import Any

ASK: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TOOLS: Any = [WEATHER]
BODY: dict[str, Any] = {"model": "switchcraft", "messages": ASK, "tools": TOOLS}
CHAT = "/v1/chat/completions"

RESPONSES_TOOLS: Any = [{"type": "function", **WEATHER["function"]}]
MESSAGES_TOOLS: Any = [
    {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]},
]
RESPONSES_BODY: dict[str, Any] = {"model": "switchcraft", "input": ASK, "tools": RESPONSES_TOOLS}
MESSAGES_BODY: dict[str, Any] = {
    "model": "switchcraft",
    "max_tokens": 100,
    "messages": ASK,
    "tools": MESSAGES_TOOLS,
}
"""The same request in the other APIs."""
