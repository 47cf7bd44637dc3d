"""OpenAI's Chat Completions API, which most other providers speak too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from router_service.apis import openapi
from router_service.apis.api import (
    AnswerWriter,
    Api,
    FieldNames,
    IsForeign,
    OpenAIApi,
    Target,
)
from router_service.apis.chat import (
    NAME,
    answer_reader,
    answer_writer,
    request_reader,
    request_writer,
)
from router_service.apis.conversation import Json
from router_service.apis.parts import Request, media_of
from router_service.apis.reading import AnswerReader
from router_service.apis.usage import Usage

_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_completion_tokens",
    "reasoning": "reasoning_effort",
    "reasoning_effort": "reasoning",
}
"""Pairs of parameters that exclude each other, in both directions."""

_TEXT_PART = openapi.object_with("type", type=openapi.STRING, text=openapi.STRING)
_MESSAGE = openapi.object_with(
    "role content",
    role={"enum": "system developer user assistant tool function".split()},
    content={"anyOf": [openapi.STRING, openapi.array_of(_TEXT_PART), {"type": "null"}]},
    tool_calls=openapi.array_of({"type": "object"}),
    tool_call_id=openapi.STRING,
)
_FUNCTION = openapi.object_with(
    "name",
    name={"type": "string", "minLength": 1, "maxLength": 64},
    description={"type": "string", "description": "What the tool does; the router reads it too."},
    parameters={"type": "object", "description": "JSON Schema of the arguments."},
)
_TOOL = openapi.object_with("type function", type={"const": "function"}, function=_FUNCTION)


class ChatApi(OpenAIApi):
    """OpenAI's Chat Completions API."""

    name = NAME
    title = "the Chat Completions API"
    path = "/chat/completions"
    operation = "chat_completions"
    summary = "Chat Completions (OpenAI)"
    description = "Answer a chat request with the pool's model that the router chooses."
    fields = FieldNames("messages", stop="stop", output_format="response_format")
    max_call_id_characters = 40
    answer_id_prefix = "chatcmpl-"
    proof_pattern = re.compile(
        rb'"(?:reasoning(?:_content|_details)?|extra_content|provider_specific_fields)"()'
    )
    call_reason = re.compile(rb'("finish_reason"\s*:\s*)"(?:tool_calls|function_call)"')
    text_reason = b'"stop"'
    call_mark = re.compile(rb'"tool_calls"\s*:\s*\[\s*\{|"function_call"\s*:\s*\{')

    read_request = staticmethod(request_reader.read_request)
    write_request = staticmethod(request_writer.write_request)
    place_of_call = staticmethod(request_reader.place_of_call)
    is_beginning = staticmethod(answer_reader.is_beginning)
    record = staticmethod(answer_reader.ChatRecord)

    def request_schema(self, *, is_counted: bool = False) -> openapi.RequestSchema:
        """Return the OpenAPI schema of a request; other fields are forwarded too."""
        conversation = "The conversation so far, the oldest turn first."
        schema = openapi.object_with(
            "model messages",
            model=openapi.MODEL,
            messages=openapi.array_of(_MESSAGE, minItems=1, description=conversation),
            tools=openapi.array_of(_TOOL, description=openapi.TOOLS),
            stream={"type": ["boolean", "null"], "description": openapi.STREAM},
        )
        example = {
            "model": "switchcraft",
            "messages": [openapi.EXAMPLE_TURN],
            "tools": [openapi.EXAMPLE_TOOL],
        }
        return openapi.RequestSchema(schema, example)

    def inexpressible(self, request: Request, client: Api) -> Iterator[str]:
        """Yield the fields of a client's request that this API cannot express."""
        if len(request.stop) > request_writer.MAX_STOPS:
            yield client.fields.stop
        if any(part.kind == "document" and part.url for part in media_of(request)):
            yield f"{client.fields.messages} (document by URL)"

    def fit_call_id(self, call_id: str, provider: str = "") -> str:
        """Return a call's id, or a hash of it if the provider would reject the id."""
        if provider != "mistral":
            return super().fit_call_id(call_id, provider)
        if _MISTRAL_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]

    def with_fitting_call_ids(self, body: bytes, target: Target) -> bytes:
        """Return a body whose ids of calls, and of their results, the target accepts."""
        return (
            request_writer.with_fitting_call_ids(body, target) if target.limits_call_ids else body
        )

    def without_foreign_thinking(
        self, body: Mapping[str, Json], is_foreign: IsForeign
    ) -> dict[str, Json] | None:
        """Return a body without reasoning if it is foreign, or None if nothing is to be removed."""
        return request_writer.without_reasoning(body) if is_foreign("") else None

    def excludes_parameter(self, name: str) -> str:
        """Return the other name of a parameter, which cannot be set together with it."""
        return _OTHER_NAMES.get(name, "")

    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether a choice has a message or a part of one."""
        choices = value.get("choices")
        if isinstance(choices, list):
            for choice in choices:  # not `any`, because every event of a stream comes here
                if isinstance(choice, dict) and ("delta" in choice or "message" in choice):
                    return True
        return False

    def read_usage(self, value: Mapping[str, Json], before: Usage | None = None) -> Usage | None:
        """Return the usage of an answer or of an event."""
        return answer_reader.read_usage(value)

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return answer_reader.ChatReader(request.stop)

    def answer_writer(self, request: Request, *, model: str, created_s: int) -> AnswerWriter:
        """Return a writer of the answer to a request."""
        return answer_writer.ChatWriter(model, created_s, wants_usage=request.wants_usage)

    def error_event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream, which has no name."""
        return b"data: " + body + b"\n\n"


CHAT: Api = ChatApi()
