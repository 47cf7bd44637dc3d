"""The sandbox's Messages API: answers, their events, and token counts.

If a request asks for thinking, the answer begins with a thinking block. Like Anthropic, the sandbox
refuses blocks whose signature is not its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from router_service.apis.conversation import Json, parse_conversation
from router_service.apis.messages.chat_form import parse_messages_request, to_chat_body
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.answers import (
    SandboxAnswer,
    SandboxUsage,
    count_tokens,
    count_usage,
    encode_prompt,
    fragments,
    make_answer,
    read_request,
)
from router_service.sandbox.filling import mapping, sequence
from router_service.sandbox.sending import Faults, Reply, event

SIGNATURE = "sandbox-signature-"
"""Beginning of the signatures of the sandbox's thinking blocks."""

THOUGHT = "This is the sandbox: nobody thinks."


def messages(body: Mapping[str, Json], faults: Faults) -> Reply:
    """Answer `POST /v1/messages`; raise InvalidRequestError."""
    chat = to_chat_body(body)
    stream = parse_messages_request(chat).stream
    _check_signatures(body)
    prompt = encode_prompt(chat)
    answer = make_answer(chat, read_request(chat), prompt)
    effort = "low" if mapping(body.get("thinking")).get("type") in ("enabled", "adaptive") else None
    message = MessageAnswer(
        message_id=f"msg_sandbox{secrets.token_hex(12)}",
        model=body["model"],
        answer=answer,
        usage=SandboxUsage(0, 0) if faults.no_usage else count_usage(prompt, answer, effort=effort),
        has_thinking=effort is not None,
    )
    if stream:
        return Reply(events=list(message.events()), is_anthropic=True)
    return Reply(body=orjson.dumps(message.to_json()), is_anthropic=True)


def count_message_tokens(body: Mapping[str, Json], _faults: Faults) -> Reply:
    """Answer `POST /v1/messages/count_tokens`; raise InvalidRequestError."""
    chat = to_chat_body(body)
    parse_conversation(chat)
    counted = {"input_tokens": count_tokens(len(encode_prompt(chat)))}
    return Reply(body=orjson.dumps(counted), is_anthropic=True)


def _check_signatures(body: Mapping[str, Json]) -> None:
    """Raise InvalidRequestError if a thinking block does not come from a sandbox."""
    for index, message in enumerate(sequence(body.get("messages"))):
        for place, block in enumerate(sequence(mapping(message).get("content"))):
            fields = mapping(block)
            if fields.get("type") != "thinking":
                continue
            signature = fields.get("signature")
            if not isinstance(signature, str) or not signature.startswith(SIGNATURE):
                where = f"messages.{index}.content.{place}"
                raise InvalidRequestError(
                    f"{where}: Invalid `signature` in `thinking` block", param=where
                )


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """The contents of an answer of the Messages API."""

    message_id: str
    model: str
    answer: SandboxAnswer
    usage: SandboxUsage
    has_thinking: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return the whole answer."""
        stop = "tool_use" if self.answer.calls else "end_turn"
        return self._message(list(self._blocks()), stop, self.usage.completion_tokens)

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream."""
        for value in self._events():
            yield event(value, value["type"])

    def _events(self) -> Iterator[dict[str, Json]]:
        yield {"type": "message_start", "message": self._message([], None, 1)}
        yield {"type": "ping"}
        for index, block in enumerate(self._blocks()):
            place = {"index": index}
            empty: dict[str, Json]
            deltas: list[dict[str, Json]]
            match block:
                case {"type": "thinking", "thinking": text, "signature": signature}:
                    empty = {"type": "thinking", "thinking": "", "signature": ""}
                    deltas = [{"type": "thinking_delta", "thinking": t} for t in fragments(text)]
                    deltas.append({"type": "signature_delta", "signature": signature})
                case {"type": "text", "text": text}:
                    empty = {"type": "text", "text": ""}
                    deltas = [{"type": "text_delta", "text": t} for t in fragments(text)]
                case _:
                    empty = block | {"input": {}}
                    written = orjson.dumps(block["input"]).decode()
                    deltas = [
                        {"type": "input_json_delta", "partial_json": part}
                        for part in ("", *fragments(written))
                    ]
            yield {"type": "content_block_start", **place, "content_block": empty}
            for delta in deltas:
                yield {"type": "content_block_delta", **place, "delta": delta}
            yield {"type": "content_block_stop", **place}
        final = self.to_json()
        ending = {"stop_reason": final["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": ending, "usage": final["usage"]}
        yield {"type": "message_stop"}

    def _blocks(self) -> Iterator[dict[str, Json]]:
        if self.has_thinking:
            signature = f"{SIGNATURE}{self.message_id}"
            yield {"type": "thinking", "thinking": THOUGHT, "signature": signature}
        for call in self.answer.calls:
            call_id = f"toolu_{call.call_id.removeprefix('call_')}"
            arguments = orjson.loads(call.payload)
            yield {"type": "tool_use", "id": call_id, "name": call.name, "input": arguments}
        if not self.answer.calls:
            yield {"type": "text", "text": self.answer.text or ""}

    def _message(self, content: list[Json], stop: str | None, tokens: int) -> dict[str, Json]:
        usage = {
            "input_tokens": self.usage.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": tokens,
        }
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }
