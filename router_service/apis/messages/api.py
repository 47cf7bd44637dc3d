"""Anthropic's Messages API."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel

from router_service.apis import claude, openapi
from router_service.apis.answer_errors import TOO_LONG, AnswerError, read_error
from router_service.apis.api import (
    AnswerWriter,
    Api,
    FieldNames,
    KeepAlive,
    RateState,
    RawHeader,
)
from router_service.apis.conversation import Json
from router_service.apis.messages import (
    NAME,
    answer_reader,
    answer_writer,
    chat_form,
    request_reader,
    request_writer,
)
from router_service.apis.parts import Request, media_of
from router_service.apis.reading import AnswerReader

_PARAMETERS = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "stop": "stop_sequences",
}
"""Parameters that have other names in Chat Completions."""

_LACKING = frozenset(
    "frequency_penalty logit_bias logprobs modalities prediction presence_penalty response_format "
    "seed parallel_tool_calls prompt_cache_key prompt_cache_retention reasoning safety_identifier "
    "tool_choice top_logprobs user verbosity".split()
)
"""Parameters that this API does not have, or has in another form. Anthropic refuses requests with
unknown ones."""

_TYPES = (
    "message",
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
)


@lru_cache(maxsize=256)
def _write_time(second: int) -> bytes:
    """Return a Unix time as in RFC 3339; cached, because requests of one second share it."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()


class MessagesFault(BaseModel):
    """Details of an error in Anthropic's format."""

    type: str
    message: str


class MessagesErrorBody(BaseModel):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: MessagesFault
    request_id: str


class MessagesApi(Api):
    """Anthropic's Messages API."""

    name = NAME
    title = "the Messages API"
    path = "/messages"
    counting_path = "/messages/count_tokens"
    operation = "create_message"
    summary = "Messages (Anthropic)"
    description = (
        "Answer a request of Anthropic's Messages API with the model that the router chooses."
    )
    fields = FieldNames("messages", stop="stop_sequences")
    call_id_pattern = re.compile(r"[a-zA-Z0-9_-]+")
    answer_id_prefix = "msg_"
    takes_objects = True
    omits_unasked_thinking = True
    continues_answers = True
    ping_type = "ping"
    has_proofs = True
    proof_marks = (b'"signature"', b'"redacted_thinking"')
    call_reason = re.compile(rb'("stop_reason"\s*:\s*)"tool_use"')
    text_reason = b'"end_turn"'
    call_mark = re.compile(rb'"type"\s*:\s*"[a-z_]*tool_use"')
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    proof_pattern = re.compile(rb'"(?:signature|data)"\s*:\s*"([^"\\]{8,})"')
    forwarded_headers = frozenset({"anthropic-version", "anthropic-beta"})
    default_headers = {"anthropic-version": "2023-06-01"}  # noqa: RUF012 - never changed
    error_body = MessagesErrorBody

    read_request = staticmethod(request_reader.read_request)
    write_request = staticmethod(request_writer.write_request)
    place_of_call = staticmethod(request_reader.place_of_call)
    without_foreign_thinking = staticmethod(request_writer.without_foreign_thinking)
    is_beginning = staticmethod(answer_reader.is_beginning)
    find_proofs = staticmethod(answer_reader.find_proofs)
    read_usage = staticmethod(answer_reader.read_usage)
    write_error = staticmethod(answer_writer.write_error)
    record = staticmethod(answer_reader.MessagesRecord)
    to_chat = staticmethod(chat_form.to_chat_body)
    parse = staticmethod(chat_form.parse_messages_request)

    def request_schema(self, *, is_counted: bool = False) -> openapi.RequestSchema:
        """Return the OpenAPI schema of a request; other fields are forwarded too.

        A request whose tokens are counted (`is_counted`) needs no `max_tokens`, and has no stream.
        """
        blocks = openapi.array_of({"type": "object", "required": ["type"]})
        text = {"anyOf": [openapi.STRING, blocks]}
        message = openapi.object_with(
            "role content", role={"enum": ["user", "assistant"]}, content=text
        )
        schema = openapi.object_with(
            "model messages" if is_counted else "model messages max_tokens",
            model=openapi.MODEL,
            max_tokens={"type": "integer", "minimum": 0},
            messages=openapi.array_of(message, minItems=1),
            system=text,
            tools={
                "type": ["array", "null"],
                "items": {"type": "object"},
                "description": openapi.TOOLS,
            },
        )
        if is_counted:
            return openapi.RequestSchema(schema)
        schema["properties"]["stream"] = {"type": "boolean", "description": openapi.STREAM}
        function: openapi.Document = {**openapi.EXAMPLE_TOOL["function"]}
        tool = {"input_schema": function.pop("parameters"), **function}
        example = {"model": "switchcraft", "messages": [openapi.EXAMPLE_TURN], "tools": [tool]}
        return openapi.RequestSchema(schema, {"max_tokens": 1024, **example})

    def inexpressible(self, request: Request, client: Api) -> Iterator[str]:
        """Return the fields of a client's request that this API cannot express."""
        media = list(media_of(request))
        kinds = ["audio"] if any(part.kind == "audio" for part in media) else []
        documents = [part for part in media if part.kind == "document" and part.data]
        if any(part.media_type not in request_reader.DOCUMENT_TYPES for part in documents):
            kinds.append("document that is neither PDF nor text")
        return claude.inexpressible(request, client, kinds)

    def parameter(self, name: str, value: Json, model: str) -> tuple[str, Json] | None:
        """Return the field for a parameter of Chat Completions."""
        if name in _LACKING:
            return None
        place = _PARAMETERS.get(name, name)
        is_one_stop = place == "stop_sequences" and isinstance(value, str)
        return place, [value] if is_one_stop else value

    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether a value is a message, or has the type of an event of one."""
        return value.get("type") in _TYPES

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return answer_reader.MessagesReader()

    def answer_writer(self, request: Request, *, model: str, created_s: int) -> AnswerWriter:
        """Return a writer of the answer to a request."""
        return answer_writer.MessagesWriter(model)

    def keep_alive(self, model: str) -> KeepAlive:
        """Return pings, which may come at any place ("Streaming messages", ping events)."""
        return KeepAlive(self.ping)

    def rate_headers(self, rate: RateState, now_s: float) -> Sequence[RawHeader]:
        """Return the headers about one rate limit (Anthropic: "Rate limits", response headers)."""
        prefix = b"anthropic-ratelimit-" + rate.unit
        return (
            (prefix + b"-limit", b"%d" % rate.limit),
            (prefix + b"-remaining", b"%d" % rate.remaining),
            (prefix + b"-reset", _write_time(math.ceil(now_s + rate.reset_s))),
        )

    def write_fault(
        self, status: int, fault: Mapping[str, str | None], *, request_id: str | None = None
    ) -> dict[str, Json]:
        """Return the body of an error of the gateway; its code is in the details."""
        body = super().write_fault(status, fault, request_id=request_id)
        if fault["code"] is not None:
            body["error"]["details"] = {"error_code": fault["code"]}
        return body

    def is_error_body(self, value: Json) -> bool:
        """Return whether a decoded body is an error in Anthropic's format."""
        has_error = isinstance(value, dict) and isinstance(value.get("error"), dict)
        return has_error and value.get("type") == "error"

    def read_error(self, value: Json, status: int) -> AnswerError:
        """Return what an error says; Anthropic has no code for a prompt that is too long."""
        error = read_error(value, status)
        if error.code is None and error.message.startswith(answer_writer.TOO_LONG_MESSAGE):
            return replace(error, code=TOO_LONG)
        return error


MESSAGES: Api = MessagesApi()
