"""Reader of requests of Messages that have to be translated.

Anthropic's API reference: "Create a Message".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from router_service.apis import writing
from router_service.apis.claude import BUDGETS_TOKENS
from router_service.apis.conversation import Json, as_list, read_model, read_stream
from router_service.apis.fields import Field, distinct_tools
from router_service.apis.foreign import from_input, unseal
from router_service.apis.messages import NAME
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
    ToolChoice,
    ToolUse,
)
from router_service.core.errors import InvalidRequestError

_CARRIED = frozenset(
    (
        "model", "messages", "system", "stream", "tools", "tool_choice", "max_tokens",
        "temperature", "top_p", "stop_sequences", "output_config", "output_format", "thinking",
        # These change no answer, only caching, logs, the service level or the billing.
        "metadata", "cache_control", "context_management", "service_tier", "diagnostics", "speed",
        "user_profile_id", "workspace_id", "billing_policy", "fallback_credit_token", "fallbacks",
        "anthropic_version", "anthropic_beta", "betas",
    )
)  # fmt: skip

_BILLING_HEADER = "x-anthropic-billing-header:"
"""Begins a system text of Claude Code that is not for the model, and that may differ with each
request, so that no other provider could cache what follows it."""

_MESSAGE_ROLES: tuple[Role, ...] = ("user", "assistant", "system")

_ROLES = {
    "tool_use": "assistant",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_result": "user",
}

DOCUMENT_TYPES = frozenset({None, "application/pdf", "text/plain"})
"""Types of documents that Anthropic reads, except those at an address."""


def read_request(body: Mapping[str, Json]) -> Request:
    """Read a body. Raises InvalidRequestError, which names what is malformed."""
    fields = Field.of_body(body, _CARRIED, {})
    if body.get("max_tokens") is None:
        raise fields.wrong_type("max_tokens", "an integer", is_needed=True)
    changes = _ToolChanges()
    config = fields.options("output_config")
    effort = config.optional_text("effort")
    messages: list[Message] = []
    if body.get("system") is not None:
        shown = (
            part
            for part in _read_blocks(fields, "system")
            if not (isinstance(part, Text) and part.text.startswith(_BILLING_HEADER))
        )
        messages.append(Message("system", tuple(shown)))
    items = [*fields.messages()]
    last_user = max(
        (i for i, item in enumerate(items) if item.value.get("role") == "user"), default=-1
    )
    for index, item in enumerate(items):
        role = item.one_of("role", _MESSAGE_ROLES)
        if role == "system":
            effort = item.options("output_config").optional_text("effort") or effort
            if item.value.get("content") is None:  # it may only have an effort
                continue
            if item.value.get("clear_at") == "next_user_message" and index < last_user:
                continue  # no part of the request any more
        parts = tuple(_read_blocks(item, "content", role, changes))
        messages.append(Message(role, parts))

    thinking = fields.options("thinking")
    kinds = ("adaptive", "enabled", "between_tools", "disabled")
    kind = thinking.one_of("type", kinds, "disabled")
    budget = thinking.optional_count("budget_tokens") if kind == "enabled" else None
    if effort is None and budget is not None:
        effort = next((e for e, most in BUDGETS_TOKENS.items() if budget <= most), "high")
    choice = fields.optional_object("tool_choice")
    is_alone = choice and choice.optional_flag("disable_parallel_tool_use")
    return Request(
        model=read_model(body),
        messages=tuple(messages),
        stream=read_stream(body),
        tools=distinct_tools([*_read_tools(fields, changes)]),
        tool_choice=None if choice is None else _read_choice(choice),
        is_parallel=None if is_alone is None else not is_alone,
        max_tokens=fields.optional_count("max_tokens"),
        temperature=fields.optional_number("temperature"),
        top_p=fields.optional_number("top_p"),
        stop=fields.texts("stop_sequences"),
        output_format=_read_format(fields, config),
        effort=effort,
        shows_thinking=kind != "disabled" and thinking.value.get("display") != "omitted",
        accepts_thinking=kind != "disabled",
        thinking_tokens=budget,
        lost=tuple(fields.lost),
    )


class _ToolChanges:
    """Tools that messages make available or withdraw, and inline definitions of tools."""

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.removed: set[str] = set()
        self.definitions: list[Field] = []

    def add(self, name: str) -> None:
        """Make a tool available."""
        self.added.add(name)
        self.removed.discard(name)


def _read_blocks(
    parent: Field,
    name: str,
    role: Role | Literal["result"] = "system",
    changes: _ToolChanges | None = None,
) -> Iterator[Part]:
    for kind, block in parent.parts(name):
        if kind in _ROLES and role != _ROLES[kind]:
            raise InvalidRequestError(
                f"'{block.path}' is a {kind} block, which only a message with the role"
                f" '{_ROLES[kind]}' may have.",
                param=block.path,
                code="invalid_value",
            )
        match kind:
            case "text":
                yield Text(block.text("text"))
            case "tool_use" | "thinking" | "redacted_thinking":
                yield _read_assistants(kind, block)
            case "tool_result":
                call_id, content = block.identifier("tool_use_id"), []
                if block.value.get("content") is not None:
                    parts = _read_blocks(block, "content", "result", changes)
                    content = [part for part in parts if isinstance(part, Text | Media)]
                is_error = bool(block.optional_flag("is_error"))
                yield Result(call_id, tuple(content), is_error=is_error)
            case "image" | "document":
                yield from _read_image(block) if kind == "image" else _read_document(block)
            case "search_result":
                _lose_citations(block)
                texts = writing.texts_of(_read_blocks(block, "content"))
                heading = f"{block.text('title')} ({block.text('source')})"
                yield Text(writing.join_texts((heading, *texts)))
            case "tool_reference" if role == "result" and changes is not None:
                tool = block.identifier("tool_name")
                changes.add(tool)
                yield Text(f"The tool {tool} can be called now.")
            case "tool_addition" | "tool_removal" if changes is not None:
                _read_tool_change(block, kind, changes)
            case _:  # what Anthropic's own tools did, and blocks that are not known
                block.lose()


def _read_assistants(kind: str, block: Field) -> Part:
    """Read a block that only the assistant may write."""
    if kind == "tool_use":
        arguments = from_input(block.object("input").value)
        return ToolUse(block.identifier("id"), block.identifier("name"), arguments)
    if kind == "thinking":
        signature = block.text("signature")
        return unseal(block.text("thinking"), signature, NAME)
    return unseal("", block.text("data"), NAME, is_hidden=True)


def _read_tool_change(block: Field, kind: str, changes: _ToolChanges) -> None:
    tool = block.object("tool")
    form = tool.text("type")
    if form == "tool_reference" and kind == "tool_addition":
        changes.add(tool.identifier("name"))
    elif form == "tool_reference":
        changes.removed.add(tool.identifier("name"))
    elif form == "tool_definition" and kind == "tool_addition":
        changes.definitions.append(tool.member("definition"))
    else:
        block.lose()


def _read_image(block: Field) -> Iterator[Part]:
    source = block.object("source")
    match source.text("type"):
        case "base64":
            data, media_type = source.text("data"), source.text("media_type")
            yield Media("image", data=data, media_type=media_type)
        case "url":
            yield Media("image", url=source.identifier("url"))
        case _:
            source.lose()


def _read_document(block: Field) -> Iterator[Part]:
    source = block.object("source")
    form = source.text("type")
    _lose_citations(block)
    title, context = block.optional_text("title"), block.optional_text("context")
    if context:
        yield Text(context)
    match form:
        case "base64":
            media_type = source.optional_text("media_type") or "application/pdf"
            yield source.document("data", title, media_type.lower())
        case "text":
            data = source.text("data")
            yield Media("document", data=data, media_type="text/plain", name=title)
        case "url":
            yield Media("document", url=source.identifier("url"), name=title)
        case "content":
            if title:
                yield Text(title)
            yield from _read_blocks(source, "content")
        case _:
            source.lose()


def _lose_citations(block: Field) -> None:
    if block.options("citations").has("enabled"):
        block.lose("citations")


def _read_tools(body: Field, changes: _ToolChanges) -> Iterator[OfferedTool]:
    """Yield the tools that the model may call now."""
    for tool in (*body.objects("tools"), *changes.definitions):
        if tool.as_object().value.get("type") not in (None, "custom"):
            tool.lose()  # only Anthropic's models know its schema
            continue
        name = tool.identifier("name")
        is_deferred = tool.optional_flag("defer_loading")
        if name in changes.removed or (is_deferred and name not in changes.added):
            continue
        callers = tool.array("allowed_callers")
        if callers and "direct" not in callers:
            tool.lose("allowed_callers")
        examples = [
            f"Example of the input: {from_input(example)}"
            for example in tool.array("input_examples")
        ]
        description = writing.join_texts((tool.optional_text("description") or "", *examples))
        schema, is_strict = tool.object("input_schema"), tool.optional_flag("strict")
        yield OfferedTool(name, description, schema.value, is_strict)


def _read_choice(choice: Field) -> ToolChoice | None:
    match choice.text("type"):
        case "tool":
            return ToolChoice("required", (choice.identifier("name"),))
        case "any":
            return ToolChoice("required")
        case "auto" | "none" as mode:
            return ToolChoice(mode)
    choice.lose()
    return None


def _read_format(body: Field, config: Field) -> OutputFormat | None:
    value = config.optional_object("format") or body.optional_object("output_format")
    if value is None:
        return None
    if value.text("type") != "json_schema":
        value.lose()
        return None
    return OutputFormat(value.object("schema").value, is_strict=True)


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where a message has a call, or its result; empty if it has not."""
    field, place = "tool_use_id" if is_result else "id", ""
    for number, block in enumerate(as_list(item.get("content"))):
        if isinstance(block, dict) and block.get(field) == call_id:
            place = f"content[{number}].{field}"
    return place
