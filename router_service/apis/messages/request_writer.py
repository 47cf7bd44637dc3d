"""Writer of requests for upstreams that speak Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_service.apis import claude, schemas, writing
from router_service.apis.api import IsForeign, Target
from router_service.apis.conversation import Json
from router_service.apis.foreign import SEAL, to_input, wrap_custom
from router_service.apis.parts import (
    Media,
    OfferedTool,
    Part,
    Request,
    Result,
    Text,
    Thinking,
    ToolChoice,
    ToolUse,
)

DEFAULT_MAX_TOKENS = 8192
"""Longest answer if neither the request nor the model's configuration has a limit, which Messages
requires. Every current model of Anthropic allows at least as many."""

_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def write_request(
    request: Request, target: Target, is_foreign: IsForeign | None = None
) -> dict[str, Json]:
    """Return the body for a target that speaks Messages."""
    system, messages = _write_messages(request, target, is_foreign)
    tools, choice = writing.offered_tools(request)
    max_tokens = target.max_tokens(request) or target.max_output_tokens or DEFAULT_MAX_TOKENS
    body: dict[str, Json] = {
        "model": target.model,
        "max_tokens": max_tokens,
        "messages": messages,
    }
    if request.stream:
        body["stream"] = True
    if request.stop:
        body["stop_sequences"] = list(request.stop)

    mode = None if choice is None else choice.mode
    body |= _write_tools(request, tools, choice)
    if system:
        body["system"] = [{"type": "text", "text": writing.join_texts(system)}]

    config: dict[str, Json] = {}
    if request.output_format is not None:
        schema = schemas.structured(request.output_format.schema, schemas.CLAUDES)
        config["format"] = {"type": "json_schema", "schema": schema}
    # A model that must call a tool cannot think before.
    if target.supports_reasoning and request.effort is not None and mode != "required":
        _add_thinking(body, config, request, target)
    if config:
        body["output_config"] = config
    if claude.takes_sampling(target.model) and "thinking" not in body:
        # While it thinks, Claude samples in one way only. Some models take only one of the two.
        if request.temperature is not None and request.temperature != 1:
            body["temperature"] = request.temperature
        elif request.top_p is not None and request.top_p != 1:
            body["top_p"] = request.top_p

    if tools:
        # OpenAI caches prompts automatically, Anthropic only up to a marked block.
        stable = body["system"][-1] if system else body["tools"][-1]
        for block in (stable, messages[-1]["content"][-1]):
            block["cache_control"] = {"type": "ephemeral"}
    return body


def _write_tools(
    request: Request, tools: Sequence[OfferedTool], choice: ToolChoice | None
) -> dict[str, Json]:
    """Return the fields for the tools and the choice among them."""
    if not tools:
        # Messages with calls are only accepted with a definition of what was called.
        names = dict.fromkeys(
            part.name
            for message in request.messages
            for part in message.parts
            if isinstance(part, ToolUse)
        )
        if not names:
            return {}
        defined = [_write_tool(OfferedTool(name)) for name in names]
        return {"tools": defined, "tool_choice": {"type": "none"}}
    fields: dict[str, Json] = {"tools": [_write_tool(tool) for tool in tools]}
    chosen: dict[str, Json] = {"type": _CHOICES[choice.mode] if choice else "auto"}
    if choice is not None and choice.names:
        chosen = {"type": "tool", "name": writing.portable_name(choice.names[0])}
    if request.is_parallel is False and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    if choice is not None or len(chosen) > 1:
        fields["tool_choice"] = chosen
    return fields


def _add_thinking(
    body: dict[str, Json], config: dict[str, Json], request: Request, target: Target
) -> None:
    effort = request.effort
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
        return
    if not claude.thinks_by_budget(target.model):
        display = "summarized" if request.shows_thinking else "omitted"
        body["thinking"] = {"type": "adaptive", "display": display}
        config["effort"] = "low" if effort == "minimal" else effort
        return
    # While tools are used, the model continues its own thinking, which must be there.
    last = next((m for m in reversed(body["messages"]) if m["role"] == "assistant"), None)
    is_answered = body["messages"][-1]["content"][0]["type"] == "tool_result"
    if is_answered and last is not None and "thinking" not in last["content"][0]["type"]:
        return
    budget = claude.thinking_budget(effort or "", request.thinking_tokens, body["max_tokens"])
    if budget is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}


def _write_messages(
    request: Request, target: Target, is_foreign: IsForeign | None
) -> tuple[list[str], list[dict[str, Json]]]:
    """Return the system texts and the messages, whose roles alternate."""
    system, messages = writing.split_system(request.messages)
    written: list[dict[str, Json]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        found = (_write_part(part, message.role, target, is_foreign) for part in message.parts)
        blocks = [block for block in found if block is not None]
        if not blocks:
            continue
        if role == "user":  # results must come first
            blocks.sort(key=lambda block: block["type"] != "tool_result")
        if written and written[-1]["role"] == role:
            written[-1]["content"] += blocks
        else:
            written.append({"role": role, "content": blocks})
    if not written:
        text = writing.join_texts(system)
        written, system = [{"role": "user", "content": [{"type": "text", "text": text}]}], []
    elif written[0]["role"] == "assistant":
        # The first message must be the user's.
        note = {"type": "text", "text": "(The assistant begins the conversation.)"}
        written.insert(0, {"role": "user", "content": [note]})
    return system, written


def _write_part(part: Part, role: str, target: Target, is_foreign: IsForeign | None) -> Json:
    """Return a content block, or None for what must not be sent."""
    block: Json = None
    match part:
        case Text(text):
            if text and not text.isspace():  # Anthropic rejects others
                is_system = role in {"system", "developer"}
                block = {"type": "text", "text": writing.as_reminder(text) if is_system else text}
        case Media():
            block = _write_media(part)
        case Result():
            block = _write_result(part, target)
        case ToolUse(call_id, name, arguments, is_custom):
            block = {
                "type": "tool_use",
                "id": target.call_id(call_id),
                "name": writing.portable_name(name),
                "input": to_input(wrap_custom(arguments) if is_custom else arguments),
            }
        case Thinking(text, proof, is_hidden):
            if writing.is_usable(part, target, is_foreign):
                hidden = {"type": "redacted_thinking", "data": proof}
                shown = {"type": "thinking", "thinking": text, "signature": proof}
                block = hidden if is_hidden else shown
    return block


def _write_result(result: Result, target: Target) -> Json:
    block: dict[str, Json] = {"type": "tool_result", "tool_use_id": target.call_id(result.call_id)}
    content: list[Json] = []
    for part in result.content:
        if isinstance(part, Media):
            content.append(_write_media(part))
        elif part.text and not part.text.isspace():
            content.append({"type": "text", "text": part.text})
    if content:
        block["content"] = content
    if result.is_error:
        block["is_error"] = True
    return block


def _write_media(part: Media) -> Json:
    source: dict[str, Json]
    if part.url is not None:
        source = {"type": "url", "url": part.url}
    elif writing.is_text_document(part):
        source = {"type": "text", "media_type": "text/plain", "data": part.data}
    else:
        default = "image/png" if part.kind == "image" else "application/pdf"
        media_type = part.media_type or default
        source = {"type": "base64", "media_type": media_type, "data": part.data}
    block: dict[str, Json] = {"type": part.kind, "source": source}
    if part.kind == "document" and part.name:
        block["title"] = part.name
    return block


def _write_tool(tool: OfferedTool) -> dict[str, Json]:
    tool = writing.as_function(tool)
    schema = schemas.object_schema(tool.parameters)
    if tool.is_strict:
        schema = schemas.structured(schema, schemas.CLAUDES)
    written: dict[str, Json] = {
        "name": writing.portable_name(tool.name),
        "input_schema": schema,
    }
    if tool.description:
        written["description"] = tool.description
    if tool.is_strict:
        written["strict"] = True
    return written


_TYPES = ("thinking", "redacted_thinking")


def without_foreign_thinking(
    body: Mapping[str, Json], is_foreign: IsForeign
) -> dict[str, Json] | None:
    """Return a body without reasoning that its upstream would reject, or None if it has none."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None

    def is_rejected(block: Json) -> bool:
        if not isinstance(block, dict) or block.get("type") not in _TYPES:
            return False
        proof = block.get("signature", block.get("data"))
        return isinstance(proof, str) and (proof.startswith(SEAL) or is_foreign(proof))

    kept: list[Any] = []
    last_lost: int | None = None
    for index, message in enumerate(messages):
        new = message
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            blocks = (
                [block for block in content if not is_rejected(block)]
                if isinstance(content, list)
                else []
            )
            if isinstance(content, list) and len(blocks) < len(content):
                last_lost = index
                if not blocks:
                    continue
                new = {**message, "content": blocks}
        kept.append(new)
    if last_lost is None:
        return None
    changed = {**body, "messages": kept}
    # With thinking on, Anthropic requires the thinking blocks of the current tool loop.
    is_in_loop = all(map(_is_result, messages[last_lost + 1 :]))
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
