"""Reader of requests of Chat Completions that have to be translated.

API reference: "Create chat completion".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from router_service.apis.chat import NAME
from router_service.apis.conversation import CLIENT_TOOLS, Json, as_list, read_model, read_stream
from router_service.apis.fields import Field, distinct_tools
from router_service.apis.foreign import unseal
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    Part,
    Request,
    Result,
    Role,
    Text,
    Thinking,
    ToolUse,
)

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

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
    "function": "user",  # the legacy form of results, which names no call
}


def read_request(body: Mapping[str, Json]) -> Request:
    """Read a body. Raises InvalidRequestError, which names what is malformed."""
    fields = Field.of_body(body, _CARRIED, _NEUTRAL)
    found = [_read_message(message) for message in fields.messages()]
    stop = body.get("stop")
    wanted = "a string or an array of strings"
    stops = (stop,) if isinstance(stop, str) else fields.texts("stop", wanted)
    options = fields.options("stream_options")
    limit = fields.optional_count("max_completion_tokens")
    return Request(
        model=read_model(body),
        messages=tuple(message for message in found if message is not None),
        stream=read_stream(body),
        tools=distinct_tools([*_read_tools(fields)]),
        tool_choice=fields.tool_choice(is_nested=True),
        is_parallel=fields.optional_flag("parallel_tool_calls"),
        max_tokens=limit or fields.optional_count("max_tokens"),
        temperature=fields.optional_number("temperature"),
        top_p=fields.optional_number("top_p"),
        stop=stops,
        output_format=fields.output_format("response_format", is_nested=True),
        effort=fields.optional_text("reasoning_effort"),
        verbosity=fields.optional_text("verbosity"),
        user=fields.optional_text("user"),
        cache_key=fields.optional_text("prompt_cache_key"),
        service_tier=fields.optional_text("service_tier"),
        wants_usage=bool(options.optional_flag("include_usage")),
        lost=tuple(fields.lost),
    )


def _read_message(item: Field) -> Message | None:
    role = item.one_of("role", _ROLES)
    has_content = item.value.get("content") is not None
    if role == "function":
        item.lose()
        return None
    if role == "tool":
        call_id = item.identifier("tool_call_id")
        parts = tuple(_read_content(item)) if has_content else ()
        return Message("user", (Result(call_id, parts),))
    if role != "assistant":
        if role == "user" and item.has("name"):
            item.lose("name")
        if item.has("tool_calls") and [*_read_calls(item)]:  # only an assistant calls tools
            item.lose("tool_calls")
        return Message(_ROLES[role], tuple(_read_content(item)))
    for name in ("audio", "function_call", "prefix"):
        if item.has(name):
            item.lose(name)
    written: list[Part] = [*_read_thinking(item.value)]
    if has_content:
        written += _read_content(item)
    if refusal := item.optional_text("refusal"):
        written.append(Text(refusal, is_refusal=True))
    return Message("assistant", (*written, *_read_calls(item)))


def _read_calls(item: Field) -> Iterator[ToolUse]:
    for call in item.objects("tool_calls"):
        call_id = call.identifier("id")
        kind = call.one_of("type", CLIENT_TOOLS, "function")
        called, is_custom = call.object(kind), kind == "custom"
        name = called.identifier("name")
        arguments = called.text("input" if is_custom else "arguments")
        yield ToolUse(call_id, name, arguments, is_custom=is_custom)


def _read_content(item: Field) -> Iterator[Text | Media]:
    for kind, part in item.parts("content"):
        match kind:
            case "text":
                yield Text(part.text("text"))
            case "refusal":
                yield Text(part.text("refusal"), is_refusal=True)
            case "image_url":
                image = part.object("image_url")
                yield image.image("url", image.optional_text("detail"))
            case "input_audio":
                yield part.audio()
            case "file" if (file := part.object("file")).has("file_data"):
                yield file.document("file_data", file.optional_text("filename"))
            case "file":  # one that a provider stores
                part.lose("file")
            case _:
                part.lose()


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


def _read_tools(body: Field) -> Iterator[OfferedTool]:
    for entry in body.objects("tools"):
        kind = entry.text("type")
        if kind not in CLIENT_TOOLS:  # a tool that the provider runs
            entry.lose()
            continue
        tool = entry.object(kind)
        if kind == "function":
            yield tool.function()
        else:
            name, description = tool.identifier("name"), tool.optional_text("description") or ""
            grammar = tool.options("format").optional_object("grammar")
            yield OfferedTool(name, description, is_custom=True, grammar=grammar and grammar.value)


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where a message has a call, or its result; empty if it has not."""
    if is_result:
        return "tool_call_id" if item.get("tool_call_id") == call_id else ""
    place = ""
    for number, call in enumerate(as_list(item.get("tool_calls"))):
        if isinstance(call, dict) and call.get("id") == call_id:
            place = f"tool_calls[{number}].id"
    return place
