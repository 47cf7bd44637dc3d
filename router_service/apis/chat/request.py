"""Requests of Chat Completions (API reference: "Create chat completion")."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from router_service.apis import reading, writing
from router_service.apis.api import Target
from router_service.apis.conversation import Json, as_list, read_model, read_stream, wrong_type
from router_service.apis.foreign import unseal, wrap_custom
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
from router_service.core.strict_json import loads_exactly

NAME = "chat"
"""The API's name in sealed proofs of reasoning."""

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

MAX_STOPS = 4
"""Most stop texts that OpenAI accepts."""

_RESULT_ID = re.compile(rb'"tool_call_id"\s*:\s*"([^"]*)"')
"""The id of a call that has a result, in a body."""

_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
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
    lost = reading.lost_fields(body, _CARRIED, _NEUTRAL)
    messages: list[Message] = []
    items = reading.as_array(body.get("messages"), "messages")
    if not items:
        raise InvalidRequestError(
            "'messages' is empty. Send at least one message.", param="messages", code="empty_array"
        )
    for index, item in enumerate(items):
        path = f"messages[{index}]"
        message = _read_message(reading.as_object(item, path), path, lost)
        if message is not None:
            messages.append(message)
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else reading.array(body, "stop")
    if not all(isinstance(each, str) for each in stops):
        raise wrong_type("stop", "a string or an array of strings", stop)
    options = reading.optional_object(body, "stream_options") or {}
    limit = reading.optional_count(body, "max_completion_tokens")
    return Request(
        model=read_model(body),
        messages=tuple(messages),
        stream=read_stream(body),
        tools=_read_tools(body, lost),
        tool_choice=_read_choice(body.get("tool_choice"), lost),
        is_parallel=reading.optional_flag(body, "parallel_tool_calls"),
        max_tokens=limit or reading.optional_count(body, "max_tokens"),
        temperature=reading.optional_number(body, "temperature"),
        top_p=reading.optional_number(body, "top_p"),
        stop=tuple(stops),
        output_format=_read_format(body, lost),
        effort=reading.optional_text(body, "reasoning_effort"),
        verbosity=reading.optional_text(body, "verbosity"),
        user=reading.optional_text(body, "user"),
        cache_key=reading.optional_text(body, "prompt_cache_key"),
        service_tier=reading.optional_text(body, "service_tier"),
        wants_usage=bool(reading.optional_flag(options, "include_usage", "stream_options")),
        lost=tuple(lost),
    )


def _read_message(item: dict[str, Json], path: str, lost: list[str]) -> Message | None:
    role = reading.one_of(item.get("role"), _ROLES, f"{path}.role")
    content = item.get("content")
    if role == "tool":
        call_id = reading.identifier(item, "tool_call_id", path)
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
    refusal = reading.optional_text(item, "refusal", path)
    if refusal:
        written.append(Text(refusal, is_refusal=True))
    return Message("assistant", (*written, *_read_calls(item, path)))


def _read_calls(item: Mapping[str, Json], path: str) -> list[ToolUse]:
    calls = []
    for index, entry in enumerate(reading.array(item, "tool_calls", path)):
        where = f"{path}.tool_calls[{index}]"
        call = reading.as_object(entry, where)
        call_id = reading.identifier(call, "id", where)
        kind = reading.one_of(call.get("type", "function"), _KINDS, f"{where}.type")
        called = reading.as_object(call.get(kind), f"{where}.{kind}")
        name = reading.identifier(called, "name", f"{where}.{kind}")
        field = "arguments" if kind == "function" else "input"
        arguments = reading.text(called, field, f"{where}.{kind}")
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
        part = reading.as_object(entry, where)
        kind = reading.text(part, "type", where)
        if kind == "text":
            parts.append(Text(reading.text(part, "text", where)))
        elif kind == "refusal":
            parts.append(Text(reading.text(part, "refusal", where), is_refusal=True))
        elif kind == "image_url":
            image = reading.as_object(part.get("image_url"), f"{where}.image_url")
            url = reading.identifier(image, "url", f"{where}.image_url")
            detail = reading.optional_text(image, "detail", f"{where}.image_url")
            parts.append(reading.read_media("image", url, f"{where}.image_url.url", detail=detail))
        elif kind == "input_audio":
            audio = reading.as_object(part.get("input_audio"), f"{where}.input_audio")
            data = reading.identifier(audio, "data", f"{where}.input_audio")
            form = reading.identifier(audio, "format", f"{where}.input_audio")
            parts.append(Media("audio", data=data, media_type=f"audio/{form}"))
        elif kind == "file":
            file = reading.as_object(part.get("file"), f"{where}.file")
            data_url = reading.optional_text(file, "file_data", f"{where}.file")
            name = reading.optional_text(file, "filename", f"{where}.file")
            if data_url:
                param = f"{where}.file.file_data"
                parts.append(reading.read_file(data_url, param, name=name))
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
    details = item.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
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
    for index, entry in enumerate(reading.array(body, "tools")):
        path = f"tools[{index}]"
        tool = reading.as_object(entry, path)
        kind = reading.text(tool, "type", path)
        if kind not in {"function", "custom"}:  # a tool that the provider runs
            lost.append(path)
            continue
        path = f"{path}.{kind}"
        tool = reading.as_object(tool.get(kind), path)
        name = reading.identifier(tool, "name", path)
        description = reading.optional_text(tool, "description", path) or ""
        if kind == "function":
            parameters = reading.optional_object(tool, "parameters", path)
            is_strict = reading.optional_flag(tool, "strict", path)
            tools.append(OfferedTool(name, description, parameters, is_strict))
        else:
            form = reading.optional_object(tool, "format", path) or {}
            grammar = reading.optional_object(form, "grammar", f"{path}.format")
            tools.append(OfferedTool(name, description, is_custom=True, grammar=grammar))
    return reading.distinct_tools(tools, "tools")


def _read_choice(value: Json, lost: list[str]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _CHOICES[reading.one_of(value, (*_CHOICES,), "tool_choice")]
    choice = reading.as_object(value, "tool_choice")
    kind = reading.text(choice, "type", "tool_choice")
    if kind in {"function", "custom"}:
        path = f"tool_choice.{kind}"
        named = reading.as_object(choice.get(kind), path)
        return ToolChoice("required", (reading.identifier(named, "name", path),))
    if kind != "allowed_tools":
        lost.append("tool_choice")
        return None
    path = "tool_choice.allowed_tools"
    allowed = reading.as_object(choice.get("allowed_tools"), path)
    names = []
    for index, entry in enumerate(reading.array(allowed, "tools", path)):
        where = f"{path}.tools[{index}]"
        tool = reading.as_object(entry, where)
        kind = reading.text(tool, "type", where)
        named = reading.as_object(tool.get(kind), f"{where}.{kind}")
        names.append(reading.identifier(named, "name", f"{where}.{kind}"))
    mode = reading.one_of(allowed.get("mode"), ("auto", "required"), f"{path}.mode")
    return ToolChoice(_CHOICES[mode].mode, tuple(names))


def _read_format(body: Mapping[str, Json], lost: list[str]) -> OutputFormat | None:
    value = reading.optional_object(body, "response_format")
    if value is None:
        return None
    kind = reading.text(value, "type", "response_format")
    if kind == "json_object":
        return OutputFormat()
    if kind == "json_schema":
        path = "response_format.json_schema"
        schema = reading.as_object(value.get("json_schema"), path)
        return OutputFormat(
            schema=reading.optional_object(schema, "schema", path) or {},
            name=reading.identifier(schema, "name", path),
            description=reading.optional_text(schema, "description", path),
            is_strict=reading.optional_flag(schema, "strict", path),
        )
    if kind != "text":
        lost.append("response_format")
    return None


def write_request(request: Request, target: Target) -> dict[str, Json]:
    """Return the body for a target that speaks Chat Completions."""
    tools, choice = writing.offered_tools(request)
    limit = "max_completion_tokens" if target.is_openai else "max_tokens"
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    fields: dict[str, Json] = {
        "model": target.model,
        "messages": _write_messages(request, target),
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
        schema = {
            "name": form.name,
            "description": form.description,
            "schema": form.schema,
            "strict": target.is_strict(form.schema, form.is_strict),
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


def _write_messages(request: Request, target: Target) -> list[dict[str, Json]]:
    written: list[dict[str, Json]] = []
    system, messages = writing.split_system(request.messages)
    if system:
        written.append({"role": "system", "content": writing.join_texts(system)})
    for message in messages:
        if message.role == "assistant":
            assistant = _write_assistant(message, target)
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


def _write_assistant(message: Message, target: Target) -> dict[str, Json] | None:
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
    if calls:
        written["tool_calls"] = calls
    return written if calls or content else None


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
    function: dict[str, Json] = {"name": name, "parameters": writing.object_schema(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    if tool.is_strict is not None:
        function["strict"] = target.is_strict(tool.parameters, tool.is_strict)
    return {"type": "function", "function": function}


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where a message has a call, or its result; empty if it has not."""
    if is_result:
        return "tool_call_id" if item.get("tool_call_id") == call_id else ""
    place = ""
    for number, call in enumerate(as_list(item.get("tool_calls"))):
        if isinstance(call, dict) and call.get("id") == call_id:
            place = f"tool_calls[{number}].id"
    return place


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
    """Return a body without reasoning, which has no proof here, or None if it has none."""
    messages = body.get("messages")
    has_reasoning = False
    kept: list[Any] = []
    for message in messages if isinstance(messages, list) else ():
        new = message
        is_assistants = isinstance(message, dict) and message.get("role") == "assistant"
        if is_assistants and any(message.get(name) for name in _REASONING_FIELDS):
            has_reasoning = True
            new = {name: v for name, v in message.items() if name not in _REASONING_FIELDS}
        kept.append(new)
    return {**body, "messages": kept} if has_reasoning else None
