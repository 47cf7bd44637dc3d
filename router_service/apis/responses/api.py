"""OpenAI's Responses API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import orjson

from router_service.apis import openapi
from router_service.apis.api import (
    AnswerWriter,
    Api,
    FieldNames,
    OpenAIApi,
)
from router_service.apis.conversation import ChatRequest, Json, as_list
from router_service.apis.parts import Request, media_of
from router_service.apis.reading import AnswerReader
from router_service.apis.responses import (
    NAME,
    TRIGGER,
    answer_reader,
    answer_writer,
    chat_form,
    request_reader,
    request_writer,
)

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


class ResponsesApi(OpenAIApi):
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

    read_request = staticmethod(request_reader.read_request)
    write_request = staticmethod(request_writer.write_request)
    place_of_call = staticmethod(request_reader.place_of_call)
    without_foreign_thinking = staticmethod(request_writer.without_foreign_thinking)
    is_beginning = staticmethod(answer_reader.is_beginning)
    find_proofs = staticmethod(answer_reader.find_proofs)
    record = staticmethod(answer_reader.ResponsesRecord)
    read_usage = staticmethod(answer_reader.read_usage)
    continued = staticmethod(chat_form.read_continued)
    keep_alive = staticmethod(answer_writer.ResponsesKeepAlive)

    def parse(self, chat_body: Mapping[str, Json]) -> ChatRequest:
        """Return what the router needs of a body, whose items it reads as chat messages."""
        return chat_form.parse_responses_request(chat_body)

    def chat_messages(self, chat_body: Mapping[str, Json]) -> list[Json]:
        """Return the items of a body as chat messages."""
        return [
            {name: value for name, value in message.items() if value != []}
            for _, message in chat_form.to_chat_messages(chat_body)
        ]

    def compacting(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the request whose last item asks for the summary."""
        items = body.get("input")
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        return {**body, "input": [*as_list(items), {"type": TRIGGER}]}

    def request_schema(self, *, is_counted: bool = False) -> openapi.RequestSchema:
        """Return the OpenAPI schema of a request; other fields are forwarded too."""
        item = {"type": "object", "properties": {"type": openapi.STRING, "role": openapi.STRING}}
        stored = "A stored response to continue; its provider answers."
        schema = openapi.object_with(
            "model input",
            model=openapi.MODEL,
            input={"anyOf": [openapi.STRING, openapi.array_of(item, minItems=1)]},
            instructions={"type": ["string", "null"]},
            tools=openapi.array_of(
                {"type": "object", "required": ["type"]}, description=openapi.TOOLS
            ),
            previous_response_id={"type": ["string", "null"], "description": stored},
            stream={"type": ["boolean", "null"], "description": openapi.STREAM},
        )
        tool = {"type": "function", **openapi.EXAMPLE_TOOL["function"]}
        example = {
            "model": "switchcraft",
            "input": openapi.EXAMPLE_TURN["content"],
            "tools": [tool],
        }
        return openapi.RequestSchema(schema, example)

    def inexpressible(self, request: Request, client: Api) -> Iterator[str]:
        """Yield the fields of a client's request that this API cannot express."""
        if request.stop:
            yield client.fields.stop
        if any(part.kind == "audio" for part in media_of(request)):
            yield f"{client.fields.messages} (audio)"

    def parameter(self, name: str, value: Json, model: str) -> tuple[str, Json] | None:
        """Return the field for a parameter of Chat Completions."""
        return None if name in _LACKING else (_PARAMETERS.get(name, name), value)

    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether a value is a response, or an event with the name of one."""
        kind = value.get("type")
        return value.get("object") in ("response", "response.compaction") or (
            isinstance(kind, str) and kind.startswith("response.")
        )

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return answer_reader.ResponsesReader()

    def answer_writer(self, request: Request, *, model: str, created_s: int) -> AnswerWriter:
        """Return a writer of the answer to a request."""
        writer = (
            answer_writer.ResponsesWriter
            if request.compacts is None
            else answer_writer.SummaryWriter
        )
        return writer(model, created_s, request)

    def error_event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream; Vercel's client requires its number.

        Some clients read the error's fields at the top level, others below `error`, as in chat.
        """
        error = orjson.loads(body)
        event = {**error["error"], **error, "type": "error", "sequence_number": number}
        return b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"


RESPONSES: Api = ResponsesApi()
