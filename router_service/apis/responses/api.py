"""OpenAI's Responses API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from router_service.apis.answer_errors import AnswerError, is_openai_error, write_openai_error
from router_service.apis.api import (
    AnswerReader,
    AnswerWriter,
    Api,
    FieldNames,
    IsForeign,
    KeepAlive,
    Target,
)
from router_service.apis.conversation import ChatRequest, Json, Reference, as_list
from router_service.apis.openapi import RequestSchema
from router_service.apis.parts import Request, media_of
from router_service.apis.responses import NAME, TRIGGER
from router_service.apis.responses.answer_reader import ResponsesReader
from router_service.apis.responses.answer_writer import ResponsesWriter, SummaryWriter
from router_service.apis.responses.chat_form import (
    parse_responses_request,
    read_continued,
    to_chat_messages,
)
from router_service.apis.responses.keep_alive import ResponsesKeepAlive
from router_service.apis.responses.record import (
    ResponsesRecord,
    find_proofs,
    is_beginning,
    read_usage,
)
from router_service.apis.responses.request_reader import place_of_call, read_request
from router_service.apis.responses.request_writer import without_foreign_thinking, write_request
from router_service.apis.responses.schema import request_schema
from router_service.apis.usage import Usage

_PARAMETERS = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
"""Parameters that have other names in Chat Completions."""

_LACKING = frozenset(
    "frequency_penalty logit_bias logprobs modalities prediction presence_penalty response_format "
    "seed stop".split()
)
"""Parameters that this API does not have. OpenAI refuses requests with unknown ones."""


class ResponsesApi(Api):
    """OpenAI's Responses API."""

    name = NAME
    title = "the Responses API"
    path = "/responses"
    compacting_path = "/responses/compact"
    operation = "create_response"
    summary = "Responses (OpenAI)"
    description = (
        "Answer with the chosen model, or with the model that stored the response to be continued."
    )
    fields = FieldNames("input", output_format="text.format")
    answer_id_prefix = "resp_"
    stores_answers = True
    has_proofs = True
    proofs_belong_to_key = True
    proof_marks = (b'"encrypted_content"',)
    proof_pattern = re.compile(rb'"encrypted_content"\s*:\s*"([^"\\]{8,})"')

    def parse(self, chat_body: Mapping[str, Json]) -> ChatRequest:
        """Return what the router needs of a body, whose items it reads as chat messages."""
        return parse_responses_request(chat_body)

    def continued(self, body: Mapping[str, Json]) -> Reference | None:
        """Return the stored response or conversation that a body continues, if any."""
        return read_continued(body)

    def chat_messages(self, chat_body: Mapping[str, Json]) -> list[Json]:
        """Return the items of a body as chat messages."""
        return [
            {name: value for name, value in message.items() if value != []}
            for _, message in to_chat_messages(chat_body)
        ]

    def request_schema(self, *, is_counted: bool = False) -> RequestSchema:
        """Return the schema of a request."""
        return request_schema()

    def read_request(self, body: Mapping[str, Json]) -> Request:
        """Read a request that has to be translated."""
        return read_request(body)

    def compacting(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the request whose last item asks for the summary."""
        items = body.get("input")
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        return {**body, "input": [*as_list(items), {"type": TRIGGER}]}

    def write_request(
        self, request: Request, target: Target, is_foreign: IsForeign | None = None
    ) -> dict[str, Json]:
        """Return the body for a target."""
        return write_request(request, target, is_foreign)

    def inexpressible(self, request: Request, client: Api) -> Iterator[str]:
        """Yield the fields of a client's request that this API cannot express."""
        if request.stop:
            yield client.fields.stop
        if any(part.kind == "audio" for part in media_of(request)):
            yield f"{client.fields.messages} (audio)"

    def place_of_call(self, item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
        """Return where an item has a call, or its result."""
        return place_of_call(item, call_id, is_result=is_result)

    def without_foreign_thinking(
        self, body: Mapping[str, Json], is_foreign: IsForeign
    ) -> dict[str, Json] | None:
        """Return a body without foreign reasoning, or None if nothing is to be removed."""
        return without_foreign_thinking(body, is_foreign)

    def parameter(self, name: str, value: Json, model: str) -> tuple[str, Json] | None:
        """Return the field for a parameter of Chat Completions."""
        return None if name in _LACKING else (_PARAMETERS.get(name, name), value)

    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether a value is a response, or an event with the name of one."""
        kind = value.get("type")
        return value.get("object") in ("response", "response.compaction") or (
            isinstance(kind, str) and kind.startswith("response.")
        )

    def is_beginning(self, event: Mapping[str, Json]) -> bool:
        """Return whether an event contains nothing of the answer."""
        return is_beginning(event)

    def record(self) -> ResponsesRecord:
        """Return a record for an answer that is not translated."""
        return ResponsesRecord()

    def read_usage(self, value: Mapping[str, Json], before: Usage | None = None) -> Usage | None:
        """Return the usage of an answer or of an event."""
        return read_usage(value)

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return ResponsesReader()

    def answer_writer(self, request: Request, *, model: str, created_s: int) -> AnswerWriter:
        """Return a writer of the answer to a request."""
        writer = ResponsesWriter if request.compacts is None else SummaryWriter
        return writer(model, created_s, request)

    def keep_alive(self, model: str) -> KeepAlive:
        """Return the beginning of a response whose answer follows."""
        return ResponsesKeepAlive(model)

    def find_proofs(self, value: Mapping[str, Json]) -> Iterator[str]:
        """Yield the proofs of reasoning in a whole answer."""
        return find_proofs(value)

    def write_error(self, error: AnswerError, *, request_id: str | None = None) -> dict[str, Json]:
        """Return the body of an error."""
        return write_openai_error(error)

    def write_fault(
        self, status: int, fault: Mapping[str, Any], *, request_id: str | None = None
    ) -> dict[str, Json]:
        """Return the body of an error of the gateway, whose fields are OpenAI's."""
        return {"error": dict(fault)}

    def is_error_body(self, value: Json) -> bool:
        """Return whether a decoded body is an error in OpenAI's format."""
        return is_openai_error(value)

    def error_event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream; Vercel's client requires its number.

        Some clients read the error's fields at the top level, others below `error`, as in chat.
        """
        error = orjson.loads(body)
        event = {**error["error"], **error, "type": "error", "sequence_number": number}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


RESPONSES: Api = ResponsesApi()
