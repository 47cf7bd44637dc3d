"""Amazon Bedrock's Converse API."""

from __future__ import annotations

from router_service.apis.api import UpstreamApi
from router_service.apis.converse import (
    NAME,
    answer_reader,
    request_writer,
)
from router_service.apis.parts import Request
from router_service.apis.reading import AnswerReader


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
    call_id_pattern = request_writer.CALL_ID
    continues_answers = True  # Claude does; the other models demand a last message of the user
    has_proofs = True

    write_request = staticmethod(request_writer.write_request)
    inexpressible = staticmethod(request_writer.inexpressible)
    parameter = staticmethod(request_writer.parameter)
    recognizes = staticmethod(answer_reader.recognizes)
    is_beginning = staticmethod(answer_reader.is_beginning)
    parse_answer = staticmethod(answer_reader.parse_answer)
    read_usage = staticmethod(answer_reader.read_usage)
    find_proofs = staticmethod(answer_reader.find_proofs)
    is_error = staticmethod(answer_reader.is_error)
    is_error_body = staticmethod(answer_reader.is_error_body)
    error_fields = staticmethod(answer_reader.error_fields)
    read_error = staticmethod(answer_reader.read_error)

    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""
        return answer_reader.ConverseReader(is_parallel=request.is_parallel is not False)


CONVERSE: UpstreamApi = ConverseApi()
