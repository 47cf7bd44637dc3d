"""Ask for tool calls with a key, and show when its budget changes the policy or refuses a request.

Needs `pip install openai`, and the key in the variable KEY.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI, RateLimitError

client = OpenAI(
    base_url=os.environ.get("SWITCHCRAFT_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ["KEY"],
    max_retries=0,
)
weather = {
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
policy = ""
for number in range(1, int(sys.argv[1]) + 1):
    question = f"What is the forecast for 'City {number}' for the next 3 days?"
    try:
        answer = client.chat.completions.with_raw_response.create(
            model="switchcraft",
            messages=[{"role": "user", "content": question}],
            tools=[weather],
        )
    except RateLimitError as error:
        print(f"request {number} is refused with {error.code}: {error}")
        break
    headers = answer.headers
    if headers["x-switchcraft-policy"] != policy:
        policy = headers["x-switchcraft-policy"]
        left_usd = headers.get("x-switchcraft-budget-left-usd", "no budget")
        accuracy = headers.get("x-switchcraft-expected-accuracy", "as measured for this policy")
        print(f"request {number}: policy {policy}, left: {left_usd}, expected accuracy: {accuracy}")
