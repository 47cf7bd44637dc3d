"""Reader of requests of Messages that have to be translated.

Anthropic's API reference: "Create a Message".
"""

from __future__ import annotations

from collections.abc import Mapping

from router_service.apis import fields, writing
from router_service.apis.claude import BUDGETS_TOKENS
from router_service.apis.conversation import Json, as_list, read_model, read_stream, wrong_type
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

_MESSAGE_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
}

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
    lost = fields.lost_fields(body, _CARRIED, {})
    if body.get("max_tokens") is None:
        missing = "max_tokens" not in body
        raise wrong_type("max_tokens", "an integer", None, missing=missing)
    messages: list[Message] = []
    system = body.get("system")
    if system is not None:
        parts = _read_blocks(system, "system", lost)
        shown = (
            p for p in parts if not (isinstance(p, Text) and p.text.startswith(_BILLING_HEADER))
        )
        messages.append(Message("system", tuple(shown)))
    items = fields.as_array(body.get("messages"), "messages")
    if not items:
        raise InvalidRequestError(
            "'messages' is empty. Send at least one message.", param="messages", code="empty_array"
        )
    config = fields.optional_object(body, "output_config") or {}
    effort = fields.optional_text(config, "effort", "output_config")
    changes = _ToolChanges()
    last_user = max(
        (
            i
            for i, item in enumerate(items)
            if isinstance(item, dict) and item.get("role") == "user"
        ),
        default=-1,
    )
    for index, item in enumerate(items):
        path = f"messages[{index}]"
        entry = fields.as_object(item, path)
        role = fields.one_of(entry.get("role"), (*_MESSAGE_ROLES,), f"{path}.role")
        if role == "system":
            own = fields.optional_object(entry, "output_config", path) or {}
            effort = fields.optional_text(own, "effort", f"{path}.output_config") or effort
        content = entry.get("content")
        if content is None and role == "system":  # it may only have an effort
            continue
        if entry.get("clear_at") == "next_user_message" and role == "system" and index < last_user:
            _read_blocks(content, f"{path}.content", [])  # no part of the request any more
            continue
        parts = _read_blocks(content, f"{path}.content", lost, role=role, changes=changes)
        messages.append(Message(_MESSAGE_ROLES[role], tuple(parts)))

    thinking = fields.optional_object(body, "thinking") or {}
    kinds = ("adaptive", "enabled", "between_tools", "disabled")
    kind = fields.one_of(thinking.get("type", "disabled"), kinds, "thinking.type")
    budget = None
    if kind == "enabled":
        budget = fields.optional_count(thinking, "budget_tokens", "thinking")
        if effort is None and budget is not None:
            effort = next((e for e, most in BUDGETS_TOKENS.items() if budget <= most), "high")
    choice, is_parallel = _read_choice(fields.optional_object(body, "tool_choice"), lost)
    stops = fields.array(body, "stop_sequences")
    if not all(isinstance(stop, str) for stop in stops):
        raise wrong_type("stop_sequences", "an array of strings", stops)
    return Request(
        model=read_model(body),
        messages=tuple(messages),
        stream=read_stream(body),
        tools=_read_tools(body, lost, changes),
        tool_choice=choice,
        is_parallel=is_parallel,
        max_tokens=fields.optional_count(body, "max_tokens"),
        temperature=fields.optional_number(body, "temperature"),
        top_p=fields.optional_number(body, "top_p"),
        stop=tuple(stops),
        output_format=_read_format(body, config, lost),
        effort=effort,
        shows_thinking=kind != "disabled" and thinking.get("display") != "omitted",
        accepts_thinking=kind != "disabled",
        thinking_tokens=budget,
        lost=tuple(lost),
    )


class _ToolChanges:
    """Tools that messages make available or withdraw, and inline definitions of tools."""

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.removed: set[str] = set()
        self.definitions: list[tuple[str, Json]] = []

    def add(self, name: str) -> None:
        """Make a tool available."""
        self.added.add(name)
        self.removed.discard(name)


def _read_blocks(
    content: Json,
    path: str,
    lost: list[str],
    *,
    role: str = "system",
    changes: _ToolChanges | None = None,
) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array", content)
    parts: list[Part] = []
    for index, entry in enumerate(content):
        where = f"{path}[{index}]"
        block = fields.as_object(entry, where)
        kind = fields.text(block, "type", where)
        if kind == "text":
            parts.append(Text(fields.text(block, "text", where)))
        elif kind in _ROLES:
            if role != _ROLES[kind]:
                raise InvalidRequestError(
                    f"'{where}' is a {kind} block, which only a message with the role"
                    f" '{_ROLES[kind]}' may have.",
                    param=where,
                    code="invalid_value",
                )
            parts.append(_read_exchange(block, kind, where, lost, changes))
        elif kind in {"image", "document"}:
            parts += _read_media(block, kind, where, lost)
        elif kind == "search_result":
            if (fields.optional_object(block, "citations", where) or {}).get("enabled"):
                lost.append(f"{where}.citations")
            texts = writing.texts_of(_read_blocks(block.get("content"), f"{where}.content", lost))
            title, source = (fields.text(block, name, where) for name in ("title", "source"))
            parts.append(Text(writing.join_texts((f"{title} ({source})", *texts))))
        elif kind == "tool_reference" and role == "result" and changes is not None:
            name = fields.identifier(block, "tool_name", where)
            changes.add(name)
            parts.append(Text(f"The tool {name} can be called now."))
        elif kind in {"tool_addition", "tool_removal"} and changes is not None:
            _read_tool_change(block, kind, where, lost, changes)
        else:  # what Anthropic's own tools did, and blocks that are not known
            lost.append(where)
    return parts


def _read_exchange(
    block: dict[str, Json], kind: str, path: str, lost: list[str], changes: _ToolChanges | None
) -> Part:
    """Read a block that only the user, or only the assistant, may write."""
    if kind == "tool_use":
        arguments = from_input(fields.as_object(block.get("input"), f"{path}.input"))
        call_id = fields.identifier(block, "id", path)
        return ToolUse(call_id, fields.identifier(block, "name", path), arguments)
    if kind == "thinking":
        signature = fields.text(block, "signature", path)
        return unseal(fields.text(block, "thinking", path), signature, NAME)
    if kind == "redacted_thinking":
        return unseal("", fields.text(block, "data", path), NAME, is_hidden=True)
    call_id = fields.identifier(block, "tool_use_id", path)
    given = block.get("content")
    parts: list[Part] = []
    if given is not None:
        parts = _read_blocks(given, f"{path}.content", lost, role="result", changes=changes)
    content = tuple(part for part in parts if isinstance(part, Text | Media))
    is_error = bool(fields.optional_flag(block, "is_error", path))
    return Result(call_id, content, is_error=is_error)


def _read_tool_change(
    block: dict[str, Json], kind: str, path: str, lost: list[str], changes: _ToolChanges
) -> None:
    tool = fields.as_object(block.get("tool"), f"{path}.tool")
    form = fields.text(tool, "type", f"{path}.tool")
    if form == "tool_reference":
        name = fields.identifier(tool, "name", f"{path}.tool")
        if kind == "tool_addition":
            changes.add(name)
        else:
            changes.removed.add(name)
    elif form == "tool_definition" and kind == "tool_addition":
        changes.definitions.append((f"{path}.tool.definition", tool.get("definition")))
    else:
        lost.append(path)


def _read_media(block: dict[str, Json], kind: str, path: str, lost: list[str]) -> list[Part]:
    source = fields.as_object(block.get("source"), f"{path}.source")
    form = fields.text(source, "type", f"{path}.source")
    where = f"{path}.source"
    if kind == "image":
        if form == "base64":
            data = fields.text(source, "data", where)
            return [Media("image", data=data, media_type=fields.text(source, "media_type", where))]
        if form == "url":
            return [Media("image", url=fields.identifier(source, "url", where))]
        lost.append(where)
        return []
    if (fields.optional_object(block, "citations", path) or {}).get("enabled"):
        lost.append(f"{path}.citations")
    name = fields.optional_text(block, "title", path)
    context = fields.optional_text(block, "context", path)
    parts: list[Part] = [Text(context)] if context else []
    if form in {"base64", "text"}:
        data = fields.text(source, "data", where)
        if form == "text":
            parts.append(Media("document", data=data, media_type="text/plain", name=name))
        else:
            media_type = fields.optional_text(source, "media_type", where) or "application/pdf"
            url = f"data:{media_type};base64,{data}"
            parts.append(fields.read_file(url, f"{where}.data", name=name))
    elif form == "url":
        parts.append(Media("document", url=fields.identifier(source, "url", where), name=name))
    elif form == "content":
        inner = _read_blocks(source.get("content"), f"{where}.content", lost)
        parts += [Text(name), *inner] if name else inner
    else:
        lost.append(where)
    return parts


def _read_tools(
    body: Mapping[str, Json], lost: list[str], changes: _ToolChanges
) -> tuple[OfferedTool, ...]:
    """Return the tools that the model may call now."""
    tools: list[OfferedTool] = []
    entries = [(f"tools[{i}]", tool) for i, tool in enumerate(fields.array(body, "tools"))]
    for path, entry in (*entries, *changes.definitions):
        tool = fields.as_object(entry, path)
        if tool.get("type") not in (None, "custom"):  # only Anthropic's models know its schema
            lost.append(path)
            continue
        name = fields.identifier(tool, "name", path)
        is_deferred = fields.optional_flag(tool, "defer_loading", path)
        if name in changes.removed or (is_deferred and name not in changes.added):
            continue
        callers = fields.array(tool, "allowed_callers", path)
        if callers and "direct" not in callers:
            lost.append(f"{path}.allowed_callers")
        description = fields.optional_text(tool, "description", path) or ""
        schema = fields.as_object(tool.get("input_schema"), f"{path}.input_schema")
        is_strict = fields.optional_flag(tool, "strict", path)
        examples = (
            f"Example of the input: {from_input(example)}"
            for example in fields.array(tool, "input_examples", path)
        )
        description = writing.join_texts((description, *examples))
        tools.append(OfferedTool(name, description, schema, is_strict))
    return fields.distinct_tools(tools, "tools")


def _read_choice(
    choice: Mapping[str, Json] | None, lost: list[str]
) -> tuple[ToolChoice | None, bool | None]:
    if choice is None:
        return None, None
    is_alone = fields.optional_flag(choice, "disable_parallel_tool_use", "tool_choice")
    is_parallel = None if is_alone is None else not is_alone
    kind = fields.text(choice, "type", "tool_choice")
    if kind == "tool":
        name = fields.identifier(choice, "name", "tool_choice")
        return ToolChoice("required", (name,)), is_parallel
    if kind == "any":
        return ToolChoice("required"), is_parallel
    if kind in {"auto", "none"}:
        return ToolChoice("auto" if kind == "auto" else "none"), is_parallel
    lost.append("tool_choice")
    return None, is_parallel


def _read_format(
    body: Mapping[str, Json], config: Mapping[str, Json], lost: list[str]
) -> OutputFormat | None:
    path = "output_config.format" if config.get("format") is not None else "output_format"
    value = fields.optional_object(config, "format", "output_config")
    value = value or fields.optional_object(body, "output_format")
    if value is None:
        return None
    if fields.text(value, "type", path) != "json_schema":
        lost.append(path)
        return None
    return OutputFormat(fields.as_object(value.get("schema"), f"{path}.schema"), is_strict=True)


def place_of_call(item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
    """Return where a message has a call, or its result; empty if it has not."""
    field, place = "tool_use_id" if is_result else "id", ""
    for number, block in enumerate(as_list(item.get("content"))):
        if isinstance(block, dict) and block.get(field) == call_id:
            place = f"content[{number}].{field}"
    return place
