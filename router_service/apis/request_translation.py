"""Requests that are translated: read in the client's API, for any other one.

An upstream that speaks the client's API gets the client's bytes, so nothing here is used for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from router_service.apis.api import Api, UpstreamApi
from router_service.apis.conversation import Json
from router_service.apis.encoding import fits_inside
from router_service.apis.foreign import read_attached
from router_service.apis.parts import (
    Media,
    Message,
    Part,
    Request,
    Result,
    ToolUse,
    has_content,
)
from router_service.core.errors import InvalidRequestError


def read_request(body: Mapping[str, Json], client: Api, *, compacts: bool = False) -> Request:
    """Read a request that has to be translated, or with `compacts` one to compact a conversation.

    Every call of the result has exactly one result, directly after the message with the calls, and
    no two calls have the same id. What only `client`, the API of the body, can express is listed in
    `lost`.

    Raises InvalidRequestError for malformed values, for a result without a call, and for a call
    without a result, all of which every API rejects, and for a schema that is nested too deeply to
    be written.
    """
    if compacts:
        body = client.compacting(body)
    request = client.read_request(body)
    if compacts:
        request = replace(request, compacts="conversation", stream=False)
    last = request.messages[-1] if request.messages else None
    if last is not None and last.role != "assistant" and not has_content(last):
        field = client.fields.messages
        items = body.get(field)
        place = f"[{len(items) - 1}].content" if isinstance(items, list) else ""
        request = replace(request, blank_end=f"{field}{place}")
    schemas = [tool.parameters for tool in request.tools]
    if not fits_inside([*schemas, request.output_format and request.output_format.schema]):
        raise InvalidRequestError(
            "The schema of a tool or of the answer is nested too deeply to be translated. Flatten"
            " it.",
            param="tools",
            code="schema_too_deep",
        )
    try:
        return replace(request, messages=tuple(_pair(request, body, client)))
    except InvalidRequestError:
        if request.lost:  # perhaps what was lost contains the calls
            return request
        raise


def _pair(request: Request, body: Mapping[str, Json], client: Api) -> Iterator[Message]:
    """Yield the messages with every call's result directly after the message with the call.

    What a provider attached to a call is taken out of the call's id.
    """
    renamed: list[tuple[Part, ...]] = []
    answers: dict[int, dict[str, Result]] = {}
    open_calls: dict[str, tuple[int, str]] = {}
    uses: dict[str, int] = {}
    for index, message in enumerate(request.messages):
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolUse):
                if part.id in open_calls:
                    problem = "has the same id as another call that has no result yet"
                    raise _unpaired(client, body, part, problem, "duplicate_tool_call")
                call = read_attached(part.id)
                # Some servers number the calls of each answer anew.
                uses[call.id] = count = uses.get(call.id, 0) + 1
                new_id = call.id if count == 1 else f"{call.id}-{count}"
                open_calls[part.id] = index, new_id
                answers.setdefault(index, {})[new_id] = Result(new_id, ())
                attached, provider = call.attached, call.provider
                new = replace(part, id=new_id, attached=attached, provider=provider)
                parts.append(part if new_id == part.id else new)
            elif isinstance(part, Result):
                if part.call_id not in open_calls:
                    is_second = read_attached(part.call_id).id in uses
                    problem = "has a result already" if is_second else "is not in the conversation"
                    code = "duplicate_tool_result" if is_second else "orphaned_tool_result"
                    raise _unpaired(client, body, part, f"belongs to a call that {problem}", code)
                caller, new_id = open_calls.pop(part.call_id)
                is_same = part.call_id == new_id
                answers[caller][new_id] = part if is_same else replace(part, call_id=new_id)
            else:
                parts.append(part)
        renamed.append(tuple(parts))
    for call_id in open_calls:
        problem = "has no result in the conversation"
        raise _unpaired(client, body, ToolUse(call_id, "", ""), problem, "missing_tool_result")
    for index, (message, kept) in enumerate(zip(request.messages, renamed, strict=True)):
        if kept:
            yield Message(message.role, kept)
        if index in answers:
            yield Message("user", tuple(answers[index].values()))


def _unpaired(
    client: Api, body: Mapping[str, Json], part: ToolUse | Result, problem: str, code: str
) -> InvalidRequestError:
    """Return the error for a call or a result, with its last place in the body."""
    is_result = isinstance(part, Result)
    kind, call_id = ("result", part.call_id) if isinstance(part, Result) else ("call", part.id)
    param = field = client.fields.messages
    for index, item in enumerate(body[field]):
        if place := client.place_of_call(item, call_id, is_result=is_result):
            param = f"{field}[{index}].{place}"
    return InvalidRequestError(
        f"The tool {kind} {call_id[:200]!r} {problem} ('{param}'). Send each call once, and exactly"
        " one result for it after it.",
        param=param,
        code=code,
    )


def obstacles(request: Request, client: Api, target: UpstreamApi) -> tuple[str, ...]:
    """Return paths of what the target cannot express, in words of the client's API.

    A request without obstacles can be translated. A client's own API has none.
    """
    if client is target:
        return ()
    found, where = list(request.lost), client.fields.messages
    spoken = (message for message in request.messages if message.role != "user")
    if any(isinstance(part, Media) for message in spoken for part in message.parts):
        found.append(f"{where} (image that is not the user's)")
    found += target.inexpressible(request, client)
    last = next((m for m in reversed(request.messages) if has_content(m)), None)
    is_answered = last is not None and last.role == "assistant"
    # Some APIs continue a last message of the assistant. The others answer it with a new one.
    if is_answered and (client.continues_answers or target.continues_answers):
        blank = request.blank_end
        found.append(f"{blank} (empty)" if blank else f"{where}[-1].role")
    return tuple(found)
