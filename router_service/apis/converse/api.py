"""Amazon Bedrock's Converse API."""

from __future__ import annotations

from collections.abc import Mapping

from router_service.apis.api import UpstreamApi
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
from router_service.apis.reading import AnswerReader
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

    write_request = staticmethod(write_request)
    inexpressible = staticmethod(inexpressible)
    parameter = staticmethod(parameter)
    recognizes = staticmethod(recognizes)
    is_beginning = staticmethod(is_beginning)
    parse_answer = staticmethod(parse_answer)
    find_proofs = staticmethod(find_proofs)
    is_error = staticmethod(is_error)
    is_error_body = staticmethod(is_error_body)
    error_fields = staticmethod(error_fields)
    read_error = staticmethod(read_error)

    def read_usage(self, value: Mapping[str, Json], before: Usage | None = None) -> Usage | None:
        """Return the usage of an answer or of an event."""
        return read_usage(value)

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return ConverseReader(is_parallel=request.is_parallel is not False)


CONVERSE: UpstreamApi = ConverseApi()
