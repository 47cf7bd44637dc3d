"""Reader of requests of Responses that have to be translated.

API reference: "Create a model response".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from router_service.apis import writing
from router_service.apis.conversation import Json, empty_array, read_model, read_stream
from router_service.apis.encoding import encode
from router_service.apis.fields import Field, distinct_tools
from router_service.apis.foreign import unseal, unseal_summary
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    Part,
    Request,
    Result,
    Role,
    Text,
    ToolChoice,
    ToolUse,
)
from router_service.apis.responses import COMPACTIONS, NAME, TRIGGER

_CARRIED = frozenset(
    (
        "model", "input", "instructions", "stream", "tools", "tool_choice", "parallel_tool_calls",
        "max_output_tokens", "temperature", "top_p", "text", "reasoning", "user",
        "prompt_cache_key", "service_tier", "include",
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

_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant")

NO_CALL = ToolChoice("none")

_COMPACT = (
    "Summarize this conversation now, so that another model can continue with only your summary."
    " Call no tool. Keep what the user asked for in their words, every instruction and decision"
    " that still holds, what was done with the names of files, the results that matter, and what"
    " remains to be done. Write only the summary."
)

SUMMARY = "This is a summary of the conversation so far:"
"""Text before a summary, for models that go on from it."""


def read_request(body: Mapping[str, Json]) -> Request:
    """Read a body. Raises InvalidRequestError, which names what is malformed."""
    fields = Field.of_body(body, _CARRIED, _NEUTRAL)
    if _LOGPROBS in fields.array("include"):
        fields.lose("include")
    tools = [*_read_tools(fields)]
    reasoning, text = fields.options("reasoning"), fields.options("text")
    if reasoning.value.get("mode") not in (None, "standard"):
        reasoning.lose("mode")

    turns: list[_Turn] = []
    compacts = False
    instructions = fields.optional_text("instructions")
    if instructions:
        turns.append(("system", [Text(instructions)]))
    given = body.get("input")
    if isinstance(given, str):
        turns.append(("user", [Text(given)]))
    elif not (fields.array("input") or fields.lost):
        raise empty_array("input", "item")
    for item in () if isinstance(given, str) else fields.objects("input"):
        kind = item.value.get("type")
        if kind == "additional_tools":
            tools += _read_tools(item)
        elif kind == "tool_search_output":
            found = [*_read_tools(item)]
            tools += found
            names = ", ".join(tool.name for tool in found)
            note = f"These tools can be called now: {names}" if found else "No tool was found."
            turns.append(("user", [Result(item.identifier("call_id"), (Text(note),))]))
        elif kind == TRIGGER:
            turns.append(("user", [Text(_COMPACT)]))
            compacts = True
        else:
            _add_item(turns, item)
    return Request(
        model=read_model(body),
        messages=tuple(Message(role, tuple(parts)) for role, parts in turns),
        stream=read_stream(body),
        tools=distinct_tools(tools),
        tool_choice=NO_CALL if compacts else fields.tool_choice(is_nested=False),
        is_parallel=fields.optional_flag("parallel_tool_calls"),
        max_tokens=fields.optional_count("max_output_tokens"),
        temperature=fields.optional_number("temperature"),
        top_p=fields.optional_number("top_p"),
        output_format=None if compacts else text.output_format("format", is_nested=False),
        compacts="turn" if compacts else None,
        effort=reasoning.optional_text("effort"),
        shows_thinking=reasoning.has("summary")
        or reasoning.value.get("generate_summary") is not None,
        verbosity=text.optional_text("verbosity"),
        user=fields.optional_text("user"),
        cache_key=fields.optional_text("prompt_cache_key"),
        service_tier=fields.optional_text("service_tier"),
        lost=tuple(fields.lost),
    )


_Turn = tuple[Role, list[Part]]
"""A message to which parts may still be added."""


def _add_item(turns: list[_Turn], item: Field) -> None:
    """Add an item; what the model wrote without interruption becomes one message."""
    kind = item.optional_text("type") or "message"
    role: Role = "assistant"
    parts: list[Part] = []
    match kind:
        case "message":
            role = item.one_of("role", _ROLES)
            parts += _read_content(item, "content")
        case "reasoning":
            texts = [
                each.text("text") for name in ("content", "summary") for each in item.objects(name)
            ]
            proof = item.optional_text("encrypted_content") or ""
            parts.append(unseal(writing.join_texts(texts), proof, NAME))
        case "function_call" | "custom_tool_call":
            is_custom = kind == "custom_tool_call"
            arguments, name = (
                item.text("input" if is_custom else "arguments"),
                item.identifier("name"),
            )
            if namespace := item.optional_text("namespace"):
                name = f"{namespace}__{name}"
            parts.append(ToolUse(item.identifier("call_id"), name, arguments, is_custom=is_custom))
        case "tool_search_call" if item.value.get("execution") == "client":
            arguments = encode(item.value.get("arguments") or {}).decode()
            parts.append(ToolUse(item.identifier("call_id"), _SEARCH, arguments))
        case "function_call_output" | "custom_tool_call_output":
            role, content = "user", tuple(_read_content(item, "output"))
            is_custom = kind == "custom_tool_call_output"
            parts.append(Result(item.identifier("call_id"), content, is_custom=is_custom))
        case _:
            carried = item.value.get("encrypted_content") if kind in COMPACTIONS else None
            summary = unseal_summary(carried)
            if not summary:  # what the provider's own tools did, what it stores, or is not known
                item.lose()
                return
            role = "user"
            parts.append(Text(f"{SUMMARY}\n\n{summary}"))
    if role == "assistant" and turns and turns[-1][0] == role:
        turns[-1][1].extend(parts)
    else:
        turns.append((role, parts))


def _read_content(item: Field, name: str) -> Iterator[Text | Media]:
    for kind, part in item.parts(name):
        match kind:
            case "input_text" | "output_text" | "text":
                yield Text(part.text("text"))
            case "refusal":
                yield Text(part.text("refusal"), is_refusal=True)
            case "input_image" if part.has("image_url"):
                yield part.image("image_url", part.optional_text("detail"))
            case "input_file" if part.has("file_data"):
                yield part.document("file_data", part.optional_text("filename"))
            case "input_file" if part.has("file_url"):
                title = part.optional_text("filename")
                yield Media("document", url=part.text("file_url"), name=title)
            case "input_audio":
                yield part.audio()
            case _:  # a file that one provider stores, or a part that is not known
                part.lose()


def _read_tools(parent: Field) -> Iterator[OfferedTool]:
    for tool in parent.objects("tools"):
        kind = tool.text("type")
        if kind == "function":
            yield tool.function()
        elif kind == "custom":
            name, description = tool.identifier("name"), tool.optional_text("description") or ""
            form, grammar = tool.options("format"), None
            if form.value.get("type") == "grammar":
                grammar = {name: form.text(name) for name in ("syntax", "definition")}
            yield OfferedTool(name, description, is_custom=True, grammar=grammar)
        elif kind == "namespace":
            namespace = tool.identifier("name")
            for inner in [*_read_tools(tool)]:
                yield replace(inner, name=f"{namespace}__{inner.name}", namespace=namespace)
        elif kind == _SEARCH and tool.value.get("execution") == "client":
            parameters = tool.options("parameters").value or None
            description = tool.optional_text("description") or ""
            yield OfferedTool(_SEARCH, description, parameters, is_search=True)
        else:  # a tool that the provider runs, or whose form only its models know
            tool.lose()


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where an item has a call, or its result; empty if it has not."""
    is_kind = str(item.get("type")).endswith("_output") == is_result
    return "call_id" if is_kind and item.get("call_id") == call_id else ""
