"""Amazon Bedrock's Converse API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from router_service.apis.answer_errors import AnswerError
from router_service.apis.answers import ParsedAnswer
from router_service.apis.api import AnswerReader, Api, IsForeign, Target, UpstreamApi
from router_service.apis.conversation import Json
from router_service.apis.converse import NAME
from router_service.apis.converse.answer_reader import (
    ConverseReader,
    find_proofs,
    is_beginning,
    parse_answer,
    read_usage,
    recognizes,
)
from router_service.apis.converse.error import error_fields, is_error, is_error_body, read_error
from router_service.apis.converse.request_writer import (
    CALL_ID,
    inexpressible,
    parameter,
    write_request,
)
from router_service.apis.parts import Request
from router_service.apis.usage import Usage


class ConverseApi(UpstreamApi):
    """Amazon Bedrock's Converse API.

    Two things differ from what AWS gets and sends, so that the rest of the gateway need not know
    them. `upstream/platforms/` converts both.

    A body has the fields `model` and `stream`, as in the other APIs. In AWS's requests, the address
    says both.

    A stream has server-sent events, into which AWS's binary messages are turned. The data of each
    is one JSON object with the event's type as its only key, as in botocore's parsed stream:

        {"messageStart": {"role": "assistant"}}
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {...}}}}
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hel"}}}
        {"contentBlockStop": {"contentBlockIndex": 0}}
        {"messageStop": {"stopReason": "end_turn"}}
        {"metadata": {"usage": {...}, "metrics": {...}}}

    Exceptions have the same form: `{"throttlingException": {"message": "..."}}`. Blobs stay base64.
    """

    name = NAME
    title = "the Converse API"
    path = "/converse"
    call_id_pattern = CALL_ID
    continues_answers = True  # Claude does; the other models demand a last message of the user
    has_proofs = True

    def write_request(
        self, request: Request, target: Target, is_foreign: IsForeign | None = None
    ) -> dict[str, Json]:
        """Return the body for a target."""
        return write_request(request, target, is_foreign)

    def inexpressible(self, request: Request, client: Api) -> Iterator[str]:
        """Yield the fields of a client's request that this API cannot express."""
        return inexpressible(request, client)

    def parameter(self, name: str, value: Json, model: str) -> tuple[str, Json] | None:
        """Return the field for a parameter of Chat Completions, as the model's vendor names it."""
        return parameter(name, value, model)

    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether a value is an answer, or an event with a type of this API."""
        return recognizes(value)

    def is_beginning(self, event: Mapping[str, Json]) -> bool:
        """Return whether an event contains nothing of the answer."""
        return is_beginning(event)

    def parse_answer(self, value: Mapping[str, Json]) -> ParsedAnswer | None:
        """Return the calls and the text of a whole answer, or None if they are not kept."""
        return parse_answer(value)

    def read_usage(self, value: Mapping[str, Json], before: Usage | None = None) -> Usage | None:
        """Return the usage of an answer or of an event."""
        return read_usage(value)

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return ConverseReader(is_parallel=request.is_parallel is not False)

    def find_proofs(self, value: Mapping[str, Json]) -> Iterator[str]:
        """Yield the proofs of reasoning in a whole answer."""
        return find_proofs(value)

    def is_error(self, value: Mapping[str, Json]) -> bool:
        """Return whether a body or an event is an error, even if the status was a success."""
        return is_error(value)

    def is_error_body(self, value: Json) -> bool:
        """Return whether a decoded body is an error of AWS, which has only a message."""
        return is_error_body(value)

    def error_fields(self, value: Json) -> Json:
        """Return the message of an error, with its status as the code."""
        return error_fields(value)

    def read_error(self, value: Json, status: int) -> AnswerError:
        """Return what an error says. The exception's name stands for a status."""
        return read_error(value, status)


CONVERSE: UpstreamApi = ConverseApi()
