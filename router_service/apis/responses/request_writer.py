"""Writer of requests for upstreams that speak Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_service.apis import schemas, writing
from router_service.apis.api import IsForeign, Target
from router_service.apis.conversation import Json
from router_service.apis.foreign import SEAL, unseal_summary
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    OutputFormat,
    Request,
    Result,
    Text,
    Thinking,
    ToolUse,
)
from router_service.apis.responses import COMPACTIONS
from router_service.apis.responses.request_reader import SUMMARY


def write_request(
    request: Request, target: Target, is_foreign: IsForeign | None = None
) -> dict[str, Json]:
    """Return the body for a target that speaks Responses.

    The provider stores nothing, because the client could not name what is stored. So its reasoning
    comes back to it encrypted.
    """
    tools, choice = writing.offered_tools(request)
    system, messages = writing.split_system(request.messages)
    items: list[Json] = []
    for message in messages:
        items += _write_message(message, target, is_foreign)
    if not items:  # a request needs an input
        items, system = [{"role": "developer", "content": writing.join_texts(system)}], []
    fields: dict[str, Json] = {
        "model": target.model,
        "instructions": writing.join_texts(system) or None,
        "input": items,
        "stream": request.stream or None,
        "store": False,
        "max_output_tokens": target.max_tokens(request),
        "temperature": target.temperature(request),
        "top_p": request.top_p,
    }
    if tools:
        fields["tools"] = [write_tool(tool, target) for tool in tools]
        fields["parallel_tool_calls"] = request.is_parallel
    if choice is not None:
        fields["tool_choice"] = choice.mode
        if choice.names:
            name = choice.names[0]
            is_custom = any(tool.is_custom for tool in tools if tool.name == name)
            fields["tool_choice"] = {
                "type": "custom" if is_custom else "function",
                "name": writing.portable_name(name),
            }
    if target.supports_reasoning:
        reasoning = {"effort": target.effort(request)}
        if request.shows_thinking:
            reasoning["summary"] = "auto"
        reasoning = {name: value for name, value in reasoning.items() if value is not None}
        fields["reasoning"] = reasoning or None
        fields["include"] = ["reasoning.encrypted_content"]
    text: dict[str, Json] = {}
    if request.output_format is not None:
        text["format"] = write_format(request.output_format, target)
    if target.is_openai:
        fields |= {
            "user": request.user,
            "prompt_cache_key": request.cache_key,
            "service_tier": request.service_tier,
        }
        if request.verbosity is not None:
            text["verbosity"] = request.verbosity
    fields["text"] = text or None
    return {name: value for name, value in fields.items() if value is not None}


def _write_message(message: Message, target: Target, is_foreign: IsForeign | None) -> list[Json]:
    items: list[Json] = []
    if message.role != "assistant":
        others: list[Text | Media] = []
        for part in message.parts:
            if isinstance(part, Result):
                kind = "custom_tool_call_output" if part.is_custom else "function_call_output"
                call_id = target.call_id(part.call_id)
                output = _write_content(writing.result_parts(part))
                items.append({"type": kind, "call_id": call_id, "output": output})
            elif isinstance(part, Media) or (isinstance(part, Text) and part.text):
                others.append(part)
        if others:
            content = _write_content(others)
            items.append({"type": "message", "role": message.role, "content": content})
        return items
    for part in message.parts:
        if isinstance(part, Text):
            if part.text:
                items.append({"type": "message", "role": "assistant", "content": part.text})
        elif isinstance(part, ToolUse):
            called = {
                "call_id": target.call_id(part.id),
                "name": writing.portable_name(part.name),
            }
            if part.is_custom:
                items.append({"type": "custom_tool_call", **called, "input": part.arguments})
            else:
                items.append({"type": "function_call", **called, "arguments": part.arguments})
        elif isinstance(part, Thinking) and writing.is_usable(part, target, is_foreign):
            summary = [{"type": "summary_text", "text": part.text}] if part.text else []
            items.append({"type": "reasoning", "summary": summary, "encrypted_content": part.proof})
    return items


def _write_content(parts: Sequence[Text | Media]) -> Json:
    """Return the content of a message; a string if it is only text."""
    texts = [
        writing.text_document(part) if isinstance(part, Media) else part.text
        for part in parts
        if isinstance(part, Text) or writing.is_text_document(part)
    ]
    if len(texts) == len(parts):
        return writing.join_texts(texts)
    return [_write_part(part) for part in parts]


def _write_part(part: Text | Media) -> Json:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if part.kind == "image":
        url = part.url or f"data:{part.media_type or 'image/png'};base64,{part.data}"
        return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
    if writing.is_text_document(part):
        return {"type": "input_text", "text": writing.text_document(part)}
    if part.url is not None:
        return {"type": "input_file", "file_url": part.url}
    data = f"data:{part.media_type or 'application/pdf'};base64,{part.data}"
    return {"type": "input_file", "filename": part.name or "document.pdf", "file_data": data}


def write_format(form: OutputFormat, target: Target | None = None) -> Json:
    """Return the format of an answer's text, as it is or as a target accepts it."""
    if form.schema is None:
        return {"type": "json_object"}
    accepted, is_strict = form.schema, form.is_strict
    if target is not None:
        accepted, is_strict = target.fit_schema(accepted, is_strict)
    schema = {
        "type": "json_schema",
        "name": form.name,
        "description": form.description,
        "schema": accepted,
        "strict": bool(is_strict),
    }
    return {name: value for name, value in schema.items() if value is not None}


def write_tool(tool: OfferedTool, target: Target | None = None) -> Json:
    """Return a tool's definition, as it is or as a target accepts it."""
    name = writing.portable_name(tool.name)
    written: dict[str, Json] = {"type": "custom" if tool.is_custom else "function", "name": name}
    if tool.description:
        written["description"] = tool.description
    if tool.is_custom:
        if tool.grammar is not None:
            written["format"] = {"type": "grammar", **tool.grammar}
        return written
    schema, is_strict = schemas.object_schema(tool.parameters), tool.is_strict
    if target is not None:
        schema, is_strict = target.fit_schema(schema, is_strict)
    # Without `strict`, Responses makes functions strict, which the other APIs do not.
    return {**written, "parameters": schema, "strict": bool(is_strict)}


def without_foreign_thinking(
    body: Mapping[str, Json], is_foreign: IsForeign
) -> dict[str, Json] | None:
    """Return a body without reasoning that its upstream would reject, or None if it has none.

    Summaries of the gateway become messages.
    """
    items = body.get("input")
    if not isinstance(items, list):
        return None

    def is_rejected(item: Json) -> bool:
        if not isinstance(item, dict) or item.get("type") != "reasoning":
            return False
        proof = item.get("encrypted_content") or ""
        return isinstance(proof, str) and (proof.startswith(SEAL) or is_foreign(proof))

    kept = [_with_summary(item) for item in items if not is_rejected(item)]
    if kept == items:
        return None
    # An item whose id the provider knows is rejected without the reasoning that led to it.
    without_ids: list[Any] = [
        {name: value for name, value in item.items() if name != "id"}
        if isinstance(item, dict) and item.get("type") != "item_reference"
        else item
        for item in kept
    ]
    return {**body, "input": without_ids}


def _with_summary(item: Json) -> Json:
    """Return an item as it is, or a message with the summary of the gateway that it has."""
    is_summary = isinstance(item, dict) and item.get("type") in COMPACTIONS
    summary = unseal_summary(item.get("encrypted_content")) if is_summary else None
    if summary is None:
        return item
    content = [{"type": "input_text", "text": f"{SUMMARY}\n\n{summary}"}]
    return {"type": "message", "role": "user", "content": content}
