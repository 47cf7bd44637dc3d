"""Answers as providers write them in each API, whole and in events, and what the SDKs read."""

from __future__ import annotations

from collections.abc import Iterator
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
from pydantic import TypeAdapter

from tests import apis
from tests.apis import Api, UpstreamApi

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

_CHAT_STOPS = {
    "end": "stop",
    "calls": "tool_calls",
    "refusal": "stop",
    "length": "length",
    "filter": "content_filter",
    "sequence": "stop",
}
_MESSAGES_STOPS = {
    "end": "end_turn",
    "calls": "tool_use",
    "refusal": "refusal",
    "length": "max_tokens",
    "filter": "refusal",
    "sequence": "stop_sequence",
}
_CONVERSE_STOPS = {
    "end": "end_turn",
    "calls": "tool_use",
    "refusal": "refusal",
    "length": "max_tokens",
    "filter": "guardrail_intervened",
    "sequence": "stop_sequence",
}


def pieces(text: str, size: int) -> Iterator[str]:
    """Yield a text in pieces of a size."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


def whole(content: Content, dialect: UpstreamApi) -> dict[str, Json]:
    """Return an answer that is not streamed."""
    match dialect:
        case apis.CHAT:
            calls = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id_, name, arguments in content.calls
            ]
            message = {
                "role": "assistant",
                "content": content.text or None,
                "refusal": content.refusal or None,
                **({"tool_calls": calls} if calls else {}),
                **({"reasoning_content": content.thinking} if content.thinking else {}),
            }
            choice = {
                "index": 0,
                "message": message,
                "finish_reason": _CHAT_STOPS[content.stop],
                "stop_reason": content.stop_text,
            }
            return {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
                "usage": _usage(content, dialect),
            }
        case apis.RESPONSES:
            return _response(content, list(_items(content)))
        case apis.CONVERSE:
            return {
                "output": {"message": {"role": "assistant", "content": [*_converse(content)]}},
                **_converse_stop(content),
                "usage": _usage(content, dialect),
                "metrics": {"latencyMs": 1},
            }
        case _:  # Messages
            return _message(content) | {
                "content": list(_blocks(content)),
                "stop_reason": _MESSAGES_STOPS[content.stop],
                "stop_sequence": content.stop_text,
            }


def events(content: Content, dialect: UpstreamApi, size: int = 3) -> list[dict[str, Json]]:
    """Return the events of a streamed answer, with texts in pieces of a size."""
    match dialect:
        case apis.CHAT:
            return list(_chat_events(content, size))
        case apis.RESPONSES:
            return list(_responses_events(content, size))
        case apis.CONVERSE:
            return list(_converse_events(content, size))
        case _:  # Messages
            return list(_messages_events(content, size))


def _usage(content: Content, dialect: UpstreamApi) -> dict[str, Json]:
    reasoning = {"reasoning_tokens": content.reasoning}
    cached = {"cached_tokens": content.cached, "cache_write_tokens": content.written}
    total = content.prompt + content.completion
    match dialect:
        case apis.CHAT:
            return {
                "prompt_tokens": content.prompt,
                "completion_tokens": content.completion,
                "total_tokens": total,
                "prompt_tokens_details": cached,
                "completion_tokens_details": reasoning,
            }
        case apis.RESPONSES:
            return {
                "input_tokens": content.prompt,
                "input_tokens_details": cached,
                "output_tokens": content.completion,
                "output_tokens_details": reasoning,
                "total_tokens": total,
            }
        case apis.CONVERSE:  # without the tokens of reasoning
            return {
                "inputTokens": content.prompt - content.cached - content.written,
                "cacheReadInputTokens": content.cached,
                "cacheWriteInputTokens": content.written,
                "outputTokens": content.completion,
                "totalTokens": total,
            }
        case _:  # Messages
            return {
                "input_tokens": content.prompt - content.cached - content.written,
                "cache_read_input_tokens": content.cached,
                "cache_creation_input_tokens": content.written,
                "output_tokens": content.completion,
                "output_tokens_details": {"thinking_tokens": content.reasoning},
            }


def _chat_events(content: Content, size: int) -> Iterator[dict[str, Json]]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(delta: Json, reason: str | None = None) -> dict[str, Json]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**head, "choices": [choice], "usage": None}

    yield chunk({"role": "assistant", "content": ""})
    for name, text in (
        ("reasoning_content", content.thinking),
        ("content", content.text),
        ("refusal", content.refusal),
    ):
        for piece in pieces(text, size):
            yield chunk({name: piece})
    for index, (call_id, name, arguments) in enumerate(content.calls):
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": call_id, "type": "function", "function": function}
        yield chunk({"tool_calls": [call]})
        for piece in pieces(arguments, size):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    last = chunk({}, _CHAT_STOPS[content.stop])
    last["choices"][0]["stop_reason"] = content.stop_text
    yield last
    yield {**head, "choices": [], "usage": _usage(content, apis.CHAT)}


def _items(content: Content) -> Iterator[dict[str, Json]]:
    if content.thinking:
        summary = [{"type": "summary_text", "text": content.thinking}]
        yield {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "secret"}
    parts = []
    if content.text:
        parts.append({"type": "output_text", "text": content.text, "annotations": []})
    if content.refusal:
        parts.append({"type": "refusal", "refusal": content.refusal})
    if parts:
        head = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        yield {**head, "content": parts}
    for index, (call_id, name, arguments) in enumerate(content.calls):
        call = {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": name}
        yield {**call, "arguments": arguments, "status": "completed"}


def _response(content: Content, output: list[Json], status: str | None = None) -> dict[str, Json]:
    is_cut = content.stop in ("length", "filter")
    reason = "max_output_tokens" if content.stop == "length" else "content_filter"
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status or ("incomplete" if is_cut else "completed"),
        "error": None,
        "incomplete_details": {"reason": reason} if is_cut and not status else None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if status else _usage(content, apis.RESPONSES),
    }


def _responses_events(content: Content, size: int) -> Iterator[dict[str, Json]]:
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(content, [], "in_progress")}
    for index, item in enumerate(_items(content)):
        place = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Json] = {
            "content": [],
            "summary": [],
            "arguments": "",
            "encrypted_content": None,
        }
        start = {name: empty.get(name, value) for name, value in item.items()}
        yield {"type": "response.output_item.added", "output_index": index, "item": start}
        match item["type"]:
            case "reasoning":
                place["summary_index"] = 0
                text = item["summary"][0]["text"]
                part = {"type": "summary_text", "text": ""}
                yield {"type": "response.reasoning_summary_part.added", **place, "part": part}
                for piece in pieces(text, size):
                    kind = "response.reasoning_summary_text.delta"
                    yield {"type": kind, **place, "delta": piece}
                yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
                part = item["summary"][0]
                yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
            case "message":
                for number, part in enumerate(item["content"]):
                    place["content_index"] = number
                    kind, name = ("refusal", "refusal")
                    if part["type"] == "output_text":
                        kind, name = ("output_text", "text")
                    start = {**part, name: ""}
                    yield {"type": "response.content_part.added", **place, "part": start}
                    for piece in pieces(part[name], size):
                        yield {"type": f"response.{kind}.delta", **place, "delta": piece}
                    yield {"type": f"response.{kind}.done", **place, name: part[name]}
                    yield {"type": "response.content_part.done", **place, "part": part}
            case _:
                kind = "response.function_call_arguments"
                for piece in pieces(item["arguments"], size):
                    yield {"type": f"{kind}.delta", **place, "delta": piece}
                yield {"type": f"{kind}.done", **place, "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    response = _response(content, list(_items(content)))
    yield {"type": f"response.{response['status']}", "response": response}


def _blocks(content: Content) -> Iterator[dict[str, Json]]:
    if content.thinking:
        yield {"type": "thinking", "thinking": content.thinking, "signature": "c2ln"}
    if text := content.text + content.refusal:
        yield {"type": "text", "text": text, "citations": None}
    for call_id, name, arguments in content.calls:
        yield {"type": "tool_use", "id": call_id, "name": name, "input": orjson.loads(arguments)}


def _message(content: Content) -> dict[str, Json]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(content, apis.MESSAGES),
    }


def _messages_events(content: Content, size: int) -> Iterator[dict[str, Json]]:
    message = _message(content)
    message["usage"] = {**message["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": message}
    yield {"type": "ping"}
    for index, block in enumerate(_blocks(content)):
        start = {**block, **({"input": {}} if "input" in block else {})}
        start |= {name: "" for name in ("text", "thinking", "signature") if name in block}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        match block["type"]:
            case "thinking":
                kind, name, text = "thinking_delta", "thinking", block["thinking"]
            case "text":
                kind, name, text = "text_delta", "text", block["text"]
            case _:
                # A call without arguments has no deltas.
                text = orjson.dumps(block["input"]).decode() if block["input"] else ""
                kind, name = "input_json_delta", "partial_json"
        deltas = [{"type": kind, name: piece} for piece in pieces(text, size)]
        if "signature" in block:
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": _MESSAGES_STOPS[content.stop], "stop_sequence": content.stop_text}
    details = {"thinking_tokens": content.reasoning}
    usage = {"output_tokens": content.completion, "output_tokens_details": details}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def _converse(content: Content) -> Iterator[dict[str, Json]]:
    if content.thinking:
        signed = {"text": content.thinking, "signature": "c2ln"}
        yield {"reasoningContent": {"reasoningText": signed}}
    if text := content.text + content.refusal:
        yield {"text": text}
    for call_id, name, arguments in content.calls:
        call = {"toolUseId": call_id, "name": name, "input": orjson.loads(arguments)}
        yield {"toolUse": call}


def _converse_stop(content: Content) -> dict[str, Json]:
    stop: dict[str, Json] = {"stopReason": _CONVERSE_STOPS[content.stop]}
    if content.stop_text:
        stop["additionalModelResponseFields"] = {"stop_sequence": content.stop_text}
    return stop


def _converse_events(content: Content, size: int) -> Iterator[dict[str, Json]]:
    yield {"messageStart": {"role": "assistant"}}
    for index, block in enumerate(_converse(content)):
        place = {"contentBlockIndex": index}
        deltas: list[Json] = []
        match block:
            case {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}:
                deltas = [{"reasoningContent": {"text": piece}} for piece in pieces(text, size)]
                deltas.append({"reasoningContent": {"signature": signature}})
            case {"text": text}:
                deltas = [{"text": piece} for piece in pieces(text, size)]
            case {"toolUse": call}:
                start = {"toolUseId": call["toolUseId"], "name": call["name"]}
                yield {"contentBlockStart": {**place, "start": {"toolUse": start}}}
                # A call without arguments has no deltas.
                text = orjson.dumps(call["input"]).decode() if call["input"] else ""
                deltas = [{"toolUse": {"input": piece}} for piece in pieces(text, size)]
        for delta in deltas:
            yield {"contentBlockDelta": {**place, "delta": delta}}
        yield {"contentBlockStop": place}
    yield {"messageStop": _converse_stop(content)}
    yield {"metadata": {"usage": _usage(content, apis.CONVERSE), "metrics": {"latencyMs": 1}}}


_RESPONSE_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
_MESSAGE_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


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

    def read(self, value: Json, dialect: Api, *, checks: bool = True) -> Content:
        """Read a whole answer, and check that it has the documented type."""
        self.body, self.is_stream = orjson.dumps(value), False
        ask: Any = [{"role": "user", "content": "?"}]
        match dialect:
            case apis.CHAT:
                ChatCompletion.model_validate(value) if checks else None
                completions = self.openai.chat.completions
                return read_chat(completions.create(model="m", messages=ask))
            case apis.RESPONSES:
                Response.model_validate(value) if checks else None
                return read_response(self.openai.responses.create(model="m", input="?"))
            case _:  # Messages
                Message.model_validate(value) if checks else None
                messages = self.anthropic.messages
                return read_message(messages.create(model="m", max_tokens=9, messages=ask))

    def read_stream(self, data: bytes, dialect: Api, *, checks: bool = True) -> Content:
        """Read a stream, and check that every event has the documented type."""
        self.body, self.is_stream = data, True
        ask: Any = [{"role": "user", "content": "?"}]
        match dialect:
            case apis.CHAT:
                for event in decode(data) if checks else ():
                    ChatCompletionChunk.model_validate(event)
                completions = self.openai.chat.completions
                with completions.stream(model="m", messages=ask) as chat:
                    try:
                        return read_chat(chat.get_final_completion())
                    except (
                        openai.LengthFinishReasonError,
                        openai.ContentFilterFinishReasonError,
                    ):
                        return read_chat(chat.current_completion_snapshot)
            case apis.RESPONSES:
                for event in decode(data) if checks else ():
                    _RESPONSE_EVENT.validate_python(event)
                with self.openai.responses.stream(model="m", input="?") as stream:
                    events: list[Any] = list(stream)
                return read_response(events[-1].response)
            case _:  # Messages
                for event in decode(data) if checks else ():
                    _MESSAGE_EVENT.validate_python(event)
                messages = self.anthropic.messages
                with messages.stream(model="m", max_tokens=9, messages=ask) as message:
                    return read_message(message.get_final_message())


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
    stops = {value: name for name, value in reversed(_CHAT_STOPS.items())}
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
    stops = {value: name for name, value in reversed(_MESSAGES_STOPS.items())}
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
