"""Send a request with tools through the gateway with OpenAI's SDK.

Start the gateway with `make serve`, then run `python examples/openai_sdk.py`.
"""

import os

from openai import OpenAI

QUESTION = "What is the forecast for 'Lisbon' for the next 3 days?"

client = OpenAI(
    base_url=os.environ.get("SWITCHCRAFT_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("SWITCHCRAFT_KEY", "not-needed"),
)
answer = client.chat.completions.with_raw_response.create(
    model="switchcraft",
    messages=[{"role": "user", "content": QUESTION}],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "get_forecast",
                "description": "Weather forecast for a city.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city"],
                },
            },
        }
    ],
    stream=True,
)
for chunk in answer.parse():
    for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
        if call.function:
            print(call.function.name or call.function.arguments, end=" ", flush=True)
print()
for name in ("model", "policy", "reason", "why", "decision-id"):
    print(f"{name}:", answer.headers[f"x-switchcraft-{name}"])
