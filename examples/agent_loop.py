"""A complete agent loop: the model calls tools until it answers in words.

With the model `switchcraft:economy`, the router chooses for each of the user's messages. Inside the
tool loop, the model that answered last is asked first, because its provider has cached the prompt.
"""

import json
import os

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

client = OpenAI(
    base_url=os.environ.get("SWITCHCRAFT_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("SWITCHCRAFT_KEY", "not-needed"),
)


def get_weather(city: str) -> str:
    """Return a forecast; a real tool would call a weather service."""
    return json.dumps({"city": city, "forecast": "light rain", "celsius": 14})


tools: list[ChatCompletionToolParam] = [
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
]
messages: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Do I need an umbrella in 'Lisbon'?"}
]
for _ in range(5):
    answer = client.chat.completions.create(
        model="switchcraft:economy", messages=messages, tools=tools
    )
    message = answer.choices[0].message
    messages.append(message.to_dict())
    if not message.tool_calls:
        print(f"{answer.model}: {message.content}")
        break
    for call in message.tool_calls:
        if call.type == "function":
            print(f"{answer.model} calls {call.function.name}({call.function.arguments})")
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
