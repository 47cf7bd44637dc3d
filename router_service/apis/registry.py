"""Requests: read in the client's API, and written in the API of an upstream.

An upstream that speaks the client's API gets the client's bytes, so nothing here is used for it,
except to remove reasoning of another provider.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from router_service.apis.chat import request as chat
from router_service.apis.conversation import Json, as_list
from router_service.apis.encoding import fits_inside
from router_service.apis.foreign import SEAL
from router_service.apis.messages import request as messages
from router_service.apis.parts import (
    Dialect,
    Media,
    Message,
    Part,
    Request,
    Result,
    Text,
    ToolUse,
)
from router_service.apis.responses import request as responses
from router_service.apis.writing import IsForeign, Target
from router_service.core.errors import InvalidRequestError

_STOPS = {Dialect.CHAT: "stop", Dialect.MESSAGES: "stop_sequences"}
_FORMATS = {Dialect.CHAT: "response_format", Dialect.RESPONSES: "text.format"}
_LISTS = {Dialect.CHAT: "messages", Dialect.RESPONSES: "input", Dialect.MESSAGES: "messages"}
_THINKING_TYPES = ("thinking", "redacted_thinking")
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


def read_request(body: Mapping[str, Json], dialect: Dialect) -> Request:
    """Read a request that has to be translated.

    Every call of the result has exactly one result, directly after the message with the calls, and
    no two calls have the same id. What only `dialect` can express is listed in `lost`.

    Raises InvalidRequestError for malformed values, for a result without a call, and for a call
    without a result, all of which every API rejects, and for a schema that is nested too deeply to
    be written.
    """
    read = {
        Dialect.CHAT: chat.read_request,
        Dialect.RESPONSES: responses.read_request,
        Dialect.MESSAGES: messages.read_request,
    }[dialect]
    request = read(body)
    schemas = [tool.parameters for tool in request.tools]
    if not fits_inside([*schemas, request.output_format and request.output_format.schema]):
        raise InvalidRequestError(
            "The schema of a tool or of the answer is nested too deeply to be translated. Flatten"
            " it.",
            param="tools",
            code="schema_too_deep",
        )
    try:
        return replace(request, messages=tuple(_pair(request, body)))
    except InvalidRequestError:
        if request.lost:  # perhaps what was lost contains the calls
            return request
        raise


def _pair(request: Request, body: Mapping[str, Json]) -> Iterator[Message]:
    """Yield the messages with every call's result directly after the message with the call."""
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
                    raise _unpaired(request, body, part, problem, "duplicate_tool_call")
                # Some servers number the calls of each answer anew.
                uses[part.id] = count = uses.get(part.id, 0) + 1
                new_id = part.id if count == 1 else f"{part.id}-{count}"
                open_calls[part.id] = index, new_id
                answers.setdefault(index, {})[new_id] = Result(new_id, ())
                parts.append(part if count == 1 else replace(part, id=new_id))
            elif isinstance(part, Result):
                if part.call_id not in open_calls:
                    is_second = part.call_id in uses
                    problem = "has a result already" if is_second else "is not in the conversation"
                    code = "duplicate_tool_result" if is_second else "orphaned_tool_result"
                    raise _unpaired(request, body, part, f"belongs to a call that {problem}", code)
                caller, new_id = open_calls.pop(part.call_id)
                is_same = part.call_id == new_id
                answers[caller][new_id] = part if is_same else replace(part, call_id=new_id)
            else:
                parts.append(part)
        renamed.append(tuple(parts))
    for call_id in open_calls:
        problem = "has no result in the conversation"
        raise _unpaired(request, body, ToolUse(call_id, "", ""), problem, "missing_tool_result")
    for index, (message, kept) in enumerate(zip(request.messages, renamed, strict=True)):
        if kept:
            yield Message(message.role, kept)
        if index in answers:
            yield Message("user", tuple(answers[index].values()))


def _unpaired(
    request: Request, body: Mapping[str, Json], part: ToolUse | Result, problem: str, code: str
) -> InvalidRequestError:
    """Return the error for a call or a result, with its last place in the body."""
    kind, call_id = ("call", part.id) if isinstance(part, ToolUse) else ("result", part.call_id)
    param = _LISTS[request.dialect]
    for index, item in enumerate(body[param]):
        path = f"{_LISTS[request.dialect]}[{index}]"
        if request.dialect is Dialect.RESPONSES:
            is_kind = str(item.get("type")).endswith("_output") == (kind == "result")
            param = f"{path}.call_id" if is_kind and item.get("call_id") == call_id else param
        elif request.dialect is Dialect.CHAT and kind == "result":
            param = f"{path}.tool_call_id" if item.get("tool_call_id") == call_id else param
        else:
            inner = "tool_calls" if request.dialect is Dialect.CHAT else "content"
            field = "tool_use_id" if kind == "result" else "id"
            for number, block in enumerate(as_list(item.get(inner))):
                if isinstance(block, dict) and block.get(field) == call_id:
                    param = f"{path}.{inner}[{number}].{field}"
    return InvalidRequestError(
        f"The tool {kind} {call_id[:200]!r} {problem} ('{param}'). Send each call once, and exactly"
        " one result for it after it.",
        param=param,
        code=code,
    )


def obstacles(request: Request, target: Dialect) -> tuple[str, ...]:
    """Return paths of what the target cannot express, in words of the client's API.

    A request without obstacles can be translated. A client's own API has none.
    """
    source = request.dialect
    if source is target:
        return ()
    found = list(request.lost)
    media = [
        part
        for message in request.messages
        for outer in message.parts
        for part in (outer.content if isinstance(outer, Result) else (outer,))
        if isinstance(part, Media)
    ]
    where = _LISTS[source]
    last = next((m for m in reversed(request.messages) if _has_content(m)), None)
    is_answered = last is not None and last.role == "assistant"
    form = request.output_format
    checks: dict[Dialect, tuple[tuple[bool, str], ...]] = {
        Dialect.CHAT: (
            (len(request.stop) > chat.MAX_STOPS, _STOPS.get(source, "")),
            (any(p.kind == "document" and p.url for p in media), f"{where} (document by URL)"),
        ),
        Dialect.RESPONSES: (
            (bool(request.stop), _STOPS.get(source, "")),
            (any(p.kind == "audio" for p in media), f"{where} (audio)"),
        ),
        Dialect.MESSAGES: (
            (not all(stop.strip() for stop in request.stop), _STOPS.get(source, "")),
            (any(p.kind == "audio" for p in media), f"{where} (audio)"),
            (
                any(
                    p.data and p.kind == "document" and p.media_type not in messages.DOCUMENT_TYPES
                    for p in media
                ),
                f"{where} (document that is neither PDF nor text)",
            ),
            (request.temperature is not None and request.temperature > 1, "temperature"),
            (form is not None and form.schema is None, _FORMATS.get(source, "")),
            (not request.messages or not any(map(_has_content, request.messages)), where),
        ),
    }
    spoken = (m for m in request.messages if m.role != "user")
    if any(isinstance(part, Media) for message in spoken for part in message.parts):
        found.append(f"{where} (image that is not the user's)")
    found += [path for is_met, path in checks[target] if is_met]
    # Messages continues a last message of the assistant. The other APIs answer it with a new one.
    if is_answered and Dialect.MESSAGES in {source, target}:
        found.append(f"{where}[-1].role")
    return tuple(found)


def _has_content(message: Message) -> bool:
    return any(
        isinstance(part, Media | Result | ToolUse)
        or (isinstance(part, Text) and part.text and not part.text.isspace())
        for part in message.parts
    )


def write_request(
    request: Request, target: Target, is_foreign: IsForeign | None = None
) -> dict[str, Json]:
    """Return the body of a request without obstacles for a target.

    `is_foreign` tells proofs of reasoning that another provider of the target's API made. Such
    reasoning is not sent, because the target would reject it.
    """
    if target.dialect is Dialect.CHAT:
        return chat.write_request(request, target)
    if target.dialect is Dialect.RESPONSES:
        return responses.write_request(request, target, is_foreign)
    return messages.write_request(request, target, is_foreign)


def with_fitting_call_ids(body: Mapping[str, Json], target: Target) -> dict[str, Json]:
    """Return a chat body whose ids of calls, and of their results, the target accepts."""
    messages: list[Any] = []
    listed = body.get("messages")
    for message in listed if isinstance(listed, list) else ():
        new = message
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if isinstance(calls, list):
            fitted = [
                {**call, "id": target.call_id(call["id"])}
                if isinstance(call, dict) and isinstance(call.get("id"), str)
                else call
                for call in calls
            ]
            new = {**message, "tool_calls": fitted}
        elif isinstance(message, dict) and isinstance(message.get("tool_call_id"), str):
            new = {**message, "tool_call_id": target.call_id(message["tool_call_id"])}
        messages.append(new)
    return {**body, "messages": messages}


def without_foreign_thinking(
    body: Mapping[str, Json], dialect: Dialect, is_foreign: IsForeign
) -> dict[str, Json] | None:
    """Return a body without reasoning that its upstream would reject, or None if it has none.

    The upstream speaks the body's API. `is_foreign` is asked for every proof, and for an empty text
    if Chat Completions carries reasoning without a proof. Proofs with our seal are always foreign.
    """
    field = _LISTS[dialect]
    items = body.get(field)
    if not isinstance(items, list):
        return None

    def is_rejected(proof: Json) -> bool:
        return isinstance(proof, str) and (proof.startswith(SEAL) or is_foreign(proof))

    kept: list[Any] = []
    last_lost: int | None = None
    for index, item in enumerate(items):
        new = item
        if not isinstance(item, dict):
            pass
        elif dialect is Dialect.RESPONSES:
            proof = item.get("encrypted_content")
            if item.get("type") == "reasoning" and is_rejected(proof or ""):
                continue
        elif item.get("role") == "assistant" and dialect is Dialect.CHAT:
            if any(item.get(name) for name in _REASONING_FIELDS) and is_foreign(""):
                new = {name: v for name, v in item.items() if name not in _REASONING_FIELDS}
        elif item.get("role") == "assistant" and isinstance(item.get("content"), list):
            blocks = [
                block
                for block in item["content"]
                if not isinstance(block, dict)
                or block.get("type") not in _THINKING_TYPES
                or not is_rejected(block.get("signature", block.get("data")))
            ]
            if len(blocks) < len(item["content"]):
                last_lost = index
                if not blocks:
                    continue
                new = {**item, "content": blocks}
        kept.append(new)
    if len(kept) == len(items) and all(map(operator.is_, kept, items)):
        return None
    changed = {**body, field: kept}
    if dialect is Dialect.RESPONSES:
        # An item whose id the provider knows is rejected without the reasoning that led to it.
        changed[field] = [
            {name: value for name, value in item.items() if name != "id"}
            if isinstance(item, dict) and item.get("type") != "item_reference"
            else item
            for item in kept
        ]
    # With thinking on, Anthropic requires the thinking blocks of the current tool loop.
    is_in_loop = last_lost is not None and all(map(_is_result, items[last_lost + 1 :]))
    return _without_thinking_mode(changed) if is_in_loop else changed


def _is_result(message: Json) -> bool:
    """Return whether a message of Messages belongs to the exchange of calls and results."""
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result")
        for block in content
    )


def _without_thinking_mode(body: dict[str, Json]) -> dict[str, Json]:
    """Return a body of Messages that does not demand thinking by budget.

    With a budget, Claude refuses to continue a tool loop whose thinking is missing.
    """
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return body
    changed = {name: value for name, value in body.items() if name != "thinking"}
    management = body.get("context_management")
    if isinstance(management, dict) and isinstance(management.get("edits"), list):
        edits = [
            edit
            for edit in management["edits"]
            if not str(edit.get("type") if isinstance(edit, dict) else "").startswith(
                "clear_thinking"
            )
        ]
        changed["context_management"] = {**management, "edits": edits}
    return changed
