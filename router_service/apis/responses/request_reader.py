"""Reader of requests of Responses that have to be translated.

API reference: "Create a model response".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from router_service.apis import fields, writing
from router_service.apis.conversation import Json, read_model, read_stream, wrong_type
from router_service.apis.encoding import encode
from router_service.apis.foreign import unseal, unseal_summary
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
from router_service.apis.responses import COMPACTIONS, NAME, TRIGGER
from router_service.core.errors import InvalidRequestError

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

NO_CALL = ToolChoice("none")

_CHOICES: Mapping[str, ToolChoice] = {
    "auto": ToolChoice("auto"),
    "none": NO_CALL,
    "required": ToolChoice("required"),
}

_COMPACT = (
    "Summarize this conversation now, so that another model can continue with only your summary."
    " Call no tool. Keep what the user asked for in their words, every instruction and decision"
    " that still holds, what was done with the names of files, the results that matter, and what"
    " remains to be done. Write only the summary."
)

SUMMARY = "This is a summary of the conversation so far:"
"""Text before a summary, for models that go on from it."""

_TEXTS = frozenset({"input_text", "output_text", "text"})


def read_request(body: Mapping[str, Json]) -> Request:
    """Read a body. Raises InvalidRequestError, which names what is malformed."""
    lost = fields.lost_fields(body, {*_CARRIED, "include"}, _NEUTRAL)
    if _LOGPROBS in fields.array(body, "include"):
        lost.append("include")
    tools = _read_tools(fields.array(body, "tools"), "tools", lost)
    reasoning = fields.optional_object(body, "reasoning") or {}
    if reasoning.get("mode") not in (None, "standard"):
        lost.append("reasoning.mode")
    effort = fields.optional_text(reasoning, "effort", "reasoning")
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    text = fields.optional_object(body, "text") or {}

    turns: list[_Turn] = []
    compacts = False
    instructions = fields.optional_text(body, "instructions")
    if instructions:
        turns.append(("system", [Text(instructions)]))
    given = body.get("input")
    if isinstance(given, str):
        turns.append(("user", [Text(given)]))
    else:
        items = fields.array(body, "input")
        if not items and not lost:
            raise InvalidRequestError(
                "'input' is empty. Send at least one item.", param="input", code="empty_array"
            )
        for index, item in enumerate(items):
            path = f"input[{index}]"
            entry = fields.as_object(item, path)
            if entry.get("type") == "additional_tools":
                listed = fields.array(entry, "tools", path)
                tools += _read_tools(listed, f"{path}.tools", lost)
            elif entry.get("type") == "tool_search_output":
                listed = fields.array(entry, "tools", path)
                found = _read_tools(listed, f"{path}.tools", lost)
                tools += found
                names = ", ".join(tool.name for tool in found)
                note = f"These tools can be called now: {names}" if found else "No tool was found."
                call_id = fields.identifier(entry, "call_id", path)
                turns.append(("user", [Result(call_id, (Text(note),))]))
            elif entry.get("type") == TRIGGER:
                turns.append(("user", [Text(_COMPACT)]))
                compacts = True
            else:
                _add_item(turns, entry, path, lost)
    return Request(
        model=read_model(body),
        messages=tuple(Message(role, tuple(parts)) for role, parts in turns),
        stream=read_stream(body),
        tools=fields.distinct_tools(tools, "tools"),
        tool_choice=NO_CALL if compacts else _read_choice(body.get("tool_choice"), lost),
        is_parallel=fields.optional_flag(body, "parallel_tool_calls"),
        max_tokens=fields.optional_count(body, "max_output_tokens"),
        temperature=fields.optional_number(body, "temperature"),
        top_p=fields.optional_number(body, "top_p"),
        output_format=None if compacts else _read_format(text, lost),
        compacts="turn" if compacts else None,
        effort=effort,
        shows_thinking=summary is not None,
        verbosity=fields.optional_text(text, "verbosity", "text"),
        user=fields.optional_text(body, "user"),
        cache_key=fields.optional_text(body, "prompt_cache_key"),
        service_tier=fields.optional_text(body, "service_tier"),
        lost=tuple(lost),
    )


_Turn = tuple[Role, list[Part]]
"""A message to which parts may still be added."""


def _add_item(turns: list[_Turn], item: dict[str, Json], path: str, lost: list[str]) -> None:
    """Add an item; what the model wrote without interruption becomes one message."""
    kind = fields.optional_text(item, "type", path) or "message"
    parts: list[Part] = []
    if kind == "message":
        role = fields.one_of(item.get("role"), (*_ROLES,), f"{path}.role")
        parts += _read_content(item.get("content"), f"{path}.content", lost)
        if role != "assistant":
            turns.append((_ROLES[role], parts))
            return
    elif kind == "reasoning":
        parts = [_read_thinking(item, path)]
    elif kind in {"function_call", "custom_tool_call"}:
        is_custom = kind == "custom_tool_call"
        arguments = fields.text(item, "input" if is_custom else "arguments", path)
        name = fields.identifier(item, "name", path)
        namespace = fields.optional_text(item, "namespace", path)
        if namespace:
            name = f"{namespace}__{name}"
        call_id = fields.identifier(item, "call_id", path)
        parts = [ToolUse(call_id, name, arguments, is_custom=is_custom)]
    elif kind == "tool_search_call" and item.get("execution") == "client":
        arguments = encode(item.get("arguments") or {}).decode()
        parts = [ToolUse(fields.identifier(item, "call_id", path), _SEARCH, arguments)]
    elif kind in {"function_call_output", "custom_tool_call_output"}:
        content = tuple(_read_content(item.get("output"), f"{path}.output", lost))
        is_custom = kind == "custom_tool_call_output"
        call_id = fields.identifier(item, "call_id", path)
        turns.append(("user", [Result(call_id, content, is_custom=is_custom)]))
        return
    elif kind in COMPACTIONS and (summary := unseal_summary(item.get("encrypted_content"))):
        turns.append(("user", [Text(f"{SUMMARY}\n\n{summary}")]))
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
        part = fields.as_object(entry, where)
        kind = fields.text(part, "type", where)
        if kind in _TEXTS:
            parts.append(Text(fields.text(part, "text", where)))
        elif kind == "refusal":
            parts.append(Text(fields.text(part, "refusal", where), is_refusal=True))
        elif kind == "input_image" and part.get("image_url"):
            url = fields.text(part, "image_url", where)
            detail = fields.optional_text(part, "detail", where)
            parts.append(fields.read_media("image", url, f"{where}.image_url", detail=detail))
        elif kind == "input_file" and (part.get("file_data") or part.get("file_url")):
            name = fields.optional_text(part, "filename", where)
            if part.get("file_data"):
                data = fields.text(part, "file_data", where)
                parts.append(fields.read_file(data, f"{where}.file_data", name=name))
            else:
                url = fields.text(part, "file_url", where)
                parts.append(Media("document", url=url, name=name))
        elif kind == "input_audio":
            audio = fields.as_object(part.get("input_audio"), f"{where}.input_audio")
            data = fields.identifier(audio, "data", f"{where}.input_audio")
            form = fields.identifier(audio, "format", f"{where}.input_audio")
            parts.append(Media("audio", data=data, media_type=f"audio/{form}"))
        else:  # a file that one provider stores, or a part that is not known
            lost.append(where)
    return parts


def _read_thinking(item: Mapping[str, Json], path: str) -> Thinking:
    texts = [
        fields.text(fields.as_object(entry, f"{path}.{name}[{i}]"), "text", f"{path}.{name}[{i}]")
        for name in ("content", "summary")
        for i, entry in enumerate(fields.array(item, name, path))
    ]
    proof = fields.optional_text(item, "encrypted_content", path) or ""
    return unseal(writing.join_texts(texts), proof, NAME)


def _read_tools(entries: Sequence[Json], param: str, lost: list[str]) -> list[OfferedTool]:
    tools: list[OfferedTool] = []
    for index, entry in enumerate(entries):
        path = f"{param}[{index}]"
        tool = fields.as_object(entry, path)
        kind = fields.text(tool, "type", path)
        description = fields.optional_text(tool, "description", path) or ""
        if kind == "function":
            name = fields.identifier(tool, "name", path)
            parameters = fields.optional_object(tool, "parameters", path)
            is_strict = fields.optional_flag(tool, "strict", path)
            tools.append(OfferedTool(name, description, parameters, is_strict))
        elif kind == "custom":
            name = fields.identifier(tool, "name", path)
            form = fields.optional_object(tool, "format", path) or {}
            grammar = None
            if form.get("type") == "grammar":
                grammar = {
                    "syntax": fields.text(form, "syntax", f"{path}.format"),
                    "definition": fields.text(form, "definition", f"{path}.format"),
                }
            tools.append(OfferedTool(name, description, is_custom=True, grammar=grammar))
        elif kind == "namespace":
            namespace = fields.identifier(tool, "name", path)
            tools += [
                replace(inner, name=f"{namespace}__{inner.name}", namespace=namespace)
                for inner in _read_tools(fields.array(tool, "tools", path), f"{path}.tools", lost)
            ]
        elif kind == _SEARCH and tool.get("execution") == "client":
            parameters = fields.optional_object(tool, "parameters", path)
            tools.append(OfferedTool(_SEARCH, description, parameters, is_search=True))
        else:  # a tool that the provider runs, or whose form only its models know
            lost.append(path)
    return tools


def _read_choice(value: Json, lost: list[str]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _CHOICES[fields.one_of(value, (*_CHOICES,), "tool_choice")]
    choice = fields.as_object(value, "tool_choice")
    kind = fields.text(choice, "type", "tool_choice")
    if kind in {"function", "custom"}:
        return ToolChoice("required", (fields.identifier(choice, "name", "tool_choice"),))
    if kind == "allowed_tools":
        names = []
        for index, entry in enumerate(fields.array(choice, "tools", "tool_choice")):
            where = f"tool_choice.tools[{index}]"
            tool = fields.as_object(entry, where)
            if tool.get("type") not in ("function", "custom"):
                lost.append(where)
                continue
            names.append(fields.identifier(tool, "name", where))
        mode = fields.one_of(choice.get("mode"), ("auto", "required"), "tool_choice.mode")
        return ToolChoice(_CHOICES[mode].mode, tuple(names))
    lost.append("tool_choice")
    return None


def _read_format(text: Mapping[str, Json], lost: list[str]) -> OutputFormat | None:
    value = fields.optional_object(text, "format", "text")
    if value is None:
        return None
    kind = fields.text(value, "type", "text.format")
    if kind == "json_object":
        return OutputFormat()
    if kind == "json_schema":
        return OutputFormat(
            schema=fields.as_object(value.get("schema"), "text.format.schema"),
            name=fields.identifier(value, "name", "text.format"),
            description=fields.optional_text(value, "description", "text.format"),
            is_strict=fields.optional_flag(value, "strict", "text.format"),
        )
    if kind != "text":
        lost.append("text.format")
    return None


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where an item has a call, or its result; empty if it has not."""
    is_kind = str(item.get("type")).endswith("_output") == is_result
    return "call_id" if is_kind and item.get("call_id") == call_id else ""
