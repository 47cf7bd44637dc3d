"""Writer of requests for upstreams that speak Chat Completions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from router_service.apis import schemas, writing
from router_service.apis.api import IsForeign, Target
from router_service.apis.conversation import Json, as_list
from router_service.apis.foreign import ATTACHED, wrap_custom
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    Request,
    Result,
    Text,
    Thinking,
    ToolUse,
)
from router_service.core.strict_json import loads_exactly

MAX_STOPS = 4
"""Most stop texts that OpenAI accepts."""

_RESULT_ID = re.compile(rb'"tool_call_id"\s*:\s*"([^"]*)"')
"""The id of a call that has a result, in a body."""

_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


def write_request(
    request: Request, target: Target, is_foreign: IsForeign | None = None
) -> dict[str, Json]:
    """Return the body for a target that speaks Chat Completions."""
    takes_attached = is_foreign is None or not is_foreign("")
    tools, choice = writing.offered_tools(request)
    limit = "max_completion_tokens" if target.is_openai else "max_tokens"
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    fields: dict[str, Json] = {
        "model": target.model,
        "messages": _write_messages(request, target, takes_attached=takes_attached),
        **(stream if request.stream else {}),
        limit: target.max_tokens(request),
        "temperature": target.temperature(request),
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "reasoning_effort": target.effort(request),
    }
    if tools:
        fields["tools"] = [_write_tool(tool, target) for tool in tools]
        # Calls in parallel are OpenAI's default, and not every provider knows the field.
        is_sent = target.is_openai or request.is_parallel is False
        fields["parallel_tool_calls"] = request.is_parallel if is_sent else None
    if choice is not None:
        fields["tool_choice"] = choice.mode
        if choice.names:
            name = choice.names[0]
            named = {tool.name: tool for tool in tools}.get(name)
            kind = "custom" if named and named.is_custom and target.is_openai else "function"
            fields["tool_choice"] = {"type": kind, kind: {"name": writing.portable_name(name)}}
    form = request.output_format
    if form is not None and form.schema is None:
        fields["response_format"] = {"type": "json_object"}
    elif form is not None:
        accepted, is_strict = target.fit_schema(form.schema, form.is_strict)
        schema = {
            "name": form.name,
            "description": form.description,
            "schema": accepted,
            "strict": is_strict,
        }
        schema = {name: value for name, value in schema.items() if value is not None}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if target.is_openai:
        fields |= {
            "verbosity": request.verbosity,
            "user": request.user,
            "prompt_cache_key": request.cache_key,
            "service_tier": request.service_tier,
        }
    return {name: value for name, value in fields.items() if value is not None}


def _write_messages(
    request: Request, target: Target, *, takes_attached: bool
) -> list[dict[str, Json]]:
    written: list[dict[str, Json]] = []
    system, messages = writing.split_system(request.messages)
    if system:
        written.append({"role": "system", "content": writing.join_texts(system)})
    for message in messages:
        if message.role == "assistant":
            assistant = _write_assistant(message, target, takes_attached=takes_attached)
            if assistant is not None:
                written.append(assistant)
            continue
        if message.role in {"system", "developer"}:
            content = writing.join_texts(writing.texts_of(message.parts))
            if not content:
                continue
            if target.is_openai:
                written.append({"role": message.role, "content": content})
            else:  # templates of open models accept a system message only at the beginning
                _add_user(written, [Text(writing.as_reminder(content))], is_merged=True)
            continue

        others = _write_results(written, message, target)
        if others:
            _add_user(written, others, is_merged=not target.is_openai)
    for entry in written:
        if entry["role"] == "user":
            entry["content"] = _write_content(entry["content"])
    return written


def _write_results(
    written: list[dict[str, Json]], message: Message, target: Target
) -> list[Text | Media]:
    """Add the messages with the results of calls, and return the other parts.

    A result has only text. So its images are among the other parts, which a user's message after
    all results contains.
    """
    others: list[Text | Media] = []
    for part in message.parts:
        if isinstance(part, Result):
            parts = writing.result_parts(part)
            media = [inner for inner in parts if isinstance(inner, Media)]
            call_id = target.call_id(part.call_id)
            content = writing.join_texts(writing.texts_of(parts))
            if media:
                note = f"The result of the tool call {call_id} contains the following:"
                others += [Text(note), *media]
                content = content or "The result follows in the next message."
            written.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif isinstance(part, Text | Media):
            others.append(part)
    return others


def _write_assistant(
    message: Message, target: Target, *, takes_attached: bool
) -> dict[str, Json] | None:
    content = writing.join_texts(writing.texts_of(message.parts))
    written: dict[str, Json] = {"role": "assistant", "content": content or None}
    if target.reads_reasoning:
        thoughts = [part.text for part in message.parts if isinstance(part, Thinking) and part.text]
        if thoughts:
            written["reasoning_content"] = writing.join_texts(thoughts)
    calls = []
    for part in message.parts:
        if isinstance(part, ToolUse):
            name, call_id = writing.portable_name(part.name), target.call_id(part.id)
            if part.is_custom and target.is_openai:
                custom = {"name": name, "input": part.arguments}
                calls.append({"id": call_id, "type": "custom", "custom": custom})
            else:
                arguments = wrap_custom(part.arguments) if part.is_custom else part.arguments
                function = {"name": name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            if part.attached and takes_attached and _is_same(part.provider, target.provider):
                calls[-1] |= orjson.loads(part.attached)
    if calls:
        written["tool_calls"] = calls
    return written if calls or content else None


def _is_same(maker: str, provider: str) -> bool:
    """Return whether two providers run the same models; Google has two names."""
    return maker == provider or {maker, provider} == {"gemini", "vertex_ai"}


def _add_user(
    written: list[dict[str, Json]], parts: Sequence[Text | Media], *, is_merged: bool
) -> None:
    """Add a user's message, or add its parts to the user's message before it.

    The content stays a list of parts until all messages are there.
    """
    if is_merged and written and written[-1]["role"] == "user":
        written[-1]["content"] += parts
    else:
        written.append({"role": "user", "content": [*parts]})


def _write_content(parts: Sequence[Text | Media]) -> Json:
    """Return the content of a user's message; a string if it is only text."""
    if all(isinstance(part, Text) or writing.is_text_document(part) for part in parts):
        texts = [
            part.text if isinstance(part, Text) else writing.text_document(part) for part in parts
        ]
        return writing.join_texts(filter(None, texts))
    return [_write_part(part) for part in parts if not isinstance(part, Text) or part.text]


def _write_part(part: Text | Media) -> Json:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.kind == "image":
        url = part.url or f"data:{part.media_type or 'image/png'};base64,{part.data}"
        image = {"url": url} if part.detail is None else {"url": url, "detail": part.detail}
        return {"type": "image_url", "image_url": image}
    if part.kind == "audio":
        form = (part.media_type or "").removeprefix("audio/")
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}
    if writing.is_text_document(part):
        return {"type": "text", "text": writing.text_document(part)}
    data = f"data:{part.media_type or 'application/pdf'};base64,{part.data}"
    return {"type": "file", "file": {"filename": part.name or "document.pdf", "file_data": data}}


def _write_tool(tool: OfferedTool, target: Target) -> Json:
    name = writing.portable_name(tool.name)
    if tool.is_custom and target.is_openai:
        custom: dict[str, Json] = {"name": name}
        if tool.description:
            custom["description"] = tool.description
        if tool.grammar is not None:
            custom["format"] = {"type": "grammar", "grammar": tool.grammar}
        return {"type": "custom", "custom": custom}
    tool = writing.as_function(tool)
    schema, is_strict = target.fit_schema(schemas.object_schema(tool.parameters), tool.is_strict)
    function: dict[str, Json] = {"name": name, "parameters": schema}
    if tool.description:
        function["description"] = tool.description
    if is_strict is not None:
        function["strict"] = is_strict
    return {"type": "function", "function": function}


def with_fitting_call_ids(body: bytes, target: Target) -> bytes:
    """Return a body whose ids of calls, and of their results, the target accepts."""
    ids = (found.decode(errors="replace") for found in _RESULT_ID.findall(body))
    if all(target.call_id(call_id) == call_id for call_id in ids):
        return body
    fields = loads_exactly(body)
    messages: list[Any] = []
    for message in as_list(fields.get("messages")):
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
    return orjson.dumps({**fields, "messages": messages})


def without_reasoning(body: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return a body without reasoning, which has no proof here, or None if it has none.

    What providers attach to calls is removed, too.
    """
    has_reasoning = False
    kept: list[Any] = []
    for message in as_list(body.get("messages")):
        new = message
        is_assistants = isinstance(message, dict) and message.get("role") == "assistant"
        if is_assistants and any(message.get(name) for name in _REASONING_FIELDS):
            has_reasoning = True
            new = {name: v for name, v in message.items() if name not in _REASONING_FIELDS}
        calls = as_list(new.get("tool_calls")) if is_assistants else ()
        if any(name in call for call in calls if isinstance(call, dict) for name in ATTACHED):
            has_reasoning = True
            plain = [
                {name: v for name, v in call.items() if name not in ATTACHED}
                if isinstance(call, dict)
                else call
                for call in calls
            ]
            new = {**new, "tool_calls": plain}
        kept.append(new)
    return {**body, "messages": kept} if has_reasoning else None
