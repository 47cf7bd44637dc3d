"""Answers as OpenAI's, Anthropic's, DeepSeek's and AWS's APIs write them, whole and in events.

The shapes and the order of the events are those of the vendors' API references. They are written
here a second time, without the service's own writers, so that a mistake there cannot hide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import UpstreamApi


@dataclass(frozen=True)
class Refused:
    """The words of a refusal, where an API tells them apart from text."""

    text: str


Written = Text | Thinking | ToolUse | Refused
PIECE_CHARACTERS = 5
"""Length of the text of one event."""


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens; the prompt's include those that were cached and written to the cache."""

    prompt: int = 120
    cached: int = 100
    completion: int = 30
    written: int | None = None
    """None if the provider does not say it."""
    reasoning: int | None = None


STOPS: Mapping[UpstreamApi, Mapping[str, str]] = {
    apis.CHAT: {
        "end": "stop",
        "calls": "tool_calls",
        "refusal": "stop",
        "length": "length",
        "filter": "content_filter",
        "sequence": "stop",
    },
    apis.MESSAGES: {
        "end": "end_turn",
        "calls": "tool_use",
        "refusal": "refusal",
        "length": "max_tokens",
        "filter": "refusal",
        "sequence": "stop_sequence",
    },
    apis.CONVERSE: {
        "end": "end_turn",
        "calls": "tool_use",
        "refusal": "refusal",
        "length": "max_tokens",
        "filter": "guardrail_intervened",
        "sequence": "stop_sequence",
    },
}
"""Why an answer ends, in the words of each API. A response says it by its status."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Reply:
    """An answer of a provider's model."""

    dialect: UpstreamApi
    model: str
    parts: Sequence[Written]
    number: int = 1
    """Makes the ids of several answers different."""
    reason: str | None = None
    """Why it ends, one of `STOPS`; by default because of its calls, or because it is complete."""
    stop_text: str | None = None
    """The stop text that ended it."""
    usage: Usage = Usage()
    piece_characters: int = PIECE_CHARACTERS

    @property
    def stop(self) -> str:
        """Why it ends, in the words of its API."""
        return STOPS[self.dialect][self.reason or ("calls" if self.calls else "end")]

    def pieces(self, text: str) -> list[str]:
        """Return a text in the pieces of a stream's events."""
        size = self.piece_characters
        return [text[at : at + size] for at in range(0, len(text), size)]

    @property
    def calls(self) -> list[ToolUse]:
        """The calls among the parts."""
        return [part for part in self.parts if isinstance(part, ToolUse)]

    def whole(self) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        return _WHOLE[self.dialect](self)

    def events(self) -> list[bytes]:
        """Return the server-sent events of a streamed answer."""
        return list(_EVENTS[self.dialect](self))

    @property
    def output_at(self) -> int:
        """How many events precede the answer's first part."""
        for number, each in enumerate(self.events()):
            data = data_of(each)
            if self.dialect is apis.CHAT:
                values = data["choices"][0]["delta"].values()
                is_output = any(value and value != "assistant" for value in values)
            elif self.dialect is apis.CONVERSE:
                is_output = "messageStart" not in data
            else:
                is_output = data["type"] in ("response.output_item.added", "content_block_start")
            if is_output:
                return number
        raise AssertionError(f"no output in {self}")


def data_of(event: bytes) -> dict[str, Any]:
    """Return the JSON object of an event."""
    data: dict[str, Any] = json.loads(event.partition(b"data: ")[2])
    return data


def event(value: Any, name: str | None = None) -> bytes:  # noqa: ANN401 - any JSON
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode(errors="surrogatepass")


def _chat_usage(usage: Usage) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
    if usage.written is not None:
        told["prompt_tokens_details"]["cache_write_tokens"] = usage.written
    if usage.reasoning is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    return told


def _chat_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in reply.calls
    ]


def _whole_chat(reply: Reply) -> dict[str, Any]:
    texts = [part.text for part in reply.parts if isinstance(part, Text)]
    thinking = [part.text for part in reply.parts if isinstance(part, Thinking)]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if thinking:
        message["reasoning_content"] = "".join(thinking)
    for part in reply.parts:
        if isinstance(part, Refused):
            message["refusal"] = part.text
    if reply.calls:
        message["tool_calls"] = _chat_calls(reply)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.stop}
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": reply.model,
        "choices": [choice | _stop_text(reply)],
        "usage": _chat_usage(reply.usage),
    }


def _stop_text(reply: Reply) -> dict[str, Any]:
    """Return vLLM's field of a choice that a stop text has ended."""
    return {} if reply.stop_text is None else {"stop_reason": reply.stop_text}


def _chat_events(reply: Reply) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{reply.number}",
            "object": "chat.completion.chunk",
            "created": 1_790_000_000,
            "model": reply.model,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }

    yield event(chunk({"role": "assistant", "content": ""}))
    index = count()
    for part in reply.parts:
        if isinstance(part, ToolUse):
            place = next(index)
            head = {"name": part.name, "arguments": ""}
            opened = {"index": place, "id": part.id, "type": "function", "function": head}
            yield event(chunk({"tool_calls": [opened]}))
            for piece in reply.pieces(part.arguments):
                grown = {"index": place, "function": {"arguments": piece}}
                yield event(chunk({"tool_calls": [grown]}))
        else:
            fields = {Text: "content", Thinking: "reasoning_content", Refused: "refusal"}
            for piece in reply.pieces(part.text):
                yield event(chunk({fields[type(part)]: piece}))
    last = chunk({}, reply.stop)
    last["choices"][0] |= _stop_text(reply)
    yield event(last)
    yield event(chunk({}) | {"choices": [], "usage": _chat_usage(reply.usage)})
    yield DONE


def _item(reply: Reply, place: int, part: Written) -> dict[str, Any]:
    """Return a complete output item of a response."""
    suffix = f"{reply.number}_{place}"
    if isinstance(part, ToolUse) and part.is_custom:
        return {
            "id": f"ctc_{suffix}",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": part.id,
            "name": part.name,
            "input": part.arguments,
        }
    if isinstance(part, ToolUse):
        return {
            "id": f"fc_{suffix}",
            "type": "function_call",
            "status": "completed",
            "call_id": part.id,
            "name": part.name,
            "arguments": part.arguments,
        }
    if isinstance(part, Thinking):
        return {
            "id": f"rs_{suffix}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": part.text}] if part.text else [],
            "encrypted_content": part.proof,
        }
    return {
        "id": f"msg_{suffix}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [_content_part(part, part.text)],
    }


def _content_part(part: Text | Refused, text: str) -> dict[str, Any]:
    if isinstance(part, Refused):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _whole_response(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    cached: dict[str, Any] = {"cached_tokens": usage.cached}
    if usage.written is not None:
        cached["cache_write_tokens"] = usage.written
    cuts = {"length": "max_output_tokens", "filter": "content_filter"}
    cut = cuts.get(reply.reason or "")
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": 1_790_000_000,
        "completed_at": 1_790_000_001,
        "status": "incomplete" if cut else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": None,
        "max_output_tokens": None,
        "model": reply.model,
        "output": [_item(reply, place, part) for place, part in enumerate(reply.parts)],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": usage.prompt,
            "input_tokens_details": cached,
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
            "total_tokens": usage.prompt + usage.completion,
        },
        "user": None,
        "metadata": {},
    }


def _response_events(reply: Reply) -> Iterator[bytes]:
    numbers = count()

    def named(kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - any JSON
        return event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    done = _whole_response(reply)
    begun = done | {"status": "in_progress", "completed_at": None, "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield named("response.created", response=begun)
    yield named("response.in_progress", response=begun)
    for place, part in enumerate(reply.parts):
        item = _item(reply, place, part)
        at: dict[str, Any] = {"item_id": item["id"], "output_index": place}
        if isinstance(part, ToolUse) and part.is_custom:
            opened = item | {"status": "in_progress", "input": ""}
            yield named("response.output_item.added", output_index=place, item=opened)
            for piece in reply.pieces(part.arguments):
                yield named("response.custom_tool_call_input.delta", **at, delta=piece)
            yield named("response.custom_tool_call_input.done", **at, input=part.arguments)
        elif isinstance(part, ToolUse):
            opened = item | {"status": "in_progress", "arguments": ""}
            yield named("response.output_item.added", output_index=place, item=opened)
            for piece in reply.pieces(part.arguments):
                yield named("response.function_call_arguments.delta", **at, delta=piece)
            written = {"arguments": part.arguments, "name": part.name}
            yield named("response.function_call_arguments.done", **at, **written)
        elif isinstance(part, Thinking):
            opened = item | {"summary": [], "encrypted_content": ""}
            yield named("response.output_item.added", output_index=place, item=opened)
            if part.text:
                at["summary_index"] = 0
                empty, full = ({"type": "summary_text", "text": text} for text in ("", part.text))
                yield named("response.reasoning_summary_part.added", **at, part=empty)
                for piece in reply.pieces(part.text):
                    yield named("response.reasoning_summary_text.delta", **at, delta=piece)
                yield named("response.reasoning_summary_text.done", **at, text=part.text)
                yield named("response.reasoning_summary_part.done", **at, part=full)
        else:
            opened = item | {"status": "in_progress", "content": []}
            yield named("response.output_item.added", output_index=place, item=opened)
            at["content_index"] = 0
            yield named("response.content_part.added", **at, part=_content_part(part, ""))
            is_refused = isinstance(part, Refused)
            kind, name = ("refusal", "refusal") if is_refused else ("output_text", "text")
            further: dict[str, Any] = {} if is_refused else {"logprobs": []}
            for piece in reply.pieces(part.text):
                yield named(f"response.{kind}.delta", **at, delta=piece, **further)
            yield named(f"response.{kind}.done", **at, **{name: part.text}, **further)
            yield named("response.content_part.done", **at, part=_content_part(part, part.text))
        yield named("response.output_item.done", output_index=place, item=item)
    yield named(f"response.{done['status']}", response=done)


def _block(part: Written) -> dict[str, Any]:
    """Return a complete content block of a message."""
    if isinstance(part, ToolUse):
        return {
            "type": "tool_use",
            "id": part.id,
            "name": part.name,
            "input": json.loads(part.arguments),
        }
    if isinstance(part, (Text, Refused)):
        return {"type": "text", "text": part.text}
    if part.is_hidden:
        return {"type": "redacted_thinking", "data": part.proof}
    return {"type": "thinking", "thinking": part.text, "signature": part.proof}


def _whole_message(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [_block(part) for part in reply.parts],
        "stop_reason": reply.stop,
        "stop_sequence": reply.stop_text,
        "usage": {
            "input_tokens": usage.prompt - usage.cached - (usage.written or 0),
            "cache_creation_input_tokens": usage.written or 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
            "service_tier": "standard",
            **_thinking_tokens(usage),
        },
    }


def _thinking_tokens(usage: Usage) -> dict[str, Any]:
    if usage.reasoning is None:
        return {}
    return {"output_tokens_details": {"thinking_tokens": usage.reasoning}}


def _message_events(reply: Reply) -> Iterator[bytes]:
    def named(kind: str, **fields: Any) -> bytes:  # noqa: ANN401 - any JSON
        return event({"type": kind, **fields}, kind)

    done = _whole_message(reply)
    begun = done | {"content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = done["usage"] | {"output_tokens": 1}
    yield named("message_start", message=begun)
    for index, part in enumerate(reply.parts):
        block = _block(part)
        if isinstance(part, ToolUse):
            block["input"], kind, field, text = (
                {},
                "input_json_delta",
                "partial_json",
                part.arguments if json.loads(part.arguments) else "",
            )
        elif isinstance(part, (Text, Refused)):
            block["text"], kind, field, text = "", "text_delta", "text", part.text
        else:
            kind, field, text = "thinking_delta", "thinking", part.text
            if not part.is_hidden:
                block |= {"thinking": "", "signature": ""}
        yield named("content_block_start", index=index, content_block=block)
        if index == 0:
            yield named("ping")
        for piece in reply.pieces(text):
            yield named("content_block_delta", index=index, delta={"type": kind, field: piece})
        if isinstance(part, Thinking) and not part.is_hidden:
            signed = {"type": "signature_delta", "signature": part.proof}
            yield named("content_block_delta", index=index, delta=signed)
        yield named("content_block_stop", index=index)
    stop = {"stop_reason": reply.stop, "stop_sequence": reply.stop_text}
    usage = {"output_tokens": reply.usage.completion, **_thinking_tokens(reply.usage)}
    yield named("message_delta", delta=stop, usage=usage)
    yield named("message_stop")


def _converse_block(part: Written) -> dict[str, Any]:
    """Return a complete content block of an answer of Bedrock."""
    if isinstance(part, ToolUse):
        call = {"toolUseId": part.id, "name": part.name, "input": json.loads(part.arguments)}
        return {"toolUse": call}
    if isinstance(part, (Text, Refused)):
        return {"text": part.text}
    if part.is_hidden:
        return {"reasoningContent": {"redactedContent": part.proof}}
    signed = {"text": part.text, "signature": part.proof}
    return {"reasoningContent": {"reasoningText": signed}}


def _converse_end(reply: Reply) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the reason to stop, and the usage with the metrics."""
    told = reply.usage
    written = told.written or 0
    usage = {  # without the tokens of reasoning
        "inputTokens": told.prompt - told.cached - written,
        "cacheReadInputTokens": told.cached,
        "cacheWriteInputTokens": written,
        "outputTokens": told.completion,
        "totalTokens": told.prompt + told.completion,
    }
    stop: dict[str, Any] = {"stopReason": reply.stop}
    if reply.stop_text is not None:
        stop["additionalModelResponseFields"] = {"stop_sequence": reply.stop_text}
    return stop, {"usage": usage, "metrics": {"latencyMs": 700}}


def _whole_converse(reply: Reply) -> dict[str, Any]:
    stop, counts = _converse_end(reply)
    content = [_converse_block(part) for part in reply.parts]
    return {"output": {"message": {"role": "assistant", "content": content}}, **stop, **counts}


def _converse_events(reply: Reply) -> Iterator[bytes]:
    yield event({"messageStart": {"role": "assistant"}})
    for index, part in enumerate(reply.parts):
        place = {"contentBlockIndex": index}
        deltas: list[dict[str, Any]]
        if isinstance(part, ToolUse):
            start = {"toolUse": {"toolUseId": part.id, "name": part.name}}
            yield event({"contentBlockStart": {**place, "start": start}})
            arguments = part.arguments if json.loads(part.arguments) else ""
            deltas = [{"toolUse": {"input": piece}} for piece in reply.pieces(arguments)]
        elif isinstance(part, (Text, Refused)):
            deltas = [{"text": piece} for piece in reply.pieces(part.text)]
        elif part.is_hidden:
            deltas = [{"reasoningContent": {"redactedContent": part.proof}}]
        else:
            deltas = [{"reasoningContent": {"text": piece}} for piece in reply.pieces(part.text)]
            deltas.append({"reasoningContent": {"signature": part.proof}})
        for delta in deltas:
            yield event({"contentBlockDelta": {**place, "delta": delta}})
        yield event({"contentBlockStop": place})
    stop, counts = _converse_end(reply)
    yield event({"messageStop": stop})
    yield event({"metadata": counts})


_WHOLE = {
    apis.CONVERSE: _whole_converse,
    apis.CHAT: _whole_chat,
    apis.RESPONSES: _whole_response,
    apis.MESSAGES: _whole_message,
}
_EVENTS = {
    apis.CONVERSE: _converse_events,
    apis.CHAT: _chat_events,
    apis.RESPONSES: _response_events,
    apis.MESSAGES: _message_events,
}
