"""LiteLLM's SDK in front of Switchcraft: the prefix `openai/` names the protocol.

Needs `pip install litellm`. A LiteLLM proxy is configured in the same way:

    model_list:
      - model_name: routed
        litellm_params: {model: openai/switchcraft, api_base: "http://127.0.0.1:8080/v1", api_key: not-needed}
"""  # noqa: E501 - one line of YAML

import os

import litellm

answer = litellm.completion(
    model="openai/switchcraft",
    api_base=os.environ.get("SWITCHCRAFT_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("SWITCHCRAFT_KEY", "not-needed"),
    messages=[{"role": "user", "content": "What is the weather in 'Oslo'?"}],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Current weather in a city.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        }
    ],
)
for call in answer.choices[0].message.tool_calls:
    print(f"{answer.model} calls {call.function.name}({call.function.arguments})")
