"""The sandbox's Messages API: answers, their events, and token counts.

If a request asks for thinking, the answer begins with a thinking block. Like Anthropic, the sandbox
refuses blocks whose signature is not its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import orjson

from router_service.apis.conversation import Json, parse_conversation
from router_service.apis.messages.api import MESSAGES
from router_service.apis.messages.chat_form import parse_messages_request, to_chat_body
from router_service.apis.parts import Answer, AnswerPart, Stop, Thinking
from router_service.apis.usage import Usage
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.event_writing import write_answer
from router_service.sandbox.filling import mapping, sequence
from router_service.sandbox.replies import (
    SandboxUsage,
    count_tokens,
    count_usage,
    encode_prompt,
    make_answer,
    read_request,
)
from router_service.sandbox.sending import Faults, Reply

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
    usage = SandboxUsage(0, 0) if faults.no_usage else count_usage(prompt, answer, effort=effort)
    thinking: list[AnswerPart] = []
    if effort is not None:
        signature = f"{SIGNATURE}{secrets.token_hex(12)}"
        thinking = [Thinking(THOUGHT, signature, origin=MESSAGES.name)]
    written = Answer(
        id=f"msg_sandbox{secrets.token_hex(12)}",
        model=body["model"],
        parts=(*thinking, *answer.parts(id_prefix="toolu_")),
        stop=Stop.CALLS if answer.calls else Stop.END,
        usage=Usage(usage.prompt_tokens, usage.completion_tokens),
    )
    return write_answer(MESSAGES, written, stream=stream)


def count_message_tokens(body: Mapping[str, Json], _faults: Faults) -> Reply:
    """Answer `POST /v1/messages/count_tokens`; raise InvalidRequestError."""
    chat = to_chat_body(body)
    parse_conversation(chat)
    counted = {"input_tokens": count_tokens(len(encode_prompt(chat)))}
    return Reply(body=orjson.dumps(counted), api=MESSAGES)


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
