"""Conversations with a model by the vendors' SDKs for Python, one interface for three APIs."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai

from tests import apis
from tests.apis import Api

SYSTEM = "You help."
MAX_TOKENS = 4096
THINKING_TOKENS = 2048
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = {"get_weather": PARAMETERS, "get_time": PARAMETERS}
"""The tools that every request offers: schemas of the parameters by name."""


@dataclass
class Heard:
    """An answer, or what arrived of it before an error."""

    thinking: str = ""
    text: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    """Id, name and decoded arguments of each call."""
    stop: str = ""
    """The API's word for why the answer ended; empty if it did not end."""
    tokens: tuple[int, int, int] = (0, 0, 0)
    """Tokens of the prompt, how many of them were cached, and tokens of the answer."""
    error: str = ""
    """Class of the SDK's exception, or type of the event that reported an error."""
    status: int | None = None
    """Status of an answer that was an error as a whole."""
    message: str = ""
    """Message of the error."""


class Conversation(ABC):
    """A conversation with one model; the client keeps the history as its API wants it."""

    def __init__(self, url: str, model: str, *, stream: bool, thinks: bool = False) -> None:
        self._client = self._open(url)
        self.model = model
        self.stream = stream
        self.thinks = thinks
        self.history: list[Any] = []

    def ask(self, text: str, image: bytes | None = None) -> Heard:
        """Say something, with a PNG image if there is one."""
        url = None
        if image is not None:
            url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        self.history.append({"role": "user", "content": self._content(text, url)})
        return self._send()

    def answer(self, results: Mapping[str, str]) -> Heard:
        """Send the results of calls, by the calls' ids."""
        self._add_results(results)
        return self._send()

    def _send(self) -> Heard:
        heard = Heard()
        try:
            if self.stream:
                self._hear_events(heard)
            else:
                self._hear_whole(heard)
        except (openai.APIError, anthropic.APIError) as exc:
            heard.error, heard.message = type(exc).__name__, exc.message
            status = getattr(exc, "status_code", None)
            # Anthropic's SDK raises its errors for error events too, with the stream's status.
            heard.status = None if status == 200 else status
        return heard

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @abstractmethod
    def _open(self, url: str) -> Any: ...  # noqa: ANN401 - the SDK's client

    @abstractmethod
    def _content(self, text: str, image_url: str | None) -> Any: ...  # noqa: ANN401 - as the API has it

    @abstractmethod
    def _add_results(self, results: Mapping[str, str]) -> None: ...

    @abstractmethod
    def _hear_whole(self, heard: Heard) -> None: ...

    @abstractmethod
    def _hear_events(self, heard: Heard) -> None: ...


class _OpenAIConversation(Conversation):
    def _open(self, url: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{url}/v1", api_key="client-key", max_retries=0)


class ChatConversation(_OpenAIConversation):
    """A conversation by Chat Completions."""

    def _content(self, text: str, image_url: str | None) -> Any:  # noqa: ANN401 - as the API has it
        if image_url is None:
            return text
        image = {"type": "image_url", "image_url": {"url": image_url}}
        return [{"type": "text", "text": text}, image]

    def _add_results(self, results: Mapping[str, str]) -> None:
        self.history += [
            {"role": "tool", "tool_call_id": call_id, "content": text}
            for call_id, text in results.items()
        ]

    def _request(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}
            for name, schema in TOOLS.items()
        ]
        messages = [{"role": "system", "content": SYSTEM}, *self.history]
        thinking = {"reasoning_effort": "medium"} if self.thinks else {}
        return {"model": self.model, "messages": messages, "tools": tools, **thinking}

    def _hear_whole(self, heard: Heard) -> None:
        self._hear(heard, self._client.chat.completions.create(**self._request()))

    def _hear_events(self, heard: Heard) -> None:
        request = self._request() | {"stream_options": {"include_usage": True}}
        with self._client.chat.completions.stream(**request) as stream:
            for each in stream:
                if each.type == "chunk" and each.chunk.choices:
                    delta = each.chunk.choices[0].delta
                    heard.text += delta.content or ""
                    heard.thinking += getattr(delta, "reasoning_content", None) or ""
            self._hear(heard, stream.get_final_completion())

    def _hear(self, heard: Heard, completion: Any) -> None:  # noqa: ANN401 - whole or accumulated
        message, usage = completion.choices[0].message, completion.usage
        heard.text = message.content or ""
        heard.thinking = getattr(message, "reasoning_content", None) or ""
        heard.calls = [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or []
        ]
        heard.stop = completion.choices[0].finish_reason
        cached = usage.prompt_tokens_details.cached_tokens
        heard.tokens = usage.prompt_tokens, cached, usage.completion_tokens
        said = message.model_dump(exclude_none=True, exclude={"parsed"})
        for call in said.get("tool_calls", []):
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        self.history.append(said)


class ResponsesConversation(_OpenAIConversation):
    """A conversation by Responses, without state at the provider."""

    def _content(self, text: str, image_url: str | None) -> Any:  # noqa: ANN401 - as the API has it
        if image_url is None:
            return text
        image = {"type": "input_image", "image_url": image_url, "detail": "auto"}
        return [{"type": "input_text", "text": text}, image]

    def _add_results(self, results: Mapping[str, str]) -> None:
        self.history += [
            {"type": "function_call_output", "call_id": call_id, "output": text}
            for call_id, text in results.items()
        ]

    def _request(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": name, "strict": True, "parameters": schema}
            for name, schema in TOOLS.items()
        ]
        thinking = {"reasoning": {"effort": "medium", "summary": "auto"}} if self.thinks else {}
        return {
            "model": self.model,
            "instructions": SYSTEM,
            # The SDK takes 60 ms to look for file names and dates in a long `input`.
            "input": "",
            "extra_body": {"input": self.history},
            "tools": tools,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            **thinking,
        }

    def _hear_whole(self, heard: Heard) -> None:
        self._hear(heard, self._client.responses.create(**self._request()))

    def _hear_events(self, heard: Heard) -> None:
        with self._client.responses.stream(**self._request()) as stream:
            for each in stream:
                if each.type == "response.output_text.delta":
                    heard.text += each.delta
                elif each.type in (
                    "response.reasoning_summary_text.delta",
                    "response.reasoning_text.delta",
                ):
                    heard.thinking += each.delta
                elif each.type == "error":
                    heard.error, heard.message = each.type, each.message
                elif each.type == "response.failed":
                    heard.error = each.type
                    heard.message = each.response.error.message if each.response.error else ""
            if not heard.error:
                self._hear(heard, stream.get_final_response())

    def _hear(self, heard: Heard, response: Any) -> None:  # noqa: ANN401 - whole or accumulated
        heard.text, heard.thinking = response.output_text, ""
        for item in response.output:
            if item.type == "function_call":
                heard.calls.append((item.call_id, item.name, json.loads(item.arguments)))
            elif item.type == "reasoning":
                parts = [*item.summary, *(item.content or [])]
                heard.thinking += "".join(part.text for part in parts)
        heard.stop, usage = response.status, response.usage
        cached = usage.input_tokens_details.cached_tokens
        heard.tokens = usage.input_tokens, cached, usage.output_tokens
        for item in response.output:
            said = item.model_dump(exclude_none=True)
            said.pop("parsed_arguments", None)
            for part in said.get("content") or []:
                part.pop("parsed", None)
            self.history.append(said)


class MessagesConversation(Conversation):
    """A conversation by Messages."""

    def _open(self, url: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=url, api_key="client-key", max_retries=0)

    def _content(self, text: str, image_url: str | None) -> Any:  # noqa: ANN401 - as the API has it
        if image_url is None:
            return text
        source = {"type": "base64", "media_type": "image/png", "data": image_url.partition(",")[2]}
        return [{"type": "text", "text": text}, {"type": "image", "source": source}]

    def _add_results(self, results: Mapping[str, str]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call_id, "content": text}
            for call_id, text in results.items()
        ]
        self.history.append({"role": "user", "content": content})

    def _request(self) -> dict[str, Any]:
        tools = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
        enabled = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
        return {
            "model": self.model,
            "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
            "messages": self.history,
            "tools": tools,
            "max_tokens": MAX_TOKENS,
            **({"thinking": enabled} if self.thinks else {}),
        }

    def _hear_whole(self, heard: Heard) -> None:
        self._hear(heard, self._client.messages.create(**self._request()))

    def _hear_events(self, heard: Heard) -> None:
        with self._client.messages.stream(**self._request()) as stream:
            for each in stream:
                if each.type == "text":
                    heard.text += each.text
                elif each.type == "thinking":
                    heard.thinking += each.thinking
            self._hear(heard, stream.get_final_message())

    def _hear(self, heard: Heard, message: Any) -> None:  # noqa: ANN401 - whole or accumulated
        heard.text, heard.thinking = "", ""
        for block in message.content:
            if block.type == "text":
                heard.text += block.text
            elif block.type == "thinking":
                heard.thinking += block.thinking
            elif block.type == "tool_use":
                heard.calls.append((block.id, block.name, block.input))
        heard.stop, usage = message.stop_reason or "", message.usage
        cached = usage.cache_read_input_tokens or 0
        written = usage.cache_creation_input_tokens or 0
        heard.tokens = usage.input_tokens + cached + written, cached, usage.output_tokens
        content = [block.model_dump(exclude_none=True) for block in message.content]
        for block in content:
            block.pop("parsed_output", None)
        self.history.append({"role": "assistant", "content": content})


CONVERSATIONS: Mapping[Api, type[Conversation]] = {
    apis.CHAT: ChatConversation,
    apis.RESPONSES: ResponsesConversation,
    apis.MESSAGES: MessagesConversation,
}

STOPS: Mapping[Api, Sequence[str]] = {
    apis.CHAT: ("stop", "tool_calls"),
    apis.RESPONSES: ("completed", "completed"),
    apis.MESSAGES: ("end_turn", "tool_use"),
}
"""Why an answer ends, without calls and with calls."""
