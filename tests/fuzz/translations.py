"""Fuzz target: requests of every API, written for every other API, and answers on their way back.

Each input is a JSON object: the numbers of the client's and the upstream's API (`client`,
`upstream`), the client's `body`, and the upstream's `answer`, which is a list of events if it is a
stream. The APIs that only upstreams speak have the last numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from router_service.apis.answer_errors import AnswerError, ForeignAnswerError
from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.api import Target
from router_service.apis.encoding import encode
from router_service.apis.parts import Request
from router_service.apis.registry import parse_answer
from router_service.apis.request_translation import obstacles, read_request
from router_service.core.errors import InvalidRequestError
from router_service.core.strict_json import loads_exactly
from router_service.http.error_responses import ErrorFormat, error_body
from router_service.requests.parsing import parse_request
from router_service.upstream.bodies import UnreadableError, read_json
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.endpoints import CHAT, MESSAGES, RESPONSES
from tests.fuzz.events import read_stream
from tests.fuzz.mutation import of_json
from tests.fuzz.target import Target as FuzzTarget
from tests.fuzz.target import expect, fail

Json = Any

DIALECTS, SOURCES = tuple(APIS), APIS.of_upstreams
ENDPOINTS = {apis.CHAT: CHAT, apis.RESPONSES: RESPONSES, apis.MESSAGES: MESSAGES}
TARGETS: Mapping[UpstreamApi, Sequence[Target]] = {
    apis.CHAT: [
        Target(apis.CHAT, "m", provider, supports_reasoning=True)
        for provider in ("openai", "vllm", "mistral")
    ],
    apis.RESPONSES: [Target(apis.RESPONSES, "m", "openai", supports_reasoning=True)],
    apis.MESSAGES: [
        Target(apis.MESSAGES, model, "anthropic", supports_reasoning=True)
        for model in ("claude-sonnet-4-5", "claude-opus-4-7")
    ],
    apis.CONVERSE: [
        Target(apis.CONVERSE, model, "bedrock", supports_reasoning=True)
        for model in ("anthropic.claude-opus-4-7", "amazon.nova-2-lite-v1:0", "meta.llama4")
    ],
}


def check(data: bytes) -> None:
    """Check one request, and the answer to it."""
    try:
        case = json.loads(data)
    except (ValueError, RecursionError):
        return
    case = case if isinstance(case, dict) else {}
    client = DIALECTS[_number(case.get("client")) % len(DIALECTS)]
    upstream = SOURCES[_number(case.get("upstream")) % len(SOURCES)]
    request = check_request(client, written(case.get("body")))
    if request is None:
        request = Request("m", ())
    if client is not upstream:
        check_answer(request, client, upstream, case.get("answer"))


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def written(value: Json) -> bytes:
    """Return a value as JSON, with lone surrogates as escapes."""
    return json.dumps(value).encode()


def read_strict(data: bytes) -> None:
    """Check that bytes are JSON in UTF-8 without NaN and infinities."""
    json.loads(data.decode(), parse_constant=lambda name: fail(f"{name} is written"))


def check_request(client: Api, body: bytes) -> Request | None:
    """Check that a body is refused with a reason, or written for each API that can express it."""
    try:
        parsed = parse_request(ENDPOINTS[client], body)
        parsed.read_content()
        value = loads_exactly(parsed.body.with_model("m"))
        request = read_request(value, client)
    except InvalidRequestError as exc:
        expect(exc.message and exc.code, f"an error without words: {exc!r}")
        read_strict(error_body(exc, ErrorFormat(client)))
        return None
    if client.without_foreign_thinking(value, lambda _: True) is not None:
        encode(client.without_foreign_thinking(value, lambda proof: len(proof) % 2 == 0))
    for dialect, targets in TARGETS.items():
        if dialect is client:
            client.with_fitting_call_ids(encode(value), targets[-1])
        elif not obstacles(request, client, dialect):
            for target in targets:
                read_strict(encode(dialect.write_request(request, target)))
    return request


def check_answer(request: Request, client: Api, source: UpstreamApi, answer: Json) -> None:
    """Check that an answer is translated to valid JSON, or refused as the upstream's mistake."""
    translator = AnswerTranslator(source, client, request, model="m", created_s=1)
    if isinstance(answer, list):
        data = b"".join(b"data: %b\n\n" % written(event) for event in answer)
        relayed = read_stream(data + b"data: [DONE]\n\n", source, translator)
        check_events(relayed.data + translator.error(AnswerError(502, "broken")))
        return
    try:
        value = read_json(written(answer), is_exact=True)
        parse_answer(value)
        read_strict(translator.whole(value))
    except (UnreadableError, ForeignAnswerError):
        return


def check_events(data: bytes) -> None:
    """Check that each event of a translated stream has valid JSON."""
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            read_strict(line[6:])


TOKENS: Sequence[bytes] = tuple(
    word.encode()
    for word in (
        "model messages input tools functions function custom name description parameters "
        "input_schema role user system developer assistant tool content text type tool_calls "
        "function_call arguments id call_id tool_use_id tool_call_id output tool_use tool_result "
        "thinking redacted_thinking signature data encrypted_content reasoning summary image "
        "image_url source url base64 media_type document title file file_data input_text "
        "input_image output_text refusal function_call_output custom_tool_call namespace "
        "tool_search_call tool_search_output additional_tools execution client allowed_tools mode "
        "auto required none any tool_choice stop stop_sequences max_tokens stream metadata "
        "clear_at next_user_message tool_addition tool_removal tool_reference tool_definition "
        "search_result citations defer_loading input_examples allowed_callers format grammar "
        "json_schema schema strict output_config effort choices delta message index finish_reason "
        "usage response message_start message_delta message_stop content_block_start "
        "content_block_delta content_block_stop content_block text_delta input_json_delta "
        "partial_json thinking_delta signature_delta response.created response.completed "
        "response.output_item.added response.output_item.done response.output_text.delta "
        "response.function_call_arguments.delta output_index content_index item status error "
        "prompt_tokens completion_tokens input_tokens output_tokens stop_reason reasoning_content "
        "reasoning_details messageStart contentBlockStart contentBlockDelta contentBlockStop "
        "messageStop metadata contentBlockIndex start toolUse toolUseId reasoningContent "
        "reasoningText redactedContent citationsContent stopReason inputTokens outputTokens "
        "throttlingException additionalModelResponseFields stop_sequence"
    ).split()
)

TARGET = FuzzTarget(
    name="translations",
    check=check,
    mutate=of_json(TOKENS),
    tokens=TOKENS,
    runs=1_500,
)
