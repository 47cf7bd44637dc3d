"""The messages of a chat request -> turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from router_service.core.messages.body import Json
from router_service.core.messages.tools import inner_tool
from router_service.core.messages.values import Role, ToolCall, Turn

_ROLES = {role.value: role for role in Role}


def read_turns(messages: Iterable[tuple[str, Json]], unread: list[str]) -> Iterator[Turn]:
    """Yield the turns of chat messages that come with their paths; note those of no known role."""
    for path, message in messages:
        turn = _read_turn(message, path, unread)
        if turn is not None:
            yield turn


def _read_turn(message: Json, path: str, unread: list[str]) -> Turn | None:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        unread.append(path)
        return None
    text, attachments = _read_content(message.get("content"), f"{path}.content", unread)
    return Turn(_ROLES[role], text, attachments, tuple(_read_calls(message)))


def _read_content(content: Json, path: str, unread: list[str]) -> tuple[str, int]:
    """Return the text of a content field, and how many of its parts are no text."""
    if content is None:
        return "", 0
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        unread.append(path)
        return "", 0
    texts, attachments = [], 0
    for part in content:
        text = _part_text(part)
        if text is None:
            attachments += 1
        else:
            texts.append(text)
    return "\n".join(texts), attachments


def _part_text(part: Json) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else None
    return None


def _read_calls(message: Mapping[str, Json]) -> Iterator[ToolCall]:
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    entries = [*(calls if isinstance(calls, list) else []), {"function": legacy}]
    for entry in entries:
        inner = inner_tool(entry)
        if inner is not None:
            arguments = inner.get("arguments", inner.get("input"))
            yield ToolCall(inner["name"], arguments if isinstance(arguments, str) else "")
