"""Requests of Responses (API reference: "Create a model response")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from router_service.apis import reading, writing
from router_service.apis.api import IsForeign, Target
from router_service.apis.conversation import Json, read_model, read_stream, wrong_type
from router_service.apis.encoding import encode
from router_service.apis.foreign import SEAL, unseal
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    OutputFormat,
    Part,
    Request,
    Result,
    Role,
    Text,
    Thinking,
    ToolChoice,
    ToolUse,
)
from router_service.core.errors import InvalidRequestError

NAME = "responses"
"""The API's name in sealed proofs of reasoning."""

_CARRIED = frozenset(
    (
        "model", "input", "instructions", "stream", "tools", "tool_choice", "parallel_tool_calls",
        "max_output_tokens", "temperature", "top_p", "text", "reasoning", "user",
        "prompt_cache_key", "service_tier",
        # These change no answer, or only answers with tools that the provider runs.
        "stream_options", "metadata", "client_metadata", "safety_identifier", "truncation",
        "prompt_cache_options", "prompt_cache_retention", "context_management", "max_tool_calls",
    )
)  # fmt: skip

_NEUTRAL: Mapping[str, Sequence[Json]] = {
    "store": (False,),
    "background": (False,),
    "top_logprobs": (0,),
}

_LOGPROBS = "message.output_text.logprobs"
_SEARCH = "tool_search"
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}
_CHOICES: Mapping[str, ToolChoice] = {
    "auto": ToolChoice("auto"),
    "none": ToolChoice("none"),
    "required": ToolChoice("required"),
}
_TEXTS = frozenset({"input_text", "output_text", "text"})


def read_request(body: Mapping[str, Json]) -> Request:
    """Read a body. Raises InvalidRequestError, which names what is malformed."""
    lost = reading.lost_fields(body, {*_CARRIED, "include"}, _NEUTRAL)
    if _LOGPROBS in reading.array(body, "include"):
        lost.append("include")
    tools = _read_tools(reading.array(body, "tools"), "tools", lost)
    reasoning = reading.optional_object(body, "reasoning") or {}
    if reasoning.get("mode") not in (None, "standard"):
        lost.append("reasoning.mode")
    effort = reading.optional_text(reasoning, "effort", "reasoning")
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    text = reading.optional_object(body, "text") or {}

    turns: list[_Turn] = []
    instructions = reading.optional_text(body, "instructions")
    if instructions:
        turns.append(("system", [Text(instructions)]))
    given = body.get("input")
    if isinstance(given, str):
        turns.append(("user", [Text(given)]))
    else:
        items = reading.array(body, "input")
        if not items and not lost:
            raise InvalidRequestError(
                "'input' is empty. Send at least one item.", param="input", code="empty_array"
            )
        for index, item in enumerate(items):
            path = f"input[{index}]"
            entry = reading.as_object(item, path)
            if entry.get("type") == "additional_tools":
                listed = reading.array(entry, "tools", path)
                tools += _read_tools(listed, f"{path}.tools", lost)
            elif entry.get("type") == "tool_search_output":
                listed = reading.array(entry, "tools", path)
                found = _read_tools(listed, f"{path}.tools", lost)
                tools += found
                names = ", ".join(tool.name for tool in found)
                note = f"These tools can be called now: {names}" if found else "No tool was found."
                call_id = reading.identifier(entry, "call_id", path)
                turns.append(("user", [Result(call_id, (Text(note),))]))
            else:
                _add_item(turns, entry, path, lost)
    return Request(
        model=read_model(body),
        messages=tuple(Message(role, tuple(parts)) for role, parts in turns),
        stream=read_stream(body),
        tools=reading.distinct_tools(tools, "tools"),
        tool_choice=_read_choice(body.get("tool_choice"), lost),
        is_parallel=reading.optional_flag(body, "parallel_tool_calls"),
        max_tokens=reading.optional_count(body, "max_output_tokens"),
        temperature=reading.optional_number(body, "temperature"),
        top_p=reading.optional_number(body, "top_p"),
        output_format=_read_format(text, lost),
        effort=effort,
        shows_thinking=summary is not None,
        verbosity=reading.optional_text(text, "verbosity", "text"),
        user=reading.optional_text(body, "user"),
        cache_key=reading.optional_text(body, "prompt_cache_key"),
        service_tier=reading.optional_text(body, "service_tier"),
        lost=tuple(lost),
    )


_Turn = tuple[Role, list[Part]]
"""A message to which parts may still be added."""


def _add_item(turns: list[_Turn], item: dict[str, Json], path: str, lost: list[str]) -> None:
    """Add an item; what the model wrote without interruption becomes one message."""
    kind = reading.optional_text(item, "type", path) or "message"
    parts: list[Part] = []
    if kind == "message":
        role = reading.one_of(item.get("role"), (*_ROLES,), f"{path}.role")
        parts += _read_content(item.get("content"), f"{path}.content", lost)
        if role != "assistant":
            turns.append((_ROLES[role], parts))
            return
    elif kind == "reasoning":
        parts = [_read_thinking(item, path)]
    elif kind in {"function_call", "custom_tool_call"}:
        is_custom = kind == "custom_tool_call"
        arguments = reading.text(item, "input" if is_custom else "arguments", path)
        name = reading.identifier(item, "name", path)
        namespace = reading.optional_text(item, "namespace", path)
        if namespace:
            name = f"{namespace}__{name}"
        call_id = reading.identifier(item, "call_id", path)
        parts = [ToolUse(call_id, name, arguments, is_custom=is_custom)]
    elif kind == "tool_search_call" and item.get("execution") == "client":
        arguments = encode(item.get("arguments") or {}).decode()
        parts = [ToolUse(reading.identifier(item, "call_id", path), _SEARCH, arguments)]
    elif kind in {"function_call_output", "custom_tool_call_output"}:
        content = tuple(_read_content(item.get("output"), f"{path}.output", lost))
        is_custom = kind == "custom_tool_call_output"
        call_id = reading.identifier(item, "call_id", path)
        turns.append(("user", [Result(call_id, content, is_custom=is_custom)]))
        return
    else:  # what the provider's own tools did, what it stores, and what is not known
        lost.append(path)
        return
    if turns and turns[-1][0] == "assistant":
        turns[-1][1].extend(parts)
    else:
        turns.append(("assistant", parts))


def _read_content(content: Json, path: str, lost: list[str]) -> list[Text | Media]:
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array", content)
    parts: list[Text | Media] = []
    for index, entry in enumerate(content):
        where = f"{path}[{index}]"
        part = reading.as_object(entry, where)
        kind = reading.text(part, "type", where)
        if kind in _TEXTS:
            parts.append(Text(reading.text(part, "text", where)))
        elif kind == "refusal":
            parts.append(Text(reading.text(part, "refusal", where), is_refusal=True))
        elif kind == "input_image" and part.get("image_url"):
            url = reading.text(part, "image_url", where)
            detail = reading.optional_text(part, "detail", where)
            parts.append(reading.read_media("image", url, f"{where}.image_url", detail=detail))
        elif kind == "input_file" and (part.get("file_data") or part.get("file_url")):
            name = reading.optional_text(part, "filename", where)
            if part.get("file_data"):
                data = reading.text(part, "file_data", where)
                parts.append(reading.read_file(data, f"{where}.file_data", name=name))
            else:
                url = reading.text(part, "file_url", where)
                parts.append(Media("document", url=url, name=name))
        elif kind == "input_audio":
            audio = reading.as_object(part.get("input_audio"), f"{where}.input_audio")
            data = reading.identifier(audio, "data", f"{where}.input_audio")
            form = reading.identifier(audio, "format", f"{where}.input_audio")
            parts.append(Media("audio", data=data, media_type=f"audio/{form}"))
        else:  # a file that one provider stores, or a part that is not known
            lost.append(where)
    return parts


def _read_thinking(item: Mapping[str, Json], path: str) -> Thinking:
    texts = [
        reading.text(reading.as_object(entry, f"{path}.{name}[{i}]"), "text", f"{path}.{name}[{i}]")
        for name in ("content", "summary")
        for i, entry in enumerate(reading.array(item, name, path))
    ]
    proof = reading.optional_text(item, "encrypted_content", path) or ""
    return unseal(writing.join_texts(texts), proof, NAME)


def _read_tools(entries: Sequence[Json], param: str, lost: list[str]) -> list[OfferedTool]:
    tools: list[OfferedTool] = []
    for index, entry in enumerate(entries):
        path = f"{param}[{index}]"
        tool = reading.as_object(entry, path)
        kind = reading.text(tool, "type", path)
        description = reading.optional_text(tool, "description", path) or ""
        if kind == "function":
            name = reading.identifier(tool, "name", path)
            parameters = reading.optional_object(tool, "parameters", path)
            is_strict = reading.optional_flag(tool, "strict", path)
            tools.append(OfferedTool(name, description, parameters, is_strict))
        elif kind == "custom":
            name = reading.identifier(tool, "name", path)
            form = reading.optional_object(tool, "format", path) or {}
            grammar = None
            if form.get("type") == "grammar":
                grammar = {
                    "syntax": reading.text(form, "syntax", f"{path}.format"),
                    "definition": reading.text(form, "definition", f"{path}.format"),
                }
            tools.append(OfferedTool(name, description, is_custom=True, grammar=grammar))
        elif kind == "namespace":
            namespace = reading.identifier(tool, "name", path)
            tools += [
                replace(inner, name=f"{namespace}__{inner.name}", namespace=namespace)
                for inner in _read_tools(reading.array(tool, "tools", path), f"{path}.tools", lost)
            ]
        elif kind == _SEARCH and tool.get("execution") == "client":
            parameters = reading.optional_object(tool, "parameters", path)
            tools.append(OfferedTool(_SEARCH, description, parameters, is_search=True))
        else:  # a tool that the provider runs, or whose form only its models know
            lost.append(path)
    return tools


def _read_choice(value: Json, lost: list[str]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _CHOICES[reading.one_of(value, (*_CHOICES,), "tool_choice")]
    choice = reading.as_object(value, "tool_choice")
    kind = reading.text(choice, "type", "tool_choice")
    if kind in {"function", "custom"}:
        return ToolChoice("required", (reading.identifier(choice, "name", "tool_choice"),))
    if kind == "allowed_tools":
        names = []
        for index, entry in enumerate(reading.array(choice, "tools", "tool_choice")):
            where = f"tool_choice.tools[{index}]"
            tool = reading.as_object(entry, where)
            if tool.get("type") not in ("function", "custom"):
                lost.append(where)
                continue
            names.append(reading.identifier(tool, "name", where))
        mode = reading.one_of(choice.get("mode"), ("auto", "required"), "tool_choice.mode")
        return ToolChoice(_CHOICES[mode].mode, tuple(names))
    lost.append("tool_choice")
    return None


def _read_format(text: Mapping[str, Json], lost: list[str]) -> OutputFormat | None:
    value = reading.optional_object(text, "format", "text")
    if value is None:
        return None
    kind = reading.text(value, "type", "text.format")
    if kind == "json_object":
        return OutputFormat()
    if kind == "json_schema":
        return OutputFormat(
            schema=reading.as_object(value.get("schema"), "text.format.schema"),
            name=reading.identifier(value, "name", "text.format"),
            description=reading.optional_text(value, "description", "text.format"),
            is_strict=reading.optional_flag(value, "strict", "text.format"),
        )
    if kind != "text":
        lost.append("text.format")
    return None


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
    schema = {
        "type": "json_schema",
        "name": form.name,
        "description": form.description,
        "schema": form.schema,
        "strict": _is_strict(form.schema, form.is_strict, target),
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
    # Without `strict`, Responses makes functions strict, which the other APIs do not.
    return {
        **written,
        "parameters": writing.object_schema(tool.parameters),
        "strict": _is_strict(tool.parameters, tool.is_strict, target),
    }


def _is_strict(schema: Json, is_strict: bool | None, target: Target | None) -> bool:
    return bool(is_strict if target is None else target.is_strict(schema, is_strict))


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where an item has a call, or its result; empty if it has not."""
    is_kind = str(item.get("type")).endswith("_output") == is_result
    return "call_id" if is_kind and item.get("call_id") == call_id else ""


def without_foreign_thinking(
    body: Mapping[str, Json], is_foreign: IsForeign
) -> dict[str, Json] | None:
    """Return a body without reasoning that its upstream would reject, or None if it has none."""
    items = body.get("input")
    if not isinstance(items, list):
        return None

    def is_rejected(item: Json) -> bool:
        if not isinstance(item, dict) or item.get("type") != "reasoning":
            return False
        proof = item.get("encrypted_content") or ""
        return isinstance(proof, str) and (proof.startswith(SEAL) or is_foreign(proof))

    kept = [item for item in items if not is_rejected(item)]
    if len(kept) == len(items):
        return None
    # An item whose id the provider knows is rejected without the reasoning that led to it.
    without_ids: list[Any] = [
        {name: value for name, value in item.items() if name != "id"}
        if isinstance(item, dict) and item.get("type") != "item_reference"
        else item
        for item in kept
    ]
    return {**body, "input": without_ids}
