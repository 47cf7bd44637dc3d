"""The messages of a chat request -> turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from router_service.core.messages.body import Json, items_of
from router_service.core.messages.tools import inner_tool
from router_service.core.messages.values import Role, ToolCall, Turn

MAX_MESSAGES = 10_000
"""Of more messages, the first and the last half of this number are read: 10,000 take 0.1 s to
decide on."""
MAX_PARTS = 20_000
"""Parts of contents and tool calls that are read of all messages together."""

_ROLES = {role.value: role for role in Role}


def numbered(
    items: Sequence[Json], field: str, unread: list[str] | None
) -> Iterator[tuple[str, Json]]:
    """Yield the items of an array with their paths.

    With a list for what is `unread`, those beyond `MAX_MESSAGES` are noted there instead.
    """
    skipped = range(0)
    if unread is not None and len(items) > MAX_MESSAGES:
        skipped = range(MAX_MESSAGES // 2, len(items) - MAX_MESSAGES // 2)
        unread.append(f"{field}[{skipped.start}:{skipped.stop}]")
    for index in chain(range(skipped.start), range(skipped.stop, len(items))):
        yield f"{field}[{index}]", items[index]


def read_turns(messages: Iterable[tuple[str, Json]], unread: list[str]) -> Iterator[Turn]:
    """Yield the turns of chat messages that come with their paths; note what cannot be read."""
    reader = _Reader(unread)
    for path, message in messages:
        turn = reader.turn(message, path)
        if turn is not None:
            yield turn


class _Reader:
    """Reads the messages of one request."""

    def __init__(self, unread: list[str]) -> None:
        self._unread = unread
        self._parts_left = MAX_PARTS

    def turn(self, message: Json, path: str) -> Turn | None:
        """Return a message as a turn, or None if it has no known role."""
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _ROLES:
            self._unread.append(path)
            return None
        text, attachments = self._content(message.get("content"), path)
        return Turn(_ROLES[role], text, attachments, tuple(self._calls(message, path)))

    def _content(self, content: Json, path: str) -> tuple[str, int]:
        """Return the text of a content field, and the number of its parts that are not text."""
        if content is None:
            return "", 0
        if isinstance(content, str):
            return content, 0
        if not isinstance(content, list):
            self._unread.append(f"{path}.content")
            return "", 0
        texts, attachments = [], 0
        for part in self._within_limit(content, path, "content"):
            text = _part_text(part)
            if text is None:
                attachments += 1
            else:
                texts.append(text)
        return "\n".join(texts), attachments

    def _calls(self, message: Mapping[str, Json], path: str) -> Iterator[ToolCall]:
        calls = items_of(message.get("tool_calls"))
        legacy = message.get("function_call")
        read = self._within_limit(calls, path, "tool_calls")
        for entry in (*read, {"function": legacy}):
            inner = inner_tool(entry)
            if inner is not None:
                arguments = inner.get("arguments", inner.get("input"))
                yield ToolCall(inner["name"], arguments if isinstance(arguments, str) else "")

    def _within_limit(self, parts: Sequence[Json], path: str, field: str) -> Sequence[Json]:
        """Return the first of these parts, as many as are left to read; note the rest."""
        count = min(len(parts), self._parts_left)
        self._parts_left -= count
        if count < len(parts):
            self._unread.append(f"{path}.{field}[{count}:]")
            return parts[:count]
        return parts


def _part_text(part: Json) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        text = part.get("text", part.get("refusal"))
        return text if isinstance(text, str) else None
    return None
