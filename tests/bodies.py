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
