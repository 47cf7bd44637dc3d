"""Answers as providers write them in each API, whole and in events, and what the SDKs read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai
import orjson
from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import Api, UpstreamApi
from tests.providers.answers import DONE, STOPS, Refused, Reply, Usage, Written, data_of

Json = Any


@dataclass(frozen=True)
class Content:
    """What an answer contains, whichever API it comes from."""

    thinking: str = ""
    text: str = ""
    refusal: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Id, name and arguments of each call."""
    stop: str = "end"
    stop_text: str | None = None
    prompt: int = 20
    cached: int = 0
    written: int = 0
    completion: int = 5
    reasoning: int = 0


CALL = ("toolu_01A", "get_weather", '{"city":"Oslo"}')
CASES = {
    "text": Content(text="It rains in Oslo."),
    "one call": Content(text="Let me see.", calls=(CALL,), stop="calls"),
    "parallel calls": Content(
        calls=(CALL, ("toolu_01B", "get_weather", '{"city":"Bergen"}')), stop="calls"
    ),
    "empty arguments": Content(calls=(("toolu_01A", "list_cities", "{}"),), stop="calls"),
    "thinking": Content(thinking="Hm, Oslo.", text="It rains.", reasoning=3),
    "thinking and a call": Content(thinking="Hm.", calls=(CALL,), stop="calls"),
    "refusal": Content(refusal="I cannot help with that.", stop="refusal"),
    "length": Content(text="It rains in", stop="length"),
    "filter": Content(text="It", stop="filter"),
    "stop text": Content(text="It rains", stop="sequence", stop_text="END"),
    "cached usage": Content(text="Yes.", prompt=1000, cached=800, written=100),
}


def _reply(content: Content, dialect: UpstreamApi, size: int = 3) -> Reply:
    proof = "secret" if dialect is apis.RESPONSES else "c2ln"
    parts: list[Written] = [Thinking(content.thinking, proof)] if content.thinking else []
    parts += [Text(content.text)] if content.text else []
    parts += [Refused(content.refusal)] if content.refusal else []
    parts += [ToolUse(*call) for call in content.calls]
    usage = Usage(
        content.prompt, content.cached, content.completion, content.written, content.reasoning
    )
    stop = content.stop, content.stop_text
    return Reply(dialect, "m", parts, 1, *stop, usage, piece_characters=size)


def whole(content: Content, dialect: UpstreamApi) -> dict[str, Json]:
    """Return an answer that is not streamed."""
    return _reply(content, dialect).whole()


def events(content: Content, dialect: UpstreamApi, size: int = 3) -> list[dict[str, Json]]:
    """Return the events of a streamed answer, with texts in pieces of a size."""
    found = _reply(content, dialect, size).events()
    return [data_of(event) for event in found if event != DONE]


_WHOLE: dict[Api, type[BaseModel]] = {
    apis.CHAT: ChatCompletion,
    apis.RESPONSES: Response,
    apis.MESSAGES: Message,
}
_EVENT: dict[Api, TypeAdapter[Any]] = {
    apis.CHAT: TypeAdapter(ChatCompletionChunk),
    apis.RESPONSES: TypeAdapter(ResponseStreamEvent),
    apis.MESSAGES: TypeAdapter(RawMessageStreamEvent),
}


class StreamFailedError(Exception):
    """A stream of Responses that ends with an error, which OpenAI's SDK does not raise."""


@dataclass(frozen=True)
class Clients:
    """The vendors' clients for Python."""

    openai: OpenAI
    anthropic: Anthropic

    def ask(self, dialect: Api, *, stream: bool, model: str = "m") -> Content:
        """Say something to a model; raise what the SDK raises, or StreamFailedError."""
        asked: Any = {"model": model, "messages": [{"role": "user", "content": "?"}]}
        if dialect is apis.RESPONSES:
            asked = {"model": model, "input": "?"}
        elif dialect is apis.MESSAGES:
            asked |= {"max_tokens": 2048, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        return (self._stream if stream else self._whole)(dialect, asked)

    def _whole(self, dialect: Api, asked: dict[str, Any]) -> Content:
        match dialect:
            case apis.CHAT:
                return read_chat(self.openai.chat.completions.create(**asked))
            case apis.RESPONSES:
                return read_response(self.openai.responses.create(**asked))
            case _:  # Messages
                return read_message(self.anthropic.messages.create(**asked))

    def _stream(self, dialect: Api, asked: dict[str, Any]) -> Content:
        match dialect:
            case apis.CHAT:
                usage = {"include_usage": True}
                with self.openai.chat.completions.stream(**asked, stream_options=usage) as chat:
                    try:
                        return read_chat(chat.get_final_completion())
                    except (
                        openai.LengthFinishReasonError,
                        openai.ContentFilterFinishReasonError,
                    ):
                        return read_chat(chat.current_completion_snapshot)
            case apis.RESPONSES:
                with self.openai.responses.stream(**asked) as events:
                    last: Any = list(events)[-1]
                if last.type in ("error", "response.failed"):
                    raise StreamFailedError(last.to_json())
                return read_response(last.response)
            case _:  # Messages
                with self.anthropic.messages.stream(**asked) as message:
                    return read_message(message.get_final_message())


@dataclass
class Sdks:
    """The vendors' clients, which get the bytes that a test gives them."""

    body: bytes = b""
    status: int = 200
    is_stream: bool = False
    openai: OpenAI = field(init=False)
    anthropic: Anthropic = field(init=False)

    def __post_init__(self) -> None:
        """Create both clients."""
        http = httpx2.Client(transport=httpx2.MockTransport(self._respond))
        self.openai = OpenAI(api_key="k", http_client=http, max_retries=0)
        self.anthropic = Anthropic(api_key="k", http_client=http, max_retries=0)

    def _respond(self, _: httpx2.Request) -> httpx2.Response:
        kind = "text/event-stream" if self.is_stream else "application/json"
        return httpx2.Response(self.status, headers={"content-type": kind}, content=self.body)

    def _ask(self, dialect: Api) -> Content:
        return Clients(self.openai, self.anthropic).ask(dialect, stream=self.is_stream)

    def read(self, value: Json, dialect: Api, *, checks: bool = True) -> Content:
        """Read a whole answer, and check that it has the documented type."""
        self.body, self.is_stream = orjson.dumps(value), False
        if checks:
            _WHOLE[dialect].model_validate(value)
        return self._ask(dialect)

    def read_stream(self, data: bytes, dialect: Api, *, checks: bool = True) -> Content:
        """Read a stream, and check that every event has the documented type."""
        self.body, self.is_stream = data, True
        for event in decode(data) if checks else ():
            _EVENT[dialect].validate_python(event)
        return self._ask(dialect)


def decode(data: bytes) -> list[dict[str, Json]]:
    """Return the values of server-sent events, whose names must match their types."""
    values = []
    for event in data.decode().split("\n\n")[:-1]:
        name, _, rest = event.rpartition("data: ")
        if rest == "[DONE]":
            continue
        value = orjson.loads(rest)
        assert name in ("", f"event: {value.get('type')}\n")
        values.append(value)
    return values


def read_chat(answer: ChatCompletion) -> Content:
    """Return what a chat answer contains."""
    choice, usage = answer.choices[0], answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    calls = tuple(
        (call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or []
        if call.type == "function"
    )
    has_refused = bool(choice.message.refusal)
    stops = {value: name for name, value in reversed([*STOPS[apis.CHAT].items()])}
    return Content(
        thinking=getattr(choice.message, "reasoning_content", None) or "",
        text=choice.message.content or "",
        refusal=choice.message.refusal or "",
        calls=calls,
        stop="refusal" if has_refused else stops[choice.finish_reason],
        prompt=usage.prompt_tokens,
        cached=usage.prompt_tokens_details.cached_tokens or 0,
        written=usage.prompt_tokens_details.cache_write_tokens or 0,
        completion=usage.completion_tokens,
        reasoning=usage.completion_tokens_details.reasoning_tokens or 0,
    )


def read_response(answer: Response) -> Content:
    """Return what a response contains."""
    texts: dict[str, list[str]] = {"thinking": [], "text": [], "refusal": []}
    calls: list[tuple[str, str, str]] = []
    for item in answer.output:
        match item.type:
            case "reasoning":
                texts["thinking"] += [part.text for part in item.summary]
            case "message":
                for part in item.content:
                    if part.type == "refusal":
                        texts["refusal"].append(part.refusal)
                    else:
                        texts["text"].append(part.text)
            case "function_call":
                calls.append((item.call_id, item.name, item.arguments))
            case _:
                raise AssertionError(item.type)
    stop = "refusal" if texts["refusal"] else "calls" if calls else "end"
    if answer.status == "incomplete":
        assert answer.incomplete_details is not None
        stop = "length" if answer.incomplete_details.reason == "max_output_tokens" else "filter"
    usage = answer.usage
    assert usage is not None
    return Content(
        **{name: "".join(parts) for name, parts in texts.items()},
        calls=tuple(calls),
        stop=stop,
        prompt=usage.input_tokens,
        cached=usage.input_tokens_details.cached_tokens,
        written=usage.input_tokens_details.cache_write_tokens,
        completion=usage.output_tokens,
        reasoning=usage.output_tokens_details.reasoning_tokens,
    )


def read_message(answer: Message) -> Content:
    """Return what a message contains; its refusals are texts."""
    texts: dict[str, list[str]] = {"thinking": [], "text": []}
    calls: list[tuple[str, str, str]] = []
    for block in answer.content:
        match block.type:
            case "thinking":
                texts["thinking"].append(block.thinking)
            case "text":
                texts["text"].append(block.text)
            case "tool_use":
                calls.append((block.id, block.name, orjson.dumps(block.input).decode()))
            case _:
                raise AssertionError(block.type)
    stops = {value: name for name, value in reversed([*STOPS[apis.MESSAGES].items()])}
    usage = answer.usage
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert answer.stop_reason is not None
    return Content(
        **{name: "".join(parts) for name, parts in texts.items()},
        calls=tuple(calls),
        stop=stops[answer.stop_reason],
        stop_text=answer.stop_sequence,
        prompt=usage.input_tokens + cached + written,
        cached=cached,
        written=written,
        completion=usage.output_tokens,
        reasoning=usage.output_tokens_details.thinking_tokens if usage.output_tokens_details else 0,
    )
