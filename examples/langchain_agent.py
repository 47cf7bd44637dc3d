"""LangChain with Switchcraft: only `base_url` and `model` differ from OpenAI.

Needs `pip install langchain-openai`.
"""

import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


@tool
def get_weather(city: str) -> str:
    """Return the current weather in a city."""
    return f"light rain in {city}"


model = ChatOpenAI(
    model="switchcraft",
    base_url=os.environ.get("SWITCHCRAFT_URL", "http://127.0.0.1:8080/v1"),
    api_key=SecretStr(os.environ.get("SWITCHCRAFT_KEY", "not-needed")),
).bind_tools([get_weather])

question = HumanMessage("What is the weather in 'Oslo'?")
answer = model.invoke([question])
results = [get_weather.invoke(call) for call in answer.tool_calls]
final = model.invoke([question, answer, *results])

print("calls:", [(call["name"], call["args"]) for call in answer.tool_calls])
print("answer:", final.text)
