"""Choose the model inside your program, and send the request with OpenAI's client.

Needs `pip install 'switchcraft-router[cpu]' openai` and OPENAI_API_KEY. No gateway is involved.
"""

from openai import OpenAI
from openai.types.chat import ChatCompletion

from router_service import Router

ROUTER = Router.load()
MODELS = {  # arms of the artifact -> your models
    "gpt-5.2": "gpt-5.2-2025-12-11",
    "gpt-4.1-mini": "gpt-4.1-mini-2025-04-14",
}


def create(client: OpenAI, **request: object) -> ChatCompletion:
    """Send a chat request to the cheapest model that is likely to answer it correctly."""
    decision = ROUTER.decide(request, policy="drift=0.05", arms=list(MODELS))
    return client.chat.completions.create(model=MODELS[decision.arm], **request)


answer = create(
    OpenAI(),
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
