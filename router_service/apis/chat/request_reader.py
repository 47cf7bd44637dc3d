"""Reader of requests of Chat Completions that have to be translated.

API reference: "Create chat completion".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router_service.apis import fields
from router_service.apis.chat import NAME
from router_service.apis.conversation import Json, as_list, read_model, read_stream, wrong_type
from router_service.apis.foreign import unseal
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

_CARRIED = frozenset(
    (
        "model", "messages", "stream", "stream_options", "tools", "tool_choice",
        "parallel_tool_calls", "max_tokens", "max_completion_tokens", "temperature", "top_p",
        "stop", "response_format", "reasoning_effort", "verbosity", "user", "prompt_cache_key",
        "service_tier",
        # These change no answer.
        "metadata", "safety_identifier", "prompt_cache_options", "prompt_cache_retention",
    )
)  # fmt: skip

_NEUTRAL: Mapping[str, Sequence[Json]] = {
    "n": (1,),
    "logprobs": (False,),
    "store": (False,),
    "modalities": (["text"],),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "top_logprobs": (0,),
}

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_READ_ROLES: Mapping[str, Role] = {"system": "system", "developer": "developer", "user": "user"}

_KINDS = ("function", "custom")

_CHOICES: Mapping[str, ToolChoice] = {
    "auto": ToolChoice("auto"),
    "none": ToolChoice("none"),
    "required": ToolChoice("required"),
    "any": ToolChoice("required"),  # Mistral's word
}


def read_request(body: Mapping[str, Json]) -> Request:
    """Read a body. Raises InvalidRequestError, which names what is malformed."""
    lost = fields.lost_fields(body, _CARRIED, _NEUTRAL)
    messages: list[Message] = []
    items = fields.as_array(body.get("messages"), "messages")
    if not items:
        raise InvalidRequestError(
            "'messages' is empty. Send at least one message.", param="messages", code="empty_array"
        )
    for index, item in enumerate(items):
        path = f"messages[{index}]"
        message = _read_message(fields.as_object(item, path), path, lost)
        if message is not None:
            messages.append(message)
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else fields.array(body, "stop")
    if not all(isinstance(each, str) for each in stops):
        raise wrong_type("stop", "a string or an array of strings", stop)
    options = fields.optional_object(body, "stream_options") or {}
    limit = fields.optional_count(body, "max_completion_tokens")
    return Request(
        model=read_model(body),
        messages=tuple(messages),
        stream=read_stream(body),
        tools=_read_tools(body, lost),
        tool_choice=_read_choice(body.get("tool_choice"), lost),
        is_parallel=fields.optional_flag(body, "parallel_tool_calls"),
        max_tokens=limit or fields.optional_count(body, "max_tokens"),
        temperature=fields.optional_number(body, "temperature"),
        top_p=fields.optional_number(body, "top_p"),
        stop=tuple(stops),
        output_format=_read_format(body, lost),
        effort=fields.optional_text(body, "reasoning_effort"),
        verbosity=fields.optional_text(body, "verbosity"),
        user=fields.optional_text(body, "user"),
        cache_key=fields.optional_text(body, "prompt_cache_key"),
        service_tier=fields.optional_text(body, "service_tier"),
        wants_usage=bool(fields.optional_flag(options, "include_usage", "stream_options")),
        lost=tuple(lost),
    )


def _read_message(item: dict[str, Json], path: str, lost: list[str]) -> Message | None:
    role = fields.one_of(item.get("role"), _ROLES, f"{path}.role")
    content = item.get("content")
    if role == "tool":
        call_id = fields.identifier(item, "tool_call_id", path)
        parts = [] if content is None else _read_content(content, f"{path}.content", lost)
        return Message("user", (Result(call_id, tuple(parts)),))
    if role == "function":  # the legacy form of results, which names no call
        lost.append(path)
        return None
    if role in _READ_ROLES:
        if role == "user" and item.get("name"):
            lost.append(f"{path}.name")
        if _read_calls(item, path):  # only an assistant calls tools
            lost.append(f"{path}.tool_calls")
        return Message(_READ_ROLES[role], tuple(_read_content(content, f"{path}.content", lost)))
    lost += [f"{path}.{name}" for name in ("audio", "function_call", "prefix") if item.get(name)]
    written: list[Part] = [*_read_thinking(item)]
    if content is not None:
        written += _read_content(content, f"{path}.content", lost)
    refusal = fields.optional_text(item, "refusal", path)
    if refusal:
        written.append(Text(refusal, is_refusal=True))
    return Message("assistant", (*written, *_read_calls(item, path)))


def _read_calls(item: Mapping[str, Json], path: str) -> list[ToolUse]:
    calls = []
    for index, entry in enumerate(fields.array(item, "tool_calls", path)):
        where = f"{path}.tool_calls[{index}]"
        call = fields.as_object(entry, where)
        call_id = fields.identifier(call, "id", where)
        kind = fields.one_of(call.get("type", "function"), _KINDS, f"{where}.type")
        called = fields.as_object(call.get(kind), f"{where}.{kind}")
        name = fields.identifier(called, "name", f"{where}.{kind}")
        field = "arguments" if kind == "function" else "input"
        arguments = fields.text(called, field, f"{where}.{kind}")
        calls.append(ToolUse(call_id, name, arguments, is_custom=kind == "custom"))
    return calls


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
        if kind == "text":
            parts.append(Text(fields.text(part, "text", where)))
        elif kind == "refusal":
            parts.append(Text(fields.text(part, "refusal", where), is_refusal=True))
        elif kind == "image_url":
            image = fields.as_object(part.get("image_url"), f"{where}.image_url")
            url = fields.identifier(image, "url", f"{where}.image_url")
            detail = fields.optional_text(image, "detail", f"{where}.image_url")
            parts.append(fields.read_media("image", url, f"{where}.image_url.url", detail=detail))
        elif kind == "input_audio":
            audio = fields.as_object(part.get("input_audio"), f"{where}.input_audio")
            data = fields.identifier(audio, "data", f"{where}.input_audio")
            form = fields.identifier(audio, "format", f"{where}.input_audio")
            parts.append(Media("audio", data=data, media_type=f"audio/{form}"))
        elif kind == "file":
            file = fields.as_object(part.get("file"), f"{where}.file")
            data_url = fields.optional_text(file, "file_data", f"{where}.file")
            name = fields.optional_text(file, "filename", f"{where}.file")
            if data_url:
                param = f"{where}.file.file_data"
                parts.append(fields.read_file(data_url, param, name=name))
            else:  # a file that one provider stores
                lost.append(f"{where}.file")
        else:
            lost.append(where)
    return parts


def _read_thinking(item: Mapping[str, Json]) -> list[Thinking]:
    """Return the reasoning of an assistant's message: its text, and proofs in OpenRouter's form."""
    text = item.get("reasoning_content") or item.get("reasoning")
    text = text if isinstance(text, str) else ""
    found: list[Thinking] = []
    for detail in as_list(item.get("reasoning_details")):
        if not isinstance(detail, dict):
            continue
        own, proof, hidden = map(detail.get, ("text", "signature", "data"))
        if isinstance(hidden, str) and hidden:
            found.append(unseal("", hidden, NAME, is_hidden=True))
        elif isinstance(proof, str) and proof:
            found.append(unseal(own if isinstance(own, str) else "", proof, NAME))
    # A proof is valid only with its text, so the text must belong to exactly one proof.
    visible = [index for index, thinking in enumerate(found) if not thinking.is_hidden]
    if not any(found[index].text for index in visible):
        if len(visible) == 1:
            thinking = found[visible[0]]
            found[visible[0]] = Thinking(text, thinking.proof, origin=thinking.origin)
        else:
            found = [thinking for thinking in found if thinking.is_hidden]
            if text:
                found.insert(0, Thinking(text, origin=NAME))
    return found


def _read_tools(body: Mapping[str, Json], lost: list[str]) -> tuple[OfferedTool, ...]:
    tools: list[OfferedTool] = []
    for index, entry in enumerate(fields.array(body, "tools")):
        path = f"tools[{index}]"
        tool = fields.as_object(entry, path)
        kind = fields.text(tool, "type", path)
        if kind not in {"function", "custom"}:  # a tool that the provider runs
            lost.append(path)
            continue
        path = f"{path}.{kind}"
        tool = fields.as_object(tool.get(kind), path)
        name = fields.identifier(tool, "name", path)
        description = fields.optional_text(tool, "description", path) or ""
        if kind == "function":
            parameters = fields.optional_object(tool, "parameters", path)
            is_strict = fields.optional_flag(tool, "strict", path)
            tools.append(OfferedTool(name, description, parameters, is_strict))
        else:
            form = fields.optional_object(tool, "format", path) or {}
            grammar = fields.optional_object(form, "grammar", f"{path}.format")
            tools.append(OfferedTool(name, description, is_custom=True, grammar=grammar))
    return fields.distinct_tools(tools, "tools")


def _read_choice(value: Json, lost: list[str]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _CHOICES[fields.one_of(value, (*_CHOICES,), "tool_choice")]
    choice = fields.as_object(value, "tool_choice")
    kind = fields.text(choice, "type", "tool_choice")
    if kind in {"function", "custom"}:
        path = f"tool_choice.{kind}"
        named = fields.as_object(choice.get(kind), path)
        return ToolChoice("required", (fields.identifier(named, "name", path),))
    if kind != "allowed_tools":
        lost.append("tool_choice")
        return None
    path = "tool_choice.allowed_tools"
    allowed = fields.as_object(choice.get("allowed_tools"), path)
    names = []
    for index, entry in enumerate(fields.array(allowed, "tools", path)):
        where = f"{path}.tools[{index}]"
        tool = fields.as_object(entry, where)
        kind = fields.text(tool, "type", where)
        named = fields.as_object(tool.get(kind), f"{where}.{kind}")
        names.append(fields.identifier(named, "name", f"{where}.{kind}"))
    mode = fields.one_of(allowed.get("mode"), ("auto", "required"), f"{path}.mode")
    return ToolChoice(_CHOICES[mode].mode, tuple(names))


def _read_format(body: Mapping[str, Json], lost: list[str]) -> OutputFormat | None:
    value = fields.optional_object(body, "response_format")
    if value is None:
        return None
    kind = fields.text(value, "type", "response_format")
    if kind == "json_object":
        return OutputFormat()
    if kind == "json_schema":
        path = "response_format.json_schema"
        schema = fields.as_object(value.get("json_schema"), path)
        return OutputFormat(
            schema=fields.optional_object(schema, "schema", path) or {},
            name=fields.identifier(schema, "name", path),
            description=fields.optional_text(schema, "description", path),
            is_strict=fields.optional_flag(schema, "strict", path),
        )
    if kind != "text":
        lost.append("response_format")
    return None


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where a message has a call, or its result; empty if it has not."""
    if is_result:
        return "tool_call_id" if item.get("tool_call_id") == call_id else ""
    place = ""
    for number, call in enumerate(as_list(item.get("tool_calls"))):
        if isinstance(call, dict) and call.get("id") == call_id:
            place = f"tool_calls[{number}].id"
    return place
